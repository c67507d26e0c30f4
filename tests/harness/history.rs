//! Who was in a critical section when, and whether two were there at once that must not be.
//!
//! All times are nanoseconds of the machine's monotonic clock, so that the histories of several processes can be
//! put together.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::clock::{instant_ns, now_ns};
use crate::lock;

/// Beside whom a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// Beside nobody.
    #[default]
    Exclusive,
    /// Beside any number of others that are not exclusive.
    Shared,
    /// Beside others that are not exclusive, if there are fewer of them than this number when it is admitted.
    Permits(u32),
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => write!(f, "exclusive"),
            Self::Shared => write!(f, "shared"),
            Self::Permits(most) => write!(f, "permits:{most}"),
        }
    }
}

impl FromStr for Mode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match (text, text.strip_prefix("permits:")) {
            ("exclusive", _) => Ok(Self::Exclusive),
            ("shared", _) => Ok(Self::Shared),
            (_, Some(most)) => most.parse().map(Self::Permits).map_err(drop),
            _ => Err(()),
        }
    }
}

/// One stay in a critical section. One that holds several keys is in as many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// What was locked.
    pub key: String,
    /// When the body started, in nanoseconds.
    pub start: u64,
    /// When the body ended, in nanoseconds; `u64::MAX` for one that was never seen to end.
    pub end: u64,
    /// Until when the lease was valid in the eyes of its holder, in nanoseconds.
    pub deadline: u64,
    /// The token of the acquisition.
    pub token: String,
    /// The fencing token, if there is one.
    pub fence: Option<u64>,
    /// Beside whom.
    pub mode: Mode,
    /// When the attempt was made that was granted, in nanoseconds: the lock was given between this and the start.
    pub asked: u64,
}

impl Interval {
    // A body that outstays its lease is no promise broken; one that starts while the lease of another is valid is.
    fn valid_until(&self) -> u64 {
        self.end.min(self.deadline)
    }

    fn was_valid(&self) -> bool {
        self.start < self.valid_until()
    }

    fn is_exclusive(&self) -> bool {
        self.mode == Mode::Exclusive
    }

    fn was_there(&self, at: u64) -> bool {
        (self.start..self.valid_until()).contains(&at)
    }
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The second started before the first had ended and before its lease had, and one of them is exclusive.
    Overlap {
        /// Who was there.
        first: Interval,
        /// Who came.
        second: Interval,
    },
    /// The second started later, and its fencing token is not greater.
    Fence {
        /// Who was there earlier, with the greatest fencing token up to then.
        first: Interval,
        /// Who came later.
        second: Interval,
    },
    /// One of several permits was given when as many others were there already.
    Crowd {
        /// Who was there when the fewest were, from the attempt to the start of the body.
        others: Vec<Interval>,
        /// Who came, and counts by a smaller number.
        second: Interval,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, earlier, second) = match self {
            Self::Overlap { first, second } => ("overlap", std::slice::from_ref(first), second),
            Self::Fence { first, second } => ("fence did not rise", std::slice::from_ref(first), second),
            Self::Crowd { others, second } => ("too many", &others[..], second),
        };
        write!(f, "{}: {what}", second.key)?;
        let zero = earlier.first().unwrap_or(second).start;
        for interval in earlier.iter().chain([second]) {
            let from_first = |at: u64| (i128::from(at) - i128::from(zero)) / 1_000;
            write!(f, "; {} was there from {} µs", interval.token, from_first(interval.start))?;
            match interval.end {
                u64::MAX => write!(f, " and never left")?,
                end => write!(f, " to {} µs", from_first(end))?,
            }
            write!(f, ", its lease valid to {} µs", from_first(interval.deadline))?;
            if !interval.is_exclusive() {
                write!(f, ", {}", interval.mode)?;
            }
            if let Some(fence) = interval.fence {
                write!(f, ", fence {fence}")?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Held {
    mode: Mode,
    asked: u64,
}

/// A history of critical sections; its clones share it.
#[derive(Clone, Default)]
pub struct History {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    intervals: Mutex<Vec<Interval>>,
    file: Option<File>,
}

impl History {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty history that is also appended to a file, which any number of processes may do at once.
    ///
    /// A line is written at each entry and each exit, so what a killed process was doing is known.
    ///
    /// # Panics
    ///
    /// If the file cannot be opened.
    #[must_use]
    pub fn to_file(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.unwrap_or_else(|error| panic!("{} cannot be written: {error}", path.display()));
        Self { shared: Arc::new(Shared { file: Some(file), ..Shared::default() }) }
    }

    /// The history in a file that [`to_file`](Self::to_file) wrote.
    ///
    /// A section that was entered and never left (its process was killed) has no end but its lease's.
    ///
    /// # Panics
    ///
    /// If the file cannot be read or was written by something else.
    #[must_use]
    pub fn load(path: &Path) -> Self {
        let text = fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("the history {} cannot be read: {error}", path.display()));
        let mut open: HashMap<&str, usize> = HashMap::new();
        let mut intervals: Vec<Interval> = Vec::new();
        for line in text.lines() {
            apply(line, &mut open, &mut intervals)
                .unwrap_or_else(|| panic!("the history {} has a strange line: {line:?}", path.display()));
        }
        let history = Self::new();
        *lock(&history.shared.intervals) = intervals;
        history
    }

    /// Adds one stay that is over.
    ///
    /// # Panics
    ///
    /// If the file of this history cannot be written.
    pub fn record(
        &self,
        key: &str,
        start: Instant,
        end: Instant,
        deadline: Instant,
        token: &str,
        fence: Option<u64>,
    ) {
        let held = Held { mode: Mode::Exclusive, asked: instant_ns(start) };
        self.enter_at(held, key, instant_ns(start), instant_ns(deadline), token, fence)
            .leave_at(instant_ns(end));
    }

    /// The same, of any mode, admitted at its start.
    ///
    /// # Panics
    ///
    /// If the file of this history cannot be written.
    pub fn record_as(
        &self,
        mode: Mode,
        key: &str,
        start: Instant,
        end: Instant,
        deadline: Instant,
        token: &str,
    ) {
        let held = Held { mode, asked: instant_ns(start) };
        self.enter_at(held, key, instant_ns(start), instant_ns(deadline), token, None)
            .leave_at(instant_ns(end));
    }

    /// Notes that a body starts now; it ends when the section that is returned is dropped.
    ///
    /// Call it when the lock is held, and drop the section before the lock is released.
    ///
    /// # Panics
    ///
    /// If the file of this history cannot be written.
    #[must_use = "the section ends when this is dropped"]
    pub fn enter(&self, key: &str, deadline: Instant, token: &str, fence: Option<u64>) -> Section {
        let start = now_ns();
        let held = Held { mode: Mode::Exclusive, asked: start };
        self.enter_at(held, key, start, instant_ns(deadline), token, fence)
    }

    /// The same, of any mode. One that holds several keys enters each.
    ///
    /// `asked` is when the attempt was made that was granted. Others may have been admitted, or have left, between the
    /// grant and this call, so one that counts has been admitted wrongly only if at no moment since then it was right.
    ///
    /// # Panics
    ///
    /// If the file of this history cannot be written.
    #[must_use = "the section ends when this is dropped"]
    pub fn enter_as(&self, mode: Mode, key: &str, asked: Instant, deadline: Instant, token: &str) -> Section {
        let start = now_ns();
        let held = Held { mode, asked: instant_ns(asked).min(start) };
        self.enter_at(held, key, start, instant_ns(deadline), token, None)
    }

    fn enter_at(
        &self,
        held: Held,
        key: &str,
        start: u64,
        deadline: u64,
        token: &str,
        fence: Option<u64>,
    ) -> Section {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Held { mode, asked } = held;
        let id = format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let fence_text = fence.map_or_else(|| "-".into(), |fence| fence.to_string());
        let (start_text, deadline_text) = (start.to_string(), deadline.to_string());
        let (mode_text, asked_text) = (mode.to_string(), asked.to_string());
        let words =
            ["enter", &id, key, &start_text, &deadline_text, token, &fence_text, &mode_text, &asked_text];
        // The last two words are left out where they say nothing.
        self.write(if mode == Mode::Exclusive { &words[..7] } else { &words });
        let (key, token) = (key.into(), token.into());
        let interval = Interval { key, start, end: u64::MAX, deadline, token, fence, mode, asked };
        let mut intervals = lock(&self.shared.intervals);
        intervals.push(interval);
        Section { history: self.clone(), index: intervals.len() - 1, id, left: false }
    }

    // One call of `write` for each line: the system keeps those of several processes apart.
    fn write(&self, words: &[&str]) {
        let Some(mut file) = self.shared.file.as_ref() else { return };
        let mut line = String::new();
        for word in words {
            let word =
                word.replace('%', "%25").replace('\t', "%09").replace('\n', "%0A").replace('\r', "%0D");
            write!(line, "{word}\t").expect("writing to a String does not fail");
        }
        line.push('\n');
        file.write_all(line.as_bytes()).expect("the file of a history can be written: is there space left?");
    }

    /// All stays, in the order in which they were noted.
    #[must_use]
    pub fn intervals(&self) -> Vec<Interval> {
        lock(&self.shared.intervals).clone()
    }

    /// How many stays there are.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.shared.intervals).len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All that must not have happened.
    ///
    /// Each stay counts from its start to its end, or to the end of its lease if that is earlier; a body that starts
    /// behind the end of its own lease does not count at all. An exclusive one is beside nobody; one of several permits
    /// is admitted where fewer others are than its number.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let all = lock(&self.shared.intervals);
        let mut keys: BTreeMap<&str, Vec<&Interval>> = BTreeMap::new();
        for interval in all.iter().filter(|interval| interval.was_valid()) {
            keys.entry(&interval.key).or_default().push(interval);
        }
        let mut violations = Vec::new();
        for mut intervals in keys.into_values() {
            intervals.sort_by_key(|interval| interval.start);
            let mut last_to_leave: Option<&Interval> = None;
            let mut last_exclusive: Option<&Interval> = None;
            let mut highest_fence: Option<&Interval> = None;
            let mut crowd = Crowd::of(&intervals);
            for second in intervals {
                let in_the_way = if second.is_exclusive() { last_to_leave } else { last_exclusive };
                if let Some(first) = in_the_way.filter(|first| second.start < first.valid_until()) {
                    violations.push(Violation::Overlap { first: first.clone(), second: second.clone() });
                }
                let outlasts = |last: Option<&Interval>| {
                    last.is_none_or(|first| first.valid_until() < second.valid_until())
                };
                if outlasts(last_to_leave) {
                    last_to_leave = Some(second);
                }
                if second.is_exclusive() && outlasts(last_exclusive) {
                    last_exclusive = Some(second);
                }
                violations.extend(crowd.admit(second));
                if second.fence.is_some() {
                    if let Some(first) = highest_fence.filter(|first| first.fence >= second.fence) {
                        violations.push(Violation::Fence { first: first.clone(), second: second.clone() });
                    } else {
                        highest_fence = Some(second);
                    }
                }
            }
        }
        violations
    }

    /// Demands that nothing happened that must not.
    ///
    /// # Panics
    ///
    /// If something did, or if the history is empty: a check that has seen nothing proves nothing.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(!self.is_empty(), "the history is empty: nobody was in a critical section");
        let violations = self.violations();
        let first: Vec<String> = violations.iter().take(10).map(ToString::to_string).collect();
        assert!(
            violations.is_empty(),
            "{} violations in {} stays, the first: {first:#?}",
            violations.len(),
            self.len()
        );
    }
}

/// Those who hold one key and are not exclusive.
struct Crowd<'a> {
    /// They came before the one that is admitted, and left after the earliest attempt of any that count, if at all.
    others: Vec<&'a Interval>,
    /// From an attempt to the start, at most; none if nobody counts, and nothing is to be remembered.
    longest: Option<u64>,
}

impl<'a> Crowd<'a> {
    fn of(intervals: &[&Interval]) -> Self {
        let counting = intervals.iter().filter(|interval| matches!(interval.mode, Mode::Permits(_)));
        let longest = counting.map(|interval| interval.start.saturating_sub(interval.asked)).max();
        Self { others: Vec::new(), longest }
    }

    /// To be called in the order of the starts.
    fn admit(&mut self, second: &'a Interval) -> Option<Violation> {
        let longest = self.longest.filter(|_| !second.is_exclusive())?;
        let from = second.start.saturating_sub(longest);
        self.others.retain(|other| other.valid_until() > from);
        let violation = match second.mode {
            Mode::Permits(most) => self.fewest(second).filter(|others| others.len() >= most as usize),
            Mode::Shared | Mode::Exclusive => None,
        };
        self.others.push(second);
        violation.map(|others| Violation::Crowd {
            others: others.into_iter().cloned().collect(),
            second: second.clone(),
        })
    }

    /// Who was there beside this one at the moment between its attempt and its start when the fewest were. They get
    /// fewer only where one leaves.
    fn fewest(&self, second: &Interval) -> Option<Vec<&'a Interval>> {
        let leaving = self.others.iter().map(|other| other.valid_until());
        let moments = leaving.filter(|at| (second.asked..=second.start).contains(at)).chain([second.asked]);
        let there =
            |at| self.others.iter().copied().filter(|other| other.was_there(at)).collect::<Vec<&Interval>>();
        moments.map(there).min_by_key(Vec::len)
    }
}

/// A body that is running.
pub struct Section {
    history: History,
    index: usize,
    id: String,
    left: bool,
}

impl Section {
    /// The lease is valid to this moment now.
    ///
    /// # Panics
    ///
    /// If the file of the history cannot be written.
    pub fn set_deadline(&self, deadline: Instant) {
        let deadline = instant_ns(deadline);
        self.history.write(&["deadline", &self.id, &deadline.to_string()]);
        lock(&self.history.shared.intervals)[self.index].deadline = deadline;
    }

    fn leave_at(mut self, end: u64) {
        self.leave(end);
    }

    fn leave(&mut self, end: u64) {
        if !self.left {
            self.left = true;
            lock(&self.history.shared.intervals)[self.index].end = end;
            self.history.write(&["leave", &self.id, &end.to_string()]);
        }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        self.leave(now_ns());
    }
}

fn apply<'a>(line: &'a str, open: &mut HashMap<&'a str, usize>, intervals: &mut Vec<Interval>) -> Option<()> {
    let decoded =
        |word: &str| word.replace("%0D", "\r").replace("%0A", "\n").replace("%09", "\t").replace("%25", "%");
    let mut words = line.split('\t');
    let (kind, id) = (words.next()?, words.next()?);
    match kind {
        "enter" => {
            open.insert(id, intervals.len());
            let key = decoded(words.next()?);
            let start = words.next()?.parse().ok()?;
            let deadline = words.next()?.parse().ok()?;
            let token = decoded(words.next()?);
            let fence = match words.next()? {
                "-" => None,
                fence => Some(fence.parse().ok()?),
            };
            // A line of one that is exclusive ends here.
            let (mode, asked) = match words.next() {
                None | Some("") => (Mode::Exclusive, start),
                Some(mode) => (mode.parse().ok()?, words.next()?.parse().ok()?),
            };
            intervals.push(Interval { key, start, end: u64::MAX, deadline, token, fence, mode, asked });
        }
        "deadline" => intervals[*open.get(id)?].deadline = words.next()?.parse().ok()?,
        "leave" => intervals[*open.get(id)?].end = words.next()?.parse().ok()?,
        _ => return None,
    }
    Some(())
}
