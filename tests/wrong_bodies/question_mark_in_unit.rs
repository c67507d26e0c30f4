#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| ()))]
async fn f(id: u64) {
    let n: u32 = "7".parse()?;
    let _ = n;
}
