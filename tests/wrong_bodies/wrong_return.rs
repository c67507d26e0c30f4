#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0))]
async fn f(id: u64) -> i32 {
    if id > 1 {
        return "x";
    }
    2
}
