//! A million keys that are each locked once: whether any of them is remembered.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::redis;
use tests::measure::Table;
use tokio::task::JoinSet;

use crate::Bench;
use crate::children::{self, Part};
use crate::contenders::{Contender, Floor, InBackground, Key, Product};
use crate::procfs;
use crate::report::Report;
use crate::runtimes::Flavour;
use crate::uncontended::emptied;

pub(crate) const PART: &str = "memory";
const KEYS: usize = 1_000_000;
/// After so many the allocator has what all of them need at once.
const WARM_UP: usize = 50_000;
const TASKS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(600);

/// The part of a process that has done nothing else, so that nothing it once gave back hides what it takes.
pub(crate) async fn child<C: Contender>(part: Part) {
    let contender = C::connect(&part.place).await.expect("a contender connects");
    let client = redis::Client::open(&*part.place.url).expect("the URL is valid");
    let mut server = client.get_multiplexed_async_connection().await.expect("the server takes connections");
    let (warm_up, all) = (part.word(0), part.word(1));
    let next = Arc::new(AtomicU64::new(1));
    let mut failed = lock_each(&contender, &next, warm_up).await;
    emptied(&mut server).await;
    let before = procfs::status(process::id(), "VmRSS");
    failed += lock_each(&contender, &next, all).await;
    emptied(&mut server).await;
    println!("grown {} {before} {failed}", procfs::status(process::id(), "VmRSS") - before);
}

/// Locks each key up to this one once; how many it did not get.
async fn lock_each<C: Contender>(contender: &C, next: &Arc<AtomicU64>, last: u64) -> usize {
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (mut contender, next) = (contender.clone(), Arc::clone(next));
        tasks.spawn(async move {
            let mut failed = 0;
            loop {
                let id = next.fetch_add(1, Ordering::Relaxed);
                if id > last {
                    return failed;
                }
                failed += usize::from(contender.cycle(&Key::new(id)).await.is_err());
            }
        });
    }
    tasks.join_all().await.into_iter().sum()
}

async fn grown(bench: Bench, flavour: Flavour, contender: &'static str) -> Grown {
    let words = [bench.scaled(WARM_UP), bench.scaled(KEYS)].map(|count| count.to_string());
    let child = children::start(PART, flavour, contender, &bench.place, &words);
    assert!(child.wait(PATIENCE).await.success(), "the process of {contender} failed");
    let line = child.wait_for_line("grown ").await;
    Grown::read(&line).unwrap_or_else(|| panic!("the process of {contender} said {line:?}"))
}

/// What such a process says when it is done, in KiB.
struct Grown {
    growth: f64,
    before: f64,
    failed: usize,
}

impl Grown {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().skip(1);
        let (growth, before) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { growth, before, failed: words.next()?.parse().ok()? })
    }
}

/// Runs the row: awaited releases on one kind of runtime, others on the other, and the floor on both.
pub(crate) fn run(bench: &Bench, report: &mut Report) {
    println!("## {} keys locked once\n", bench.scaled(KEYS));
    println!("Resident memory of a process with {TASKS} tasks, from {} keys on.\n", bench.scaled(WARM_UP));
    let mut table = Table::new(["contender", "runtime", "before, MB", "growth, MB", "failed"]);
    let runs = [
        (Floor::NAME, Flavour::CurrentThread),
        (Product::NAME, Flavour::CurrentThread),
        (InBackground::NAME, Flavour::TwoWorkers),
    ];
    for (name, flavour) in runs {
        let Grown { growth, before, failed } =
            Flavour::CurrentThread.run(grown(bench.clone(), flavour, name));
        let (growth, before) = (growth / 1_024.0, before / 1_024.0);
        table.row([
            name.to_owned(),
            flavour.name().to_owned(),
            format!("{before:.1}"),
            format!("{growth:.1}"),
            failed.to_string(),
        ]);
        if name != Floor::NAME {
            let row = format!("a million keys locked once, {name}");
            report.timed(&row, flavour, "≤ 5 MB growth", &format!("{growth:.1} MB"), growth <= 5.0);
            report.failures(&row, flavour, failed);
        }
    }
    println!("{}", table.markdown());
}
