//! What a child does with the product: calls of annotated functions and locks by hand, with bodies that note when they
//! begin and end, and until when their lease was believed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use lock_runtime::{
    Lease, LockError, LockGuard, LockManager, LockRequest, ReleaseOutcome, redis_lock, set_global_manager,
};
use tests::history::{History, Mode, Section};
use tests::{PATIENCE, poll};

use crate::child::Worker;
use crate::tally::Tally;
use crate::{KEYS, TTLS};

/// How long calls wait, one like the other.
const WAITS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(300), Duration::from_secs(1)];
/// What a call may take beyond its wait and its body: three times the response timeout (a release of this process that
/// it comes upon, its own attempt, its own release), the longest pause of a process, and a busy machine.
const SLACK: Duration = Duration::from_secs(5);
/// How often a body looks whether its lease has been renewed.
const STEP: Duration = Duration::from_millis(40);

/// The manager of a child, which is also the one of its annotated functions.
pub(crate) async fn connect(url: &str, number: u64) -> LockManager {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match LockManager::builder().owner(format!("process-{number}")).connect(url).await {
            Ok(locks) => {
                set_global_manager(locks.clone()).expect("a child has one manager");
                return locks;
            }
            // On a busy machine a connection can take longer than it may.
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

/// Makes one call after another until it is told that it is over.
pub(crate) async fn work(mut worker: Worker, locks: LockManager) {
    while !worker.is_over() {
        let (call, longest) = any_call(&mut worker, &locks);
        // One in eight is dropped at one of its first awaits: before it asked, while it waits, in its body, or while it
        // releases.
        let polls = worker.random.one_in(8).then(|| worker.random.index(8));
        let call = async {
            match polls {
                Some(polls) => poll::drop_after(call, polls).await,
                None => Poll::Ready(call.await),
            }
        };
        worker.tally.add("calls");
        let longest = longest + SLACK;
        let ended = tokio::time::timeout(longest, call).await;
        worker.tally.add(match ended.unwrap_or_else(|_| panic!("a call did not end within {longest:?}")) {
            Poll::Pending => "dropped",
            Poll::Ready(Ok(())) => "ran",
            Poll::Ready(Err(error)) => name(&error),
        });
        worker.think().await;
    }
}

/// The errors that may be met here. Any other is a bug.
fn name(error: &LockError) -> &'static str {
    match error {
        LockError::Busy { .. } => "busy",
        LockError::Unavailable { .. } => "unavailable",
        LockError::Lost { .. } => "lost",
        error => panic!("{error}"),
    }
}

type Call = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

/// A call, and how long it may wait and its body may take.
fn any_call(worker: &mut Worker, locks: &LockManager) -> (Call, Duration) {
    let key = worker.random.below(KEYS);
    let other = (key + 1 + worker.random.below(KEYS - 1)) % KEYS;
    let kind = worker.random.below(16);
    let mut body = Body::any(worker);
    // What is renewed outlives its ttl often, and by more.
    if (3..6).contains(&kind) && worker.random.one_in(6) {
        body.length += worker.random.millis(0, 1_200);
    }
    let longest = body.wait + body.length * 2;
    let by_hand = ByHand { locks: locks.clone(), tally: Arc::clone(&worker.tally) };
    let call: Call = match kind {
        0 | 1 => Box::pin(plain(key, body)),
        2 => Box::pin(cancelled_when_lost(key, body)),
        3 => Box::pin(renewed(key, body)),
        4 => Box::pin(renewed_for_a_while(key, body)),
        5 => Box::pin(renewed_and_cancelled_when_lost(key, body)),
        6 | 7 => Box::pin(released_in_background(key, body)),
        8 | 9 => Box::pin(fenced(key, body)),
        10 => Box::pin(several([key, other], body)),
        11 => Box::pin(shared(key, body.of(Mode::Shared))),
        12 => Box::pin(one_of_two(key, body.of(Mode::Permits(2)))),
        13 => Box::pin(by_hand.dropped(key, body)),
        14 => Box::pin(by_hand.extended(key, body)),
        _ if worker.random.one_in(2) => Box::pin(by_hand.released(vec![key], body)),
        _ => Box::pin(by_hand.released(vec![key, other], body)),
    };
    (call, longest)
}

#[redis_lock(key = "k:<key>", ttl = body.ttl, wait = body.wait, guard = lock)]
async fn plain(key: u64, body: Body) -> Result<(), LockError> {
    body.run(lock).await;
    Ok(())
}

#[redis_lock(key = "k:<key>", ttl = body.ttl, wait = body.wait, on_lost = cancel, guard = lock)]
async fn cancelled_when_lost(key: u64, body: Body) -> Result<(), LockError> {
    body.run(lock).await;
    Ok(())
}

#[redis_lock(key = "k:<key>", ttl = body.ttl, wait = body.wait, renew, guard = lock)]
async fn renewed(key: u64, body: Body) -> Result<(), LockError> {
    body.run(lock).await;
    Ok(())
}

#[redis_lock(key = "k:<key>", ttl = body.ttl, wait = body.wait, renew, max_hold = "1100ms", guard = lock)]
async fn renewed_for_a_while(key: u64, body: Body) -> Result<(), LockError> {
    body.run(lock).await;
    Ok(())
}

#[redis_lock(key = "k:<key>", ttl = body.ttl, wait = body.wait, renew, on_lost = cancel, guard = lock)]
async fn renewed_and_cancelled_when_lost(key: u64, body: Body) -> Result<(), LockError> {
    body.run(lock).await;
    Ok(())
}

#[redis_lock(key = "k:<key>", ttl = body.ttl, wait = body.wait, release = background, guard = lock)]
async fn released_in_background(key: u64, body: Body) -> Result<(), LockError> {
    body.run(lock).await;
    Ok(())
}

#[redis_lock(key = "k:<key>", ttl = body.ttl, wait = body.wait, fenced, guard = lock)]
async fn fenced(key: u64, body: Body) -> Result<(), LockError> {
    assert_ne!(lock.fence(), 0, "a fenced lease has a fencing token");
    body.run(lock).await;
    Ok(())
}

#[redis_lock(key = "k:<key>", for key in keys, ttl = body.ttl, wait = body.wait, guard = lock)]
async fn several(keys: [u64; 2], body: Body) -> Result<(), LockError> {
    body.run(lock).await;
    Ok(())
}

#[redis_lock(key = "k:<key>", ttl = body.ttl, wait = body.wait, shared, guard = lock)]
async fn shared(key: u64, body: Body) -> Result<(), LockError> {
    body.run(lock).await;
    Ok(())
}

#[redis_lock(key = "k:<key>", ttl = body.ttl, wait = body.wait, permits = 2, guard = lock)]
async fn one_of_two(key: u64, body: Body) -> Result<(), LockError> {
    body.run(lock).await;
    Ok(())
}

/// Locks that are taken and given back by hand.
struct ByHand {
    locks: LockManager,
    tally: Arc<Tally>,
}

impl ByHand {
    fn request(&self, keys: &[u64], body: &Body) -> LockRequest {
        let request = match keys {
            [key] => self.locks.lock(format!("k:{key}")),
            several => self.locks.lock_all(several.iter().map(|key| format!("k:{key}"))),
        };
        request.ttl(body.ttl).wait(body.wait)
    }

    async fn released(self, keys: Vec<u64>, body: Body) -> Result<(), LockError> {
        let guard = self.request(&keys, &body).acquire().await?;
        body.run(&guard).await;
        self.release(guard).await;
        Ok(())
    }

    async fn dropped(self, key: u64, body: Body) -> Result<(), LockError> {
        let guard = self.request(&[key], &body).acquire().await?;
        body.run(&guard).await;
        drop(guard);
        Ok(())
    }

    async fn extended(self, key: u64, body: Body) -> Result<(), LockError> {
        let guard = self.request(&[key], &body).acquire().await?;
        let mut stay = body.enter(&guard);
        stay.linger(&guard, body.length).await;
        let extended = guard.extend(body.ttl).await;
        stay.linger(&guard, body.length).await;
        drop(stay);
        self.release(guard).await;
        extended
    }

    /// Releases, and looks whether what is said of it can be true.
    async fn release(&self, guard: LockGuard) {
        let believed_until = Instant::now() + guard.remaining();
        let (key, token) = (guard.key().to_owned(), guard.token().to_owned());
        if guard.release().await == ReleaseOutcome::NotHeld {
            // As in `Stay::look_at`.
            assert!(Instant::now() >= believed_until, "{key} of {token} was lost while it was believed");
            self.tally.add("not held");
        }
    }
}

/// How a body gets its lock, how long it runs, and how it is recorded.
struct Body {
    history: History,
    mode: Mode,
    ttl: Duration,
    wait: Duration,
    length: Duration,
}

impl Body {
    fn any(worker: &mut Worker) -> Self {
        let (history, mode) = (worker.history.clone(), Mode::Exclusive);
        let ttl = TTLS[worker.random.index(TTLS.len())];
        let wait = WAITS[worker.random.index(WAITS.len())];
        Self { history, mode, ttl, wait, length: worker.length(ttl) }
    }

    fn of(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    async fn run(self, lease: &Lease) {
        self.enter(lease).linger(lease, self.length).await;
    }

    fn enter(&self, lease: &Lease) -> Stay {
        // In this order: a pause in between makes the lease look shorter, and its attempt earlier.
        let deadline = Instant::now() + lease.remaining();
        // A lease is believed for its ttl less a hundredth and 2 ms, from the attempt that was granted on.
        let asked = (deadline + self.ttl / 100 + Duration::from_millis(2)).checked_sub(self.ttl);
        let asked = asked.expect("this machine has been up for longer than a ttl");
        assert!(asked <= Instant::now(), "{} is believed for longer than its ttl", lease.token());
        let (history, token) = (&self.history, lease.token());
        let sections = match lease.fence() {
            0 => lease.keys().map(|key| history.enter_as(self.mode, key, asked, deadline, token)).collect(),
            fence => vec![history.enter(lease.key(), deadline, token, Some(fence))],
        };
        Stay { sections, deadline }
    }
}

/// A body in its critical section, of every key it holds.
struct Stay {
    sections: Vec<Section>,
    /// Until when the lease is known to be believed.
    deadline: Instant,
}

impl Stay {
    async fn linger(&mut self, lease: &Lease, length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end {
            tokio::time::sleep_until(end.min(Instant::now() + STEP).into()).await;
            self.look_at(lease);
        }
    }

    /// Notes that the lease has been renewed or extended.
    fn look_at(&mut self, lease: &Lease) {
        // In this order, as above.
        let (now, left) = (Instant::now(), lease.remaining());
        if left.is_zero() {
            // Nobody deletes keys here, and the server forgets none.
            let believed = Instant::now() < self.deadline;
            assert!(!believed, "{} of {} was lost while it was believed", lease.key(), lease.token());
        } else if now + left > self.deadline + Duration::from_millis(1) {
            self.deadline = now + left;
            self.sections.iter().for_each(|section| section.set_deadline(self.deadline));
        }
    }
}
