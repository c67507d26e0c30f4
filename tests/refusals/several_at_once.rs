#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<oder_id>/{order_id}", ttl = 30, wiat = "5s", renew = true, guard = order_id)]
async fn f(order_id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
