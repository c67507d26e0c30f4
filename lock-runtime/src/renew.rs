//! Renewal: extending leases while their bodies run.
//!
//! All leases of a manager are renewed by one task of its background thread, those that are due together in one
//! pipeline. A lease that ends before a third of its ttl is over costs an insertion and a removal, and no command.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::events;
use crate::lease::Lease;

/// How a lease is renewed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RenewPolicy {
    /// Renewal ends when the lock has been held this long.
    pub(crate) max_hold: Option<Duration>,
}

/// A renewal may come so much too early, and the end of `max_hold` too.
const EARLY: Duration = Duration::from_millis(5);
/// The most leases in one pipeline. Fewer beside a lease that cannot wait so long for its turn.
const PIPELINE: usize = 10_000;
/// So much longer a pipeline may take for each lease in it: several times what a server needs.
const FOR_EACH: Duration = Duration::from_micros(20);
/// A renewal that got no answer is tried again after this, or a tenth of the ttl if that is shorter.
const RETRY: Duration = Duration::from_millis(100);

/// How often a lease is renewed: two renewals may fail before it is lost.
pub(crate) fn period(ttl: Duration) -> Duration {
    ttl / 3
}

/// A lease goes along with others that are due when it is due within this time: leases of one ttl that were taken at
/// different times are so renewed at four times of each period at most.
fn together(ttl: Duration) -> Duration {
    period(ttl) / 4
}

/// The leases that are being renewed.
#[derive(Default)]
pub(crate) struct Renewals {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// By the time of the next renewal. A lease whose renewal is under way is not here.
    due: BTreeMap<(Instant, u64), Entry>,
    /// Every lease that is still to be renewed, and its time in `due`.
    live: HashMap<u64, Instant>,
    /// How many of them have which ttl.
    ttls: BTreeMap<Duration, usize>,
    /// The most in one pipeline after one that got no answer: half of that.
    limit: Option<usize>,
    last: u64,
}

impl State {
    /// So many that their answers take a quarter of the shortest period at most.
    fn most_together(&self) -> usize {
        let shortest = self.ttls.keys().next().copied().unwrap_or(Duration::MAX);
        let in_time = period(shortest).as_micros() / (4 * FOR_EACH.as_micros());
        let in_time = usize::try_from(in_time).unwrap_or(usize::MAX);
        in_time.clamp(1, self.limit.unwrap_or(PIPELINE))
    }

    /// Ends a renewal; tells when it would have been due.
    fn forget(&mut self, id: u64, ttl: Duration) -> Option<Instant> {
        let at = self.live.remove(&id)?;
        if let Some(count) = self.ttls.get_mut(&ttl) {
            *count -= 1;
            if *count == 0 {
                self.ttls.remove(&ttl);
            }
        }
        Some(at)
    }
}

struct Entry {
    lease: Arc<Lease>,
    policy: RenewPolicy,
    since: Instant,
}

impl Entry {
    /// How long before its time it goes along with others.
    fn early(&self) -> Duration {
        let together = together(self.lease.claim().ttl);
        // What is due then may be the end of it.
        if self.policy.max_hold.is_some() { together.min(EARLY) } else { together }
    }
}

/// One lease's renewal. It ends when this is dropped.
pub(crate) struct Renewal {
    lease: Arc<Lease>,
    /// None where the store does it.
    ours: Option<(Arc<Renewals>, u64)>,
}

impl Renewal {
    pub(crate) fn by_store(lease: &Arc<Lease>) -> Self {
        Self { lease: Arc::clone(lease), ours: None }
    }
}

impl Renewals {
    /// Renews a lease from now on.
    pub(crate) fn begin(self: &Arc<Self>, lease: &Arc<Lease>, policy: RenewPolicy) -> Renewal {
        let since = Instant::now();
        let at = since + period(lease.claim().ttl);
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        let first = state.due.keys().next().is_none_or(|(first, _)| at < *first);
        state.live.insert(id, at);
        *state.ttls.entry(lease.claim().ttl).or_default() += 1;
        state.due.insert((at, id), Entry { lease: Arc::clone(lease), policy, since });
        drop(state);
        if first {
            self.changed.notify_one();
        }
        Renewal { lease: Arc::clone(lease), ours: Some((Arc::clone(self), id)) }
    }

    /// Renews what is due, for ever.
    pub(crate) async fn run(&self) {
        loop {
            let (batch, next) = self.take_due(Instant::now());
            if !batch.is_empty() {
                self.renew(batch).await;
                continue;
            }
            let changed = self.changed.notified();
            match next {
                Some(at) => drop(timeout_at(at, changed).await),
                None => changed.await,
            }
        }
    }

    async fn renew(&self, mut batch: Vec<(u64, Entry)>) {
        batch.retain(|(id, entry)| self.is_renewable(*id, entry));
        let Some((_, first)) = batch.first() else { return };
        let manager = first.lease.manager().clone();
        let claims: Vec<_> = batch.iter().map(|(_, entry)| entry.lease.claim()).collect();
        for (_, entry) in &batch {
            entry.lease.may_live(entry.lease.claim().ttl);
        }
        // A silent connection must be found out while there is time for another, also for those who wait their turn.
        let shortest = self.state().ttls.keys().next().copied().unwrap_or(Duration::MAX);
        let count = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        let patience = (manager.response_timeout() + FOR_EACH * count).min(period(shortest));
        let asked = Instant::now();
        let answers = manager.store().extend_all(&claims, patience).await;
        let now = Instant::now();
        let answered = answers.iter().any(Result::is_ok);
        self.state().limit = if answered { None } else { Some((batch.len() / 2).max(1)) };
        let (mut answers, mut kept) = (answers.into_iter(), Vec::new());
        for (id, entry) in batch {
            let ttl = entry.lease.claim().ttl;
            match answers.next() {
                Some(Ok(true)) if !self.is_live(id) => {
                    if entry.lease.is_kept() {
                        kept.push(entry);
                    }
                }
                Some(Ok(true)) => {
                    entry.lease.renewed(asked);
                    self.put_back(id, asked + period(ttl), entry);
                }
                Some(Ok(false)) => {
                    // A body that ended while the renewal was under way has lost nothing.
                    let running = self.state().forget(id, ttl).is_some();
                    if running && entry.lease.mark_lost() {
                        events::lost(
                            &entry.lease,
                            "gone",
                            "its key was gone or someone else's when it was renewed",
                        );
                    }
                }
                // Not fatal: the lease is believed until its local deadline.
                Some(Err(_)) | None => self.put_back(id, now + RETRY.min(ttl / 10), entry),
            }
        }
        // Their bodies ended while this was on its way, and their keys stay for a while: for no longer than that.
        for Entry { lease, .. } in kept {
            drop(manager.store().release(lease.claim(), lease.keep()).await);
        }
    }

    /// Whether a lease that is due should be renewed; if not, why not is reported and it is forgotten.
    fn is_renewable(&self, id: u64, entry: &Entry) -> bool {
        let over = entry.policy.max_hold.is_some_and(|most| Instant::now() + EARLY >= entry.since + most);
        if over {
            events::max_hold(&entry.lease);
        } else if entry.lease.is_lost() {
            if entry.lease.mark_lost() {
                events::lost(
                    &entry.lease,
                    "not_renewed",
                    "it could not be renewed before its local deadline",
                );
            }
        } else {
            return true;
        }
        self.state().forget(id, entry.lease.claim().ttl);
        false
    }

    fn take_due(&self, now: Instant) -> (Vec<(u64, Entry)>, Option<Instant>) {
        let mut state = self.state();
        let mut batch = Vec::new();
        let most = state.most_together();
        if state.due.keys().next().is_some_and(|(at, _)| *at <= now) {
            while batch.len() < most
                && let Some(entry) = state.due.first_entry()
                && entry.key().0 <= now + entry.get().early()
            {
                let ((_, id), entry) = entry.remove_entry();
                batch.push((id, entry));
            }
        }
        (batch, state.due.keys().next().map(|(at, _)| *at))
    }

    fn put_back(&self, id: u64, at: Instant, entry: Entry) {
        // With a limit, the end of it is a time to look, too.
        let at = entry.policy.max_hold.map_or(at, |most| at.min(entry.since + most));
        let mut state = self.state();
        // Its body may have ended meanwhile.
        if let Some(live) = state.live.get_mut(&id) {
            *live = at;
            state.due.insert((at, id), entry);
        }
    }

    fn is_live(&self, id: u64) -> bool {
        self.state().live.contains_key(&id)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.lease.renewal_ended();
        let Some((renewals, id)) = &self.ours else { return };
        let mut state = renewals.state();
        let entry = state.forget(*id, self.lease.claim().ttl).and_then(|at| state.due.remove(&(at, *id)));
        // Its lease may be the last to hold the manager, and with it this very lock.
        drop(state);
        drop(entry);
    }
}
