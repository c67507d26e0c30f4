use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f<T>(id: u64, value: T) -> Result<(), LockError> {
    fn inner(_: Option<T>) {}
    inner(None);
    Ok(())
}
