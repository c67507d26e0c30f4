#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[tokio::test]
#[redis_lock(key = "o:1", ttl = "30s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
