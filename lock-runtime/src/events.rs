//! What is reported, and under which names: the one place that knows the fields of events and the labels of metrics.
//!
//! The names are documented at the crate's root and do not change within a major version.

use std::time::Duration;

use tokio::time::Instant;

#[cfg(feature = "metrics")]
use crate::counters;
use crate::error::LockError;
use crate::guard::ReleaseOutcome;
use crate::lease::Lease;
use crate::store::Released;

/// Above this share of its ttl a body is running out of time.
const TIGHT: f64 = 0.8;

/// How an acquisition ended.
#[derive(Clone, Copy)]
pub(crate) enum Acquired<'a> {
    Granted,
    Busy,
    Unavailable(&'a LockError),
    Cancelled,
}

/// How long a lock was held when its body ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    held: Duration,
    share: Option<f64>,
}

impl Ending {
    pub(crate) fn of(lease: &Lease, now: Instant) -> Self {
        let (held, share) = lease.held_at(now);
        Self { held, share }
    }
}

/// The fields that every event about a lock begins with.
macro_rules! event {
    ($level:ident, $lease:expr, $($rest:tt)*) => {
        tracing::$level!(
            target: "lock_runtime",
            key = $lease.key(),
            template = $lease.site().template(),
            function = %$lease.site().function(),
            token = $lease.token(),
            tag = $lease.tag(),
            ttl_ms = millis($lease.claim().ttl),
            $($rest)*
        )
    };
}

/// The span around the locked section.
pub(crate) fn section(lease: &Lease) -> tracing::Span {
    tracing::info_span!(
        target: "lock_runtime",
        "redis_lock",
        key = lease.key(),
        template = lease.site().template(),
        function = %lease.site().function(),
        token = lease.token(),
        tag = lease.tag(),
    )
}

pub(crate) fn acquisition(lease: &Lease, waited: Duration, outcome: Acquired<'_>) {
    let wait_ms = millis(waited);
    let word = match outcome {
        Acquired::Granted => {
            event!(debug, lease, wait_ms, outcome = "granted", "lock acquired");
            "granted"
        }
        Acquired::Busy => {
            event!(debug, lease, wait_ms, outcome = "busy", "lock is held by someone else");
            "busy"
        }
        Acquired::Unavailable(error) => {
            event!(warn, lease, wait_ms, outcome = "unavailable", error = %error, "lock store did not grant or refuse");
            "unavailable"
        }
        Acquired::Cancelled => {
            event!(debug, lease, wait_ms, outcome = "cancelled", "acquisition was given up by its caller");
            "cancelled"
        }
    };
    counters::acquisition(lease, waited, word);
}

/// Reports a loss while the body runs.
pub(crate) fn lost(lease: &Lease, outcome: &'static str, how: &'static str) {
    let held_ms = millis(lease.held().0);
    event!(warn, lease, held_ms, outcome, "lock was lost while its body was running: {how}");
    counters::lost(lease, outcome);
}

/// Reports that a lease is no longer renewed.
pub(crate) fn max_hold(lease: &Lease) {
    let held_ms = millis(lease.held().0);
    event!(
        warn,
        lease,
        held_ms,
        outcome = "max_hold",
        "lock has been held for max_hold and is no longer renewed"
    );
}

/// Reports the end of a lease, and what it means to the holder.
pub(crate) fn released(lease: &Lease, ending: Ending, found: &Released) -> ReleaseOutcome {
    let (held_ms, share) = (millis(ending.held), ending.share);
    let (word, answer) = match found {
        Released::Done => {
            event!(debug, lease, held_ms, share, outcome = "released", "lock released");
            ("released", ReleaseOutcome::Released)
        }
        Released::Expired => {
            event!(
                warn,
                lease,
                held_ms,
                share,
                outcome = "expired",
                "lock was not held at its release: its key had expired or been deleted"
            );
            ("expired", ReleaseOutcome::NotHeld)
        }
        Released::HeldByOther(other) => {
            event!(
                warn,
                lease,
                held_ms,
                share,
                outcome = "held_by_other",
                found = other.as_deref().unwrap_or("(not a string)"),
                "lock was not held at its release: someone else holds it, and keeps it"
            );
            ("held_by_other", ReleaseOutcome::NotHeld)
        }
        Released::Unclear(other) => {
            event!(
                warn,
                lease,
                held_ms,
                share,
                outcome = "unknown",
                found = other.as_deref(),
                "whether lock was held to its end is not known: a request for it had to be sent twice"
            );
            ("unknown", ReleaseOutcome::Unknown)
        }
        Released::Unanswered(error) => {
            event!(
                warn,
                lease,
                held_ms,
                share,
                outcome = "unknown",
                error = %error,
                "the store did not answer the release before the lease ended"
            );
            ("unknown", ReleaseOutcome::Unknown)
        }
    };
    if share.is_some_and(|share| share > TIGHT) {
        event!(
            info,
            lease,
            held_ms,
            share,
            "body used most of its lock's ttl: make the ttl longer or the body shorter"
        );
    }
    counters::released(lease, ending.held, share, word);
    answer
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(not(feature = "metrics"))]
mod counters {
    use std::time::Duration;

    use crate::lease::Lease;

    pub(super) fn acquisition(_: &Lease, _: Duration, _: &'static str) {}

    pub(super) fn lost(_: &Lease, _: &'static str) {}

    pub(super) fn released(_: &Lease, _: Duration, _: Option<f64>, _: &'static str) {}
}
