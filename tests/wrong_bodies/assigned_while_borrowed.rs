use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: u64, mut a: u8) -> Result<(), LockError> {
    let r = &a;
    a = 2;
    println!("{id} {r}");
    Ok(())
}
