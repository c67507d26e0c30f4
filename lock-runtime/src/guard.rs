//! The held lock.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::background::{Pending, Release};
use crate::lease::Lease;

/// A lock that is held. [`release`](Self::release) it to see what became of it, or drop it: the release is then
/// done in the background, on any runtime or none, without blocking. Its renewal, if it has one, ends with it.
///
/// What can be asked of it stands at [`Lease`], to which it dereferences.
///
/// # Examples
///
/// ```
/// # use lock_runtime::{LockError, LockManager, ReleaseOutcome};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let guard = locks.lock("order:123").ttl(Duration::from_secs(30)).acquire().await?;
/// assert_eq!(guard.key(), "lock:order:123");
/// assert!(locks.lock("order:123").ttl(Duration::from_secs(30)).acquire().await.is_err());
/// assert_eq!(guard.release().await, ReleaseOutcome::Released);
/// # Ok(())
/// # }
/// ```
#[must_use = "a guard that is dropped releases its lock at once"]
pub struct LockGuard {
    /// What has to be released. None once that is known to be done.
    release: Option<Release>,
    lease: Arc<Lease>,
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// Every key carried this lease's token, and is gone, or stays as long as `hold_at_least` says.
    Released,
    /// A key was gone, or carried another token, which was left as it is. The work was not protected to its end. Of
    /// several keys the others were released.
    NotHeld,
    /// It is not known whether the key was held to the end: the store did not answer, and the release goes on in the
    /// background until the lease has ended by itself; or it answered only to a second request that the key is gone or
    /// someone else's, which the first may have brought about; or the lease was over, and the key that was found may
    /// have been set by a request of the acquisition that arrived late.
    Unknown,
}

impl LockGuard {
    pub(crate) fn new(release: Release) -> Self {
        Self { lease: Arc::clone(release.lease()), release: Some(release) }
    }

    /// Deletes each key that still carries this lease's token, or lets it live until it is as old as `hold_at_least`
    /// says; and tells what was found. One round trip.
    ///
    /// Never an error: the work is done, and what is wrong with the lock cannot undo it. Cancel-safe: a release that
    /// is dropped before its answer is finished in the background.
    pub async fn release(mut self) -> ReleaseOutcome {
        let Some(release) = &mut self.release else { return ReleaseOutcome::Unknown };
        match release.attempt().await {
            Ok(outcome) => {
                if let Some(release) = self.release.take() {
                    release.finish();
                }
                outcome
            }
            // Dropping the guard leaves it to the background.
            Err(_) => ReleaseOutcome::Unknown,
        }
    }

    /// Puts the release on the connection, lets the next one ask, and leaves what is answered to the store.
    pub(crate) fn release_unawaited(mut self) {
        let Some(release) = &mut self.release else { return };
        let lease = Arc::clone(&self.lease);
        let Some((places, releasing)) = release.begin_unwatched() else {
            // It needed no answer.
            self.release = None;
            return;
        };
        let mut unwatched = Unwatched { guard: self, _releasing: releasing };
        let told = Box::new(move |answer| {
            let unwatched = &mut unwatched;
            if let Some(release) = unwatched.guard.release.take() {
                release.end_unwatched(answer);
            }
        });
        lease.manager().store().release_unwatched(lease.claim(), lease.keep(), told);
        // Only now: the next one's request must not overtake the release.
        drop(places);
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }
}

/// A guard whose release is on its way. Dropped untold, it leaves that to the background, and only then is it no longer
/// noted as under way.
struct Unwatched {
    guard: LockGuard,
    _releasing: Pending,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release.in_background();
        }
    }
}

impl Deref for LockGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&self.lease).finish()
    }
}
