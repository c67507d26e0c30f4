use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f<'a>(id: u64, a: &'a str, b: &str) -> Result<&'a str, LockError> {
    if id > 1 {
        return Ok(b);
    }
    Ok(a)
}
