#![allow(unused_variables)]

use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f(id: u64, name: &str) -> Result<Box<dyn Fn() -> usize>, LockError> {
    Ok(Box::new(move || name.len()))
}
