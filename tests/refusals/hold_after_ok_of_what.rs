#![allow(unused)]

use lock_runtime::redis_lock;

#[redis_lock(key = "o:<id>", ttl = "30s", hold_after_ok = "10s", or_else = |_| 0)]
async fn f(id: u64) -> u64 {
    id
}

#[redis_lock(key = "o:<id>", ttl = "30s", hold_after_ok = "10s", or_else = |_| ())]
async fn g(id: u64) {
    let _ = id;
}

fn main() {}
