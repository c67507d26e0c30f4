//! What is printed of a run.

use std::time::Duration;

use tests::clock::instant_ns;
use tests::history::Violation;

use crate::child::Lock;
use crate::fleet::Outcome;
use crate::tally::Counts;
use crate::{CHILDREN, CONTROL_KEYS, KEYS, TASKS};

/// So many violations are described.
const DESCRIBED: usize = 3;

/// Prints what came of a run, and gives back how many violations there were.
pub(crate) fn print(outcome: &Outcome) -> usize {
    let Outcome { lock, took, faults, counts, history, .. } = outcome;
    let kinds: Vec<_> = faults.list().map(|(kind, count)| format!("{count} {kind}")).collect();
    let sections = history.intervals();
    let killed = sections.iter().filter(|section| section.end == u64::MAX).count();
    let outlasted = sections.iter().filter(|section| section.end > section.deadline).count() - killed;
    let violations = history.violations();

    let took = took.as_secs_f64();
    let (title, keys) = match lock {
        Lock::Product => ("#[redis_lock]", KEYS),
        Lock::Naive => ("SET NX PX, released by a plain DEL", CONTROL_KEYS),
    };
    println!("\n{title}");
    line("time", &format!("{took:.1} s: {CHILDREN} processes, {TASKS} tasks each, {keys} keys"));
    line("faults", &format!("{}: {}", faults.sum(), kinds.join(", ")));
    line("calls", &format!("{}: {}", counts.get("calls"), calls(counts)));
    line("grants", &format!("{}, for {} requests", counts.get("lock granted"), counts.get("requests")));
    if *lock == Lock::Product {
        line("losses", &losses(counts));
    }
    line("keys", "none without an expiry, none left behind");
    line("sections", &format!("{}: {outlasted} outlasted their lease, {killed} were killed", sections.len()));
    line("violations", &violations.len().to_string());
    violations.iter().take(DESCRIBED).for_each(|violation| line("", &described(violation, outcome)));
    violations.len()
}

fn line(name: &str, text: &str) {
    println!("  {name:<11} {text}");
}

fn calls(counts: &Counts) -> String {
    let of = |name| counts.get(name);
    format!(
        "{} ran, {} Busy, {} Unavailable, {} Lost, {} dropped half-way",
        of("ran"),
        of("busy"),
        of("unavailable"),
        of("lost"),
        of("dropped")
    )
}

/// Leases that did not last, as they were reported; those that were noticed by their bodies are counted once more at
/// their release.
fn losses(counts: &Counts) -> String {
    let of = |outcome| counts.get(&format!("lock {outcome}"));
    format!(
        "while the body ran: {} deadline, {} not_renewed, {} gone; at the release: {} expired, {} held_by_other, \
         {} unknown; by hand: {} NotHeld",
        of("deadline"),
        of("not_renewed"),
        of("gone"),
        of("expired"),
        of("held_by_other"),
        of("unknown"),
        counts.get("not held")
    )
}

fn described(violation: &Violation, outcome: &Outcome) -> String {
    let (Violation::Overlap { second, .. }
    | Violation::Fence { second, .. }
    | Violation::Crowd { second, .. }) = violation;
    let at = Duration::from_nanos(second.start.saturating_sub(instant_ns(outcome.began)));
    format!("at {:.3} s {violation}", at.as_secs_f64())
}
