//! What happened how often, in words that a child prints and its parent adds up.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use metrics_util::debugging::{DebugValue, Snapshotter};

/// Numbers under their names.
#[derive(Default, Clone)]
pub(crate) struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// What a line of counts begins with.
    pub(crate) const MARK: &str = "counts";

    pub(crate) fn add(&mut self, name: &str, count: u64) {
        *self.0.entry(name.to_owned()).or_default() += count;
    }

    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    pub(crate) fn list(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.values().sum()
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for (name, count) in other.list() {
            self.add(name, count);
        }
    }

    /// The last that a child printed, whatever else it printed.
    pub(crate) fn last_of(lines: &[String]) -> Self {
        lines.iter().rev().find_map(|line| Self::parse(line)).unwrap_or_default()
    }

    fn parse(line: &str) -> Option<Self> {
        let mut counts = Self::default();
        for word in line.strip_prefix(Self::MARK)?.split('\t').skip(1) {
            let (name, count) = word.split_once('=')?;
            counts.add(name, count.parse().ok()?);
        }
        Some(counts)
    }
}

/// One line, as [`Counts::last_of`] reads it.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::MARK)?;
        self.list().try_for_each(|(name, count)| write!(f, "\t{name}={count}"))
    }
}

/// The counts of one process, to which all of its tasks add.
#[derive(Default)]
pub(crate) struct Tally(Mutex<Counts>);

impl Tally {
    pub(crate) fn add(&self, name: &str) {
        self.change(|counts| counts.add(name, 1));
    }

    /// Adds what the product has reported since the last time, by outcome: `lock granted`, `lock expired`, ... Those of
    /// acquisitions, losses and releases are all different.
    pub(crate) fn add_metrics(&self, metrics: &Snapshotter) {
        for (key, _, _, value) in metrics.snapshot().into_vec() {
            let outcome = key.key().labels().find(|label| label.key() == "outcome");
            if let (DebugValue::Counter(count), Some(outcome)) = (value, outcome) {
                self.change(|counts| counts.add(&format!("lock {}", outcome.value()), count));
            }
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.change(|counts| counts.clone())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
