#![allow(dead_code)]

use lock_runtime::LockError;

pub struct Order {
    id: u64,
}

impl Order {
    fn number(&self) -> u64 {
        self.id
    }
}

mod config {
    pub(crate) const REGION: u64 = 1;
}

/// Fields, methods, labels, and the last part of a path are not these parameters.
#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<order.id>", ttl = "30s"))]
pub async fn f(order: Order, id: u64, number: u8, #[allow(non_snake_case)] REGION: u8) -> Result<Order, LockError> {
    let sum = order.number() + config::REGION;
    Ok(Order { id: order.id + sum })
}
