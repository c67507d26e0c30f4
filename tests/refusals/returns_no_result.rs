#![allow(unused)]

use lock_runtime::redis_lock;

#[redis_lock(key = "o:<id>", ttl = "30s")]
async fn f(id: u64) -> Vec<u64> {
    vec![id]
}

fn main() {}
