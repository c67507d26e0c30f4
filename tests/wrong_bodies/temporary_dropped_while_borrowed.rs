use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: u64) -> Result<(), LockError> {
    let text = id.to_string().as_str();
    println!("{text}");
    Ok(())
}
