//! A full store in this process: for tests without a server, and programs of a single process.
//!
//! It keeps tokio's time: under `#[tokio::test(start_paused = true)]` leases expire when the paused clock passes
//! their end.

use std::any::Any;
use std::collections::HashMap;
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
    holders: HashMap<Arc<str>, Hold>,
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
    /// The holders of a key whose time is not over.
    fn get(&mut self, key: &str) -> Option<&mut Entry> {
        let now = Instant::now();
        let gone = self.live.get_mut(key).is_some_and(|entry| {
            entry.expire(now);
            entry.holders.is_empty()
        });
        if gone {
            self.live.remove(key);
        }
        self.live.get_mut(key)
    }

    /// The claim's hold on a key.
    fn hold(&mut self, key: &str, claim: &Claim) -> Option<&mut Hold> {
        self.get(key)?.holders.get_mut(&claim.token)
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
            if let Some(hold) = keys.hold(key, claim) {
                // Swept by the next look at the key.
                *hold = Hold { ttl: keep, expires: now + keep, renewed: None };
                if keep.is_zero() {
                    let _ = keys.get(key);
                }
            } else if matches!(found, Released::Done) {
                found = match keys.get(key) {
                    Some(entry) if claim.mode == Mode::Exclusive => Released::HeldByOther(
                        entry.holders.keys().next().filter(|_| entry.exclusive).map(ToString::to_string),
                    ),
                    _ => Released::Expired,
                };
            }
        }
        self.released.notify_waiters();
        found
    }

    fn extend_claim(&self, claim: &Claim, ttl: Duration) -> bool {
        let (mut keys, until) = (self.keys(), Instant::now() + ttl);
        if claim.keys.iter().any(|key| keys.hold(key, claim).is_none()) {
            return false;
        }
        for key in &claim.keys {
            if let Some(hold) = keys.hold(key, claim) {
                hold.expires = hold.expires.max(until);
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
                if let Some(again) = keys.get(key).and_then(|entry| entry.refuses(claim, now)) {
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
            let mut keys = self.keys();
            let held = claim.keys.iter().all(|key| keys.hold(key, claim).is_some());
            // Nobody else can change a key before its time.
            Ok(Look { held, changed: None })
        })
    }

    fn renews_itself(&self, claim: &Claim, policy: Option<RenewPolicy>) -> bool {
        let (mut keys, now) = (self.keys(), Instant::now());
        for key in &claim.keys {
            if let Some(hold) = keys.hold(key, claim) {
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
