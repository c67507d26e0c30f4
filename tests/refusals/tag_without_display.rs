#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

struct Trace;

#[redis_lock(key = "o:<id>", ttl = "30s", tag = trace)]
async fn f(id: u64, trace: Trace) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
