#![allow(unused_variables)]

use lock_runtime::LockError;

struct S(String);
impl S {
    #[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
    async fn f(&self, id: u64) -> Result<(), LockError> {
        self.0.push('x');
        Ok(())
    }
    #[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
    async fn g(self, id: u64) -> Result<(), LockError> {
        self.0.push('x');
        Ok(())
    }
}
