use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: u64) -> Result<(), LockError> {
    let outer;
    {
        let inner = id.to_string();
        outer = &inner;
    }
    println!("{outer}");
    Ok(())
}
