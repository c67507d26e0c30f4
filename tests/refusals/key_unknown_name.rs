#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<oder_id>", ttl = "30s")]
async fn f(order_id: u64, amount: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<customer>", ttl = "30s")]
async fn g(order_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<customer>", ttl = "30s")]
async fn h() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
