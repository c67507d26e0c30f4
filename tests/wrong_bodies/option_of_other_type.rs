#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| None))]
async fn f(id: u64) -> Option<u8> {
    let first = id.checked_add(1)?;
    Some(first)
}
