//! A lock that many tasks of one process want at once.

use lock_runtime::redis::aio::MultiplexedConnection;
use tests::measure::{Sample, Table};
use tests::monitor::Monitor;

use crate::Bench;
use crate::contenders::{AsyncRedisLock, Contender, Floor, Key, Product, Rlock, Rslock};
use crate::contest::{Course, End, contest, round_trip};
use crate::report::Report;
use crate::runtimes::Flavour;
use crate::turns::{Entrant, take_turns};

const ROUNDS: usize = 3;
const TASKS: usize = 16;
const HOLDS: usize = 20;

struct Turn {
    course: Course,
    /// Of a command and its answer, just before.
    round_trip: f64,
}

struct Measured {
    entrants: Vec<Entrant<Turn>>,
    /// Commands for each hold, in the same order.
    commands: Vec<f64>,
}

/// As many holds for all. The floor cannot wait: alone, it takes the same lock as often, and shows how close to the
/// least one can come.
async fn holds<C: Contender>(contender: &C, holds: usize) -> Course {
    let (tasks, each) = if C::NAME == Floor::NAME { (1, TASKS * holds) } else { (TASKS, holds) };
    contest(contender, &Key::new(1), tasks, End::Holds(each)).await
}

async fn turn<C: Contender>(contender: C, each: usize, mut server: MultiplexedConnection) -> Turn {
    let round_trip = round_trip(&mut server).await;
    Turn { course: holds(&contender, each).await, round_trip }
}

struct Field {
    bench: Bench,
    measured: Measured,
}

impl Field {
    async fn add<C: Contender>(&mut self) {
        let mut contender = C::connect(&self.bench.place).await.expect("a contender connects");
        let server = self.bench.server.connection().await;
        // What is only sent once, when a connection is new, is not counted; what waiting costs is.
        contender.cycle(&Key::new(2)).await.expect("the lock is free");
        let each = self.bench.scaled(HOLDS);
        let monitor = Monitor::attach(&self.bench.server);
        let course = holds(&contender, each).await;
        let sent = monitor.wire().await.len();
        self.measured.commands.push(sent as f64 / course.waits.len() as f64);
        let work = move || turn(contender.clone(), each, server.clone());
        self.measured.entrants.push(Entrant::new(C::NAME, work));
    }
}

async fn measure(bench: Bench) -> Measured {
    let rounds = bench.rounds(ROUNDS);
    let mut field = Field { bench, measured: Measured { entrants: Vec::new(), commands: Vec::new() } };
    field.add::<Floor>().await;
    field.add::<Product>().await;
    field.add::<Rslock>().await;
    field.add::<Rlock>().await;
    field.add::<AsyncRedisLock>().await;
    let mut measured = field.measured;
    take_turns(&mut measured.entrants, rounds).await;
    measured
}

/// Runs the row on both runtimes.
pub(crate) fn run(bench: &Bench, report: &mut Report) {
    println!("## A lock that {TASKS} tasks want\n");
    println!(
        "{} holds a task of 1 ms, and 5 ms between them. The least that so many holds need is the sum of them as they \
         were measured, and two round trips for each. The floor is one task that does nothing else, as often.\n",
        bench.scaled(HOLDS)
    );
    let mut table = Table::new([
        "contender",
        "runtime",
        "p50 wait, ms",
        "p99 wait, ms",
        "wall, s",
        "wall over the least",
        "commands a hold",
        "failed",
    ]);
    for flavour in Flavour::BOTH {
        let measured = flavour.run(measure(bench.clone()));
        for (entrant, commands) in measured.entrants.iter().zip(&measured.commands) {
            let row = [
                entrant.name.to_owned(),
                flavour.name().to_owned(),
                entrant.sample(|turn| turn.course.waits.median()).spread(1),
                p99(entrant).spread(1),
                entrant.sample(|turn| turn.course.wall).spread(2),
                over_the_least(entrant).spread(2),
                format!("{commands:.2}"),
                failed(entrant).to_string(),
            ];
            table.row(row);
        }
        judge(flavour, &measured, report);
    }
    println!("{}", table.markdown());
}

fn p99(entrant: &Entrant<Turn>) -> Sample {
    entrant.sample(|turn| turn.course.waits.quantile(0.99))
}

fn over_the_least(entrant: &Entrant<Turn>) -> Sample {
    entrant.sample(|turn| turn.course.over_the_least(turn.round_trip))
}

fn failed(entrant: &Entrant<Turn>) -> usize {
    entrant.turns.iter().map(|turn| turn.course.failed).sum()
}

fn judge(flavour: Flavour, measured: &Measured, report: &mut Report) {
    let ([_, product, peers @ ..], [_, commands, ..]) = (&measured.entrants[..], &measured.commands[..])
    else {
        return;
    };
    let row = "16 tasks on one key";
    let ratio = p99(product).over(&Sample::least_of(peers.iter().map(p99)));
    report.timed(
        row,
        flavour,
        "p99 wait ≤ 1/9 of the best peer's",
        &ratio.spread(3),
        ratio.median() <= 1.0 / 9.0,
    );
    let wall = over_the_least(product);
    report.timed(row, flavour, "wall ≤ 1.15 of the least", &wall.spread(2), wall.median() <= 1.15);
    report.counted(row, flavour, "≤ 2.2 commands a hold", &format!("{commands:.2}"), *commands <= 2.2);
    report.failures(row, flavour, failed(product));
}
