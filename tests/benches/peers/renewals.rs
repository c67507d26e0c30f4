//! Ten thousand locks that are renewed while they are held.

use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::{LockGuard, LockManager, redis};
use redis::aio::MultiplexedConnection;
use tests::measure::Table;
use tests::proxy::{Command, Flow, Proxy};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::Bench;
use crate::procfs;
use crate::report::Report;
use crate::runtimes::Flavour;

const LOCKS: usize = 10_000;
const TTL: Duration = Duration::from_secs(3);
/// How long answers take where bursts are told apart. Whoever waits for the answers of a pipeline is silent that long,
/// and the requests of one pipeline follow each other far more quickly.
const ANSWER: Duration = Duration::from_millis(20);
/// For how many thirds of the ttl they are counted.
const PERIODS: u32 = 3;
/// As much as the product puts into one pipeline.
const PIPELINE: usize = 1_000;

/// Takes the locks, many at once.
async fn take(locks: &LockManager, count: usize, ttl: Duration) -> Vec<LockGuard> {
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let locks = locks.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for id in (task..count).step_by(64) {
                let taken = locks.lock(format!("order:{id}")).ttl(ttl).renew().acquire().await;
                guards.push(taken.expect("the lock is free"));
            }
            guards
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

/// What was sent for renewals through a proxy that tells pipelines apart.
struct Sent {
    /// Of the last period, as they were.
    commands: Vec<Command>,
    tokens: Vec<(String, String)>,
    commands_a_lease: f64,
    pipelines: f64,
}

async fn count(bench: Bench, count: usize, ttl: Duration) -> Sent {
    let proxy = Proxy::start(bench.server.port());
    let locks = LockManager::connect(&proxy.url()).await.expect("the product connects");
    let guards = take(&locks, count, ttl).await;
    proxy.replies(Flow::Delay(ANSWER));
    // The first period is that in which they were taken.
    tokio::time::sleep(ttl / 3).await;
    drop(proxy.take_commands());
    tokio::time::sleep(ttl / 3 * PERIODS).await;
    let sent = proxy.take_commands();
    proxy.replies(Flow::Pass);
    let tokens = guards.iter().map(|guard| (guard.key().to_owned(), guard.token().to_owned())).collect();
    drop(guards);
    locks.shutdown(tests::PATIENCE).await.expect("every lock is released");
    let bursts = 1 + sent.windows(2).filter(|pair| pair[1].at - pair[0].at >= ANSWER / 2).count();
    let commands_a_lease = sent.len() as f64 / count as f64 / f64::from(PERIODS);
    let since = sent.last().and_then(|last| last.at.checked_sub(ttl / 3));
    let commands = sent.into_iter().filter(|command| Some(command.at) > since).collect();
    Sent { commands, tokens, commands_a_lease, pipelines: bursts as f64 / f64::from(PERIODS) }
}

/// Processor seconds for each second.
#[derive(Clone, Copy)]
struct Load {
    ours: f64,
    servers: f64,
}

/// The load while `time` passes.
async fn load(bench: &Bench, work: impl Future<Output = ()>) -> Load {
    let server = bench.server.pid().expect("the server runs");
    let read = || (procfs::cpu_seconds(process::id()), procfs::cpu_seconds(server));
    let (began, before) = (Instant::now(), read());
    work.await;
    let (after, seconds) = (read(), began.elapsed().as_secs_f64());
    Load { ours: (after.0 - before.0) / seconds, servers: (after.1 - before.1) / seconds }
}

struct Kept {
    lost: usize,
    keys: u64,
    tasks: isize,
    threads: f64,
    load: Load,
}

async fn keep(bench: Bench, count: usize, ttl: Duration) -> Kept {
    let locks = LockManager::connect(&bench.server.url()).await.expect("the product connects");
    let mut server = bench.server.connection().await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let threads = || procfs::status(process::id(), "Threads");
    let before = (tasks(), threads());
    let guards = take(&locks, count, ttl).await;
    let added = (tasks().cast_signed() - before.0.cast_signed(), threads() - before.1);
    let load = load(&bench, tokio::time::sleep(ttl * 3)).await;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    let keys = redis::cmd("DBSIZE").query_async(&mut server).await.expect("the server answers");
    drop(guards);
    locks.shutdown(tests::PATIENCE).await.expect("every lock is released");
    Kept { lost, keys, tasks: added.0, threads: added.1, load }
}

/// The same commands every period, ready-made, in pipelines of the `redis` crate.
async fn replay(bench: Bench, sent: Arc<Sent>, ttl: Duration) -> Load {
    let mut server = bench.server.connection().await;
    let mut locks = redis::pipe();
    for (key, token) in &sent.tokens {
        locks.cmd("SET").arg(key).arg(token).arg("PX").arg(60_000).ignore();
    }
    locks.exec_async(&mut server).await.expect("the server answers");
    let pipelines: Vec<_> = sent.commands.chunks(PIPELINE).map(pipeline).collect();
    let load = load(&bench, async {
        let mut period = tokio::time::interval(ttl / 3);
        for _ in 0..3 {
            period.tick().await;
            send(&pipelines, &mut server).await;
        }
        period.tick().await;
    })
    .await;
    redis::cmd("FLUSHALL").exec_async(&mut server).await.expect("the server answers");
    load
}

fn pipeline(commands: &[Command]) -> redis::Pipeline {
    let mut pipeline = redis::pipe();
    for command in commands {
        let mut cmd = redis::Cmd::new();
        for arg in &command.args {
            cmd.arg(&arg[..]);
        }
        pipeline.add_command(cmd).ignore();
    }
    pipeline
}

async fn send(pipelines: &[redis::Pipeline], server: &mut MultiplexedConnection) {
    for pipeline in pipelines {
        pipeline.exec_async(server).await.expect("the server answers");
    }
}

/// Runs the row on both runtimes of the holders; renewals have a thread of their own.
pub(crate) fn run(bench: &Bench, report: &mut Report) {
    let (count, ttl) = (bench.scaled(LOCKS), if bench.quick { TTL / 3 } else { TTL });
    println!("## {count} renewed locks\n");
    println!(
        "For three ttls of {ttl:?}, renewed every third of it. Pipelines are counted in a pass of their own with answers \
         that take {ANSWER:?}. The floor sends the very commands of one period every period, ready-made, in pipelines of \
         {PIPELINE}.\n"
    );
    let sent = Arc::new(Flavour::CurrentThread.run(self::count(bench.clone(), count, ttl)));
    let mut table = Table::new([
        "contender",
        "runtime",
        "lost",
        "tasks added",
        "threads added",
        "CPU, s/s",
        "CPU of redis, s/s",
        "commands a lease and period",
        "pipelines a period",
    ]);
    for flavour in Flavour::BOTH {
        let floor = flavour.run(replay(bench.clone(), Arc::clone(&sent), ttl));
        let kept = flavour.run(keep(bench.clone(), count, ttl));
        table.row([
            "floor: the same commands".to_owned(),
            flavour.name().to_owned(),
            String::new(),
            String::new(),
            String::new(),
            format!("{:.3}", floor.ours),
            format!("{:.3}", floor.servers),
            "1.00".to_owned(),
            format!("{}", sent.commands.len().div_ceil(PIPELINE)),
        ]);
        table.row([
            "this product".to_owned(),
            flavour.name().to_owned(),
            kept.lost.to_string(),
            kept.tasks.to_string(),
            format!("{:.0}", kept.threads),
            format!("{:.3}", kept.load.ours),
            format!("{:.3}", kept.load.servers),
            format!("{:.2}", sent.commands_a_lease),
            format!("{:.1}", sent.pipelines),
        ]);
        let row = "10,000 live renewed locks for 3 ttls";
        let gone = count as u64 - kept.keys.min(count as u64);
        let lost = kept.lost.max(usize::try_from(gone).unwrap_or(usize::MAX));
        report.counted(row, flavour, "no lease lost", &lost.to_string(), lost == 0);
        report.counted(row, flavour, "≤ 1 task", &kept.tasks.to_string(), kept.tasks <= 1);
        let each = format!("{:.1}, of {:.0} leases each", sent.pipelines, count as f64 / sent.pipelines);
        report.timed(row, flavour, "≤ 1 pipeline a tick (a third of the ttl)", &each, sent.pipelines <= 1.0);
    }
    println!("{}", table.markdown());
}
