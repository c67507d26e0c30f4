//! From a release in one process to the grant in another one that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::redis::{self, aio::MultiplexedConnection};
use tests::clock;
use tests::measure::{Sample, Table};
use tests::process::Process;

use crate::Bench;
use crate::children::{self, Part};
use crate::contenders::{AsyncRedisLock, Contender, Key, Product, Pushed, Rlock, Rslock};
use crate::report::Report;
use crate::runtimes::Flavour;
use crate::turns::{Entrant, take_turns};

pub(crate) const PART: &str = "handoff";
/// So many rounds, and hand-offs in each: few of those who poll, because they take their time.
const ROUNDS: usize = 15;
const OFTEN: usize = 20;
const SELDOM: usize = 1;

/// The part of the process that waits: each time it is told to.
pub(crate) async fn child<C: Contender>(part: Part) {
    let mut contender = C::connect(&part.place).await.expect("a contender connects");
    println!("ready");
    while let Some(number) = children::hear().await {
        let granted = contender.hold(&Key::new(1), async { clock::now_ns() }).await;
        println!("grant {number} {}", granted.expect("the lock is released"));
    }
}

/// One hand-off, in milliseconds.
#[derive(Clone, Copy)]
struct Handoff {
    time: f64,
    /// A command and its answer after a pause like the one before the release.
    round_trip: f64,
    /// The same without a pause.
    busy_round_trip: f64,
}

/// What one contender took, as medians and in round trips.
struct Handoffs {
    times: Sample,
    round_trip: f64,
    busy_round_trip: f64,
}

impl Handoffs {
    fn of(entrant: &Entrant<Vec<Handoff>>) -> Self {
        let all =
            |number: fn(&Handoff) -> f64| entrant.turns.iter().flatten().map(number).collect::<Sample>();
        Self {
            times: all(|handoff| handoff.time),
            round_trip: all(|handoff| handoff.round_trip).median(),
            busy_round_trip: all(|handoff| handoff.busy_round_trip).median(),
        }
    }

    fn round_trips(&self, share: f64) -> f64 {
        self.times.quantile(share) / self.round_trip
    }

    fn busy_round_trips(&self, share: f64) -> f64 {
        self.times.quantile(share) / self.busy_round_trip
    }
}

async fn entrant<C: Contender>(bench: &Bench, flavour: Flavour, times: usize) -> Entrant<Vec<Handoff>> {
    let contender = C::connect(&bench.place).await.expect("a contender connects");
    let server = bench.server.connection().await;
    let child = Arc::new(children::start(PART, flavour, C::NAME, &bench.place, &[]));
    child.wait_for_line("ready").await;
    let numbers = Arc::new(AtomicUsize::new(0));
    Entrant::new(C::NAME, move || {
        let (mut contender, mut server) = (contender.clone(), server.clone());
        let (child, numbers) = (Arc::clone(&child), Arc::clone(&numbers));
        async move {
            let mut turn = Vec::new();
            for _ in 0..times {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                turn.push(hand_over(&mut contender, &mut server, &child, number, pause(number, times)).await);
            }
            turn
        }
    })
}

async fn hand_over<C: Contender>(
    contender: &mut C,
    server: &mut MultiplexedConnection,
    child: &Process,
    number: usize,
    pause: Duration,
) -> Handoff {
    tokio::time::sleep(pause).await;
    let round_trip = ping(server).await;
    let busy_round_trip = ping(server).await;
    let body = async {
        child.say(&number.to_string());
        // Nothing says that the other one waits by now but that it has had the time to.
        tokio::time::sleep(pause).await;
        clock::now_ns()
    };
    let released = contender.hold(&Key::new(1), body).await.expect("the lock is free or will be");
    let line = child.wait_for_line(&format!("grant {number} ")).await;
    let granted: u64 = line.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
    Handoff { time: granted.saturating_sub(released) as f64 / 1_000_000.0, round_trip, busy_round_trip }
}

/// In milliseconds.
async fn ping(server: &mut MultiplexedConnection) -> f64 {
    let asked = Instant::now();
    redis::cmd("PING").query_async::<()>(server).await.expect("the server answers");
    asked.elapsed().as_secs_f64() * 1_000.0
}

/// Of many lengths, so that it falls on every moment between two polls of whoever polls.
fn pause(number: usize, times: usize) -> Duration {
    let (least, spread) = if times > SELDOM { (8, 8) } else { (20, 100) };
    Duration::from_millis((least + number * 37 % spread) as u64)
}

async fn measure(bench: Bench, flavour: Flavour) -> Vec<Entrant<Vec<Handoff>>> {
    let mut entrants = vec![
        entrant::<Pushed>(&bench, flavour, OFTEN).await,
        entrant::<Product>(&bench, flavour, OFTEN).await,
        entrant::<Rslock>(&bench, flavour, SELDOM).await,
        entrant::<Rlock>(&bench, flavour, SELDOM).await,
        entrant::<AsyncRedisLock>(&bench, flavour, SELDOM).await,
    ];
    take_turns(&mut entrants, bench.rounds(ROUNDS)).await;
    entrants
}

/// Runs the row on both runtimes.
pub(crate) fn run(bench: &Bench, report: &mut Report) {
    println!("## Hand-off to a waiter in another process\n");
    println!(
        "From the moment before the release is called to the grant, in round trips of a PING: after a pause like the \
         one before a release, and in brackets right behind another one, when nobody sleeps.\n"
    );
    let mut table = Table::new([
        "contender",
        "runtime",
        "hand-offs",
        "p50, ms",
        "p99, ms",
        "p50, round trips",
        "p99, round trips",
    ]);
    for flavour in Flavour::BOTH {
        let entrants = flavour.run(measure(bench.clone(), flavour));
        let all: Vec<_> = entrants.iter().map(Handoffs::of).collect();
        for (entrant, handoffs) in entrants.iter().zip(&all) {
            let time = |share| format!("{:.2}", handoffs.times.quantile(share));
            let trips = |share| {
                format!("{:.1} ({:.1})", handoffs.round_trips(share), handoffs.busy_round_trips(share))
            };
            table.row([
                entrant.name.to_owned(),
                flavour.name().to_owned(),
                handoffs.times.len().to_string(),
                time(0.5),
                time(0.99),
                trips(0.5),
                trips(0.99),
            ]);
        }
        if let [floor, product, ..] = &all[..] {
            let words =
                |of: &Handoffs| format!("{:.2} (p99 {:.2})", of.round_trips(0.5), of.round_trips(0.99));
            let measured = format!("{}; floor {}", words(product), words(floor));
            let met = product.round_trips(0.5) <= 2.5;
            report.timed("hand-off to another process, p50", flavour, "≤ 2.5 round trips", &measured, met);
        }
    }
    println!("{}", table.markdown());
}
