use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: u64, mut list: Vec<u64>) -> Result<(), LockError> {
    let mut push = || list.push(id);
    list.push(1);
    push();
    Ok(())
}
