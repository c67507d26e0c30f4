#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

const KEY: &str = "o";

#[redis_lock(key = KEY, ttl = "30s")]
async fn f(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = concat!("o", ":<id>"), ttl = "30s")]
async fn g(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = format!("o:{id}"), ttl = "30s")]
async fn h(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = b"o", ttl = "30s")]
async fn i(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
