#![allow(unused)]

use lock_runtime::redis_lock;

#[redis_lock(key = "o:<id>", ttl = "30s")]
pub extern "C" fn f(id: u64) -> u64 {
    id
}

fn main() {}
