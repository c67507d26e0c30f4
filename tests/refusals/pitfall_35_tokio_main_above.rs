#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[tokio::main]
#[redis_lock(key = "o:1", ttl = "30s")]
async fn main() -> Result<(), LockError> {
    Ok(())
}
