//! A holder that stands still for longer than its lease and then writes: the database refuses it.
//!
//! ```text
//! cargo run --example fencing                      starts a redis-server of its own
//! REDIS_URL=redis://127.0.0.1/ cargo run ...       uses that server instead
//! ```
//!
//! No lock with a lease can keep a stopped process from going on later: a long pause of the garbage
//! collector or of the virtual machine, a laptop that was closed. A fencing token can: it grows with every
//! holder, and the table takes no write with an older one. Both holders are processes: this program starts
//! itself, and really stops the first one (`kill -STOP`), which needs Linux, macOS or another Unix.

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{ChildStdout, Command, ExitCode, Stdio},
    time::{Duration, Instant, SystemTime},
};

use lock_runtime::{LockError, LockManager, redis_lock, set_global_manager};
use rusqlite::{Connection, OptionalExtension, params};
use support::{Running, Server};
use tokio::{task::JoinError, time::sleep};

mod support;

const LEASE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

// ---- the locked functions --------------------------------------------------------------------------------

/// Sells some of the stock. The fence goes into every statement, the reading one as well: from then on the
/// row takes nothing from an older holder, not even before the newer one has written.
#[redis_lock(key = "stock:<sku>", ttl = LEASE, wait = PATIENCE, fenced, guard = lock)]
async fn sell(shop: &Shop, sku: &str, quantity: i64) -> Result<(), AppError> {
    let fence = lock.fence();
    let available = shop.read_fenced(sku, fence)?;
    shop.call_gateway().await?;
    // `if lock.is_lost()` would not do: the process may stand still right behind that question.
    shop.write_fenced(sku, available - quantity, fence)
}

/// The same, locked as well, without the fence.
#[redis_lock(key = "stock:<sku>", ttl = LEASE, wait = PATIENCE)]
async fn sell_unfenced(shop: &Shop, sku: &str, quantity: i64) -> Result<(), AppError> {
    let available = shop.read(sku)?;
    shop.call_gateway().await?;
    shop.write(sku, available - quantity)
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("a newer holder has been at this row")]
    Outdated,
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    #[error(transparent)]
    Gateway(#[from] std::io::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
}

// ---- the database ----------------------------------------------------------------------------------------

/// Queries run where they are called: each of these processes does nothing else.
struct Shop(Connection);

impl Shop {
    fn create(file: &Path) -> Result<(), rusqlite::Error> {
        Connection::open(file)?.execute_batch(&format!(
            "CREATE TABLE stock (sku TEXT PRIMARY KEY, available INTEGER NOT NULL, fence INTEGER NOT NULL);
             INSERT INTO stock VALUES ('{SKU}', {IN_STOCK}, 0);"
        ))
    }

    fn open(file: &Path) -> Result<Self, rusqlite::Error> {
        let database = Connection::open(file)?;
        database.busy_timeout(Duration::from_secs(5))?;
        Ok(Self(database))
    }

    /// Leaves the fence in the row and reads it.
    fn read_fenced(&self, sku: &str, fence: u64) -> Result<i64, AppError> {
        let claim = "UPDATE stock SET fence = ?2 WHERE sku = ?1 AND fence <= ?2 RETURNING available";
        let available = self.0.query_row(claim, params![sku, fence], |row| row.get(0)).optional()?;
        available.ok_or(AppError::Outdated)
    }

    fn write_fenced(&self, sku: &str, available: i64, fence: u64) -> Result<(), AppError> {
        let write = "UPDATE stock SET available = ?2, fence = ?3 WHERE sku = ?1 AND fence <= ?3";
        match self.0.execute(write, params![sku, available, fence])? {
            0 => Err(AppError::Outdated),
            _ => Ok(()),
        }
    }

    fn read(&self, sku: &str) -> Result<i64, AppError> {
        let read = "SELECT available FROM stock WHERE sku = ?1";
        Ok(self.0.query_row(read, [sku], |row| row.get(0))?)
    }

    fn write(&self, sku: &str, available: i64) -> Result<(), AppError> {
        self.0.execute("UPDATE stock SET available = ?2 WHERE sku = ?1", params![sku, available])?;
        Ok(())
    }

    /// The gateway is whoever started this process: it answers with a line, or by closing the input. On the
    /// way it is measured how long this process stood still.
    async fn call_gateway(&self) -> Result<(), AppError> {
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        out("holds"); // and may be stopped from here on
        let mut answer =
            tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new()));
        loop {
            let answered = tokio::select! {
                answer = &mut answer => Some(answer),
                () = sleep(Duration::from_millis(10)) => None,
            };
            longest = longest.max(last.elapsed());
            last = Instant::now();
            if let Some(answer) = answered {
                answer??;
                out(&longest.as_millis().to_string());
                return Ok(());
            }
        }
    }
}

// ---- a holder --------------------------------------------------------------------------------------------

#[tokio::main]
async fn be_holder(
    fenced: bool,
    file: &Path,
    quantity: i64,
    prefix: &str,
    url: &str,
) -> Result<bool, Box<dyn Error>> {
    // All that the attributes above need: one manager, installed once.
    // (Without the expiry, fences are remembered for a week: right for a service, too long for an example.)
    let expiry = Duration::from_secs(60);
    let manager = LockManager::builder().prefix(prefix).fence_expiry(expiry).connect(url).await?;
    set_global_manager(manager.clone())?;
    let shop = Shop::open(file)?;
    let sold =
        if fenced { sell(&shop, SKU, quantity).await } else { sell_unfenced(&shop, SKU, quantity).await };
    match sold {
        Ok(()) => out("sold"),
        Err(AppError::Outdated) => out("refused"),
        Err(error) => return Err(error.into()),
    }
    manager.shutdown(Duration::from_secs(5)).await?;
    Ok(true)
}

/// A process that runs [`be_holder`], and the lines that it prints.
struct Holder {
    process: Running,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Holder {
    fn start(
        server: &Server,
        prefix: &str,
        fenced: bool,
        file: &Path,
        quantity: i64,
    ) -> Result<Self, Box<dyn Error>> {
        let child = Command::new(env::current_exe()?)
            .args(["holder", &fenced.to_string(), &quantity.to_string(), prefix])
            .arg(file)
            .env("REDIS_URL", server.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut process = Running(child);
        let printed = process.0.stdout.take().ok_or("a holder without output")?;
        Ok(Self { process, lines: BufReader::new(printed).lines() })
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        Ok(self.lines.next().ok_or("a holder failed")??)
    }

    /// Comes back when the holder is inside: it has the lock and has read the row.
    fn holds(&mut self) -> Result<(), Box<dyn Error>> {
        match self.line()?.as_str() {
            "holds" => Ok(()),
            line => Err(format!("a holder said: {line}").into()),
        }
    }

    fn signal(&self, signal: &str) -> Result<(), Box<dyn Error>> {
        let kill = format!("kill -{signal} {}", self.process.0.id());
        if Command::new("sh").args(["-c", &kill]).status()?.success() {
            Ok(())
        } else {
            Err(format!("{kill} failed").into())
        }
    }

    /// Lets the gateway answer.
    fn answer(&mut self) {
        drop(self.process.0.stdin.take());
    }

    /// How long it stood still, and whether it was refused.
    fn ends(mut self) -> Result<(Duration, bool), Box<dyn Error>> {
        let still = Duration::from_millis(self.line()?.parse()?);
        let refused = self.line()? == "refused";
        if self.process.0.wait()?.success() { Ok((still, refused)) } else { Err("a holder failed".into()) }
    }
}

// ---- the two runs ----------------------------------------------------------------------------------------

const SKU: &str = "teapot";
const IN_STOCK: i64 = 100;
const SLOW_SELLS: i64 = 10;
const QUICK_SELLS: i64 = 30;

/// How a run ended: for both holders whether they were refused, and what the row says.
struct Outcome {
    /// For how long the slow holder stood still, by its own clock.
    still: Duration,
    slow_refused: bool,
    quick_refused: bool,
    available: i64,
}

impl Outcome {
    /// What the row has to say, after what the holders were told.
    fn expected(&self) -> i64 {
        let sold = |refused, quantity| if refused { 0 } else { quantity };
        IN_STOCK - sold(self.slow_refused, SLOW_SELLS) - sold(self.quick_refused, QUICK_SELLS)
    }

    fn print(&self, title: &str) {
        let told =
            |refused, quantity| if refused { "refused".to_owned() } else { format!("sold {quantity}") };
        out(&format!(
            "{title:<18}{:>11.1} s{:>13}{:>14}{:>14}{:>10}",
            self.still.as_secs_f64(),
            told(self.slow_refused, SLOW_SELLS),
            told(self.quick_refused, QUICK_SELLS),
            self.expected(),
            self.available
        ));
    }
}

fn run_story(server: &Server, folder: &Path, fenced: bool) -> Result<Outcome, Box<dyn Error>> {
    let file = folder.join(if fenced { "fenced.sqlite" } else { "unfenced.sqlite" });
    Shop::create(&file)?;
    // Every run has its own keys, so that it meets no lock of another one.
    let prefix = format!("fencing-example:{}:", SystemTime::UNIX_EPOCH.elapsed()?.as_micros());

    let mut slow = Holder::start(server, &prefix, fenced, &file, SLOW_SELLS)?;
    slow.holds()?;
    slow.signal("STOP")?;

    // It waits until the lease of the one that stands still is over, and does its work.
    let mut quick = Holder::start(server, &prefix, fenced, &file, QUICK_SELLS)?;
    quick.holds()?;
    quick.answer();
    let (_, quick_refused) = quick.ends()?;

    slow.answer();
    slow.signal("CONT")?;
    let (still, slow_refused) = slow.ends()?;
    let available = Shop::open(&file)?.read(SKU)?;
    Ok(Outcome { still, slow_refused, quick_refused, available })
}

/// Whether what was to be proved is proved.
fn run() -> Result<bool, Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["holder", fenced, quantity, prefix, file] => {
            let url = env::var("REDIS_URL")?;
            return be_holder(fenced.parse()?, Path::new(file), quantity.parse()?, prefix, &url);
        }
        _ => return Err("it takes no arguments".into()),
    }

    let server = Server::from_env_or_start()?;
    out(&format!("Two processes, {IN_STOCK} items in SQLite, locks in {}.", server.name()));
    out(&format!("The first one is stopped past its lease of {:.1} s.\n", LEASE.as_secs_f64()));

    let folder = tempfile::tempdir()?; // removed when dropped
    out("                   stood still   first one   second one   to be left   is left");
    let unfenced = run_story(&server, folder.path(), false)?;
    unfenced.print("without a fence");
    let fenced = run_story(&server, folder.path(), true)?;
    fenced.print("fenced");

    // When it was stopped, some of its lease was over already.
    let stopped = [&unfenced, &fenced].iter().all(|run| run.still > LEASE / 4);
    let unharmed = fenced.slow_refused && !fenced.quick_refused && fenced.available == fenced.expected();
    let damaged = unfenced.available != unfenced.expected();
    if stopped && unharmed && damaged {
        out(&format!(
            "\nProved: with a fence, the late write is refused by the database and the row is unharmed. Without\n\
             it, the late write put {} items back on the shelf that had been sold.",
            unfenced.available - unfenced.expected()
        ));
    } else {
        out(
            "\nNOT PROVED: the fenced row must be unharmed, the other one damaged, and both first ones stopped.",
        );
    }
    Ok(stopped && unharmed && damaged)
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
            let _ = writeln!(std::io::stderr(), "fencing: {error}");
            ExitCode::FAILURE
        }
    }
}
