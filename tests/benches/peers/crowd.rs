//! Ten thousand tasks on a hundred keys.

use std::time::{Duration, Instant};

use lock_runtime::redis;
use tests::measure::{Sample, Table};
use tests::monitor::Monitor;
use tokio::task::JoinSet;

use crate::Bench;
use crate::contenders::{Contender, Floor, Key, Product, Rlock};
use crate::report::Report;
use crate::runtimes::Flavour;
use crate::turns::{Entrant, take_turns};

const ROUNDS: usize = 5;
const KEYS: usize = 100;
/// How many want each of them.
const EACH: usize = 100;
/// A crowd that polls need not get through.
const BOUND: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Default)]
struct Turn {
    seconds: f64,
    failed: usize,
}

/// All at once: each task wants one lock.
async fn crowd<C: Contender>(contender: C, each: usize) -> Turn {
    let began = Instant::now();
    let mut all = JoinSet::new();
    for key in Key::range(1..=KEYS as u64) {
        for _ in 0..each {
            let (mut contender, key) = (contender.clone(), key.clone());
            all.spawn(async move { contender.hold(&key, tokio::task::yield_now()).await.is_err() });
        }
    }
    let failed = all.join_all().await.into_iter().filter(|failed| *failed).count();
    Turn { seconds: began.elapsed().as_secs_f64(), failed }
}

/// As many holds by as many tasks as there are keys: nobody waits.
async fn orderly(floor: Floor, each: usize) -> Turn {
    let began = Instant::now();
    let mut all = JoinSet::new();
    for key in Key::range(1..=KEYS as u64) {
        let mut floor = floor.clone();
        all.spawn(async move {
            let mut failed = 0;
            for _ in 0..each {
                failed += usize::from(floor.hold(&key, tokio::task::yield_now()).await.is_err());
            }
            failed
        });
    }
    let failed = all.join_all().await.into_iter().sum();
    Turn { seconds: began.elapsed().as_secs_f64(), failed }
}

struct Measured {
    floor: Sample,
    product: Entrant<Turn>,
    commands: f64,
    /// The turn of one that polls, with its commands for each hold; none if it was not through in time.
    polling: Option<(Turn, f64)>,
}

async fn measure(bench: Bench) -> Measured {
    let each = bench.scaled(EACH);
    let floor = Floor::connect(&bench.place).await.expect("the floor connects");
    let product = Product::connect(&bench.place).await.expect("the product connects");
    crowd(product.clone(), each).await;
    let (_, commands) = counted(&bench, crowd(product.clone(), each), each).await;
    let mut entrants = [
        Entrant::new(Floor::NAME, move || orderly(floor.clone(), each)),
        Entrant::new(Product::NAME, move || crowd(product.clone(), each)),
    ];
    take_turns(&mut entrants, bench.rounds(ROUNDS)).await;
    let polling = Rlock::connect(&bench.place).await.expect("a contender connects");
    let polling = tokio::time::timeout(BOUND, counted(&bench, crowd(polling, each), each)).await.ok();
    // Whoever was not through has left its locks.
    redis::cmd("FLUSHALL")
        .exec_async(&mut bench.server.connection().await)
        .await
        .expect("the server answers");
    let [floor, product] = entrants;
    Measured { floor: floor.sample(|turn| turn.seconds), product, commands, polling }
}

/// A turn, and how many commands it took for each hold.
async fn counted(bench: &Bench, turn: impl Future<Output = Turn>, each: usize) -> (Turn, f64) {
    let monitor = Monitor::attach(&bench.server);
    let turn = turn.await;
    let held = KEYS * each - turn.failed;
    (turn, monitor.wire().await.len() as f64 / held as f64)
}

/// Runs the row on both runtimes.
pub(crate) fn run(bench: &Bench, report: &mut Report) {
    let each = bench.scaled(EACH);
    println!("## {} tasks on {KEYS} keys\n", KEYS * each);
    println!(
        "The floor is {KEYS} tasks that each have a key of their own, for as many cycles in all. The one that polls had \
         one turn, under MONITOR.\n"
    );
    let mut table =
        Table::new(["contender", "runtime", "wall over the floor's", "wall, s", "commands a hold", "failed"]);
    for flavour in Flavour::BOTH {
        let measured = flavour.run(measure(bench.clone()));
        let Measured { floor, product, commands, polling } = &measured;
        let failed: usize = product.turns.iter().map(|turn| turn.failed).sum();
        let wall = product.sample(|turn| turn.seconds);
        let mut row = |name: &str, cells: [String; 4]| {
            table.row([name.to_owned(), flavour.name().to_owned()].into_iter().chain(cells));
        };
        row(Floor::NAME, ["1".into(), floor.spread(2), "2.00".into(), "0".into()]);
        row(
            product.name,
            [wall.over(floor).spread(2), wall.spread(2), format!("{commands:.2}"), failed.to_string()],
        );
        row(
            Rlock::NAME,
            match polling {
                Some((turn, commands)) => [
                    format!("{:.1}", turn.seconds / floor.median()),
                    format!("{:.2}", turn.seconds),
                    format!("{commands:.2}"),
                    turn.failed.to_string(),
                ],
                None => [String::new(), format!("not in {BOUND:?}"), String::new(), String::new()],
            },
        );
        let name = "10,000 tasks on 100 keys";
        report.counted(name, flavour, "≤ 3 commands a hold", &format!("{commands:.2}"), *commands <= 3.0);
        report.failures(name, flavour, failed);
    }
    println!("{}", table.markdown());
}
