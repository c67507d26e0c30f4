#![forbid(unsafe_code)]

use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", renew, guard = _lock))]
pub async fn f(id: u64) -> Result<u64, LockError> {
    Ok(unsafe { *(&raw const id) })
}
