#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<id>", for id, ttl = "30s")]
async fn f(ids: Vec<u64>) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", for id in, ttl = "30s")]
async fn g(ids: Vec<u64>) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
