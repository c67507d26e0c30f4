#![allow(unused_variables)]
#![deny(deprecated, bare_trait_objects, rust_2018_idioms, unused_parens)]

use lock_runtime::LockError;

#[deprecated]
pub struct Old<'a>(&'a u8);

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: u64, x: &u8) -> Result<(Old), LockError> {
    Ok(Old(x))
}
