//! How fast the product is, beside what no lock can beat and beside other crates.
//!
//! `cargo bench -p tests --bench peers` starts a `redis-server` of its own, lets all take turns in one run, and prints
//! tables of ratios, because a ratio is worth more than a number that belongs to one machine. It ends with one line
//! for each target. What takes its time may miss its target on a busy machine; what is counted may not: then the
//! program fails.
//!
//! `-- NAME…` runs some sections only, `-- --quick` all of them for a tenth of the time.
#![allow(clippy::cast_precision_loss, reason = "what is counted here is far below 2^52")]

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use lock_runtime::LockManager;
use tests::monitor::Monitor;
use tests::server::RedisServer;

use crate::contenders::{Contender, Key, Place, Product};
use crate::report::Report;
use crate::runtimes::Flavour;

mod children;
mod contended;
mod contenders;
mod contest;
mod crowd;
mod dropped;
mod handoff;
mod memory;
mod processes;
mod procfs;
mod renewals;
mod report;
mod runtimes;
mod turns;
mod uncontended;

/// What every section needs.
#[derive(Clone)]
pub(crate) struct Bench {
    pub(crate) server: Arc<RedisServer>,
    pub(crate) place: Place,
    pub(crate) quick: bool,
}

impl Bench {
    /// How many times something is done that is only done often for the sake of precision.
    pub(crate) fn rounds(&self, rounds: usize) -> usize {
        if self.quick { 1 } else { rounds }
    }

    /// How much of something is done.
    pub(crate) fn scaled(&self, amount: usize) -> usize {
        if self.quick { amount.div_ceil(10) } else { amount }
    }
}

type Section = fn(&Bench, &mut Report);

const SECTIONS: [(&str, Section); 8] = [
    ("uncontended", uncontended::run),
    ("contended", contended::run),
    ("processes", processes::run),
    ("dropped", dropped::run),
    ("handoff", handoff::run),
    ("crowd", crowd::run),
    ("renewals", renewals::run),
    ("memory", memory::run),
];

fn main() -> ExitCode {
    // Cargo says `--bench` to every bench.
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let Some((first, part)) = args.split_first()
        && first == children::CHILD
    {
        return children::play(part);
    }
    let (options, names): (Vec<_>, Vec<_>) = args.into_iter().partition(|arg| arg.starts_with("--"));
    let known: Vec<_> = SECTIONS.iter().map(|(name, _)| *name).collect();
    if options.iter().any(|option| option != "--quick") || names.iter().any(|name| !known.contains(&&**name))
    {
        eprintln!("usage: peers [--quick] [SECTION]...\nsections: {}", known.join(", "));
        return ExitCode::from(2);
    }
    let bench = Flavour::CurrentThread.run(prepare(!options.is_empty()));
    if bench.quick {
        println!("Quick: so little of everything that only what is counted means anything.\n");
    }
    let mut report = Report::new();
    for (_, section) in
        SECTIONS.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|wanted| wanted == name))
    {
        section(&bench, &mut report);
    }
    if report.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn prepare(quick: bool) -> Bench {
    let server = RedisServer::start_to_measure().await;
    let release = release_script(&server).await;
    let place = Place { url: server.url(), release };
    let info: String = server.call(&["INFO", "server"]).await;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    println!("Redis {version}, {processors} processors, all on one machine.\n");
    Bench { server: Arc::new(server), place, quick }
}

/// The SHA-1 of the script by which the product releases a lock, which the server knows from now on.
async fn release_script(server: &RedisServer) -> String {
    let locks = LockManager::connect(&server.url()).await.expect("the product connects");
    let monitor = Monitor::attach(server);
    Product(locks).cycle(&Key::new(0)).await.expect("the product takes and releases a lock");
    let sent = monitor.wire().await;
    let release = sent.iter().find(|command| command.is("EVALSHA"));
    let sha = release.and_then(|command| match &command.args[..] {
        [_, sha, keys, _, _] if keys == "1" => Some(sha.clone()),
        _ => None,
    });
    sha.unwrap_or_else(|| panic!("no release by EVALSHA SHA 1 KEY TOKEN was seen, but {sent:?}"))
}
