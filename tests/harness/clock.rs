//! Time that passes even where tokio's clock is paused.
//!
//! Under `#[tokio::test(start_paused = true)]` a `tokio::time::sleep` of the harness would push the clock of the
//! code under test forward; these waits leave it alone. They also work on any runtime, or on none.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use crate::lock;

struct Alarm {
    at: Instant,
    ring: oneshot::Sender<()>,
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl Eq for Alarm {}
impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Alarm {
    // Reversed: the heap gives its greatest, and the earliest is wanted.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at)
    }
}

#[derive(Default)]
struct Alarms {
    heap: Mutex<BinaryHeap<Alarm>>,
    earlier: Condvar,
}

static ALARMS: LazyLock<&'static Alarms> = LazyLock::new(|| {
    let alarms: &'static Alarms = Box::leak(Box::default());
    thread::Builder::new()
        .name("harness-clock".into())
        .spawn(move || alarms.run())
        .expect("the thread of the harness' clock could not be started");
    alarms
});

impl Alarms {
    fn run(&self) {
        let mut heap = lock(&self.heap);
        loop {
            let now = Instant::now();
            let wait = heap.peek().map(|alarm| alarm.at.saturating_duration_since(now));
            heap = match wait {
                Some(Duration::ZERO) => {
                    let due = heap.pop();
                    // Nobody may be waiting any more.
                    due.map(|alarm| alarm.ring.send(()));
                    heap
                }
                Some(wait) => self.earlier.wait_timeout(heap, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.earlier.wait(heap).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// Waits for `duration` of real time.
///
/// # Panics
///
/// If the thread that keeps the time is gone.
pub async fn sleep(duration: Duration) {
    let (ring, alarm) = oneshot::channel();
    let alarms = *ALARMS;
    lock(&alarms.heap).push(Alarm { at: Instant::now() + duration, ring });
    alarms.earlier.notify_one();
    alarm.await.expect("the thread of the harness' clock is gone");
}

/// The output of `future`, or `None` if it takes longer than `duration` of real time.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = sleep(duration) => None,
    }
}

/// Nanoseconds of the machine's monotonic clock: one number line for all processes of this machine.
///
/// # Panics
///
/// If the clock is before its own zero.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("CLOCK_MONOTONIC is not negative");
    let nanos = u64::try_from(now.tv_nsec).expect("a part of a second is not negative");
    seconds * 1_000_000_000 + nanos
}

/// An [`Instant`] on the number line of [`now_ns`].
///
/// Exact between the instants of one process, and to about a microsecond between processes.
#[must_use]
pub fn instant_ns(instant: Instant) -> u64 {
    static ANCHOR: LazyLock<(Instant, u64)> = LazyLock::new(anchor);
    let (at, ns) = *ANCHOR;
    let as_ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    match instant.checked_duration_since(at) {
        Some(after) => ns.saturating_add(as_ns(after)),
        None => ns.saturating_sub(as_ns(at - instant)),
    }
}

// The same moment on both clocks: of many pairs of readings the one that took the least time, because this thread
// may be interrupted between the two.
fn anchor() -> (Instant, u64) {
    let read = || {
        let before = now_ns();
        let at = Instant::now();
        let gap = now_ns() - before;
        (gap, at, before + gap / 2)
    };
    let (_, at, ns) = (0..100).map(|_| read()).min().expect("one hundred readings have a least");
    (at, ns)
}
