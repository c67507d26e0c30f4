#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<id>" ttl = "30s")]
async fn f(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
