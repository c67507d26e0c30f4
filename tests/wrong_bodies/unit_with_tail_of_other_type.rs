#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| ()))]
async fn f(id: u64) {
    if id == 0 {
        return 5;
    }
    id.checked_add(1)
}
