#![allow(unused)]

use lock_runtime::redis_lock;

#[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| name)]
async fn f(id: u64, name: String) -> String {
    name
}

fn main() {}
