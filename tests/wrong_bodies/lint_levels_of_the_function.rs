use lock_runtime::LockError;

#[deny(unused_variables)]
#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
#[deny(unused_mut)]
pub async fn f(id: u64, unused: u8) -> Result<(), LockError> {
    let mut not_changed = id;
    drop(not_changed);
    Ok(())
}
