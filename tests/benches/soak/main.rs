//! Four processes lock on one server under faults, and the history of their critical sections is checked; then the same
//! with a lock that is wrong, to show that the check can see it.
//!
//! ```text
//! cargo bench -p tests --bench soak -- --seconds 60
//! ```
//!
//! For half an hour: `--seconds 1800`. The server keeps what it acknowledged over kill -9 (`appendfsync always`). The
//! faults and their times depend on the seed alone, which is printed first: `--seed` plays them again, and `--verbose`
//! prints each. Any broken promise ends the program with an error; so does a control without violations.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::{BuildHasher as _, Hasher as _};
use std::process::ExitCode;
use std::time::Duration;

use child::{Lock, Orders};
use tokio::task::{LocalSet, spawn_local};

mod child;
mod faults;
mod fleet;
mod naive;
mod random;
mod report;
mod tally;
mod workload;

const CHILDREN: usize = 4;
/// Of each child.
const TASKS: u64 = 16;
const KEYS: u64 = 24;
/// Fewer, so that the few seconds of the control are enough.
const CONTROL_KEYS: u64 = 8;
const TTLS: [Duration; 3] = [Duration::from_millis(300), Duration::from_millis(500), LONGEST_TTL];
const LONGEST_TTL: Duration = Duration::from_secs(1);
/// The control shows its violations in less time than the product has to show none.
const LONGEST_CONTROL: Duration = Duration::from_secs(10);

struct Options {
    seconds: u64,
    seed: u64,
    verbose: bool,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Option<Self> {
        // As random as the keys of a hash map; short, because people will type it.
        let seed = RandomState::new().build_hasher().finish() % 1_000_000_000;
        let mut options = Self { seconds: 60, seed, verbose: false };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--seconds" => options.seconds = words.next()?.parse().ok().filter(|seconds| *seconds > 0)?,
                "--seed" => options.seed = words.next()?.parse().ok()?,
                "--verbose" => options.verbose = true,
                // Cargo says so to every benchmark.
                "--bench" => {}
                _ => return None,
            }
        }
        Some(options)
    }

    fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    fn replay(&self) -> String {
        let Self { seconds, seed, .. } = self;
        format!("cargo bench -p tests --bench soak -- --seconds {seconds} --seed {seed} --verbose")
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    if let Some(orders) = Orders::from_env() {
        orders.carry_out().await;
        return ExitCode::SUCCESS;
    }
    let Some(options) = Options::parse(env::args().skip(1)) else {
        eprintln!("options: --seconds N (default: 60), --seed N (default: any), --verbose");
        return ExitCode::from(2);
    };
    println!("soak: {} s with seed {}", options.seconds, options.seed);
    let replay = options.replay();
    // A task of its own, so that a panic comes back here.
    let soaked = LocalSet::new().run_until(async { spawn_local(soak(options)).await }).await;
    if soaked.unwrap_or(false) {
        return ExitCode::SUCCESS;
    }
    eprintln!("\nFAILED. The same faults again:\n    {replay}");
    ExitCode::FAILURE
}

/// Whether the product had no violation, and the control had some.
async fn soak(options: Options) -> bool {
    let product = fleet::run(Lock::Product, &options, options.length()).await;
    let broken = report::print(&product);
    let length = (options.length() / 4).min(LONGEST_CONTROL);
    println!("\nThe control, for {} s:", length.as_secs_f64());
    let control = fleet::run(Lock::Naive, &options, length).await;
    let seen = report::print(&control);
    if seen == 0 {
        println!("A check that sees nothing here proves nothing.");
    }
    broken == 0 && seen > 0
}
