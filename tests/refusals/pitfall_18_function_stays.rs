#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<oder_id>", ttl = "30s")]
async fn f(order_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<order_id>", tll = "30s")]
async fn g(order_id: u64) -> Result<(), LockError> {
    Ok(())
}

async fn are_still_there() {
    let _ = f(1).await;
    let _ = g(1).await;
}

fn main() {}
