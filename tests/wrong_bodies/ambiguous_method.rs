use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f(id: u64) -> Result<(), LockError> {
    A::m(&id);
    id.m();
    Ok(())
}

trait A {
    fn m(&self) {}
}
trait B {
    fn m(&self) {}
}
impl A for u64 {}
impl B for u64 {}
