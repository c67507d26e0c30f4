use lock_runtime::LockError;

#[cfg_attr(
    locked,
    lock_runtime::redis_lock(
        key = "o:<id>",
        for id in &ids,
        ttl = "30s",
        wait = "1s",
        renew,
        max_hold = "1m",
        on_lost = cancel,
        hold_after_ok = "1s",
        release = background,
        shared,
        tag = name,
        guard = _lock,
    )
)]
pub async fn f(ids: Vec<u64>, name: &str) -> Result<u8, LockError> {
    if ids.is_empty() {
        return Ok(name);
    }
    "x"
}
