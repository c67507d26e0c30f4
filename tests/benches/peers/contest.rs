//! Tasks of one process that all want the same lock, again and again.

use std::time::{Duration, Instant};

use lock_runtime::redis::{self, aio::MultiplexedConnection};
use tests::measure::Sample;
use tokio::task::JoinSet;

use crate::contenders::{Contender, Key};

/// How long the lock is held. Timers are coarse: what it comes to is measured.
const HOLD: Duration = Duration::from_millis(1);
/// How long a task does something else before it wants the lock again, if others want it, too.
const THINK: Duration = Duration::from_millis(5);
/// Who has waited this long is not going to get it.
const HOPELESS: Duration = Duration::from_secs(60);

/// When a task stops.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// After this many holds.
    Holds(usize),
    /// When this time has come.
    At(Instant),
}

impl End {
    fn has_come(self, done: usize) -> bool {
        match self {
            Self::Holds(holds) => done >= holds,
            Self::At(end) => Instant::now() >= end,
        }
    }

    fn is_before(self, granted: Instant) -> bool {
        matches!(self, Self::At(end) if end < granted)
    }
}

/// What came of a contest.
#[derive(Debug, Clone, Default)]
pub(crate) struct Course {
    /// From asking for the lock to having it, in milliseconds.
    pub(crate) waits: Sample,
    /// For how long it was held in all, in seconds.
    pub(crate) held: f64,
    /// From the first asking to the last release, in seconds.
    pub(crate) wall: f64,
    /// Attempts that ended without the lock.
    pub(crate) failed: usize,
    /// Those that had it before the end had come: a task that waits at that time is still served.
    pub(crate) in_time: usize,
}

impl Course {
    /// What the server and the holders need at least for so many holds one after the other: the time over that.
    pub(crate) fn over_the_least(&self, round_trip: f64) -> f64 {
        self.wall / (self.held + self.waits.len() as f64 * 2.0 * round_trip)
    }
}

/// Lets `tasks` tasks compete until their end has come.
pub(crate) async fn contest<C: Contender>(contender: &C, key: &Key, tasks: usize, end: End) -> Course {
    let began = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..tasks {
        let think = if tasks > 1 { THINK } else { Duration::ZERO };
        all.spawn(compete(contender.clone(), key.clone(), think, end));
    }
    let mut course = Course::default();
    for one in all.join_all().await {
        course.waits.extend(one.iter().flatten().map(|hold| hold.waited.as_secs_f64() * 1_000.0));
        course.held += one.iter().flatten().map(|hold| hold.held.as_secs_f64()).sum::<f64>();
        course.in_time += one.iter().flatten().filter(|hold| !end.is_before(hold.granted)).count();
        course.failed += one.iter().filter(|hold| hold.is_none()).count();
    }
    course.wall = began.elapsed().as_secs_f64();
    course
}

struct Hold {
    granted: Instant,
    waited: Duration,
    held: Duration,
}

async fn compete<C: Contender>(mut contender: C, key: Key, think: Duration, end: End) -> Vec<Option<Hold>> {
    let mut holds = Vec::new();
    while !end.has_come(holds.len()) {
        if !holds.is_empty() && !think.is_zero() {
            tokio::time::sleep(think).await;
        }
        let asked = Instant::now();
        let body = async {
            let granted = Instant::now();
            tokio::time::sleep(HOLD).await;
            Hold { granted, waited: granted - asked, held: granted.elapsed() }
        };
        let held = tokio::time::timeout(HOPELESS, contender.hold(&key, body)).await;
        holds.push(held.ok().and_then(Result::ok));
    }
    holds
}

/// The median time of a command and its answer when nothing else is going on, in seconds.
pub(crate) async fn round_trip(server: &mut MultiplexedConnection) -> f64 {
    let mut sample = Sample::default();
    for _ in 0..300 {
        let asked = Instant::now();
        redis::cmd("PING").query_async::<()>(server).await.expect("the server answers");
        sample.push(asked.elapsed().as_secs_f64());
    }
    sample.median()
}
