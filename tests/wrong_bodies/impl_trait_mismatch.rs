use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f(id: u64) -> Result<impl Iterator<Item = u8>, LockError> {
    if id > 1 {
        return Ok(vec![1u8].into_iter());
    }
    Ok(std::iter::once(1u8))
}
