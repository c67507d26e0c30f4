#![allow(unused)]

use lock_runtime::redis_lock;

struct S;

#[async_trait::async_trait]
trait T {
    async fn f(&self, id: u64) -> u64;
}

#[async_trait::async_trait]
impl T for S {
    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn f(&self, id: u64) -> u64 {
        id
    }
}

fn main() {}
