#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:<id>", ttl = "30s")]
fn f(id: u64) -> u64 {
    id
}

#[redis_lock(key = "o:1", ttl = "30s")]
fn g() -> impl Future<Output = Result<u8, LockError>> {
    async { Ok(1) }
}

fn main() {}
