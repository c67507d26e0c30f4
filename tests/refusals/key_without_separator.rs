#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<a><b>", ttl = "30s")]
async fn f(a: u64, b: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<a>-<b>", ttl = "30s")]
async fn g(a: u64, b: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
