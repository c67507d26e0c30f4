//! Instructions of one uncontended cycle (take the lock, run an empty body, release it) on the in-memory store, counted
//! by callgrind: the product's own work, without a network, and the same number on a busy machine as on an idle one.
//!
//! `cargo bench -p tests --bench cycle` counts, and shows the counts beside those that were recorded last. Whoever
//! changes them for the better or with good reason records them anew below. Needs `valgrind`.
//!
//! Where they go: `callgrind_annotate --inclusive=yes FILE` on the files that it names.

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, redis_lock};
use tests::measure::Table;

/// What was counted last: with rustc 1.95 on x86-64 and glibc 2.36, the feature `metrics` on and no recorder installed.
const RECORDED: [(Cycle, u64); 3] =
    [(Cycle::Wait, 12_040), (Cycle::Background, 11_073), (Cycle::ByHand, 9_564)];
/// Enough for the counts not to depend on how the tables of the store happen to grow.
const CYCLES: u64 = 10_000;
/// Start-up and the first growth of everything.
const WARM_UP: u64 = 1_000;
const TTL: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq)]
enum Cycle {
    Wait,
    Background,
    ByHand,
}

impl Cycle {
    fn name(self) -> &'static str {
        match self {
            Self::Wait => "annotated",
            Self::Background => "annotated, release = background",
            Self::ByHand => "by hand",
        }
    }
}

#[redis_lock(key = "order:<order_id>", ttl = "30s", manager = locks)]
async fn pay_order(locks: &LockManager, order_id: u64) -> Result<u64, LockError> {
    Ok(order_id)
}

#[redis_lock(key = "order:<order_id>", ttl = "30s", manager = locks, release = background)]
async fn pay_order_in_background(locks: &LockManager, order_id: u64) -> Result<u64, LockError> {
    Ok(order_id)
}

async fn run(cycle: Cycle, cycles: u64) -> Result<(), LockError> {
    let locks = LockManager::in_memory();
    for order_id in 0..cycles {
        match cycle {
            Cycle::Wait => drop(pay_order(&locks, order_id).await?),
            Cycle::Background => drop(pay_order_in_background(&locks, order_id).await?),
            Cycle::ByHand => {
                let guard = locks.lock(format!("order:{order_id}")).ttl(TTL).acquire().await?;
                guard.release().await;
            }
        }
    }
    Ok(())
}

/// All instructions of this program with so many cycles.
fn count(cycle: Cycle, cycles: u64, profile: &Path) -> Result<u64, String> {
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", profile.display()));
    command.arg(env::current_exe().map_err(|error| error.to_string())?);
    command.args([cycle.name(), &cycles.to_string()]);
    let output = command.output().map_err(|error| {
        format!("valgrind could not be started ({error}): install it, apt-get install valgrind")
    })?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    collected.ok_or_else(|| format!("callgrind counted nothing:\n{said}"))
}

fn counts() -> Result<(), String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut table = Table::new(["cycle", "instructions", "recorded", "ratio", "profile"]);
    for (number, (cycle, recorded)) in RECORDED.into_iter().enumerate() {
        let profile = folder.join(format!("cycle.{number}.callgrind"));
        let least = count(cycle, WARM_UP, &profile)?;
        let most = count(cycle, WARM_UP + CYCLES, &profile)?;
        let instructions = (most - least) / CYCLES;
        #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
        let ratio = instructions as f64 / recorded as f64;
        table.row([
            cycle.name().to_owned(),
            instructions.to_string(),
            recorded.to_string(),
            format!("{ratio:.3}"),
            profile.display().to_string(),
        ]);
    }
    println!("{}", table.markdown());
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<_> = env::args().skip(1).filter(|word| word != "--bench").collect();
    let done = if let [name, cycles] = &words[..] {
        let cycle = RECORDED.iter().map(|(cycle, _)| *cycle).find(|cycle| cycle.name() == name);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        match (cycle, cycles.parse(), runtime) {
            (Some(cycle), Ok(cycles), Ok(runtime)) => {
                runtime.block_on(run(cycle, cycles)).map_err(|error| error.to_string())
            }
            _ => Err(format!("{words:?} is no cycle")),
        }
    } else {
        counts()
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
