#![allow(unused_variables)]

use lock_runtime::LockError;

fn spawn(_: impl std::future::Future + Send + 'static) {}
#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f(id: u64, name: &str) -> Result<(), LockError> {
    spawn(async move { name.len() });
    Ok(())
}
