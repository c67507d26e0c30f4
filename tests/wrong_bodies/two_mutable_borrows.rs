#![allow(unused_variables)]

use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
async fn f(id: u64, mut v: Vec<u8>) -> Result<(), LockError> {
    let a = &mut v;
    let b = &mut v;
    a.push(1);
    b.push(2);
    Ok(())
}
