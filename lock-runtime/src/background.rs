//! What nobody awaits: renewals, releases of dropped guards, and clean-up of acquisitions whose outcome is unknown.
//!
//! It runs on a thread of its own, with its own small runtime and connection, started when it is first needed: a body
//! that blocks its thread must not stop renewals, a guard can be dropped outside any runtime, and a manager outlives
//! the runtime that made it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, sleep};

use crate::events::{self, Ending};
use crate::gate::{Places, Releasing};
use crate::guard::ReleaseOutcome;
use crate::lease::Lease;
use crate::manager::LockManager;
use crate::renew::{RenewPolicy, Renewal, Renewals};
use crate::store::{Flight, Released, StoreError, Unwatched};

/// A lock that has to be released, and what else ends with it.
pub(crate) struct Release {
    lease: Arc<Lease>,
    flight: Flight,
    /// The turn at the key. Given up when the release is answered, so that the next one is not refused.
    places: Option<Places>,
    /// Dropped first: nothing is renewed while it is being released.
    renewal: Option<Renewal>,
    /// Fixed when the release is first tried: the held time is not to grow with the retries.
    ending: Option<Ending>,
    /// An earlier try got no answer, and may have deleted the key.
    tried: bool,
    /// An earlier try found a key that was not the lease's.
    lost: bool,
}

impl Release {
    pub(crate) fn new(
        lease: Arc<Lease>,
        flight: Flight,
        places: Option<Places>,
        renewal: Option<Renewal>,
    ) -> Self {
        Self { lease, flight, places, renewal, ending: None, tried: false, lost: false }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Asks the store once. Without an answer it has to be tried again.
    pub(crate) async fn attempt(&mut self) -> Result<ReleaseOutcome, StoreError> {
        self.begin();
        let tried = std::mem::replace(&mut self.tried, true);
        let found = self.lease.manager().store().release(self.lease.claim(), self.lease.keep()).await?;
        Ok(self.conclude(if tried { found.after_resending() } else { found }))
    }

    /// Begins it for a caller who does not await the answer: gives the turn back, to be handed on when the request is
    /// on its way, and notes that it is being released; whoever is refused until then waits for it. None if the store
    /// needs no request and it is done.
    pub(crate) fn begin_unwatched(&mut self) -> Option<(Option<Places>, Pending)> {
        self.begin();
        let manager = self.lease.manager();
        if let Some(found) = manager.store().release_now(self.lease.claim(), self.lease.keep()) {
            self.conclude(found);
            return None;
        }
        // Until something else is known.
        self.tried = true;
        let releasing = match &self.places {
            Some(places) => places.releasing(),
            None => manager.gate().releasing(&self.lease.claim().keys, false),
        };
        let pending = manager.background().ledger.enter(releasing);
        Some((self.places.take(), pending))
    }

    /// Ends it with what the store said.
    pub(crate) fn end_unwatched(mut self, answer: Unwatched) {
        self.tried = answer == Unwatched::Unanswered;
        self.lost = answer == Unwatched::Lost;
        if answer == Unwatched::Done {
            self.conclude(Released::Done);
            self.finish();
        } else {
            // Looks again, and finds out what stands there.
            self.in_background();
        }
    }

    /// What remains once the answer is known: an earlier sending of the acquisition may still arrive.
    pub(crate) fn finish(self) {
        if self.flight.is_open() {
            let manager = self.lease.manager().clone();
            manager.background().submit(&manager, Job::Stray(self.lease, self.flight));
        }
    }

    /// Brings it to its end without anyone waiting: at once if the store can, else on the background thread.
    pub(crate) fn in_background(mut self) {
        self.begin();
        if let Some(found) = self.lease.manager().store().release_now(self.lease.claim(), self.lease.keep()) {
            self.conclude(found);
            return;
        }
        let manager = self.lease.manager().clone();
        manager.background().submit(&manager, Job::Release(self));
    }

    fn begin(&mut self) {
        let now = Instant::now();
        self.ending.get_or_insert_with(|| Ending::of(&self.lease, now));
        self.lease.note_max_hold();
        drop(self.renewal.take());
        if let Some(places) = &self.places {
            places.ending(now);
        }
    }

    fn conclude(&self, found: Released) -> ReleaseOutcome {
        let ending = self.ending.unwrap_or_else(|| Ending::of(&self.lease, Instant::now()));
        let found = match found {
            // A request of the acquisition that strayed may have set the key anew after the lease was over.
            Released::Done if self.lost || self.flight.has_strayed() && self.lease.is_lost() => {
                Released::Unclear(None)
            }
            found => found,
        };
        events::released(&self.lease, ending, &found)
    }

    async fn run(mut self, pending: Pending) {
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.attempt_in_turn().await {
            if Instant::now() >= self.lease.ends_by() {
                // The key has ended by itself, if it was still there.
                self.conclude(Released::Unanswered(error));
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        pending.answered();
        drop(self.places.take());
        // An earlier sending of the acquisition that strays about is no reason to hold up a shutdown: it is as good as
        // certain that it never left a connection that had ended.
        pending.done();
        if self.flight.is_open() {
            settle(&self.lease, self.flight, &pending).await;
        }
    }

    async fn attempt_in_turn(&mut self) -> Result<ReleaseOutcome, StoreError> {
        let manager = self.lease.manager().clone();
        let _turn = manager.background().turns.acquire().await;
        self.attempt().await
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Requests under way at once. Ten thousand at once would wait so long for each other that all would time out.
const TURNS: usize = 128;

/// Sees to it that an acquisition whose outcome is unknown leaves no key.
pub(crate) fn clean_up(lease: Arc<Lease>, flight: Flight) {
    let manager = lease.manager().clone();
    manager.background().submit(&manager, Job::CleanUp(lease, flight));
}

/// Releases until nothing of the acquisition can arrive at the store any more.
async fn settle(lease: &Lease, flight: Flight, pending: &Pending) {
    let (store, turns) = (lease.manager().store(), &lease.manager().background().turns);
    let strayed = flight.has_strayed();
    if !flight.is_open() {
        // Everything was answered, and only has to be undone.
        let mut pause = FIRST_PAUSE;
        loop {
            let turn = turns.acquire().await;
            if store.release(lease.claim(), lease.keep()).await.is_ok() || Instant::now() >= lease.ends_by() {
                return pending.answered();
            }
            drop(turn);
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
    if let Some(carrier) = flight.into_carrier() {
        let _turn = turns.acquire().await;
        // The store took the requests in order, so what it answers now is final for this one.
        if store.release_behind(lease.claim(), carrier).await.is_ok() {
            pending.answered();
            if !strayed {
                return;
            }
        }
    }
    // The connection is closed by now, or as soon as the last one who waits on it has given up. What it carried may
    // still reach the store, so an answer of "not there" is not final until one ttl after that.
    let ttl = lease.claim().ttl;
    let end = Instant::now() + lease.manager().response_timeout() + ttl;
    let slowest = LAST_PAUSE.max(ttl / 32);
    let mut pause = FIRST_PAUSE;
    loop {
        let turn = turns.acquire().await;
        if let Ok(released) = store.release(lease.claim(), lease.keep()).await {
            pending.answered();
            // A request is carried out once, so what was found was all there was.
            if matches!(released, Released::Done) && !strayed {
                return;
            }
        }
        drop(turn);
        pending.tried();
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        sleep(pause.min(left)).await;
        pause = (pause * 2).min(slowest);
    }
}

enum Job {
    Release(Release),
    CleanUp(Arc<Lease>, Flight),
    /// The same after the lock was had and released.
    Stray(Arc<Lease>, Flight),
}

impl Job {
    async fn run(self, pending: Pending) {
        match self {
            Self::Release(release) => release.run(pending).await,
            Self::CleanUp(lease, flight) => settle(&lease, flight, &pending).await,
            Self::Stray(lease, flight) => {
                pending.answered();
                pending.done();
                settle(&lease, flight, &pending).await;
            }
        }
    }
}

/// The way to the background thread of one manager.
pub(crate) struct Background {
    jobs: OnceLock<mpsc::UnboundedSender<(Job, Pending)>>,
    renewals: Arc<Renewals>,
    ledger: Arc<Ledger>,
    turns: Semaphore,
}

impl Default for Background {
    fn default() -> Self {
        Self {
            jobs: OnceLock::new(),
            renewals: Arc::default(),
            ledger: Arc::default(),
            turns: Semaphore::new(TURNS),
        }
    }
}

impl Background {
    /// Renews a lease until the value is dropped.
    pub(crate) fn renew(&self, lease: &Arc<Lease>, policy: RenewPolicy) -> Renewal {
        self.jobs();
        self.renewals.begin(lease, policy)
    }

    fn submit(&self, manager: &LockManager, job: Job) {
        let (lease, cleaning) = match &job {
            Job::Release(release) => (Arc::clone(&release.lease), false),
            Job::CleanUp(lease, _) => (Arc::clone(lease), true),
            Job::Stray(lease, _) => (Arc::clone(lease), false),
        };
        let pending = self.ledger.enter(manager.gate().releasing(&lease.claim().keys, cleaning));
        // Unbounded: each entry is a lock that was held, and dropping one would leave its key behind.
        if self.jobs().send((job, pending)).is_err() {
            tracing::error!(
                target: "lock_runtime",
                key = lease.key(),
                "the background thread could not be started; the key stays until its ttl ends"
            );
        }
    }

    fn jobs(&self) -> &mpsc::UnboundedSender<(Job, Pending)> {
        self.jobs.get_or_init(|| start(&self.ledger, &self.renewals))
    }

    /// Waits until nothing is left to release or to clean up.
    pub(crate) async fn idle(&self) {
        self.ledger.idle().await;
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.ledger.jobs.load(Ordering::Acquire)
    }
}

/// How much the background has still to do, for those who wait for it.
#[derive(Default)]
struct Ledger {
    jobs: AtomicUsize,
    changed: Notify,
}

impl Ledger {
    fn enter(self: &Arc<Self>, releasing: Releasing) -> Pending {
        self.jobs.fetch_add(1, Ordering::AcqRel);
        Pending {
            ledger: Arc::clone(self),
            releasing: Mutex::new(Some(releasing)),
            done: AtomicBool::new(false),
        }
    }

    async fn idle(&self) {
        loop {
            let changed = self.changed.notified();
            if self.jobs.load(Ordering::Acquire) == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// One job in the ledger; it is struck out when this is dropped, whatever becomes of the job.
pub(crate) struct Pending {
    ledger: Arc<Ledger>,
    releasing: Mutex<Option<Releasing>>,
    done: AtomicBool,
}

impl Pending {
    /// Nobody has to wait for what is left of it.
    fn done(&self) {
        if !self.done.swap(true, Ordering::AcqRel) {
            self.ledger.jobs.fetch_sub(1, Ordering::AcqRel);
            self.ledger.changed.notify_waiters();
        }
    }

    /// The store has answered: whoever waits for this key may ask again.
    fn answered(&self) {
        drop(self.releasing.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Pending {
    /// The store was asked, and may or may not have answered.
    fn tried(&self) {
        if let Some(releasing) = &mut *self.releasing.lock().unwrap_or_else(PoisonError::into_inner) {
            releasing.tried();
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.answered();
        self.done();
    }
}

/// Starts the thread. It ends when its manager and every guard of it are gone and all work is done.
fn start(ledger: &Arc<Ledger>, renewals: &Arc<Renewals>) -> mpsc::UnboundedSender<(Job, Pending)> {
    let (sender, mut jobs) = mpsc::unbounded_channel::<(Job, Pending)>();
    let (ledger, renewals) = (Arc::clone(ledger), Arc::clone(renewals));
    let work = async move {
        // Ends with the runtime: every lease that could be renewed holds the manager, and with it the sender.
        tokio::spawn(async move {
            // A panic in it (of a `tracing` subscriber, say) must not end all renewals.
            loop {
                let renewals = Arc::clone(&renewals);
                if tokio::spawn(async move { renewals.run().await }).await.is_ok() {
                    break;
                }
            }
        });
        while let Some((job, pending)) = jobs.recv().await {
            tokio::spawn(job.run(pending));
        }
        ledger.idle().await;
    };
    let started = std::thread::Builder::new().name("lock-runtime".to_owned()).spawn(move || {
        if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
            runtime.block_on(work);
        }
    });
    // A failure shows at the sender: its other end is gone.
    drop(started);
    sender
}
