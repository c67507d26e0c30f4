#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock("o:<id>", "30s")]
async fn f(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
