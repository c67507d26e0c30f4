#![allow(unused)]

use lock_runtime::redis_lock;

#[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
async fn f(id: u64) -> i32 {
    1;
}

fn main() {}
