#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

struct Order {
    id: Option<u64>,
}

#[redis_lock(key = "o:<order>", ttl = "30s")]
async fn f(order: Order) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<order.id>", ttl = "30s")]
async fn g(order: Order) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
