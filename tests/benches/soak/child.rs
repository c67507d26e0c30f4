//! One of the processes: what it is told, its tasks, and how it ends.

use std::env;
use std::io;
use std::panic;
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::LockManager;
use metrics_util::debugging::{DebuggingRecorder, Snapshotter};
use tests::history::History;
use tests::process::Process;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::random::Random;
use crate::tally::Tally;
use crate::{TASKS, naive, workload};

const VARIABLE: &str = "LOCK_RUNTIME_SOAK";
/// What a child prints when it has ended well.
pub(crate) const LAST_WORDS: &str = "all done";
/// How often it prints what it has counted.
const PROGRESS: Duration = Duration::from_secs(1);

/// Which lock is put to the test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    Product,
    Naive,
}

/// What a child is to do, as words in its environment variable.
pub(crate) struct Orders {
    pub(crate) lock: Lock,
    pub(crate) url: String,
    pub(crate) seed: u64,
    /// No two children of a run have the same, nor do those that take another's place.
    pub(crate) number: u64,
    pub(crate) file: String,
}

impl Orders {
    pub(crate) fn from_env() -> Option<Self> {
        let words = env::var(VARIABLE).ok()?;
        let words: Vec<&str> = words.splitn(5, ' ').collect();
        let [lock, url, seed, number, file] = words[..] else { panic!("{words:?}") };
        Some(Self {
            lock: if lock == "naive" { Lock::Naive } else { Lock::Product },
            url: url.into(),
            seed: seed.parse().expect("a seed is a number"),
            number: number.parse().expect("a child has a number"),
            file: file.into(),
        })
    }

    /// Starts this program once more, as a child with these orders.
    pub(crate) fn start(&self) -> Process {
        let Self { lock, url, seed, number, file } = self;
        let lock = if *lock == Lock::Naive { "naive" } else { "product" };
        let program = env::current_exe().expect("a program knows its own path");
        let mut command = Command::new(program);
        command.env(VARIABLE, format!("{lock} {url} {seed} {number} {file}")).stderr(Stdio::inherit());
        Process::spawn_talking(&mut command).expect("this program can be started once more")
    }

    /// The child's whole life: it ends when its parent says so, or is gone.
    pub(crate) async fn carry_out(self) {
        end_on_panic();
        let metrics = record_metrics();
        let (tally, over) = (Arc::<Tally>::default(), Arc::<AtomicBool>::default());
        let locks = match self.lock {
            Lock::Product => Some(workload::connect(&self.url, self.number).await),
            Lock::Naive => None,
        };
        let tasks = self.start_tasks(locks.as_ref(), &tally, &over);
        let mut told = spawn_blocking(|| io::stdin().lines().next());
        loop {
            println!("{}", tally.counts());
            tokio::select! {
                _ = &mut told => break,
                () = sleep(PROGRESS) => tally.add_metrics(&metrics),
            }
        }
        over.store(true, Ordering::Relaxed);
        tasks.join_all().await;
        if let Some(locks) = locks {
            locks.shutdown(tests::PATIENCE).await.expect("what is pending is finished in time");
        }
        tally.add_metrics(&metrics);
        println!("{}\n{LAST_WORDS}", tally.counts());
    }

    fn start_tasks(
        &self,
        locks: Option<&LockManager>,
        tally: &Arc<Tally>,
        over: &Arc<AtomicBool>,
    ) -> JoinSet<()> {
        let history = History::to_file(self.file.as_ref());
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let random = Random::new(self.seed, 1 + self.number * TASKS + task);
            let (history, tally, over) = (history.clone(), Arc::clone(tally), Arc::clone(over));
            let worker = Worker { random, history, tally, over };
            match locks {
                Some(locks) => tasks.spawn(workload::work(worker, locks.clone())),
                None => tasks.spawn(naive::work(worker, self.url.clone())),
            };
        }
        tasks
    }
}

/// Ends the process at any panic: one of its tasks has met a broken promise, or the product itself has panicked, on
/// whatever thread.
fn end_on_panic() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        process::exit(101);
    }));
}

fn record_metrics() -> Snapshotter {
    let recorder = DebuggingRecorder::new();
    let metrics = recorder.snapshotter();
    recorder.install().expect("nothing else records the metrics of this process");
    metrics
}

/// What a task of a child works with.
pub(crate) struct Worker {
    pub(crate) random: Random,
    pub(crate) history: History,
    pub(crate) tally: Arc<Tally>,
    over: Arc<AtomicBool>,
}

impl Worker {
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Waits until the next call is made.
    pub(crate) async fn think(&mut self) {
        sleep(self.random.millis(0, 20)).await;
    }

    /// How long a body runs under a lease of this length: seldom for longer than the lease.
    pub(crate) fn length(&mut self, ttl: Duration) -> Duration {
        match self.random.below(32) {
            0 => ttl + self.random.millis(20, 200),
            1..3 => ttl / 2 + self.random.millis(0, 100),
            _ => self.random.millis(0, 8),
        }
    }
}
