#![allow(unused)]

use lock_runtime::{LockError, redis_lock};

#[redis_lock(key = "<id?>/<id.await>/<id + 1>/<f(id)>/<0>/<'x'>/<id as u8>/<id.get::<u8>()>", ttl = "30s")]
async fn f(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
