use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: u64, mut a: u8, b: u8, z: u8, (c, mut d): (u8, u8)) -> Result<(), LockError> {
    may_fail();
    let x = 1;
    let mut y = b == 2 && id > 2;
    return Ok(());
    drop(y);
}

fn may_fail() -> Result<(), ()> {
    Ok(())
}

fn unused() {}
