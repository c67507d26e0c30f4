use std::future::Future;
use std::pin::Pin;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0))]
fn f(id: u64) -> Pin<Box<dyn Future<Output = u8> + Send>> {
    Box::pin(async move {
        let local = std::rc::Rc::new(id);
        std::future::ready(()).await;
        u8::from(*local == 0)
    })
}
