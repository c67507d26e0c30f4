#![allow(unused)]

use lock_runtime::redis_lock;

#[redis_lock(key = "o:1", ttl = "30s")]
const X: u8 = 1;

fn main() {}
