//! A full store in this process: for tests without a server, and programs of a single process.
//!
//! It keeps tokio's time: under `#[tokio::test(start_paused = true)]` leases expire when the paused clock passes
//! their end.

use std::any::Any;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Answers, Attempt, Claim, Flight, Look, Mode, Released, Store, StoreFuture, Watch};
use crate::lease::renewed_at;
use crate::renew::RenewPolicy;

#[derive(Default)]
pub(crate) struct MemoryStore {
    keys: Mutex<Keys>,
    /// Tells those who wait that some key was released. Few wait here: the gate keeps all but one for each key.
    released: Arc<Notify>,
}

#[derive(Default)]
struct Keys {
    live: HashMap<Arc<str>, Entry>,
    /// The last fencing token of a key, and when it may be forgotten.
    fences: HashMap<Arc<str>, (u64, Instant)>,
    /// What has expired is swept when there is this much, so that keys nobody asks for again go too.
    sweep_at: usize,
}

/// The holders of one key: an exclusive one, or any number of others.
#[derive(Default)]
struct Entry {
    exclusive: bool,
    holders: BTreeMap<Arc<str>, Hold>,
}

#[derive(Clone, Copy)]
struct Hold {
    ttl: Duration,
    expires: Instant,
    /// Since when it is renewed. The renewals are not made but reckoned, so they keep tokio's time whatever it does.
    renewed: Option<(Instant, RenewPolicy)>,
}

impl Hold {
    fn expires(&self, now: Instant) -> Instant {
        match self.renewed {
            Some((since, policy)) => self.expires.max(renewed_at(since, self.ttl, policy, now) + self.ttl),
            None => self.expires,
        }
    }
}

const FIRST_SWEEP: usize = 64;

impl Entry {
    fn expire(&mut self, now: Instant) {
        self.holders.retain(|_, hold| hold.expires(now) > now);
    }

    /// Ends the claim's hold, or lets it last for `keep`. Or what stands there instead of it.
    fn release(&mut self, claim: &Claim, keep: Duration, now: Instant) -> Option<Released> {
        if let Some(hold) = self.holders.get_mut(&claim.token) {
            if keep.is_zero() {
                self.holders.remove(&claim.token);
            } else {
                *hold = Hold { ttl: keep, expires: now + keep, renewed: None };
            }
            return None;
        }
        // Of a share nothing is left but that it is gone; others may well be there by right.
        if claim.mode != Mode::Exclusive || self.holders.is_empty() {
            return Some(Released::Expired);
        }
        let holder = self.holders.keys().next().filter(|_| self.exclusive);
        Some(Released::HeldByOther(holder.map(ToString::to_string)))
    }

    /// When it is worth asking again, if the claim cannot be had now.
    fn refuses(&self, claim: &Claim, now: Instant) -> Option<Instant> {
        if self.holders.is_empty() || self.holders.contains_key(&claim.token) {
            return None;
        }
        let ends = self.holders.values().map(|hold| hold.expires(now));
        match claim.mode {
            Mode::Exclusive => ends.max(),
            _ if self.exclusive => ends.max(),
            Mode::Shared => None,
            Mode::Permits(most) if self.holders.len() < usize::try_from(most).unwrap_or(usize::MAX) => None,
            Mode::Permits(_) => ends.min(),
        }
    }
}

impl Keys {
    /// The holders of a key whose time is not over; perhaps none, if nobody has taken it since they expired.
    fn get(&mut self, key: &str, now: Instant) -> Option<&mut Entry> {
        let entry = self.live.get_mut(key)?;
        entry.expire(now);
        Some(entry)
    }

    /// The claim's hold on a key.
    fn hold(&mut self, key: &str, claim: &Claim, now: Instant) -> Option<&mut Hold> {
        self.get(key, now)?.holders.get_mut(&claim.token)
    }

    fn insert(&mut self, claim: &Claim, now: Instant) {
        for key in &claim.keys {
            let entry = self.live.entry(Arc::clone(key)).or_default();
            entry.exclusive = claim.mode == Mode::Exclusive;
            let hold = Hold { ttl: claim.ttl, expires: now + claim.ttl, renewed: None };
            entry.holders.insert(Arc::clone(&claim.token), hold);
        }
    }

    fn next_fence(&mut self, key: &Arc<str>, expiry: Duration, now: Instant) -> u64 {
        let micros = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        let last = self.fences.get(key).filter(|(_, until)| *until > now).map_or(0, |(fence, _)| *fence);
        let fence = (last + 1).max(u64::try_from(micros).unwrap_or(u64::MAX));
        self.fences.insert(Arc::clone(key), (fence, now + expiry));
        fence
    }

    fn sweep(&mut self, now: Instant) {
        if self.live.len() + self.fences.len() < self.sweep_at.max(FIRST_SWEEP) {
            return;
        }
        self.live.retain(|_, entry| {
            entry.expire(now);
            !entry.holders.is_empty()
        });
        self.fences.retain(|_, (_, until)| *until > now);
        // Twice what is alive: the sweeps then cost a constant share of the insertions.
        self.sweep_at = 2 * (self.live.len() + self.fences.len());
        self.live.shrink_to(self.sweep_at);
        self.fences.shrink_to(self.sweep_at);
    }
}

impl MemoryStore {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_claim(&self, claim: &Claim, keep: Duration) -> Released {
        let (mut keys, now) = (self.keys(), Instant::now());
        let mut found = Released::Done;
        for key in &claim.keys {
            let lost = match keys.live.entry(Arc::clone(key)) {
                Vacant(_) => Some(Released::Expired),
                Occupied(mut kept) => {
                    let entry = kept.get_mut();
                    entry.expire(now);
                    let lost = entry.release(claim, keep, now);
                    if entry.holders.is_empty() {
                        kept.remove();
                    }
                    lost
                }
            };
            if let (Some(lost), Released::Done) = (lost, &found) {
                found = lost;
            }
        }
        self.released.notify_waiters();
        found
    }

    fn extend_claim(&self, claim: &Claim, ttl: Duration) -> bool {
        let (mut keys, now) = (self.keys(), Instant::now());
        if claim.keys.iter().any(|key| keys.hold(key, claim, now).is_none()) {
            return false;
        }
        for key in &claim.keys {
            if let Some(hold) = keys.hold(key, claim, now) {
                hold.expires = hold.expires.max(now + ttl);
            }
        }
        true
    }
}

impl Store for MemoryStore {
    fn acquire<'a>(&'a self, claim: &'a Claim, _flight: &'a Flight) -> StoreFuture<'a, Attempt> {
        // An async block, so that nothing is taken before the first poll, as with any other store.
        Box::pin(async move {
            // Before the look, so that no release can come between.
            let released = Arc::clone(&self.released).notified_owned();
            let (mut keys, now) = (self.keys(), Instant::now());
            for (index, key) in claim.keys.iter().enumerate() {
                if let Some(again) = keys.get(key, now).and_then(|entry| entry.refuses(claim, now)) {
                    let expires_in = Some(again.saturating_duration_since(now));
                    return Ok(Attempt::Held(index, Watch { expires_in, changed: Some(Box::pin(released)) }));
                }
            }
            keys.sweep(now);
            keys.insert(claim, now);
            Ok(Attempt::Granted(claim.fence.map_or(0, |expiry| keys.next_fence(&claim.keys[0], expiry, now))))
        })
    }

    fn acquire_or_watch<'a>(&'a self, claim: &'a Claim, flight: &'a Flight) -> StoreFuture<'a, Attempt> {
        self.acquire(claim, flight)
    }

    fn look<'a>(&'a self, claim: &'a Claim) -> StoreFuture<'a, Look> {
        Box::pin(async move {
            let (mut keys, now) = (self.keys(), Instant::now());
            let held = claim.keys.iter().all(|key| keys.hold(key, claim, now).is_some());
            // Nobody else can change a key before its time.
            Ok(Look { held, changed: None })
        })
    }

    fn renews_itself(&self, claim: &Claim, policy: Option<RenewPolicy>) -> bool {
        let (mut keys, now) = (self.keys(), Instant::now());
        for key in &claim.keys {
            if let Some(hold) = keys.hold(key, claim, now) {
                hold.expires = hold.expires(now);
                hold.renewed = policy.map(|policy| (now, policy));
            }
        }
        true
    }

    fn extend_all<'a>(&'a self, claims: &'a [&'a Claim], _within: Duration) -> Answers<'a> {
        Box::pin(async move { claims.iter().map(|claim| Ok(self.extend_claim(claim, claim.ttl))).collect() })
    }

    fn extend<'a>(&'a self, claim: &'a Claim, ttl: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(self.extend_claim(claim, ttl)) })
    }

    fn release<'a>(&'a self, claim: &'a Claim, keep: Duration) -> StoreFuture<'a, Released> {
        Box::pin(async move { Ok(self.release_claim(claim, keep)) })
    }

    fn release_now(&self, claim: &Claim, keep: Duration) -> Option<Released> {
        Some(self.release_claim(claim, keep))
    }

    fn release_behind<'a>(
        &'a self,
        claim: &'a Claim,
        _carrier: Arc<dyn Any + Send + Sync>,
    ) -> StoreFuture<'a, Released> {
        self.release(claim, Duration::ZERO)
    }
}
