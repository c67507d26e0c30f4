#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

struct S;
struct Path<T>(T);

#[async_trait::async_trait]
trait T {
    async fn f(&self, path: Path<u64>) -> Result<u64, LockError>;
}

#[async_trait::async_trait]
impl T for S {
    #[redis_lock(key = "o:<order_id>", ttl = "30s")]
    async fn f(&self, Path(order_id): Path<u64>) -> Result<u64, LockError> {
        Ok(order_id)
    }
}

fn main() {}
