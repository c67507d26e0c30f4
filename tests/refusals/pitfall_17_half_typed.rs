#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

struct S;

impl S {
    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn f(&self, id: u64) -> Result<(), LockError> {
        self.
    }
}

async fn is_still_there(s: S) {
    let _ = s.f(1).await;
}

fn main() {}
