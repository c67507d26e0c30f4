//! The gate: who of this process may ask the store for a key, and in what order.
//!
//! Callers for one key queue in order of arrival; the first of them, the *head*, is the only one that talks to the
//! store, so a thousand waiters cost the server what one costs. An entry lives while someone holds, asks or waits.

use std::collections::hash_map::Entry::Occupied;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::few::Few;
use crate::lease::Lease;
use crate::sharing::{Sharing, StandBack};
use crate::store::{StoreError, needs_runtime};

/// A wait that is over, and was one.
pub(crate) const SHORTEST: Duration = Duration::from_nanos(1);

/// The number of a place beside the turn. Tickets begin at 1.
const BESIDE: u64 = 0;

/// All keys of one manager that are in use by this process.
///
/// The map is for those who come and those who leave: in between, each has the slot of its key. The lock of the map is
/// taken before that of a slot.
#[derive(Default)]
pub(crate) struct Gate {
    keys: Mutex<HashMap<Arc<str>, Arc<Slot>>>,
    /// Tells those who wait for releases that one was answered.
    released: Notify,
}

/// One key that is in use.
struct Slot {
    key: Arc<str>,
    entry: Mutex<Entry>,
}

#[derive(Default)]
struct Entry {
    /// How many use it. The last one takes it out of the map.
    visitors: usize,
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

impl Slot {
    fn entry(&self) -> MutexGuard<'_, Entry> {
        lock(&self.entry)
    }
}

impl Entry {
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
        let patient = !wait.is_zero();
        let visit = self.visit(key);
        let (number, waiter) = {
            let mut entry = visit.entry();
            if beside && !exclusive && entry.lets_ask_beside() {
                drop(entry);
                return Ok(Place { visit, number: BESIDE, queued: false });
            }
            let number = entry.ticket();
            if entry.queue.is_empty() && entry.is_open(patience) {
                entry.turn = Turn::Asking { place: number, exclusive, refused: false };
                drop(entry);
                return Ok(Place { visit, number, queued: false });
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
        let ticket = Ticket { visit, number, waiter };
        // Without a wait: for the release's answer, and then the head's.
        let until = Instant::now().checked_add(if patient { wait } else { patience.saturating_mul(2) });
        // Boxed: what it needs would be part of every acquisition.
        Box::pin(ticket.turn(until, patience)).await
    }

    /// Lets the first in each queue look whether the holder's lease is still believed.
    pub(crate) fn lease_changed(&self, keys: &[Arc<str>]) {
        for key in keys {
            let slot = self.keys().get(key).cloned();
            if let Some(slot) = slot {
                slot.entry().poke_first();
            }
        }
    }

    /// Notes that a release of these keys is under way, or a clean-up, until the value is dropped.
    pub(crate) fn releasing(self: &Arc<Self>, keys: &[Arc<str>], cleaning: bool) -> Releasing {
        Releasing::new(keys.iter().map(|key| self.visit(key)).collect(), cleaning)
    }

    /// How many keys are in use: none is kept longer than that.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.keys().len()
    }

    fn visit(self: &Arc<Self>, key: &Arc<str>) -> Visit {
        let mut keys = self.keys();
        let new = || Arc::new(Slot { key: Arc::clone(key), entry: Mutex::default() });
        let slot = keys.entry(Arc::clone(key)).or_insert_with(new);
        // Under the lock of the map, so that it is not forgotten meanwhile.
        slot.entry().visitors += 1;
        Visit { gate: Arc::clone(self), slot: Arc::clone(slot) }
    }

    /// Takes a slot that nobody uses out of the map.
    fn forget(&self, slot: &Arc<Slot>) {
        let mut keys = self.keys();
        // Someone may have come, and even gone, in between.
        if slot.entry().visitors == 0
            && let Occupied(kept) = keys.entry(Arc::clone(&slot.key))
            && Arc::ptr_eq(kept.get(), slot)
        {
            kept.remove();
            // A burst of keys must not leave its table behind for ever.
            if keys.capacity() > 1024 && keys.len() < keys.capacity() / 8 {
                keys.shrink_to(256);
            }
        }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Slot>>> {
        lock(&self.keys)
    }
}

/// Keeps the slot of a key in the map.
struct Visit {
    gate: Arc<Gate>,
    slot: Arc<Slot>,
}

impl Visit {
    fn entry(&self) -> MutexGuard<'_, Entry> {
        self.slot.entry()
    }
}

impl Clone for Visit {
    fn clone(&self) -> Self {
        self.entry().visitors += 1;
        Self { gate: Arc::clone(&self.gate), slot: Arc::clone(&self.slot) }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let left = {
            let mut entry = self.entry();
            entry.visitors -= 1;
            entry.visitors
        };
        if left == 0 {
            self.gate.forget(&self.slot);
        }
    }
}

struct Ticket {
    visit: Visit,
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

impl Ticket {
    /// Waits for the turn until then.
    async fn turn(self, until: Option<Instant>, patience: Duration) -> Result<Place, Refused> {
        needs_runtime().map_err(Refused::Unavailable)?;
        loop {
            let opens_at = match self.look(patience) {
                Look::Answered(Answer::YourTurn) | Look::Open => return Ok(self.into_place()),
                Look::Answered(Answer::Busy) => return Err(Refused::Busy),
                Look::Answered(Answer::Unavailable(error)) => return Err(Refused::Unavailable(error)),
                Look::Closed { opens_at } => opens_at,
            };
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(Refused::Busy);
            }
            let changed = self.waiter.changed.notified();
            match (opens_at, until) {
                (None, None) => changed.await,
                (Some(at), None) | (None, Some(at)) => drop(timeout_at(at, changed).await),
                (Some(one), Some(other)) => drop(timeout_at(one.min(other), changed).await),
            }
        }
    }

    fn look(&self, patience: Duration) -> Look {
        let mut entry = self.visit.entry();
        let answer = lock(&self.waiter.answer).take();
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
        let place = Place { visit: self.visit.clone(), number: self.number, queued: true };
        // The turn is the place's now: neither in the queue nor waiting for an answer, the ticket has nothing to undo.
        drop(self);
        place
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut entry = self.visit.entry();
        let called = matches!(entry.turn, Turn::Called { place, .. } if place == self.number);
        if entry.dequeue(self.number) {
            entry.poke_first();
        } else if called {
            entry.pass_on();
        }
    }
}

/// The turn at a key: to ask for it, and then to hold it. Dropping it lets the next one ask.
pub(crate) struct Place {
    visit: Visit,
    number: u64,
    /// It came through the queue: the key was contended a moment ago.
    queued: bool,
}

impl Place {
    /// All turns are had: the attempt is on its way.
    fn asks_now(&self) {
        self.has_been_refused(&mut self.visit.entry(), false);
    }

    /// The holder of this turn waits for another's key first.
    fn waits_elsewhere(&self) {
        self.has_been_refused(&mut self.visit.entry(), true);
    }

    /// Notes that; false if the turn is someone else's by now.
    fn has_been_refused(&self, entry: &mut Entry, is: bool) -> bool {
        match &mut entry.turn {
            Turn::Asking { place, refused, .. } if *place == self.number => {
                *refused = is;
                true
            }
            _ => false,
        }
    }

    /// The store said that someone else holds the key. Those who came without a wait are answered by that.
    fn refused(&self, exclusive: bool, stays: bool) {
        let mut entry = self.visit.entry();
        entry.sharing.refused();
        // One that leaves gives its turn to the next, who may want less.
        if self.has_been_refused(&mut entry, true) && (stays || exclusive) {
            entry.answer_impatient(stays);
        }
    }

    /// The store did not answer: everyone who is in the queue now is answered so, not one timeout after another.
    fn unavailable(&self, error: &StoreError) {
        let mut entry = self.visit.entry();
        (entry.patient, entry.exclusive) = (0, 0);
        for (_, waiter) in std::mem::take(&mut entry.queue) {
            waiter.tell(Answer::Unavailable(error.clone()));
        }
    }

    /// The lock is had.
    fn granted(&self, lease: &Arc<Lease>) {
        let mut entry = self.visit.entry();
        entry.sharing.granted();
        entry.turn = Turn::Holding { place: self.number, lease: Arc::downgrade(lease), ending: None };
        entry.answer_impatient(true);
        entry.poke_first();
    }

    /// The release is under way: who asks without a wait may wait for it.
    fn ending(&self, now: Instant) {
        let mut entry = self.visit.entry();
        if let Turn::Holding { place, ending, .. } = &mut entry.turn
            && *place == self.number
        {
            ending.get_or_insert(now);
            entry.poke_first();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut entry = self.visit.entry();
        let ours = match &entry.turn {
            Turn::Free | Turn::Called { .. } => false,
            Turn::Asking { place, .. } | Turn::Holding { place, .. } => *place == self.number,
        };
        if ours {
            entry.pass_on();
        }
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
        arrived: Instant,
    ) -> Result<Self, (usize, Refused)> {
        let Some((key, others)) = keys.split_first() else { return Err((0, Refused::Busy)) };
        let first =
            gate.enter(key, exclusive, beside, wait, patience).await.map_err(|refused| (0, refused))?;
        let mut places = Self { first, others: Vec::new() };
        for (index, key) in others.iter().enumerate() {
            // Those who ask for the last key alone do not wait for an attempt that is not made yet.
            places.others.last().unwrap_or(&places.first).waits_elsewhere();
            let gone = arrived.elapsed();
            // What is left of the wait; none would mean one that does not wait.
            let left = if wait.is_zero() { wait } else { wait.saturating_sub(gone).max(SHORTEST) };
            // Of the patience without a wait, which is had twice for a key: once for all keys together.
            let patience = if wait.is_zero() { patience.saturating_sub(gone / 2) } else { patience };
            let place = gate.enter(key, exclusive, beside, left, patience).await;
            places.others.push(place.map_err(|refused| (index + 1, refused))?);
        }
        if !others.is_empty() {
            places.each().for_each(Place::asks_now);
        }
        Ok(places)
    }

    fn each(&self) -> impl Iterator<Item = &Place> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn was_queued(&self) -> bool {
        self.each().any(|place| place.queued)
    }

    /// Whether no other process was met at the key lately.
    pub(crate) fn is_alone(&self) -> bool {
        self.first.visit.entry().sharing.is_alone()
    }

    /// How this head should stand back before it asks, so that other processes get their turns.
    pub(crate) fn stand_back(&self) -> StandBack {
        self.first.visit.entry().sharing.stand_back()
    }

    /// Whether a release or clean-up of one of the keys has not been answered yet.
    pub(crate) fn is_releasing(&self) -> bool {
        self.each().any(|place| place.visit.entry().unanswered > 0)
    }

    /// Waits until that is no longer so.
    pub(crate) async fn released(&self) {
        self.until(|| !self.is_releasing()).await;
    }

    /// Whether a clean-up of one of the keys has not been tried yet.
    pub(crate) fn is_cleaning(&self) -> bool {
        self.each().any(|place| place.visit.entry().cleaning > 0)
    }

    /// Waits until that is no longer so.
    pub(crate) async fn cleaned(&self) {
        self.until(|| !self.is_cleaning()).await;
    }

    async fn until(&self, done: impl Fn() -> bool) {
        loop {
            let changed = self.first.visit.gate.released.notified();
            if done() {
                return;
            }
            changed.await;
        }
    }

    /// Notes that a release of the keys is under way, until the value is dropped.
    pub(crate) fn releasing(&self) -> Releasing {
        Releasing::new(self.each().map(|place| place.visit.clone()).collect(), false)
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

    /// The release is under way since then.
    pub(crate) fn ending(&self, now: Instant) {
        self.each().for_each(|place| place.ending(now));
    }
}

/// A release or clean-up whose answer is not known yet.
pub(crate) struct Releasing {
    /// One for each key; never empty.
    visits: Few<Visit>,
    cleaning: bool,
}

impl Releasing {
    fn new(visits: Few<Visit>, cleaning: bool) -> Self {
        for visit in &visits {
            let mut entry = visit.entry();
            entry.unanswered += 1;
            entry.cleaning += usize::from(cleaning);
        }
        Self { visits, cleaning }
    }

    /// A clean-up was tried, whatever came of it: the store can be asked again.
    pub(crate) fn tried(&mut self) {
        if std::mem::take(&mut self.cleaning) {
            for visit in &self.visits {
                visit.entry().cleaning -= 1;
            }
            self.tell();
        }
    }

    fn tell(&self) {
        if let Some(visit) = self.visits.first() {
            visit.gate.released.notify_waiters();
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        for visit in &self.visits {
            let mut entry = visit.entry();
            entry.unanswered -= 1;
            entry.cleaning -= usize::from(self.cleaning);
        }
        self.tell();
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
