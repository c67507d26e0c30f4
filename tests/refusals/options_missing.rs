#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock]
async fn f() -> Result<(), LockError> {
    Ok(())
}

#[redis_lock()]
async fn g() -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>")]
async fn h(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(ttl = "30s")]
async fn i(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
