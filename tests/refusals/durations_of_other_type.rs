#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

const TTL: u64 = 30;

#[redis_lock(key = "o:<id>", ttl = TTL, wait = TTL * 2)]
async fn f(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
