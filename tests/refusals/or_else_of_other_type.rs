#![allow(unused)]

use lock_runtime::redis_lock;

#[redis_lock(key = "o:<id>", ttl = "30s", or_else = |error| error.to_string())]
async fn f(id: u64) -> u64 {
    id
}

fn main() {}
