//! Locks that nobody else wants: what one costs when the server has nothing else to do, and when it is busy.

use std::sync::Arc;
use std::time::Instant;

use lock_runtime::redis::{self, aio::MultiplexedConnection};
use tests::PATIENCE;
use tests::measure::{Sample, Table};
use tests::monitor::Monitor;
use tokio::task::JoinSet;

use crate::Bench;
use crate::contenders::{AsyncRedisLock, Contender, Floor, InBackground, Key, Product, Rlock, Rslock};
use crate::report::Report;
use crate::runtimes::Flavour;
use crate::turns::{Entrant, take_turns};

const ROUNDS: usize = 11;
/// Of each contender in a round, of which the median counts: they are so short that on a busy machine, too, most of
/// them pass undisturbed.
const TURNS: usize = 13;

/// How many tasks take how many locks each, one after the other.
#[derive(Clone)]
struct Load {
    tasks: usize,
    each: usize,
    /// The keys of each task, which it takes in turn: none of them is another's.
    keys: Arc<[Arc<[Key]>]>,
}

impl Load {
    fn new(tasks: usize, each: usize) -> Self {
        let keys_of = |task| Key::range(task * 100..=task * 100 + 15).into();
        Self { tasks, each, keys: (0..tasks as u64).map(keys_of).collect() }
    }

    fn cycles(&self) -> usize {
        self.tasks * self.each
    }

    /// Runs it to the end of the last cycle; how many have failed.
    async fn run<C: Contender>(&self, contender: &C) -> usize {
        if let [keys] = &*self.keys {
            return one_after_another(contender.clone(), Arc::clone(keys), self.each).await;
        }
        let mut tasks = JoinSet::new();
        for keys in &*self.keys {
            tasks.spawn(one_after_another(contender.clone(), Arc::clone(keys), self.each));
        }
        tasks.join_all().await.into_iter().sum()
    }
}

async fn one_after_another<C: Contender>(mut contender: C, keys: Arc<[Key]>, cycles: usize) -> usize {
    let mut failed = 0;
    for key in keys.iter().cycle().take(cycles) {
        failed += usize::from(contender.cycle(key).await.is_err());
    }
    failed
}

#[derive(Clone, Copy)]
struct Turn {
    per_second: f64,
    failed: usize,
}

/// The time counts until no lock is left, also for those who do not await their releases.
async fn turn<C: Contender>(contender: C, load: Load, mut server: MultiplexedConnection) -> Turn {
    let began = Instant::now();
    let failed = load.run(&contender).await;
    emptied(&mut server).await;
    Turn { per_second: load.cycles() as f64 / began.elapsed().as_secs_f64(), failed }
}

/// Waits until the server has no key. Costs one round trip where all is done already.
pub(crate) async fn emptied(server: &mut MultiplexedConnection) {
    let deadline = Instant::now() + PATIENCE;
    while redis::cmd("DBSIZE").query_async::<u64>(server).await.expect("the server answers") > 0 {
        assert!(Instant::now() < deadline, "locks are left that nobody holds");
    }
}

struct Measured {
    entrants: Vec<Entrant<Turn>>,
    /// Commands for each cycle, in the same order.
    commands: Vec<f64>,
}

/// One contender after the other, connected and warm.
struct Field {
    bench: Bench,
    load: Load,
    measured: Measured,
}

impl Field {
    async fn add<C: Contender>(&mut self) {
        let contender = C::connect(&self.bench.place).await.expect("a contender connects");
        let server = self.bench.server.connection().await;
        let load = self.load.clone();
        // The first cycles teach the server the script, and whoever measures where things are.
        turn(contender.clone(), load.clone(), server.clone()).await;
        let commands = commands_per_cycle(&self.bench, &contender, &load, server.clone()).await;
        self.measured.commands.push(commands);
        self.measured
            .entrants
            .push(Entrant::new(C::NAME, move || turn(contender.clone(), load.clone(), server.clone())));
    }
}

/// As the server saw them on its connections, in a pass of its own, because seeing them takes its time.
async fn commands_per_cycle<C: Contender>(
    bench: &Bench,
    contender: &C,
    load: &Load,
    mut server: MultiplexedConnection,
) -> f64 {
    let load = Load { each: load.each.div_ceil(10), ..load.clone() };
    let monitor = Monitor::attach(&bench.server);
    let failed = load.run(contender).await;
    assert_eq!(failed, 0, "cycles of {} failed", C::NAME);
    emptied(&mut server).await;
    let sent = monitor.wire().await.into_iter().filter(|command| !command.is("DBSIZE")).count();
    sent as f64 / load.cycles() as f64
}

async fn measure(bench: Bench, load: Load) -> Measured {
    let rounds = bench.rounds(ROUNDS);
    let measured = Measured { entrants: Vec::new(), commands: Vec::new() };
    let mut field = Field { bench, load, measured };
    field.add::<Floor>().await;
    field.add::<Product>().await;
    field.add::<InBackground>().await;
    field.add::<Rslock>().await;
    field.add::<Rlock>().await;
    field.add::<AsyncRedisLock>().await;
    let mut measured = field.measured;
    take_turns(&mut measured.entrants, rounds * TURNS).await;
    measured
}

/// Runs both rows on both runtimes.
pub(crate) fn run(bench: &Bench, report: &mut Report) {
    println!("## Uncontended locks\n");
    println!(
        "Cycles a second over the floor's of the same round, from taking the first lock until none is left.\n"
    );
    let loads = [
        ("1 task", Load::new(1, bench.scaled(150))),
        ("64 tasks, distinct keys", Load::new(64, bench.scaled(10))),
    ];
    for (row, load) in loads {
        let mut table =
            Table::new(["contender", "runtime", "over the floor", "cycles/s", "commands a cycle"]);
        for flavour in Flavour::BOTH {
            let measured = flavour.run(measure(bench.clone(), load.clone()));
            judge(row, flavour, &measured, &mut table, report);
        }
        println!("{row}:\n\n{}", table.markdown());
    }
}

fn judge(row: &str, flavour: Flavour, measured: &Measured, table: &mut Table, report: &mut Report) {
    let speed = |entrant: &Entrant<Turn>| -> Sample {
        let of_round = |turns: &[Turn]| turns.iter().map(|turn| turn.per_second).collect::<Sample>().median();
        entrant.turns.chunks(TURNS).map(of_round).collect()
    };
    let Some(floor) = measured.entrants.first().map(speed) else { return };
    for (entrant, commands) in measured.entrants.iter().zip(&measured.commands) {
        let ratio = speed(entrant).over(&floor);
        let failed: usize = entrant.turns.iter().map(|turn| turn.failed).sum();
        table.row([
            entrant.name.to_owned(),
            flavour.name().to_owned(),
            ratio.spread(2),
            format!("{:.0}", speed(entrant).median()),
            format!("{commands:.2}"),
        ]);
        if let Some(least) = target(row, flavour, entrant.name) {
            let (row, least_text) = (format!("{row}, {}", entrant.name), format!("≥ {least} of the floor"));
            report.timed(&row, flavour, &least_text, &ratio.spread(2), meets(&ratio, least));
            report.counted(
                &row,
                flavour,
                "2 commands a cycle",
                &commands.to_string(),
                exactly_two(*commands),
            );
            report.failures(&row, flavour, failed);
        }
    }
}

fn meets(ratio: &Sample, least: f64) -> bool {
    ratio.median() >= least
}

fn exactly_two(commands: f64) -> bool {
    (commands - 2.0).abs() < f64::EPSILON
}

fn target(row: &str, flavour: Flavour, name: &str) -> Option<f64> {
    match (name, row, flavour) {
        (Product::NAME, ..) => Some(0.95),
        (InBackground::NAME, "1 task", _) | (InBackground::NAME, _, Flavour::CurrentThread) => Some(1.5),
        (InBackground::NAME, ..) => Some(1.1),
        _ => None,
    }
}
