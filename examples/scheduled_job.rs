//! A job that every host of a service starts by its own clock, and that is to run once.
//!
//! ```text
//! cargo run --example scheduled_job                starts a redis-server of its own
//! REDIS_URL=redis://127.0.0.1/ cargo run ...       uses that server instead
//! ```
//!
//! A lock alone does not do it: the job takes 30 ms, and the host whose clock is 200 ms behind finds the lock
//! free again. `hold_at_least` keeps it until the slowest clock has struck. The two hosts are two processes:
//! this program starts itself twice.

use std::{
    env,
    error::Error,
    io::{Read, Write},
    process::{Command, ExitCode, Stdio},
    time::{Duration, SystemTime},
};

use lock_runtime::{LockError, LockManager, redis_lock, set_global_manager};
use support::{Running, Server};
use tokio::time::sleep;

mod support;

// ---- the locked jobs -------------------------------------------------------------------------------------

/// Longer than the clocks differ, and over before the next window begins. In real life: `ttl = "10m"`,
/// `hold_at_least = "1m"` for a job of every hour.
#[redis_lock(key = "job:report", ttl = "10s", hold_at_least = "600ms")]
async fn report() -> Result<(), LockError> {
    work().await;
    Ok(())
}

/// The same job, locked only while it runs.
#[redis_lock(key = "job:report-without-hold", ttl = "10s")]
async fn report_without_hold() -> Result<(), LockError> {
    work().await;
    Ok(())
}

async fn work() {
    sleep(Duration::from_millis(30)).await;
}

// ---- a host ----------------------------------------------------------------------------------------------

const HOSTS: usize = 2;
const WINDOWS: usize = 4;
const WINDOW_MS: i64 = 1_200;

/// By how much each host's clock is ahead in each window, in ms. Now one is the first, now the other.
const AHEAD: [[i64; WINDOWS]; HOSTS] = [[100, -90, 70, -100], [-100, 90, -80, 60]];

/// Starts both jobs in every window, by its own clock, and prints a line for each window.
#[tokio::main]
async fn be_host(host: usize, first_window: i64, prefix: &str, url: &str) -> Result<bool, Box<dyn Error>> {
    // All that the attributes above need: one manager, installed once.
    let manager = LockManager::builder().prefix(prefix).connect(url).await?;
    set_global_manager(manager.clone())?;

    for (window, ahead) in (0..).zip(AHEAD[host]) {
        let due = first_window + window * WINDOW_MS - ahead;
        sleep(Duration::from_millis(u64::try_from(due - now()?).unwrap_or(0))).await;
        let late = now()? - due;
        let (held, plain) = tokio::join!(report(), report_without_hold());
        out(&format!("{} {} {late}", u8::from(ran(held)?), u8::from(ran(plain)?)));
    }
    manager.shutdown(Duration::from_secs(5)).await?;
    Ok(true)
}

/// That another host has the lock is the plan, and anything else is an error.
fn ran(job: Result<(), LockError>) -> Result<bool, LockError> {
    match job {
        Ok(()) => Ok(true),
        Err(error) if error.is_busy() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The true time, in ms.
fn now() -> Result<i64, Box<dyn Error>> {
    Ok(i64::try_from(SystemTime::UNIX_EPOCH.elapsed()?.as_millis())?)
}

// ---- the two hosts ---------------------------------------------------------------------------------------

/// What one host did in one window.
struct Turn {
    ran: bool,
    ran_without_hold: bool,
    late: i64,
}

/// Both hosts in all windows: `turns[host][window]`.
fn run_hosts(server: &Server) -> Result<Vec<Vec<Turn>>, Box<dyn Error>> {
    let first_window = now()? + 500;
    let start = |host: usize| {
        let child = Command::new(env::current_exe()?)
            .args(["host", &host.to_string(), &first_window.to_string()])
            // Every run has its own keys, so that it meets no lock of an earlier one.
            .arg(format!("scheduled-job-example:{first_window}:"))
            .env("REDIS_URL", server.url())
            .stdout(Stdio::piped())
            .spawn();
        child.map(Running)
    };
    let hosts = (0..HOSTS).map(start).collect::<Result<Vec<_>, _>>()?;
    hosts.into_iter().map(|mut host| turns(&mut host)).collect()
}

fn turns(host: &mut Running) -> Result<Vec<Turn>, Box<dyn Error>> {
    let mut printed = String::new();
    host.0.stdout.take().ok_or("a host without output")?.read_to_string(&mut printed)?;
    let turn = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [held, plain, late] = fields[..] else { return None };
        Some(Turn { ran: held == "1", ran_without_hold: plain == "1", late: late.parse().ok()? })
    };
    let turns = printed.lines().map(turn).collect::<Option<Vec<_>>>();
    match turns {
        Some(turns) if host.0.wait()?.success() && turns.len() == WINDOWS => Ok(turns),
        _ => Err("a host failed".into()),
    }
}

/// A machine that stood still for a moment has other clocks than these, which proves nothing.
fn as_planned(turns: &[Vec<Turn>]) -> bool {
    turns.iter().flatten().all(|turn| turn.late < 250)
}

/// Prints who ran in each window; says whether it was one host in every window.
fn judge(turns: &[Vec<Turn>]) -> bool {
    out("window   clock of host-1   clock of host-2   with hold_at_least   locked only while it runs");
    let (mut once, mut twice) = (0, 0);
    for window in 0..WINDOWS {
        let who = |ran: fn(&Turn) -> bool| {
            let ran = (0..HOSTS).filter(|host| ran(&turns[*host][window]));
            ran.map(|host| format!("host-{}", host + 1)).collect::<Vec<_>>()
        };
        let (held, plain) = (who(|turn| turn.ran), who(|turn| turn.ran_without_hold));
        once += usize::from(held.len() == 1);
        twice += usize::from(plain.len() > 1);
        let clock = |host: usize| format!("{:+} ms", AHEAD[host][window]);
        out(&format!(
            "{:>6}{:>18}{:>18}   {:<21}{}",
            window + 1,
            clock(0),
            clock(1),
            held.join(", "),
            plain.join(", ")
        ));
    }
    let right = once == WINDOWS && twice > 0;
    if right {
        out(&format!(
            "\nProved: with hold_at_least the job ran once in each of {WINDOWS} windows, on the host whose clock was\n\
             ahead. Locked only while it ran, it ran twice in {twice} of them."
        ));
    } else {
        out("\nNOT PROVED: it must be one host in every window with hold_at_least, and two without it.");
    }
    right
}

fn run() -> Result<bool, Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["host", host, first_window, prefix] => {
            return be_host(host.parse()?, first_window.parse()?, prefix, &env::var("REDIS_URL")?);
        }
        _ => return Err("it takes no arguments".into()),
    }

    let server = Server::from_env_or_start()?;
    out(&format!(
        "Two processes, a window every {:.1} s, locks in {}.\n",
        Duration::from_millis(WINDOW_MS.unsigned_abs()).as_secs_f64(),
        server.name()
    ));
    let mut turns = run_hosts(&server)?;
    for _ in 0..2 {
        if !as_planned(&turns) {
            out("(The machine stood still for a moment; once more.)\n");
            turns = run_hosts(&server)?;
        }
    }
    Ok(judge(&turns))
}

/// Not `println!`, which panics when its reader has gone (`| head`).
fn out(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "scheduled_job: {error}");
            ExitCode::FAILURE
        }
    }
}
