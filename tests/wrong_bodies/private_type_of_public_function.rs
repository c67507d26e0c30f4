use lock_runtime::LockError;

struct Private;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: u64, private: Private) -> Result<Private, LockError> {
    let _ = id;
    Ok(private)
}
