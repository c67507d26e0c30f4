#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

struct Order {
    id: u64,
}

#[redis_lock(key = "o:{order_id}", ttl = "30s")]
async fn f(order_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:{order.id}", ttl = "30s")]
async fn g(order: Order) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:{}", ttl = "30s")]
async fn h(order_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:{<order_id>", ttl = "30s")]
async fn i(order_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<order_id>}", ttl = "30s")]
async fn j(order_id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
