#![allow(unused)]

use lock_runtime::redis_lock;

struct S;

#[redis_lock(key = "o:1", ttl = "30s")]
impl S {
    async fn f(&self) {}
}

fn main() {}
