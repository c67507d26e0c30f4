//! Acquiring: who waits, for how long, and what wakes them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::background::{self, Release};
use crate::error::{LockError, LockName};
use crate::events::{self, Acquired};
use crate::gate::{Places, Refused, SHORTEST};
use crate::guard::LockGuard;
use crate::lease::Lease;
use crate::sharing::StandBack;
use crate::store::{Attempt, Flight, Mode, StoreError, StoreErrorKind, Watch, needs_runtime};
use crate::terms::Terms;

/// Even where news of the key is pushed, it is looked at this often: a connection can fall silent unnoticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);
/// A key that expires is gone for the store once its time is over, not at it.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);

/// Takes the lock, waiting for it as long as the terms say.
pub(crate) async fn acquire(lease: Arc<Lease>, terms: Terms) -> Result<LockGuard, LockError> {
    let started = Instant::now();
    let mut acquisition =
        Acquisition { lease, flight: Flight::default(), started, over: false, places: None };
    let outcome = acquisition.run(terms.wait).await;
    acquisition.over = true;
    let lease = Arc::clone(&acquisition.lease);
    match outcome.map(|()| acquisition.places.take()) {
        Ok(Some(places)) => {
            // Of those who hold beside others, each only has a turn at asking: the next may come in, too.
            let places = Some(places).filter(|_| lease.claim().mode == Mode::Exclusive);
            if let Some(places) = &places {
                places.granted(&lease);
            }
            if let Some(least) = terms.hold_at_least {
                lease.hold_until(Instant::now() + least);
            }
            events::acquisition(&lease, lease.granted() - started, Acquired::Granted);
            let renewal = terms.renew.and_then(|policy| lease.renew(policy));
            Ok(LockGuard::new(Release::new(lease, std::mem::take(&mut acquisition.flight), places, renewal)))
        }
        // There is no grant without a place.
        Ok(None) => Err(acquisition.busy(0)),
        Err(error) => {
            let outcome = if error.is_busy() { Acquired::Busy } else { Acquired::Unavailable(&error) };
            events::acquisition(&lease, started.elapsed(), outcome);
            Err(error)
        }
    }
}

/// One acquisition under way. Dropped before its end, and when it failed, it leaves what may have been sent to the
/// background.
struct Acquisition {
    lease: Arc<Lease>,
    flight: Flight,
    started: Instant,
    over: bool,
    /// Given up last: whoever is let in must find that what was sent is being cleaned up.
    places: Option<Places>,
}

impl Acquisition {
    /// Waits for the turn, and then as the head for the lock. On the turn's end the next one is let in.
    async fn run(&mut self, wait: Duration) -> Result<(), LockError> {
        let manager = self.lease.manager();
        if manager.is_shut_down() {
            return Err(self.shut_down());
        }
        let give_up = self.started.checked_add(wait);
        let mut waiting = false;
        let (mut left, mut arrived) = (wait, self.started);
        loop {
            let (gate, keys, exclusive) = (manager.gate(), &self.lease.claim().keys, self.is_exclusive());
            let entered =
                Places::enter(gate, keys, exclusive, !waiting, left, manager.response_timeout(), arrived)
                    .await;
            match entered {
                Ok(places) => self.places = Some(places),
                Err((index, Refused::Busy)) => return Err(self.busy(index)),
                Err((_, Refused::Unavailable(error))) => return Err(self.unavailable(error)),
            }
            if self.head(wait, give_up, waiting).await? {
                return Ok(());
            }
            // It asked beside the others, and has to wait: now in the queue, where one asks for all.
            self.places = None;
            waiting = true;
            arrived = Instant::now();
            if !wait.is_zero() {
                left = wait.saturating_sub(arrived - self.started).max(SHORTEST);
            }
        }
    }

    /// What only the first in the queue does: asks the store, and sleeps until it is worth asking again. False if it
    /// has to wait and has no turn to wait in.
    async fn head(&self, wait: Duration, give_up: Option<Instant>, waiting: bool) -> Result<bool, LockError> {
        let Some(places) = &self.places else { return Err(self.busy(0)) };
        let manager = self.lease.manager();
        // What this process is releasing right now is not busy, unless the release stays without an answer.
        let mut patience = None;
        let mut backoff = Backoff::new(self.lease.seed());
        // A call that finds nobody in its way costs a SET, and so does one that finds only callers of this process. One
        // that has to wait for another asks with the script that also watches.
        let contended = places.was_queued() || waiting;
        let mut watching = waiting || contended && !places.is_alone();
        if places.is_cleaning() {
            let patience = *patience.insert(Instant::now() + manager.response_timeout());
            needs_runtime().map_err(|cause| self.unavailable(cause))?;
            // Boxed, as is what follows: seldom, and what it needs would be part of every acquisition.
            if Box::pin(timeout_at(patience, places.cleaned())).await.is_err() {
                let waited = manager.response_timeout();
                let cause = StoreError::new(
                    StoreErrorKind::Timeout,
                    format!(
                        "an earlier request for this key got no answer, nor did its clean-up within {} ms",
                        waited.as_millis()
                    ),
                );
                places.unavailable(&cause);
                return Err(self.unavailable(cause));
            }
        }
        loop {
            if manager.is_shut_down() {
                return Err(self.shut_down());
            }
            match if contended || watching { places.stand_back() } else { StandBack::No } {
                StandBack::No => {}
                // Its answer does not matter, but it takes as long as that of a waiter elsewhere.
                StandBack::RoundTrip => {
                    let look = manager.store().look(self.lease.claim());
                    let looked = match give_up {
                        Some(give_up) if needs_runtime().is_ok() => timeout_at(give_up, look).await,
                        _ => Ok(look.await),
                    };
                    if let Ok(Err(cause)) = looked {
                        places.unavailable(&cause);
                        return Err(self.unavailable(cause));
                    }
                }
                StandBack::For(pause) => {
                    let until = Instant::now() + pause;
                    Box::pin(sleep_until(give_up.map_or(until, |give_up| until.min(give_up)))).await;
                }
            }
            // Looked up before the attempt: the release may be answered between the attempt's refusal and its arrival.
            let being_released = places.is_releasing();
            let asked = Instant::now();
            let patience = *patience.get_or_insert(asked + manager.response_timeout());
            let attempt = if watching {
                manager.store().acquire_or_watch(self.lease.claim(), &self.flight).await
            } else {
                manager.store().acquire(self.lease.claim(), &self.flight).await
            };
            let (held, watch) = match attempt {
                Ok(Attempt::Granted(fence)) if self.lease.grant(asked, fence) => return Ok(true),
                Ok(Attempt::Granted(_)) => {
                    // Its release is an ordinary one, but nobody held anything that could be reported as lost.
                    background::clean_up(Arc::clone(&self.lease), Flight::default());
                    return Err(self.unavailable(StoreError::new(
                        StoreErrorKind::TooLate,
                        "the grant arrived after its lease had ended",
                    )));
                }
                Ok(Attempt::Held(index, watch)) => (index, watch),
                Err(cause) => {
                    places.unavailable(&cause);
                    return Err(self.unavailable(cause));
                }
            };
            if being_released
                && Instant::now() < patience
                && Box::pin(timeout_at(patience, places.released())).await.is_ok()
            {
                continue;
            }
            let leaves = give_up.is_some_and(|give_up| Instant::now() >= give_up);
            places.refused(held, self.is_exclusive(), !leaves);
            if leaves {
                return Err(self.busy(held));
            }
            if places.are_beside() {
                return Ok(false);
            }
            needs_runtime().map_err(|cause| self.unavailable(cause))?;
            if watching {
                Box::pin(sleep_until_news(watch, &mut backoff, give_up)).await;
            }
            watching = !wait.is_zero();
        }
    }

    fn is_exclusive(&self) -> bool {
        self.lease.claim().mode == Mode::Exclusive
    }

    fn shut_down(&self) -> LockError {
        let text = "this manager has been shut down and gives no more locks";
        self.unavailable(StoreError::new(StoreErrorKind::ShutDown, text))
    }

    /// Busy, and which of the keys it was.
    fn busy(&self, index: usize) -> LockError {
        let key = self.lease.keys().nth(index).unwrap_or_default();
        LockError::Busy { lock: LockName::new(key, self.lease.site()).into(), waited: self.started.elapsed() }
    }

    fn unavailable(&self, cause: StoreError) -> LockError {
        LockError::Unavailable { lock: self.lease.name().into(), cause }
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if !self.over {
            events::acquisition(&self.lease, self.started.elapsed(), Acquired::Cancelled);
        }
        if self.flight.is_open() {
            background::clean_up(Arc::clone(&self.lease), std::mem::take(&mut self.flight));
        }
    }
}

/// Sleeps until the key has changed or expired, or the caller gives up. Where changes are not pushed, until the next
/// poll.
async fn sleep_until_news(watch: Watch, backoff: &mut Backoff, give_up: Option<Instant>) {
    let now = Instant::now();
    let pause = if watch.changed.is_some() { LONGEST_SLEEP } else { backoff.next() };
    let expiry = watch.expires_in.map_or(LONGEST_SLEEP, |left| left + AFTER_EXPIRY);
    let until = now + pause.min(expiry);
    let until = give_up.map_or(until, |give_up| until.min(give_up));
    match watch.changed {
        Some(changed) => drop(timeout_at(until, pin!(changed)).await),
        None => sleep_until(until).await,
    }
}

/// Pauses that grow from 10 to 250 ms, each shortened at random by up to a half, so that waiters spread out.
struct Backoff {
    pause: Duration,
    random: u64,
}

impl Backoff {
    fn new(seed: u64) -> Self {
        Self { pause: Duration::from_millis(10), random: seed | 1 }
    }

    fn next(&mut self) -> Duration {
        // Xorshift: the seed is from a random UUID, and nothing but the spread depends on it.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let jitter = u32::try_from(self.random >> 40 & 0xff).unwrap_or(0);
        let pause = self.pause.saturating_sub(self.pause * jitter / 512);
        self.pause = (self.pause * 2).min(Duration::from_millis(250));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_quarter_of_a_second_and_differ_between_waiters() {
        let pauses = |seed| {
            let mut backoff = Backoff::new(seed);
            (0..8).map(|_| backoff.next()).collect::<Vec<_>>()
        };
        let (one, other) = (pauses(0x1234_5678_9abc), pauses(0x9999_4444_0001));
        assert_ne!(one, other);
        for (n, pause) in one.iter().chain(&other).enumerate() {
            let full = Duration::from_millis((10 << (n % 8)).min(250));
            assert!(*pause <= full && *pause >= full / 2, "{pause:?} of {full:?}");
        }
    }
}
