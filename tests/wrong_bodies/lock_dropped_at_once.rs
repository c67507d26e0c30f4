#![allow(unused_variables)]

use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: u64, mutex: &std::sync::Mutex<u64>) -> Result<(), LockError> {
    let _ = mutex.lock();
    Ok(())
}
