//! The lease: what a holder knows about the lock it holds, and until when it may believe it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::{Instant, timeout_at};

use crate::error::{LockError, LockName, OptionFault};
use crate::events;
use crate::few::Few;
use crate::manager::LockManager;
use crate::renew::{RenewPolicy, Renewal, period};
use crate::site::Site;
use crate::store::{Claim, Mode, needs_runtime};
use crate::token::Token;

/// The shortest lease: less could end before the reply that grants it has arrived.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(10);
/// The longest lease; far below what Redis can add to its clock.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A lock that is held, seen from inside: what `guard = name` binds, and what a [`LockGuard`](crate::LockGuard)
/// dereferences to. It can be asked and extended; it cannot release.
///
/// # The local deadline
///
/// The lease is believed until its *local deadline*: the time before the request was sent, plus the ttl, less
/// `ttl / 100 + 2 ms` for clocks that run at different speeds. The store may keep the key a little longer, never
/// shorter, so whoever stops at the local deadline has stopped before anyone else can begin. Every extension moves
/// it: those of the option `renew` by themselves, [`extend`](Self::extend) by hand.
///
/// A call that joined the lease of its caller sees that lease.
pub struct Lease {
    manager: LockManager,
    site: Site,
    claim: Claim,
    token: Token,
    times: Mutex<Times>,
    fence: AtomicU64,
    gone: AtomicBool,
    max_hold_noted: AtomicBool,
    changed: Notify,
}

#[derive(Clone, Copy)]
struct Times {
    granted: Instant,
    deadline: Instant,
    /// The longest that the lease was asked to last at once: what the held time is measured against.
    ttl: Duration,
    renewal: Renewed,
    was_renewed: bool,
    /// Until when the keys can be there, whatever became of the requests that were sent.
    may_live_until: Instant,
    /// The keys stay until then, if they are still the lease's when it is released.
    hold_until: Option<Instant>,
}

/// Whether the lease is renewed, and by whom.
#[derive(Clone, Copy)]
enum Renewed {
    No,
    /// By the background thread, which tells of each renewal.
    Told,
    /// By the store itself, since this time.
    ByStore(Instant, RenewPolicy),
}

impl Times {
    fn new(granted: Instant, deadline: Instant, ttl: Duration) -> Self {
        let may_live_until = granted + ttl;
        Self {
            granted,
            deadline,
            ttl,
            renewal: Renewed::No,
            was_renewed: false,
            may_live_until,
            hold_until: None,
        }
    }

    /// Until when the lease is believed, if each renewal sets it to `ttl`.
    fn deadline(&self, ttl: Duration) -> Instant {
        match self.renewal {
            Renewed::ByStore(since, policy) => {
                self.deadline.max(renewed_at(since, ttl, policy, Instant::now()) + believed(ttl))
            }
            Renewed::No | Renewed::Told => self.deadline,
        }
    }
}

impl Lease {
    pub(crate) fn new(manager: LockManager, site: Site, claim: Claim, token: Token) -> Self {
        let (now, ttl) = (Instant::now(), claim.ttl);
        let times = Times::new(now, now, ttl);
        Self {
            manager,
            site,
            claim,
            token,
            times: Mutex::new(times),
            fence: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            max_hold_noted: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// The lease of a call that can never acquire: nobody sees it.
    pub(crate) fn of_nothing(site: Site) -> Self {
        let token = Token::nil();
        let (keys, mode) = (Few::one("".into()), Mode::default());
        let claim = Claim { keys, token: token.shared(), ttl: Duration::ZERO, mode, fence: None };
        Self::new(LockManager::in_memory(), site, claim, token)
    }

    /// The key in the store, with the manager's prefix: `lock:order:123`. Of several keys the first in their order.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.claim.keys[0]
    }

    /// All keys of this lease, sorted.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.claim.keys.iter().map(|key| &**key)
    }

    /// The fencing token: a number that grows with every acquisition of this key. Give it to the resource that is
    /// guarded, and let it refuse smaller ones.
    ///
    /// It is `max(last + 1, server time in µs)`, so it goes on growing over the counter's own expiry
    /// ([`fence_expiry`](crate::LockManagerBuilder::fence_expiry), 7 days) and over a server that lost its data or was
    /// failed over, unless that server's clock is behind by more than the outage. A call that joined has the fencing
    /// token of the lease that it joined.
    ///
    /// 0 of a lock that was not taken with `fenced`: less than any fencing token, so that a resource that has seen one
    /// refuses it.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence.load(Ordering::Acquire)
    }

    /// The value that the key carries while this lease holds it: `[owner:]uuid[:tag]`.
    #[must_use]
    pub fn token(&self) -> &str {
        self.token.as_str()
    }

    /// How long the lease may still be believed: the time to its local deadline. Zero once it is lost. While it is
    /// renewed it is set anew every third of the ttl.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.gone.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        self.deadline().saturating_duration_since(Instant::now())
    }

    /// Whether the lease can no longer be believed: its local deadline has passed, or the store was seen to carry
    /// another token, or none, by a renewal, [`extend`](Self::extend) or [`lost`](Self::lost). Asks nothing of the
    /// store.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Waits until the lease is lost. Cancel-safe; for `select!` beside a long step of the body.
    ///
    /// Asks the server once, and to be told of changes of the key (RESP3 `CLIENT TRACKING`): a key that is deleted or
    /// evicted is noticed within one round trip, not only at the local deadline. Each extension is a change, and
    /// costs one more look. Where the server cannot tell (a connection of the application's, a proxy without RESP3,
    /// an account that may not use `CLIENT TRACKING`), only the local deadline and a renewal that finds nothing are
    /// noticed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_runtime::{LockError, LockManager, redis_lock};
    /// # async fn copy_row(_: u64) {}
    /// #[redis_lock(key = "export:<id>", ttl = "30s", guard = lock)]
    /// async fn export(id: u64) -> Result<u64, LockError> {
    ///     let mut rows = 0;
    ///     loop {
    ///         tokio::select! {
    ///             () = copy_row(id) => rows += 1,
    ///             () = lock.lost() => break,
    ///         }
    ///         # break;
    ///     }
    ///     Ok(rows)
    /// }
    /// # fn main() {}
    /// ```
    pub async fn lost(&self) {
        let mut pause = Duration::from_millis(20);
        while !self.is_lost() {
            let Ok(look) = self.manager.store().look(&self.claim).await else {
                // No news is not bad news: the local deadline stands, and a silent store is asked again.
                self.over_by(Instant::now() + pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
                continue;
            };
            if !look.held {
                if self.mark_lost() {
                    events::lost(self, "gone", "its key was deleted, evicted, or taken by someone else");
                }
                return;
            }
            match look.changed {
                Some(changed) => {
                    let mut changed = pin!(changed);
                    let mut over = pin!(self.over());
                    poll_fn(|cx| match changed.as_mut().poll(cx) {
                        Poll::Ready(()) => Poll::Ready(()),
                        Poll::Pending => over.as_mut().poll(cx),
                    })
                    .await;
                }
                None => return self.over().await,
            }
        }
    }

    /// Waits until the lease is lost as far as this process can tell by itself.
    pub(crate) async fn over(&self) {
        while !self.is_lost() {
            let deadline = self.deadline();
            self.over_by(deadline).await;
        }
        self.note_max_hold();
    }

    /// Reports that the renewals of a store that makes them itself have come to their end: once, by whoever meets it
    /// first. Others are reported by the task that makes them.
    pub(crate) fn note_max_hold(&self) {
        let times = *self.times();
        if let Renewed::ByStore(since, RenewPolicy { max_hold: Some(most) }) = times.renewal
            && Instant::now() >= since + most
            && !self.max_hold_noted.swap(true, Ordering::AcqRel)
        {
            events::max_hold(self);
        }
    }

    /// Waits until then, or until something is known anew.
    async fn over_by(&self, until: Instant) {
        let changed = self.told();
        if self.is_lost() {
            return;
        }
        if needs_runtime().is_ok() {
            drop(timeout_at(until, changed).await);
        } else {
            // No timers here: only a loss that someone else notices can be told.
            changed.await;
        }
    }

    /// Lets those look who wait for something about this lease.
    pub(crate) fn tell(&self) {
        self.changed.notify_waiters();
    }

    /// Ready when they are told from now on.
    pub(crate) fn told(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Sets the lease to `ttl` from now. A lease that lasts longer already is left as it is: it is never shortened.
    ///
    /// One round trip. While it runs, and when it fails, the old deadline stands.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`]: the lease was lost before, or the store carries another token or none. Nothing was
    ///   re-created.
    /// - [`LockError::Unavailable`]: the store did not answer. The lease may or may not have been extended.
    /// - [`LockError::InvalidOption`]: `ttl` is shorter than 10 ms or longer than ten years.
    pub async fn extend(&self, ttl: Duration) -> Result<(), LockError> {
        check_ttl(ttl).map_err(|fault| LockError::InvalidOption { lock: self.name().into(), fault })?;
        if self.is_lost() {
            return Err(self.lost_error());
        }
        let asked = Instant::now();
        self.may_live(ttl);
        match self.manager.store().extend(&self.claim, ttl).await {
            Ok(true) => {
                let mut times = self.times();
                times.deadline = times.deadline.max(asked + believed(ttl));
                if matches!(times.renewal, Renewed::No) {
                    times.ttl = times.ttl.max(times.deadline.saturating_duration_since(times.granted));
                }
                drop(times);
                self.tell();
                Ok(())
            }
            Ok(false) => {
                if self.mark_lost() {
                    events::lost(
                        self,
                        "gone",
                        "its key was gone or someone else's when it was to be extended",
                    );
                }
                Err(self.lost_error())
            }
            Err(cause) => Err(LockError::Unavailable { lock: self.name().into(), cause }),
        }
    }

    /// Notes a grant that was asked for at `asked`. False when it arrived after its own deadline.
    pub(crate) fn grant(&self, asked: Instant, fence: u64) -> bool {
        self.fence.store(fence, Ordering::Release);
        let now = Instant::now();
        let deadline = asked + believed(self.claim.ttl);
        *self.times() = Times::new(now, deadline, self.claim.ttl);
        now < deadline
    }

    /// Has the keys stay until then when the lease is released; of several such wishes the longest counts.
    pub(crate) fn hold_until(&self, until: Instant) {
        let mut times = self.times();
        times.hold_until = times.hold_until.max(Some(until));
    }

    /// Whether the keys are to stay, or were to, after the release.
    pub(crate) fn is_kept(&self) -> bool {
        self.times().hold_until.is_some()
    }

    /// For how long the keys are to stay if they are released now.
    pub(crate) fn keep(&self) -> Duration {
        let until = self.times().hold_until;
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Notes a renewal that was asked for at `asked`.
    pub(crate) fn renewed(&self, asked: Instant) {
        let mut times = self.times();
        times.deadline = times.deadline.max(asked + believed(self.claim.ttl));
        drop(times);
        self.tell();
    }

    /// Has the lease renewed until the value is dropped. None if it is renewed already.
    pub(crate) fn renew(self: &Arc<Self>, policy: RenewPolicy) -> Option<Renewal> {
        let mut times = self.times();
        if !matches!(times.renewal, Renewed::No) {
            return None;
        }
        times.was_renewed = true;
        if self.manager.store().renews_itself(&self.claim, Some(policy)) {
            times.renewal = Renewed::ByStore(Instant::now(), policy);
            drop(times);
            return Some(Renewal::by_store(self));
        }
        times.renewal = Renewed::Told;
        drop(times);
        Some(self.manager.background().renew(self, policy))
    }

    /// Notes that nobody renews the lease any more.
    pub(crate) fn renewal_ended(&self) {
        let mut times = self.times();
        if matches!(times.renewal, Renewed::ByStore(..)) {
            self.manager.store().renews_itself(&self.claim, None);
        }
        times.deadline = times.deadline(self.claim.ttl);
        times.renewal = Renewed::No;
    }

    /// Notes, before it is sent, that the keys are asked to live for `ttl` from now: whatever the answer, they may.
    pub(crate) fn may_live(&self, ttl: Duration) {
        let mut times = self.times();
        times.may_live_until = times.may_live_until.max(Instant::now() + ttl);
    }

    /// Notes that the lease is lost. False if that was known.
    pub(crate) fn mark_lost(&self) -> bool {
        let news = !self.gone.swap(true, Ordering::AcqRel);
        self.tell();
        self.manager.gate().lease_changed(&self.claim.keys);
        news
    }

    /// When the lock was granted.
    pub(crate) fn granted(&self) -> Instant {
        self.times().granted
    }

    /// How long the lock has been held, and that as a share of the lease; none of one that is renewed.
    pub(crate) fn held(&self) -> (Duration, Option<f64>) {
        self.held_at(Instant::now())
    }

    /// The same at another time.
    pub(crate) fn held_at(&self, now: Instant) -> (Duration, Option<f64>) {
        let times = *self.times();
        let held = now.saturating_duration_since(times.granted);
        let share = (!times.was_renewed).then(|| held.as_secs_f64() / times.ttl.as_secs_f64());
        (held, share)
    }

    /// Until when the lease is believed.
    pub(crate) fn deadline(&self) -> Instant {
        self.times().deadline(self.claim.ttl)
    }

    /// Until when the store can keep the key by itself: after this nothing has to be released any more.
    pub(crate) fn ends_by(&self) -> Instant {
        let times = *self.times();
        times.may_live_until.max(times.deadline(self.claim.ttl) + drift(times.ttl))
    }

    /// Whether another claim asks for one of this lease's keys.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.claim.keys.iter().any(|key| other.claim.keys.binary_search(key).is_ok())
    }

    /// Whether a call that asks for all that the other does can be part of this lease.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.claim.mode == Mode::Exclusive
            && !self.is_lost()
            && (self.claim.fence.is_some() || other.claim.fence.is_none())
            && other.claim.keys.iter().all(|key| self.claim.keys.binary_search(key).is_ok())
    }

    pub(crate) fn manager(&self) -> &LockManager {
        &self.manager
    }

    pub(crate) fn site(&self) -> Site {
        self.site
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(crate) fn tag(&self) -> Option<&str> {
        self.token.tag()
    }

    pub(crate) fn seed(&self) -> u64 {
        self.token.seed()
    }

    pub(crate) fn name(&self) -> LockName {
        LockName::new(self.key(), self.site)
    }

    pub(crate) fn lost_error(&self) -> LockError {
        LockError::Lost { lock: self.name().into(), held: self.held().0.into() }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.key())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// No span of time that anyone sets is longer than the longest lease: what is added to a clock must not overflow it.
pub(crate) fn bounded(duration: Duration) -> Duration {
    duration.min(MAX_TTL)
}

/// Whether a lease of this length can be asked for.
pub(crate) fn check_ttl(ttl: Duration) -> Result<(), OptionFault> {
    if ttl < MIN_TTL {
        Err(OptionFault::TtlTooShort)
    } else if ttl > MAX_TTL {
        Err(OptionFault::TtlTooLong)
    } else {
        Ok(())
    }
}

/// When a lease that is renewed since then was last renewed: as if each renewal had been made in time.
pub(crate) fn renewed_at(since: Instant, ttl: Duration, policy: RenewPolicy, now: Instant) -> Instant {
    let held = now.saturating_duration_since(since);
    let held = policy.max_hold.map_or(held, |most| held.min(most));
    let period = period(ttl).as_nanos().max(1);
    since + Duration::from_nanos(u64::try_from(held.as_nanos() / period * period).unwrap_or(u64::MAX))
}

/// What two clocks may drift apart during a lease: one per cent, and two milliseconds for short ones.
fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// How long a lease is believed, counted from before it was asked for.
fn believed(ttl: Duration) -> Duration {
    ttl.saturating_sub(drift(ttl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_believed_for_its_ttl_less_the_drift_allowance() {
        assert_eq!(believed(Duration::from_secs(30)), Duration::from_millis(29_698));
        assert!(believed(MIN_TTL) > Duration::from_millis(7));
    }

    #[test]
    fn what_cannot_be_a_lease_is_refused() {
        assert_eq!(check_ttl(Duration::from_millis(9)), Err(OptionFault::TtlTooShort));
        assert_eq!(check_ttl(Duration::MAX), Err(OptionFault::TtlTooLong));
        assert_eq!(check_ttl(MIN_TTL), Ok(()));
    }
}
