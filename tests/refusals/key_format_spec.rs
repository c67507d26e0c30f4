#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "<id:zz>/<id:>/<id:>8>/<id:w$>", ttl = "30s")]
async fn f(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
