use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn F(id: u64, otherName: u8) -> Result<u64, LockError> {
    let MoreNames = u64::from(otherName);
    Ok(id + MoreNames)
}
