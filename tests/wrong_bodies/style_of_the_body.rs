#![warn(unused, redundant_semicolons)]

use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn f(id: u64) -> Result<(), LockError> {
    'unused: loop {
        if (id == 0) {
            break;
        }
        id;
        ;;
        let _ = { id };
    }
    return (Ok(()));
}
