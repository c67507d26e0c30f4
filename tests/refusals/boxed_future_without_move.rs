#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "o:1", ttl = "30s")]
fn f() -> std::pin::Pin<Box<dyn Future<Output = Result<u8, LockError>>>> {
    Box::pin(async { Ok(1) })
}

fn main() {}
