use std::future::Future;
use std::pin::Pin;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0))]
fn f(id: u64, name: &str) -> Pin<Box<dyn Future<Output = u8> + '_>> {
    Box::pin(async move { name })
}
