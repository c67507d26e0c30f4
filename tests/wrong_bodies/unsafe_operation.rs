use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async unsafe fn f(id: u64, pointer: *const u64) -> Result<u64, LockError> {
    if id == 0 { Ok(0) } else { Ok(*pointer) }
}

pub async fn g() {
    let _ = f(1, std::ptr::null()).await;
}
