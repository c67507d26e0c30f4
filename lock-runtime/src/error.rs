//! What a caller is told when it does not get, or does not keep, its lock.

use std::fmt;
use std::time::Duration;

use crate::key::KeyFault;
use crate::site::Site;
use crate::store::StoreError;

/// Why a lock was not had, or not kept. The body never ran without the lock; only [`Lost`](Self::Lost)
/// says that it had begun.
///
/// Every variant that concerns one lock names its key (with the manager's prefix), its template and the function
/// that asked for it, in the message and through [`key`](Self::key), [`template`](Self::template) and
/// [`function`](Self::function).
///
/// The type is 24 bytes at most, so that `Result<T, LockError>` stays cheap to return.
///
/// # Examples
///
/// It converts with `?` into anything that implements `From<LockError>`, the boxed standard error included:
///
/// ```
/// use lock_runtime::{LockError, LockManager};
/// use std::time::Duration;
///
/// #[derive(Debug)]
/// enum AppError {
///     TryAgain,
///     Down(LockError),
/// }
///
/// impl From<LockError> for AppError {
///     fn from(error: LockError) -> Self {
///         if error.is_busy() { Self::TryAgain } else { Self::Down(error) }
///     }
/// }
///
/// async fn by_hand(locks: &LockManager) -> Result<(), AppError> {
///     let guard = locks.lock("order:123").ttl(Duration::from_secs(30)).acquire().await?;
///     guard.release().await;
///     Ok(())
/// }
/// # fn main() {}
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Someone else holds the lock: the store said so, or a live holder or a queue of this process is in the way.
    /// Of several keys it names the one that was held. `waited` is how long this call tried.
    #[error("{lock} is held by someone else (waited {} ms)", waited.as_millis())]
    #[non_exhaustive]
    Busy {
        /// Which lock.
        lock: Box<LockName>,
        /// From the call to this answer, the time in the queue included.
        waited: Duration,
    },

    /// The store did not answer in time, refused, or answered nonsense. Whether the key was set is then unknown
    /// to the caller; if it was, the runtime removes it in the background. All callers of this process who are
    /// queued for the key at that moment are answered so. Also from a manager that has been shut down.
    #[error("{lock} could not be asked for: {cause}")]
    #[non_exhaustive]
    Unavailable {
        /// Which lock.
        lock: Box<LockName>,
        /// What the store, or the way to it, answered.
        cause: StoreError,
    },

    /// The lease ended while it was still needed: it expired, was deleted, or passed to someone else. From a call
    /// with `on_lost = cancel`, whose body has been dropped; from [`Lease::extend`](crate::Lease::extend); and from a
    /// call that joined, or was about to join, the lease of its caller.
    #[error("{lock} was lost after {} ms", held.as_millis())]
    #[non_exhaustive]
    Lost {
        /// Which lock.
        lock: Box<LockName>,
        /// From the grant to the moment the loss was noticed. Boxed to keep the error small.
        held: Box<Duration>,
    },

    /// A place of the template rendered empty, or the key is empty or longer than 1 KiB; or several keys were asked for,
    /// and there are none, or more than [`MAX_KEYS`](crate::MAX_KEYS). Such a lock would be on something other than what
    /// was meant, so nothing was asked of the store.
    #[error("{lock} has no valid key: {fault}")]
    #[non_exhaustive]
    InvalidKey {
        /// Which lock.
        lock: Box<LockName>,
        /// What is wrong with the key.
        fault: Box<KeyFault>,
    },

    /// An option that was computed at run time is outside its range, or does not go with the others.
    #[error("{lock} was asked for with an invalid option: {fault}")]
    #[non_exhaustive]
    InvalidOption {
        /// Which lock.
        lock: Box<LockName>,
        /// Which option, and what it must be.
        fault: OptionFault,
    },

    /// The body of a call asked again, by calling an annotated function, for a lock that it holds already and that
    /// cannot be joined: its lease is lost, is not exclusive (`shared`, `permits`), has only some of the keys that were
    /// asked for, or has no fencing token although one was. Also when other joined calls did not give this one its turn
    /// within one ttl.
    #[error("{lock} is held by this very call already and cannot be joined")]
    #[non_exhaustive]
    Reentrant {
        /// Which lock.
        lock: Box<LockName>,
    },

    /// No [`LockManager`](crate::LockManager) was named, scoped or installed.
    #[error(
        "{lock} was asked for, but no lock manager is installed: call \
         `lock_runtime::set_global_manager(lock_runtime::LockManager::connect(\"redis://…\").await?)?` once at \
         start-up, or name one with `manager = …`"
    )]
    #[non_exhaustive]
    NotConfigured {
        /// Which lock.
        lock: Box<LockName>,
    },

    /// [`set_global_manager`](crate::set_global_manager) was called a second time. The first manager stays.
    #[error("a global lock manager is installed already")]
    AlreadyConfigured,

    /// A manager could not be made: the URL is unusable, the server cannot be reached, or it refused.
    #[error("the lock store cannot be used: {cause}")]
    #[non_exhaustive]
    Connect {
        /// What went wrong. Never contains a password.
        cause: StoreError,
    },
}

/// Which option that was computed at run time is outside its range. Durations that stand in the attribute as
/// literals are checked when it is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionFault {
    /// `ttl` is shorter than 10 ms: less than a slow round trip, so the lease could end before it is known of.
    TtlTooShort,
    /// `ttl` is longer than Redis can count.
    TtlTooLong,
    /// No `ttl` was given to an acquisition by hand.
    TtlMissing,
    /// `permits` is 0: nobody could ever hold the lock.
    NoPermits,
    /// `max_hold` is not longer than `ttl`: nothing would ever be renewed.
    MaxHoldTooShort,
    /// `hold_at_least` is longer than `ttl`: the key could end before it is that old.
    HoldLongerThanTtl,
    /// `fenced` was asked for with several keys, or with holders that are not exclusive: there is no order among them.
    FencedIsForOne,
}

impl fmt::Display for OptionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TtlTooShort => "`ttl` must be at least 10 ms",
            Self::TtlTooLong => "`ttl` must be at most 10 years",
            Self::TtlMissing => "`ttl` is missing: write `.ttl(Duration::from_secs(30))` before `.acquire()`",
            Self::NoPermits => "`permits` must be at least 1",
            Self::MaxHoldTooShort => "`max_hold` must be longer than `ttl`",
            Self::HoldLongerThanTtl => "`hold_at_least` must not exceed `ttl`",
            Self::FencedIsForOne => "`fenced` needs a single key and an exclusive holder",
        })
    }
}

impl LockError {
    /// Whether the lock was held by someone else: trying again later may succeed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }

    /// Whether the store could not be asked: nothing is known about who holds the lock.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// The full key, with the manager's prefix; `None` for errors that concern no single lock.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.lock().map(|lock| &*lock.key)
    }

    /// The template as it was written in the attribute, or `(by hand)`.
    #[must_use]
    pub fn template(&self) -> Option<&'static str> {
        self.lock().map(|lock| lock.site.template())
    }

    /// The function that asked: its path, or `file:line` of an acquisition by hand.
    #[must_use]
    pub fn function(&self) -> Option<String> {
        self.lock().map(|lock| lock.site.function().to_string())
    }

    fn lock(&self) -> Option<&LockName> {
        match self {
            Self::Busy { lock, .. }
            | Self::Unavailable { lock, .. }
            | Self::Lost { lock, .. }
            | Self::InvalidKey { lock, .. }
            | Self::InvalidOption { lock, .. }
            | Self::Reentrant { lock }
            | Self::NotConfigured { lock } => Some(lock),
            Self::AlreadyConfigured | Self::Connect { .. } => None,
        }
    }
}

/// Which lock an error is about: its key, its template and the function that asked for it.
#[derive(Debug, Clone)]
pub struct LockName {
    key: Box<str>,
    site: Site,
}

impl LockName {
    pub(crate) fn new(key: impl Into<Box<str>>, site: Site) -> Self {
        Self { key: key.into(), site }
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {:?} (template {:?}, ", self.key, self.site.template())?;
        write!(f, "function {})", self.site.function())
    }
}

/// How a value of a function's return type is made from a [`LockError`].
///
/// Implemented for every `Result<T, E>` whose `E` implements `From<LockError>`. Implement it for a return type of
/// your own, and functions that return it can be annotated without `or_else`:
///
/// ```
/// use lock_runtime::{FromLockError, LockError, redis_lock};
///
/// enum Answer {
///     Done(u64),
///     Later,
/// }
///
/// impl FromLockError for Answer {
///     fn from_lock_error(_: LockError) -> Self {
///         Self::Later
///     }
/// }
///
/// #[redis_lock(key = "report:<id>", ttl = "10s")]
/// async fn report(id: u64) -> Answer {
///     Answer::Done(id)
/// }
/// # fn main() {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot carry a `LockError`",
    label = "a call that does not get its lock has to return something else than the body's value",
    note = "return a `Result<_, E>` whose error implements `From<lock_runtime::LockError>` \
            (for a `thiserror` enum: a variant with `#[from] LockError`; `anyhow::Error` and `Box<dyn Error>` do it as they are)",
    note = "or say in the attribute what to return instead: `or_else = |error| …`"
)]
pub trait FromLockError {
    /// The value that a call returns when it does not get, or does not keep, its lock.
    fn from_lock_error(error: LockError) -> Self;
}

/// Whether what a function returned counts as success: for `hold_after_ok`, which keeps the key after a success and
/// releases it at once after a failure.
///
/// Implemented for every `Result`. Implement it for a return type of your own:
///
/// ```
/// use lock_runtime::Succeeded;
///
/// struct Reply {
///     status: u16,
/// }
///
/// impl Succeeded for Reply {
///     fn succeeded(&self) -> bool {
///         self.status < 400
///     }
/// }
/// # assert!(Reply { status: 200 }.succeeded());
/// ```
#[diagnostic::on_unimplemented(
    message = "`hold_after_ok` cannot tell whether `{Self}` is a success",
    label = "neither a `Result` nor a type that says whether it is a success",
    note = "return a `Result`, or implement `lock_runtime::Succeeded` for `{Self}`"
)]
pub trait Succeeded {
    /// True after a success: the key is kept.
    fn succeeded(&self) -> bool;
}

impl<T, E> Succeeded for Result<T, E> {
    fn succeeded(&self) -> bool {
        self.is_ok()
    }
}

// Without this the compiler reports the unmet `From` bound and not the two ways out above.
#[diagnostic::do_not_recommend]
impl<T, E: From<LockError>> FromLockError for Result<T, E> {
    fn from_lock_error(error: LockError) -> Self {
        Err(E::from(error))
    }
}
