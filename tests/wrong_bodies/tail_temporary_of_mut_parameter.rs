use lock_runtime::LockError;

// No error in any edition, because a parameter goes after the tail's temporaries; that nobody calls it is a warning.
#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f(id: u64, mut cell: std::cell::RefCell<Vec<u64>>) -> Result<usize, LockError> {
    drop(cell.take());
    cell = std::cell::RefCell::new(vec![id]);
    Ok(cell.borrow().len())
}
