#![allow(unused)]

use lock_runtime::redis_lock;

#[redis_lock(key = "o:1", ttl = "30s")]
struct S;

fn main() {}
