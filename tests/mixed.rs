//! A hundred thousand operations of every mode from four processes on one server: exclusion is checked on the history
//! that all of them record, and a lock that is wrong on purpose shows that the check can see it.

use std::collections::BTreeSet;
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager, ReleaseOutcome};
use tests::PATIENCE;
use tests::history::{History, Mode, Section, Violation};
use tests::process::Process;
use tests::server::RedisServer;

const SEED: u64 = 20_260_502;
const PROCESSES: u64 = 4;
const TASKS: u64 = 16;
/// Far longer than the whole run: no lease is lost in it.
const TTL: Duration = Duration::from_secs(600);
const WAIT: Duration = Duration::from_millis(100);
/// Far longer than the run takes.
const LONGEST: Duration = Duration::from_secs(400);

const RUN: &str = "LOCK_RUNTIME_TEST_MIXED";

/// A small generator with a seed, so that a failing run can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn mode(&mut self) -> Mode {
        match self.next(3) {
            0 => Mode::Exclusive,
            1 => Mode::Shared,
            _ => Mode::Permits(2 + u32::try_from(self.next(4)).unwrap()),
        }
    }
}

/// What was granted, and how often nothing was.
#[derive(Default)]
struct Counts {
    exclusive: AtomicU64,
    shared: AtomicU64,
    permits: AtomicU64,
    several: AtomicU64,
    busy: AtomicU64,
}

impl Counts {
    const NAMES: [&str; 5] = ["exclusive", "shared", "permits", "several keys", "busy"];

    fn of(&self, mode: Mode, several: bool) -> &AtomicU64 {
        match mode {
            _ if several => &self.several,
            Mode::Exclusive => &self.exclusive,
            Mode::Shared => &self.shared,
            Mode::Permits(_) => &self.permits,
        }
    }

    fn list(&self) -> [u64; 5] {
        [&self.exclusive, &self.shared, &self.permits, &self.several, &self.busy]
            .map(|count| count.load(Ordering::Relaxed))
    }
}

/// What a child is to do, as words in its environment variable.
struct Run {
    url: String,
    file: String,
    number: u64,
    operations: u64,
    keys: u64,
    /// Takes every lock as a shared one, whatever is recorded.
    wrong: bool,
}

impl Run {
    fn from_env() -> Option<Self> {
        let words = env::var(RUN).ok()?;
        let words: Vec<&str> = words.split(' ').collect();
        let [url, number, operations, keys, wrong, file] = words[..] else { panic!("{words:?}") };
        Some(Self {
            url: url.into(),
            file: file.into(),
            number: number.parse().unwrap(),
            operations: operations.parse().unwrap(),
            keys: keys.parse().unwrap(),
            wrong: wrong == "wrong",
        })
    }

    fn start(&self) -> Process {
        let Self { url, file, number, operations, keys, wrong } = self;
        let wrong = if *wrong { "wrong" } else { "right" };
        let words = format!("{url} {number} {operations} {keys} {wrong} {file}");
        Process::of_this_test("child", &[(RUN, &words)])
    }
}

async fn acquire(locks: &LockManager, keys: &[String], mode: Mode) -> Result<LockGuard, LockError> {
    let request = match keys {
        [key] => locks.lock(key),
        several => locks.lock_all(several),
    };
    let request = match mode {
        Mode::Exclusive => request,
        Mode::Shared => request.shared(),
        Mode::Permits(most) => request.permits(most),
    };
    request.ttl(TTL).wait(WAIT).acquire().await
}

/// Enters every key of this guard, which was wanted since `began`.
fn enter(history: &History, mode: Mode, guard: &LockGuard, began: Instant) -> Vec<Section> {
    // In this order: a pause in between makes the lease look shorter, and its attempt earlier.
    let deadline = Instant::now() + guard.remaining();
    // A lease is believed for its ttl less a hundredth and 2 ms, from the attempt that was granted on.
    let attempt = (deadline + TTL / 100 + Duration::from_millis(2)).checked_sub(TTL);
    let asked = attempt.map_or(began, |attempt| attempt.max(began));
    assert!(asked <= Instant::now(), "a lease is believed for longer than this test expects");
    guard.keys().map(|key| history.enter_as(mode, key, asked, deadline, guard.token())).collect()
}

/// One operation that succeeds, and as many before it as are refused.
async fn operate(locks: &LockManager, history: &History, random: &mut Random, run: &Run, counts: &Counts) {
    loop {
        let mode = random.mode();
        // One in eight takes several keys, in whatever mode.
        let several = random.next(8) == 0;
        let wanted = if several { 2 + random.next(3) } else { 1 };
        let mut keys = BTreeSet::new();
        while (keys.len() as u64) < wanted {
            keys.insert(format!("k:{}", random.next(run.keys)));
        }
        let keys = Vec::from_iter(keys);
        let began = Instant::now();
        let guard = match acquire(locks, &keys, if run.wrong { Mode::Shared } else { mode }).await {
            Ok(guard) => guard,
            Err(error) => {
                assert!(error.is_busy(), "{error}");
                counts.busy.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        };
        assert_eq!(guard.keys().len(), keys.len());
        let sections = enter(history, mode, &guard, began);
        for _ in 0..random.next(4) {
            tokio::task::yield_now().await;
        }
        if run.wrong {
            // Longer, so that a few hundred are enough for all that can be seen.
            tokio::time::sleep(Duration::from_millis(5)).await;
        } else if random.next(16) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(sections);
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
        counts.of(mode, several).fetch_add(1, Ordering::Relaxed);
        return;
    }
}

/// The part of each process. Nothing to do in the parent's own run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Some(run) = Run::from_env() else { return };
    let run = Arc::new(run);
    let locks = LockManager::connect(&run.url).await.unwrap();
    let history = History::to_file(run.file.as_ref());
    let (begun, counts) = (Arc::new(AtomicU64::new(0)), Arc::new(Counts::default()));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, history, run) = (locks.clone(), history.clone(), Arc::clone(&run));
            let (begun, counts) = (Arc::clone(&begun), Arc::clone(&counts));
            let mut random = Random(SEED + run.number * TASKS + task);
            tokio::spawn(async move {
                while begun.fetch_add(1, Ordering::Relaxed) < run.operations {
                    operate(&locks, &history, &mut random, &run, &counts).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    locks.shutdown(PATIENCE).await.unwrap();
    println!("counts {:?}", counts.list());
}

/// Runs this many operations in all on this many keys, and gives back their history and the counts.
async fn recorded(operations: u64, keys: u64, wrong: bool) -> (History, [u64; 5]) {
    let server = RedisServer::start().await;
    let dir = tests::temp_dir();
    let file = dir.path().join("history").to_str().unwrap().to_owned();
    let (url, operations) = (server.url(), operations / PROCESSES);
    let run = |number| Run { url: url.clone(), file: file.clone(), number, operations, keys, wrong };
    let children: Vec<_> = (0..PROCESSES).map(|number| run(number).start()).collect();
    let mut counts = [0; 5];
    for child in &children {
        assert!(child.wait(LONGEST).await.success(), "{:#?}", child.lines());
        let line = child.wait_for_line("counts [").await;
        let (_, list) = line.split_once('[').unwrap();
        let list = list.trim_end_matches(']').split(", ");
        for (sum, count) in counts.iter_mut().zip(list) {
            *sum += count.parse::<u64>().unwrap();
        }
    }
    assert_eq!(server.keys("*").await, Vec::<String>::new());
    (History::load(file.as_ref()), counts)
}

#[tokio::test]
async fn a_hundred_thousand_of_every_mode_from_four_processes_exclude_each_other() {
    const OPERATIONS: u64 = 100_000;
    let began = Instant::now();
    let (history, counts) = recorded(OPERATIONS, 40, false).await;
    let ran = began.elapsed();
    let granted: u64 = counts[..4].iter().sum();
    let named: Vec<_> =
        Counts::NAMES.iter().zip(counts).map(|(name, count)| format!("{count} {name}")).collect();
    println!("{granted} granted in {ran:.1?}: {}; {} stays", named.join(", "), history.len());
    assert_eq!(granted, OPERATIONS);
    assert!(counts[..4].iter().all(|count| *count > OPERATIONS / 20), "{named:?}");
    // One for each key, two to four of several.
    let stays = history.len() as u64;
    assert!(stays >= granted + counts[3] && stays <= granted + 3 * counts[3], "{stays}");
    assert!(
        history.intervals().iter().all(|stay| stay.end < stay.deadline),
        "no lease was over before its body"
    );
    history.assert_clean();
}

/// The control: all that is taken is shared, and recorded is what should have been.
#[tokio::test]
async fn a_lock_of_the_wrong_mode_is_caught() {
    let (history, counts) = recorded(800, 4, true).await;
    let violations = history.violations();
    let crowds = violations.iter().filter(|violation| matches!(violation, Violation::Crowd { .. })).count();
    let overlaps = violations.len() - crowds;
    println!("{counts:?}: {overlaps} overlaps, {crowds} crowds in {} stays", history.len());
    assert!(overlaps > 0 && crowds > 0, "{overlaps} overlaps and {crowds} crowds are seen");
}
