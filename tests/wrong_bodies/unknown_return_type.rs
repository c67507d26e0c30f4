#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| panic!()))]
async fn f(id: u64) -> Missing {
    5
}
