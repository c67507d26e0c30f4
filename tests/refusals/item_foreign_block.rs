#![allow(unused)]

use lock_runtime::redis_lock;

#[redis_lock(key = "o:1", ttl = "30s")]
unsafe extern "C" {
    fn f(id: u64, ...) -> u64;
}

fn main() {}
