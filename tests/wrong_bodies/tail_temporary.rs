use lock_runtime::LockError;

// An error in the edition 2021 only; that nobody calls it is a warning in both.
#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f(id: u64) -> Result<usize, LockError> {
    let cell = std::cell::RefCell::new(vec![id]);
    Ok(cell.borrow().len())
}
