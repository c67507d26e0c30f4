use lock_runtime::LockError;

struct NoDebug;
#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f(id: u64) -> Result<String, LockError> {
    Ok(format!("{:?}", NoDebug))
}
