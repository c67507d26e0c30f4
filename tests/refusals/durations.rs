#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(
    key = "o:<id>",
    ttl = 30,
    wait = "0s",
    renew,
    max_hold = "10",
    hold_at_least = "5 parsecs",
)]
async fn f(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "9ms", wait = "soon")]
async fn g(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "1s 500us", wait = 500ms)]
async fn h(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "200years", wait = "")]
async fn i(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[redis_lock(key = "o:<id>", ttl = "0s", wait = -5)]
async fn j(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
