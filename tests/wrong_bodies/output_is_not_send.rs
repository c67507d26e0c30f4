#![allow(dead_code, unused_variables)]

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", or_else = |error| Err(error.into())))]
async fn f(id: u64) -> Result<u64, Box<dyn std::error::Error>> {
    Ok(id)
}

fn is_send<T: Send>(_: T) {}

fn g() {
    is_send(f(1));
    let number: u8 = "no number";
}
