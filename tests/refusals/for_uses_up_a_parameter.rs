#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<id>", for id in ids, ttl = "30s")]
async fn f(ids: Vec<u64>) -> Result<usize, LockError> {
    Ok(ids.len())
}

fn main() {}
