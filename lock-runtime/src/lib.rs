#![doc = include_str!("../docs/crate.md")]

mod background;
mod call;
#[cfg(feature = "metrics")]
mod counters;
mod error;
mod events;
mod few;
mod gate;
mod guard;
mod key;
mod lease;
mod manager;
mod reentry;
mod renew;
mod sharing;
mod site;
mod store;
mod terms;
mod token;
mod wait;

pub use error::{FromLockError, LockError, LockName, OptionFault, Succeeded};
pub use guard::{LockGuard, ReleaseOutcome};
pub use key::{KeyFault, MAX_KEY_BYTES, MAX_KEYS};
pub use lease::Lease;
#[doc(inline)]
#[doc = include_str!("../docs/redis_lock.md")]
pub use lock_macros::redis_lock;
pub use manager::{LockManager, LockManagerBuilder, LockRequest, Unfinished, set_global_manager};
/// The crate whose connections [`LockManagerBuilder::connection`] takes.
pub use redis;
pub use store::{StoreError, StoreErrorKind};

/// What the attribute expands to. Not for use by hand, and not covered by semantic versioning.
#[doc(hidden)]
pub mod __private {
    pub use crate::call::{Call, Run, RunBackground, ToItsEnd, WhileHeld, or_else};
    pub use crate::key::{Key, Keys};
    pub use crate::site::Site;
}
