use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f(id: u64) -> Result<(), LockError> {
    let n = other(id).count_ones();
    Ok(())
}

async fn other(id: u64) -> u64 {
    id
}
