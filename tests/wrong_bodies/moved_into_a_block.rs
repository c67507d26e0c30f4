use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: String) -> Result<(), LockError> {
    let block = async move { id.len() };
    block.await;
    println!("{id}");
    Ok(())
}
