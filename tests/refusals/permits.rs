#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<id>", ttl = "30s", permits = 0)]
async fn f(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "30s", permits = "3")]
async fn g(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
