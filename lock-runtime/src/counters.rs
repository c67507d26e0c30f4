//! Counters and histograms through the `metrics` facade.
//!
//! Their keys are made once for each call site and outcome: made anew each time, they would cost as much as the lock.
//! The recorder is asked each time, as it may be another one.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, SharedString, with_recorder};

use crate::lease::Lease;
use crate::site::{Function, Site};

static KEYS: RwLock<Option<HashMap<Id, Arc<[Key]>>>> = RwLock::new(None);
static METADATA: Metadata<'static> = Metadata::new("lock_runtime", Level::INFO, Some(module_path!()));

/// A counter, and the histograms of the same event.
struct Event(&'static [&'static str]);

static ACQUISITION: Event = Event(&["redis_lock_acquisitions_total", "redis_lock_wait_seconds"]);
static RELEASE: Event =
    Event(&["redis_lock_releases_total", "redis_lock_hold_seconds", "redis_lock_ttl_share"]);
static LOSS: Event = Event(&["redis_lock_losses_total"]);

pub(crate) fn acquisition(lease: &Lease, waited: Duration, outcome: &'static str) {
    ACQUISITION.record(lease.site(), outcome, &[Some(waited.as_secs_f64())]);
}

pub(crate) fn released(lease: &Lease, held: Duration, share: Option<f64>, outcome: &'static str) {
    RELEASE.record(lease.site(), outcome, &[Some(held.as_secs_f64()), share]);
}

pub(crate) fn lost(lease: &Lease, outcome: &'static str) {
    LOSS.record(lease.site(), outcome, &[]);
}

impl Event {
    fn record(&self, site: Site, outcome: &'static str, values: &[Option<f64>]) {
        let keys = self.keys(site, outcome);
        let Some((counter, histograms)) = keys.split_first() else { return };
        with_recorder(|recorder| {
            recorder.register_counter(counter, &METADATA).increment(1);
            for (key, value) in histograms.iter().zip(values) {
                if let Some(value) = value {
                    recorder.register_histogram(key, &METADATA).record(*value);
                }
            }
        });
    }

    fn keys(&self, site: Site, outcome: &'static str) -> Arc<[Key]> {
        let id = Id::new(self, site, outcome);
        let kept = KEYS.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = kept.as_ref().and_then(|kept| kept.get(&id)) {
            return Arc::clone(keys);
        }
        drop(kept);
        let labels = labels(site, outcome);
        let keys: Arc<[Key]> = self.0.iter().map(|name| Key::from_parts(*name, labels.clone())).collect();
        let mut kept = KEYS.write().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert_default().insert(id, Arc::clone(&keys));
        keys
    }
}

/// An event, a call site and an outcome, each told by where it stands in the program: there are no more of them than
/// the program has.
#[derive(PartialEq, Eq, Hash)]
struct Id([usize; 7]);

impl Id {
    fn new(event: &Event, site: Site, outcome: &'static str) -> Self {
        let text = |text: &'static str| (text.as_ptr().addr(), text.len());
        let (template, length) = text(site.template());
        let (function, of_function) = match site.function() {
            Function::Path(path) => text(path),
            Function::Caller(caller) => (std::ptr::from_ref(caller).addr(), 0),
        };
        let event = std::ptr::from_ref(event).addr();
        let (outcome, of_outcome) = text(outcome);
        Self([event, template, length, function, of_function, outcome, of_outcome])
    }
}

/// Never the key: it would make a series of its own for every order.
fn labels(site: Site, outcome: &'static str) -> Vec<Label> {
    let function = match site.function() {
        Function::Path(path) => SharedString::from(path),
        caller @ Function::Caller(_) => SharedString::from(caller.to_string()),
    };
    vec![
        Label::from_static_parts("template", site.template()),
        Label::new("function", function),
        Label::from_static_parts("outcome", outcome),
    ]
}
