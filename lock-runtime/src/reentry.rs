//! Re-entrancy: a body that calls a function locked by the same key joins the lease it holds.
//!
//! Which locks a body holds is known while it is being polled: its levels are on a stack of this thread then. A task
//! that the body spawns is polled elsewhere, and is someone else.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::Id;
use tokio::time::timeout;

use crate::guard::LockGuard;
use crate::lease::Lease;
use crate::renew::Renewal;
use crate::store::needs_runtime;

/// One call's place in a lease: that of the call that took it, or of one that joined.
pub(crate) struct Level {
    /// Of a call that joined a lease which was not renewed, and wants it to be while it runs. Ends before its share.
    renewal: Option<Renewal>,
    share: Share,
    /// Whose turn it is among the calls that join this one, from the first of them on.
    children: OnceLock<Arc<Semaphore>>,
    /// This call's turn among those that joined the call above. None for the call that took the lease.
    turn: Option<Arc<Turn>>,
}

/// A turn lasts as long as the call that has it and every call that joined that one.
struct Turn {
    _permit: OwnedSemaphorePermit,
    _above: Option<Arc<Turn>>,
}

/// A share in a held lock. The guard goes with the last of them, and releases.
#[derive(Clone)]
struct Share {
    guard: Option<Arc<LockGuard>>,
    lease: Arc<Lease>,
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            // In this order: whoever is told looks whether it is the last.
            drop(guard);
            self.lease.tell();
        }
    }
}

impl Level {
    /// The level of the call that took the lock.
    pub(crate) fn outermost(guard: LockGuard) -> Self {
        let lease = Arc::clone(guard.lease());
        Self::with(Share { guard: Some(Arc::new(guard)), lease }, None)
    }

    fn with(share: Share, turn: Option<Arc<Turn>>) -> Self {
        Self { renewal: None, share, children: OnceLock::new(), turn }
    }

    /// A way in for a call that this level's body makes.
    pub(crate) fn joinable(&self) -> Joinable {
        let turns = self.children.get_or_init(|| Arc::new(Semaphore::new(1)));
        Joinable { share: self.share.clone(), turns: Arc::clone(turns), above: self.turn.clone() }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.share.lease
    }

    /// Renews the lease while this call runs.
    pub(crate) fn renew_with(&mut self, renewal: Renewal) {
        self.renewal = Some(renewal);
    }

    /// The guard, for the call that took the lock: when every call that joined it has ended. Not after the lease is
    /// over, nor for longer than one ttl: a call that joined may be in the very output that waits for it here. Then the
    /// last of them releases.
    pub(crate) async fn into_guard(mut self) -> Option<LockGuard> {
        if self.turn.is_some() {
            return None;
        }
        match Arc::try_unwrap(self.share.guard.take()?) {
            Ok(guard) => Some(guard),
            Err(shared) => {
                self.share.guard = Some(shared);
                // Boxed: seldom, and what it needs would be part of every release.
                Box::pin(self.last()).await
            }
        }
    }

    async fn last(mut self) -> Option<LockGuard> {
        let lease = Arc::clone(self.lease());
        let mut patience = pin!(one_lease(&lease));
        loop {
            let mut left = pin!(lease.told());
            match Arc::try_unwrap(self.share.guard.take()?) {
                Ok(guard) => return Some(guard),
                Err(shared) => self.share.guard = Some(shared),
            }
            let in_time = poll_fn(|cx| match left.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending => patience.as_mut().poll(cx).map(|()| false),
            });
            if !in_time.await {
                return None;
            }
        }
    }

    /// The same at once; none while calls that joined are running. The last of them then releases.
    pub(crate) fn try_into_guard(mut self) -> Option<LockGuard> {
        if self.turn.is_some() { None } else { self.share.guard.take().and_then(Arc::into_inner) }
    }
}

/// A lease that can be joined.
pub(crate) struct Joinable {
    share: Share,
    turns: Arc<Semaphore>,
    above: Option<Arc<Turn>>,
}

impl Joinable {
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.share.lease
    }

    /// Joins, when those that joined before have ended. None if the lease was lost first, or after one ttl: without
    /// this, a call that joined and is then never polled again would hold up its caller for ever.
    pub(crate) async fn join(self) -> Option<Level> {
        let lease = Arc::clone(self.lease());
        let mut turn = pin!(self.turns.acquire_owned());
        let mut patience = pin!(one_lease(&lease));
        let permit = poll_fn(|cx| match turn.as_mut().poll(cx) {
            Poll::Ready(permit) => Poll::Ready(permit.ok()),
            Poll::Pending => patience.as_mut().poll(cx).map(|()| None),
        })
        .await?;
        Some(Level::with(self.share, Some(Arc::new(Turn { _permit: permit, _above: self.above }))))
    }
}

/// Waits until the lease is over, or one ttl has passed: a renewed one may never be over.
async fn one_lease(lease: &Lease) {
    if needs_runtime().is_ok() {
        drop(timeout(lease.claim().ttl, lease.over()).await);
    } else {
        lease.over().await;
    }
}

/// A level of the body that is being polled, and the task that it is polled in. A task of a set that is driven inside
/// the body is polled on the same stack, and is someone else all the same.
type Frame = (Option<Id>, Arc<Level>);

thread_local! {
    static HELD: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// Polls a body in which this level is held.
pub(crate) fn within<T>(level: &Arc<Level>, poll: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            // Dropped outside the borrow: it may be the last of its lock.
            drop(HELD.try_with(|held| held.borrow_mut().pop()));
        }
    }
    // A thread that is ending has no stack any more; then nothing is joined.
    let frame = (tokio::task::try_id(), Arc::clone(level));
    let _leave = HELD.try_with(|held| held.borrow_mut().push(frame)).ok().map(|()| Leave);
    poll()
}

/// The innermost lease held by the body that is being polled for which this is true.
pub(crate) fn find(wanted: impl Fn(&Lease) -> bool) -> Option<Joinable> {
    HELD.try_with(|held| {
        let held = held.borrow();
        let task = tokio::task::try_id();
        let mine = |(of, level): &&Frame| *of == task && wanted(level.lease());
        held.iter().rev().find(mine).map(|(_, level)| level.joinable())
    })
    .ok()
    .flatten()
}
