#![allow(unused)]

use lock_runtime::redis_lock;

enum AppError {
    Declined,
}

#[redis_lock(key = "o:<id>", ttl = "30s")]
async fn f(id: u64) -> Result<u64, AppError> {
    if id == 0 {
        return Err(AppError::Declined);
    }
    Ok(id)
}

fn main() {}
