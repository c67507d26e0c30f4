#![allow(unused_variables)]

use lock_runtime::LockError;

trait T {
    async fn f(&self, id: u64) -> Result<(), LockError>;
}

struct S;

impl T for S {
    #[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
    async fn f(&self, id: u64) -> Result<u8, LockError> {
        Ok(1)
    }
}
