//! The gate: who of this process may ask the store for a key, and in what order.
//!
//! Callers for one key queue in order of arrival; the first of them, the *head*, is the only one that talks to the
//! store, so a thousand waiters cost the server what one costs. An entry lives while someone holds, asks or waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::lease::Lease;
use crate::sharing::Sharing;
use crate::store::{StoreError, needs_runtime};

/// The number of a place beside the turn. Tickets begin at 1.
const BESIDE: u64 = 0;

/// All keys of one manager that are in use by this process.
#[derive(Default)]
pub(crate) struct Gate {
    keys: Mutex<HashMap<Arc<str>, Entry>>,
    /// Tells those who wait for releases that one was answered.
    released: Notify,
}

#[derive(Default)]
struct Entry {
    turn: Turn,
    queue: BTreeMap<u64, Arc<Waiter>>,
    /// How many in the queue came with a `wait`, and how many want the key for themselves.
    patient: usize,
    exclusive: usize,
    /// The number of the next arrival.
    arrivals: u64,
    /// Releases of which nobody can say yet whether they have freed the key.
    unanswered: usize,
    /// Those of them that clean up after a request with an unknown outcome, and have not been tried yet: its connection
    /// may be silent, and nobody should be sent after it.
    cleaning: usize,
    sharing: Sharing,
}

/// Whose turn it is. The number says which `Place` has it, so that one that was overtaken cannot give it away.
#[derive(Default)]
enum Turn {
    #[default]
    Free,
    /// Asking the store. `refused`: it was told that someone else holds the key, and waits.
    Asking { place: u64, exclusive: bool, refused: bool },
    /// Told that it may ask, since then, and not heard of yet.
    Called { place: u64, since: Instant },
    /// Holding. `ending`: since when the release is under way.
    Holding { place: u64, lease: Weak<Lease>, ending: Option<Instant> },
}

/// One caller in the queue.
struct Waiter {
    answer: Mutex<Option<Answer>>,
    changed: Notify,
    /// Came with a `wait`. The others are only here until the head's attempt is answered.
    patient: bool,
    /// Wants the key for itself: what keeps a head like it out keeps it out, too.
    exclusive: bool,
}

enum Answer {
    YourTurn,
    Busy,
    Unavailable(StoreError),
}

/// Why a caller does not get to ask.
pub(crate) enum Refused {
    Busy,
    Unavailable(StoreError),
}

impl Entry {
    fn is_unused(&self) -> bool {
        matches!(self.turn, Turn::Free) && self.queue.is_empty() && self.unanswered == 0
    }

    /// Whether the next one may ask although someone has the turn: the lease is over, the release has had `patience`
    /// for its answer, or the one that was called is not being polled.
    fn is_open(&self, patience: Duration) -> bool {
        let past = |since: Instant| since.elapsed() >= patience;
        match &self.turn {
            Turn::Free => true,
            Turn::Called { since, .. } => past(*since),
            Turn::Asking { .. } => false,
            Turn::Holding { lease, ending, .. } => {
                ending.is_some_and(past) || lease.upgrade().is_none_or(|lease| lease.is_lost())
            }
        }
    }

    /// Until when it is certain that this does not change by itself.
    fn opens_at(&self, patience: Duration) -> Option<Instant> {
        match &self.turn {
            Turn::Holding { lease, ending, .. } => {
                let deadline = lease.upgrade().map(|lease| lease.deadline());
                let answered = ending.and_then(|since| since.checked_add(patience));
                [deadline, answered].into_iter().flatten().min()
            }
            Turn::Called { since, .. } => since.checked_add(patience),
            Turn::Free | Turn::Asking { .. } => None,
        }
    }

    fn enqueue(&mut self, number: u64, waiter: Arc<Waiter>) {
        self.patient += usize::from(waiter.patient);
        self.exclusive += usize::from(waiter.exclusive);
        self.queue.insert(number, waiter);
    }

    fn dequeue(&mut self, number: u64) -> bool {
        let left = self.queue.remove(&number);
        if let Some(waiter) = &left {
            self.uncount(waiter);
        }
        left.is_some()
    }

    fn uncount(&mut self, waiter: &Waiter) {
        self.patient -= usize::from(waiter.patient);
        self.exclusive -= usize::from(waiter.exclusive);
    }

    /// Whether one who does not want the key for itself may ask beside the others: nobody waits who does, and nobody
    /// was told that the key is held.
    fn lets_ask_beside(&self) -> bool {
        let asking = matches!(self.turn, Turn::Free | Turn::Asking { exclusive: false, refused: false, .. });
        asking && self.exclusive == 0
    }

    fn ticket(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Gives the turn to the first in the queue.
    fn pass_on(&mut self) {
        self.turn = Turn::Free;
        if let Some((place, waiter)) = self.queue.pop_first() {
            self.uncount(&waiter);
            self.turn = Turn::Called { place, since: Instant::now() };
            waiter.tell(Answer::YourTurn);
        }
        self.poke_first();
    }

    /// Lets the first in the queue look at the turn anew: it is the one that takes over when a lease ends.
    fn poke_first(&self) {
        if let Some(waiter) = self.queue.values().next() {
            waiter.changed.notify_one();
        }
    }

    /// Answers those who came without a wait, by what the head was told; `all`, or those who want what it wanted.
    fn answer_impatient(&mut self, all: bool) {
        if self.patient == self.queue.len() {
            return;
        }
        let mut answered_exclusive = 0;
        self.queue.retain(|_, waiter| {
            let answered = !waiter.patient && (all || waiter.exclusive);
            if answered {
                answered_exclusive += usize::from(waiter.exclusive);
                waiter.tell(Answer::Busy);
            }
            !answered
        });
        self.exclusive -= answered_exclusive;
    }
}

impl Waiter {
    fn tell(&self, answer: Answer) {
        *lock(&self.answer) = Some(answer);
        self.changed.notify_one();
    }
}

impl Gate {
    /// Waits for the turn to ask for a key. Without a `wait` the answer comes at once, unless it is being found out at
    /// this moment: a head's attempt is on its way, or a release is. Whoever has waited for a release for `patience`
    /// asks the store all the same.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        key: &Arc<str>,
        exclusive: bool,
        beside: bool,
        wait: Duration,
        patience: Duration,
    ) -> Result<Place, Refused> {
        let (arrived, patient) = (Instant::now(), !wait.is_zero());
        let (number, waiter) = {
            let mut keys = self.keys();
            if beside && !exclusive && keys.get(key).is_none_or(Entry::lets_ask_beside) {
                return Ok(Place {
                    gate: Arc::clone(self),
                    key: Arc::clone(key),
                    number: BESIDE,
                    queued: false,
                });
            }
            let entry = keys.entry(Arc::clone(key)).or_default();
            let number = entry.ticket();
            if entry.queue.is_empty() && entry.is_open(patience) {
                entry.turn = Turn::Asking { place: number, exclusive, refused: false };
                return Ok(Place { gate: Arc::clone(self), key: Arc::clone(key), number, queued: false });
            }
            let undecided = match &entry.turn {
                Turn::Asking { refused, .. } => !refused,
                Turn::Holding { ending, .. } => ending.is_some(),
                Turn::Called { .. } | Turn::Free => true,
            };
            if !patient && (entry.patient > 0 || !undecided) {
                return Err(Refused::Busy);
            }
            let waiter =
                Arc::new(Waiter { answer: Mutex::new(None), changed: Notify::new(), patient, exclusive });
            entry.enqueue(number, Arc::clone(&waiter));
            (number, waiter)
        };
        // Until the turn is ours, leaving early must leave the queue, or hand on a turn that came meanwhile.
        let ticket = Ticket { gate: self, key, number, waiter };
        // Without a wait: for the release's answer, and then the head's.
        let until = arrived.checked_add(if patient { wait } else { patience.saturating_mul(2) });
        needs_runtime().map_err(Refused::Unavailable)?;
        loop {
            let opens_at = match ticket.look(patience) {
                Look::Answered(Answer::YourTurn) | Look::Open => {
                    return Ok(ticket.into_place());
                }
                Look::Answered(Answer::Busy) => return Err(Refused::Busy),
                Look::Answered(Answer::Unavailable(error)) => return Err(Refused::Unavailable(error)),
                Look::Closed { opens_at } => opens_at,
            };
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(Refused::Busy);
            }
            let changed = ticket.waiter.changed.notified();
            match (opens_at, until) {
                (None, None) => changed.await,
                (Some(at), None) | (None, Some(at)) => drop(timeout_at(at, changed).await),
                (Some(one), Some(other)) => drop(timeout_at(one.min(other), changed).await),
            }
        }
    }

    /// Whether a release or clean-up of one of these keys has not been answered yet.
    pub(crate) fn is_releasing(&self, keys: &[Arc<str>]) -> bool {
        let entries = self.keys();
        keys.iter().any(|key| entries.get(key).is_some_and(|entry| entry.unanswered > 0))
    }

    /// Waits until that is no longer so.
    pub(crate) async fn released(&self, keys: &[Arc<str>]) {
        self.until(|| !self.is_releasing(keys)).await;
    }

    /// Whether a clean-up of one of these keys has not been tried yet.
    pub(crate) fn is_cleaning(&self, keys: &[Arc<str>]) -> bool {
        let entries = self.keys();
        keys.iter().any(|key| entries.get(key).is_some_and(|entry| entry.cleaning > 0))
    }

    /// Waits until that is no longer so.
    pub(crate) async fn cleaned(&self, keys: &[Arc<str>]) {
        self.until(|| !self.is_cleaning(keys)).await;
    }

    async fn until(&self, done: impl Fn() -> bool) {
        loop {
            let changed = self.released.notified();
            if done() {
                return;
            }
            changed.await;
        }
    }

    /// Lets the first in each queue look whether the holder's lease is still believed.
    pub(crate) fn lease_changed(&self, keys: &[Arc<str>]) {
        let entries = self.keys();
        for entry in keys.iter().filter_map(|key| entries.get(key)) {
            entry.poke_first();
        }
    }

    /// Notes that a release of these keys is under way, or a clean-up, until the value is dropped.
    pub(crate) fn releasing(self: &Arc<Self>, keys: &[Arc<str>], cleaning: bool) -> Releasing {
        let mut entries = self.keys();
        for key in keys {
            let entry = entries.entry(Arc::clone(key)).or_default();
            entry.unanswered += 1;
            entry.cleaning += usize::from(cleaning);
        }
        Releasing { gate: Arc::clone(self), keys: keys.to_vec(), cleaning }
    }

    /// How many keys are in use: none is kept longer than that.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.keys().len()
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        lock(&self.keys)
    }

    /// Changes an entry, and forgets it if nobody uses it any more.
    fn change(&self, key: &Arc<str>, change: impl FnOnce(&mut Entry)) {
        let mut keys = self.keys();
        if let Some(entry) = keys.get_mut(key) {
            change(entry);
            if entry.is_unused() {
                keys.remove(key);
                // A burst of keys must not leave its table behind for ever.
                if keys.capacity() > 1024 && keys.len() < keys.capacity() / 8 {
                    keys.shrink_to(256);
                }
            }
        }
    }
}

struct Ticket<'a> {
    gate: &'a Arc<Gate>,
    key: &'a Arc<str>,
    number: u64,
    waiter: Arc<Waiter>,
}

enum Look {
    Answered(Answer),
    /// The holder's lease is over, and we are first.
    Open,
    Closed {
        opens_at: Option<Instant>,
    },
}

impl Ticket<'_> {
    fn look(&self, patience: Duration) -> Look {
        let mut keys = self.gate.keys();
        let answer = lock(&self.waiter.answer).take();
        let Some(entry) = keys.get_mut(self.key) else {
            return answer.map_or(Look::Closed { opens_at: None }, Look::Answered);
        };
        match answer {
            None => {}
            Some(Answer::YourTurn) => {
                if matches!(entry.turn, Turn::Called { place, .. } if place == self.number) {
                    entry.turn =
                        Turn::Asking { place: self.number, exclusive: self.waiter.exclusive, refused: false };
                    return Look::Answered(Answer::YourTurn);
                }
                // We were not polled in time, and the next one did not wait for us: first in the queue again.
                entry.enqueue(self.number, Arc::clone(&self.waiter));
            }
            Some(answer) => return Look::Answered(answer),
        }
        if entry.queue.keys().next() != Some(&self.number) {
            return Look::Closed { opens_at: None };
        }
        if !entry.is_open(patience) {
            return Look::Closed { opens_at: entry.opens_at(patience) };
        }
        if let Turn::Holding { lease, .. } = &entry.turn
            && let Some(lease) = lease.upgrade()
        {
            lease.note_max_hold();
        }
        entry.dequeue(self.number);
        entry.turn = Turn::Asking { place: self.number, exclusive: self.waiter.exclusive, refused: false };
        Look::Open
    }

    fn into_place(self) -> Place {
        let place = Place {
            gate: Arc::clone(self.gate),
            key: Arc::clone(self.key),
            number: self.number,
            queued: true,
        };
        // The turn is the place's now: neither in the queue nor waiting for an answer, the ticket has nothing to undo.
        drop(self);
        place
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.gate.change(self.key, |entry| {
            let called = matches!(entry.turn, Turn::Called { place, .. } if place == self.number);
            if entry.dequeue(self.number) {
                entry.poke_first();
            } else if called {
                entry.pass_on();
            }
        });
    }
}

/// The turn at a key: to ask for it, and then to hold it. Dropping it lets the next one ask.
pub(crate) struct Place {
    gate: Arc<Gate>,
    key: Arc<str>,
    number: u64,
    /// It came through the queue: the key was contended a moment ago.
    queued: bool,
}

impl Place {
    /// All turns are had: the attempt is on its way.
    fn asks_now(&self) {
        self.gate.change(&self.key, |entry| {
            if let Turn::Asking { place, refused, .. } = &mut entry.turn
                && *place == self.number
            {
                *refused = false;
            }
        });
    }

    /// The holder of this turn waits for another's key first.
    fn waits_elsewhere(&self) {
        self.gate.change(&self.key, |entry| {
            if let Turn::Asking { place, refused, .. } = &mut entry.turn
                && *place == self.number
            {
                *refused = true;
            }
        });
    }

    /// How long this head should stand back before it asks, so that other processes get their turns.
    pub(crate) fn stand_back(&self) -> Duration {
        let mut pause = Duration::ZERO;
        self.gate.change(&self.key, |entry| pause = entry.sharing.stand_back());
        pause
    }

    /// The store said that someone else holds the key. Those who came without a wait are answered by that.
    fn refused(&self, exclusive: bool, stays: bool) {
        self.gate.change(&self.key, |entry| {
            entry.sharing.refused();
            if let Turn::Asking { place, refused, .. } = &mut entry.turn
                && *place == self.number
            {
                *refused = true;
                // One that leaves gives its turn to the next, who may want less.
                if stays || exclusive {
                    entry.answer_impatient(stays);
                }
            }
        });
    }

    /// The store did not answer: everyone who is in the queue now is answered so, not one timeout after another.
    pub(crate) fn unavailable(&self, error: &StoreError) {
        self.gate.change(&self.key, |entry| {
            (entry.patient, entry.exclusive) = (0, 0);
            for (_, waiter) in std::mem::take(&mut entry.queue) {
                waiter.tell(Answer::Unavailable(error.clone()));
            }
        });
    }

    /// The lock is had.
    pub(crate) fn granted(&self, lease: &Arc<Lease>) {
        self.gate.change(&self.key, |entry| {
            entry.sharing.granted();
            entry.turn = Turn::Holding { place: self.number, lease: Arc::downgrade(lease), ending: None };
            entry.answer_impatient(true);
            entry.poke_first();
        });
    }

    /// The release is under way: who asks without a wait may wait for it.
    pub(crate) fn ending(&self) {
        self.gate.change(&self.key, |entry| {
            if let Turn::Holding { place, ending, .. } = &mut entry.turn
                && *place == self.number
            {
                ending.get_or_insert_with(Instant::now);
                entry.poke_first();
            }
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.change(&self.key, |entry| {
            let ours = match &entry.turn {
                Turn::Free | Turn::Called { .. } => false,
                Turn::Asking { place, .. } | Turn::Holding { place, .. } => *place == self.number,
            };
            if ours {
                entry.pass_on();
            }
        });
    }
}

/// The turns at all keys of one acquisition.
pub(crate) struct Places {
    first: Place,
    others: Vec<Place>,
}

impl Places {
    /// Waits for the turn at each of these keys, one after the other: in their order, which is the same for all, so
    /// that no two acquisitions wait for each other.
    pub(crate) async fn enter(
        gate: &Arc<Gate>,
        keys: &[Arc<str>],
        exclusive: bool,
        beside: bool,
        wait: Duration,
        patience: Duration,
    ) -> Result<Self, (usize, Refused)> {
        let (arrived, mut places) = (Instant::now(), Vec::new());
        for (index, key) in keys.iter().enumerate() {
            // What is left of the wait; none would mean one that does not wait.
            let left = wait.saturating_sub(arrived.elapsed());
            let left = if wait.is_zero() { wait } else { left.max(Duration::from_nanos(1)) };
            // Of the patience without a wait, which is had twice for a key: once for all keys together.
            let patience =
                if wait.is_zero() { patience.saturating_sub(arrived.elapsed() / 2) } else { patience };
            match gate.enter(key, exclusive, beside, left, patience).await {
                Ok(place) => places.push(place),
                Err(refused) => return Err((index, refused)),
            }
            // Those who ask for this key alone do not wait for an attempt that is not made yet.
            if index + 1 < keys.len()
                && let Some(place) = places.last()
            {
                place.waits_elsewhere();
            }
        }
        places.iter().for_each(Place::asks_now);
        let first = places.remove(0);
        Ok(Self { first, others: places })
    }

    fn each(&self) -> impl Iterator<Item = &Place> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn was_queued(&self) -> bool {
        self.each().any(|place| place.queued)
    }

    pub(crate) fn stand_back(&self) -> Duration {
        self.first.stand_back()
    }

    /// Whether one of them asks beside those who have the turn, which is no place to wait at.
    pub(crate) fn are_beside(&self) -> bool {
        self.each().any(|place| place.number == BESIDE)
    }

    /// The store said that the key at `index` is held. With `stays`, the turns are kept while this one waits: also
    /// those at the other keys, where others wait behind it.
    pub(crate) fn refused(&self, index: usize, exclusive: bool, stays: bool) {
        for (at, place) in self.each().enumerate() {
            if at == index || stays {
                place.refused(exclusive, stays);
            }
        }
    }

    pub(crate) fn unavailable(&self, error: &StoreError) {
        self.each().for_each(|place| place.unavailable(error));
    }

    pub(crate) fn granted(&self, lease: &Arc<Lease>) {
        self.each().for_each(|place| place.granted(lease));
    }

    pub(crate) fn ending(&self) {
        self.each().for_each(Place::ending);
    }
}

/// A release or clean-up whose answer is not known yet.
pub(crate) struct Releasing {
    gate: Arc<Gate>,
    keys: Vec<Arc<str>>,
    cleaning: bool,
}

impl Releasing {
    /// A clean-up was tried, whatever came of it: the store can be asked again.
    pub(crate) fn tried(&mut self) {
        if std::mem::take(&mut self.cleaning) {
            for key in &self.keys {
                self.gate.change(key, |entry| entry.cleaning -= 1);
            }
            self.gate.released.notify_waiters();
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        for key in &self.keys {
            self.gate.change(key, |entry| {
                entry.unanswered -= 1;
                entry.cleaning -= usize::from(self.cleaning);
            });
        }
        self.gate.released.notify_waiters();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use crate::LockManager;
    use std::time::Duration;

    /// Nothing grows with the number of keys ever locked.
    #[tokio::test(start_paused = true)]
    async fn an_entry_lives_while_its_key_is_in_use() {
        let locks = LockManager::in_memory();
        let lock =
            |n: u32| locks.lock(format!("n:{n}")).ttl(Duration::from_secs(1)).wait(Duration::from_secs(5));
        let guards = futures_of(&lock, 0..2_000).await;
        assert_eq!(locks.gate().len(), 2_000);
        let waiter = tokio::spawn(lock(7).acquire());
        tokio::task::yield_now().await;
        drop(guards);
        assert!(waiter.await.is_ok());
        tokio::task::yield_now().await;
        assert_eq!(locks.gate().len(), 0);
    }

    async fn futures_of(
        lock: &impl Fn(u32) -> crate::LockRequest,
        range: std::ops::Range<u32>,
    ) -> Vec<crate::LockGuard> {
        let mut guards = Vec::new();
        for n in range {
            guards.extend(lock(n).acquire().await);
        }
        guards
    }
}
