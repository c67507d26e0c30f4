#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<id>", for id in count, ttl = "30s")]
async fn f(count: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
