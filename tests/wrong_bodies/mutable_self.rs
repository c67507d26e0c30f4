use lock_runtime::LockError;

pub struct S(String);

impl S {
    #[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<self.0>", ttl = "30s"))]
    pub async fn f(mut self, other: &str) -> Result<&str, LockError> {
        self.0 = other.to_owned();
        Ok(&self.0)
    }
}
