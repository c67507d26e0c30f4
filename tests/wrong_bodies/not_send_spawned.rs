use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f(id: u64) -> Result<(), LockError> {
    let rc = std::rc::Rc::new(id);
    tick().await;
    drop(rc);
    Ok(())
}
async fn tick() {}
fn send<T: Send>(_: T) {}
fn g() {
    send(f(1));
}
