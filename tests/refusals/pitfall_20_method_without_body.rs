#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

trait T {
    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn f(&self, id: u64) -> Result<(), LockError>;
}

fn main() {}
