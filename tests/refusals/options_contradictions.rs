#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<id>", ttl = "30s", max_hold = "10m")]
async fn f(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "30s", shared, permits = 3)]
async fn g(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "30s", hold_after_ok = "5s", hold_at_least = "5s")]
async fn h(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "30s", fenced)]
async fn i(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", for id in ids, ttl = "30s", fenced, guard = lock)]
async fn j(ids: Vec<u64>) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "30s", fenced, permits = 2, guard = lock)]
async fn k(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "30s", hold_at_least = "40s")]
async fn l(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "30s", renew, max_hold = "20s")]
async fn m(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
