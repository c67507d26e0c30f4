use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: u64, mut other: u64) -> Result<u64, LockError> {
    other = 1;
    Ok(id + other)
}
