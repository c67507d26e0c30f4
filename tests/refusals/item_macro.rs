#![allow(unused)]

use lock_runtime::redis_lock;

#[redis_lock(key = "o:1", ttl = "30s")]
macro_rules! m {
    () => {};
}

fn main() {}
