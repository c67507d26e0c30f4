//! A lock that the tasks of several processes want at once.

use std::time::{Duration, Instant};

use tests::clock;
use tests::measure::{Sample, Table};
use tests::monitor::{Executed, Monitor};
use tests::process::Process;

use crate::Bench;
use crate::children::{self, Part};
use crate::contenders::{AsyncRedisLock, Contender, Key, Product, Rlock, Rslock};
use crate::contest::{Course, End, contest, round_trip};
use crate::report::Report;
use crate::runtimes::Flavour;
use crate::turns::{Entrant, take_turns};

pub(crate) const PART: &str = "processes";
const ROUNDS: usize = 3;
const PROCESSES: usize = 4;
const TASKS: usize = 4;
const HOLDS: usize = 20;
/// For how long the shares are counted.
const WINDOW: Duration = Duration::from_secs(2);
/// Far longer than any contender takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// When the children end.
#[derive(Clone, Copy)]
enum Until {
    Holds(usize),
    Over(Duration),
}

impl Until {
    fn words(self) -> [String; 2] {
        match self {
            Self::Holds(holds) => ["holds".into(), holds.to_string()],
            Self::Over(window) => ["ms".into(), window.as_millis().to_string()],
        }
    }
}

/// The part of each process: it competes from the moment that it is told.
pub(crate) async fn child<C: Contender>(part: Part) {
    let mut contender = C::connect(&part.place).await.expect("a contender connects");
    contender
        .cycle(&Key::new(1_000 + u64::from(std::process::id())))
        .await
        .expect("a lock of one's own is free");
    println!("ready");
    let Some(start) = children::hear().await.and_then(|line| line.parse::<u64>().ok()) else { return };
    tokio::time::sleep(Duration::from_nanos(start.saturating_sub(clock::now_ns()))).await;
    let end = match &*part.word::<String>(0) {
        "ms" => End::At(Instant::now() + Duration::from_millis(part.word(1))),
        _ => End::Holds(part.word(1)),
    };
    let began = clock::now_ns();
    let course = contest(&contender, &Key::new(1), TASKS, end).await;
    let ended = clock::now_ns();
    let waits: Vec<String> = course.waits.numbers().iter().map(|wait| format!("{wait:.3}")).collect();
    let Course { held, failed, in_time, .. } = course;
    println!("done {began} {ended} {held} {failed} {in_time} {}", waits.join(" "));
}

/// What one process or several of them did.
#[derive(Default)]
struct Together {
    course: Course,
    /// Holds of each process while all were competing.
    shares: Vec<usize>,
}

impl Together {
    fn largest_over_smallest(&self) -> f64 {
        let (most, least) = (self.shares.iter().max(), self.shares.iter().min());
        most.copied().unwrap_or(0) as f64 / least.copied().unwrap_or(0) as f64
    }
}

/// Lets the processes compete, from the same moment on.
async fn compete(bench: &Bench, flavour: Flavour, contender: &str, until: Until) -> Together {
    let start = || children::start(PART, flavour, contender, &bench.place, &until.words());
    let children: Vec<Process> = (0..PROCESSES).map(|_| start()).collect();
    for child in &children {
        child.wait_for_line("ready").await;
    }
    let together = clock::now_ns() + 50_000_000;
    for child in &children {
        child.say(&together.to_string());
    }
    let (mut all, mut began, mut ended) = (Together::default(), u64::MAX, 0);
    for child in &children {
        assert!(child.wait(PATIENCE).await.success(), "a process of {contender} failed");
        let line = child.wait_for_line("done ").await;
        let told = Told::read(&line).unwrap_or_else(|| panic!("a process of {contender} said {line:?}"));
        began = began.min(told.began);
        ended = ended.max(told.ended);
        all.course.held += told.course.held;
        all.course.failed += told.course.failed;
        all.course.waits.extend(told.course.waits.numbers().iter().copied());
        all.shares.push(told.course.in_time);
    }
    all.course.wall = Duration::from_nanos(ended.saturating_sub(began)).as_secs_f64();
    all
}

/// What a process says when it is done.
struct Told {
    began: u64,
    ended: u64,
    course: Course,
}

impl Told {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().skip(1);
        let (began, ended) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let held = words.next()?.parse().ok()?;
        let (failed, in_time) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let waits = words.map(|word| word.parse().ok()).collect::<Option<Sample>>()?;
        Some(Self { began, ended, course: Course { waits, held, failed, in_time, ..Course::default() } })
    }
}

struct Turn {
    together: Together,
    /// Of a command and its answer, just before, in seconds.
    round_trip: f64,
}

/// What is counted in a window of time in which all processes compete.
struct Window {
    together: Together,
    commands: f64,
}

struct Measured {
    entrants: Vec<Entrant<Turn>>,
    windows: Vec<Window>,
}

async fn measure(bench: Bench, flavour: Flavour) -> Measured {
    let holds = Until::Holds(bench.scaled(HOLDS));
    let names = [Product::NAME, Rslock::NAME, Rlock::NAME, AsyncRedisLock::NAME];
    let mut measured = Measured { entrants: Vec::new(), windows: Vec::new() };
    for name in names {
        measured.windows.push(window(&bench, flavour, name).await);
        let bench = bench.clone();
        measured.entrants.push(Entrant::new(name, move || {
            let bench = bench.clone();
            async move {
                let round_trip = round_trip(&mut bench.server.connection().await).await;
                Turn { together: compete(&bench, flavour, name, holds).await, round_trip }
            }
        }));
    }
    take_turns(&mut measured.entrants, bench.rounds(ROUNDS)).await;
    measured
}

async fn window(bench: &Bench, flavour: Flavour, name: &str) -> Window {
    let window = if bench.quick { WINDOW / 4 } else { WINDOW };
    let monitor = Monitor::attach(&bench.server);
    let together = compete(bench, flavour, name, Until::Over(window)).await;
    let key = Key::new(1).name;
    // Not the handshakes, nor what the processes did before they were told to start.
    let counts = |command: &Executed| {
        command.args.contains(&key) || command.args.iter().any(|arg| arg.eq_ignore_ascii_case("TRACKING"))
    };
    let sent = monitor.wire().await.into_iter().filter(counts).count();
    let commands = sent as f64 / together.course.waits.len() as f64;
    Window { together, commands }
}

/// Runs the row on both runtimes.
pub(crate) fn run(bench: &Bench, report: &mut Report) {
    println!("## A lock that {TASKS} tasks in each of {PROCESSES} processes want\n");
    println!(
        "{} holds a task of 1 ms, and 5 ms between them. Shares (most holds of a process over fewest) and commands are \
         counted in a window of time.\n",
        bench.scaled(HOLDS)
    );
    let mut table = Table::new([
        "contender",
        "runtime",
        "p50 wait, ms",
        "p99 wait, ms",
        "wall, s",
        "wall over the least",
        "shares",
        "commands a hold",
        "failed",
    ]);
    for flavour in Flavour::BOTH {
        let measured = flavour.run(measure(bench.clone(), flavour));
        for (entrant, window) in measured.entrants.iter().zip(&measured.windows) {
            table.row([
                entrant.name.to_owned(),
                flavour.name().to_owned(),
                entrant.sample(|turn| turn.together.course.waits.median()).spread(1),
                p99(entrant).spread(1),
                entrant.sample(|turn| turn.together.course.wall).spread(2),
                over_the_least(entrant).spread(2),
                format!("{:.2}", window.together.largest_over_smallest()),
                format!("{:.2}", window.commands),
                failed(entrant, window).to_string(),
            ]);
        }
        judge(flavour, &measured, report);
    }
    println!("{}", table.markdown());
}

fn p99(entrant: &Entrant<Turn>) -> Sample {
    entrant.sample(|turn| turn.together.course.waits.quantile(0.99))
}

fn over_the_least(entrant: &Entrant<Turn>) -> Sample {
    entrant.sample(|turn| turn.together.course.over_the_least(turn.round_trip))
}

fn failed(entrant: &Entrant<Turn>, window: &Window) -> usize {
    let failed = entrant.turns.iter().map(|turn| turn.together.course.failed).sum::<usize>();
    failed + window.together.course.failed
}

fn judge(flavour: Flavour, measured: &Measured, report: &mut Report) {
    let ([product, peers @ ..], [window, ..]) = (&measured.entrants[..], &measured.windows[..]) else {
        return;
    };
    let row = "4 processes × 4 tasks on one key";
    let ratio = p99(product).over(&Sample::least_of(peers.iter().map(p99)));
    report.timed(row, flavour, "p99 wait ≤ 1/4 of the best peer's", &ratio.spread(3), ratio.median() <= 0.25);
    let wall = over_the_least(product);
    report.timed(row, flavour, "wall ≤ 1.5 of the least", &wall.spread(2), wall.median() <= 1.5);
    let shares = window.together.largest_over_smallest();
    report.timed(row, flavour, "shares within 2 : 1", &format!("{shares:.2} : 1"), shares <= 2.0);
    let commands = window.commands;
    report.counted(row, flavour, "≤ 6 commands a hold", &format!("{commands:.2}"), commands <= 6.0);
    report.failures(row, flavour, failed(product, window));
}
