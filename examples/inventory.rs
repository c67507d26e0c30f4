//! Orders of several items each: all the items of an order are locked together, or none is.
//!
//! ```text
//! cargo run --example inventory                    the locks live in this process
//! REDIS_URL=redis://127.0.0.1/ cargo run ...       the locks live in that server
//! ```
//!
//! A teapot that comes with cups needs both counts, and the next order names cups first. Locks taken one by
//! one in that order wait for each other for ever; `for` takes them in one step.

use std::{
    env,
    error::Error,
    io::Write,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use lock_runtime::{LockError, LockManager, redis_lock, set_global_manager};
use rusqlite::{Connection, params};
use tokio::{
    task::{JoinError, JoinSet},
    time::{sleep, timeout},
};

// ---- the locked function ---------------------------------------------------------------------------------

/// Sells all lines of an order, or nothing. One lock for each line, taken together: two orders without a
/// common item do not wait for each other, and no two orders wait for each other in a circle.
#[redis_lock(key = "stock:<line.sku>", for line in &order.lines, ttl = "10s", wait = "30s")]
async fn place_order(shop: &Shop, order: &Order) -> Result<(), AppError> {
    shop.sell(order).await
}

// ---- the same function without it ------------------------------------------------------------------------

async fn place_order_naive(shop: &Shop, order: &Order) -> Result<(), AppError> {
    shop.sell(order).await
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("there is not enough of {0}")]
    SoldOut(&'static str),
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
}

// ---- the business code, which knows nothing of locks -----------------------------------------------------

#[derive(Clone)]
struct Order {
    id: u64,
    lines: Vec<Line>,
}

#[derive(Clone)]
struct Line {
    sku: &'static str,
    quantity: i64,
}

#[derive(Clone)]
struct Shop(Arc<Mutex<Connection>>);

const IN_STOCK: i64 = 20;
const ITEMS: [&str; 5] = ["teapot", "teacup", "saucer", "spoon", "tray"];

impl Shop {
    fn open(file: &std::path::Path) -> Result<Self, rusqlite::Error> {
        let database = Connection::open(file)?;
        database.execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = NORMAL;
             CREATE TABLE stock (sku TEXT PRIMARY KEY, available INTEGER NOT NULL);
             CREATE TABLE sales (order_id INTEGER NOT NULL, sku TEXT NOT NULL, quantity INTEGER NOT NULL);",
        )?;
        for sku in ITEMS {
            database.execute("INSERT INTO stock VALUES (?1, ?2)", params![sku, IN_STOCK])?;
        }
        Ok(Self(Arc::new(Mutex::new(database))))
    }

    /// Each query by itself is safe, as with any database. What happens between two of them is not.
    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, AppError> {
        let database = Arc::clone(&self.0);
        let blocking = move || query(&mut database.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(tokio::task::spawn_blocking(blocking).await??)
    }

    async fn sell(&self, order: &Order) -> Result<(), AppError> {
        let mut left = Vec::new();
        for &Line { sku, quantity } in &order.lines {
            let read = "SELECT available FROM stock WHERE sku = ?1";
            let available: i64 =
                self.query(move |database| database.query_row(read, [sku], |row| row.get(0))).await?;
            if available < quantity {
                return Err(AppError::SoldOut(sku));
            }
            left.push((sku, quantity, available - quantity));
        }
        sleep(Duration::from_millis(5)).await; // the payment gateway takes the money
        let order_id = order.id;
        self.query(move |database| {
            let change = database.transaction()?;
            for (sku, quantity, available) in left {
                change.execute("UPDATE stock SET available = ?2 WHERE sku = ?1", params![sku, available])?;
                change.execute("INSERT INTO sales VALUES (?1, ?2, ?3)", params![order_id, sku, quantity])?;
            }
            change.commit()
        })
        .await
    }

    /// What is left and what was sold of every item.
    async fn books(&self) -> Result<Vec<(String, i64, i64)>, AppError> {
        self.query(|database| {
            let sold = "SELECT sku, available, \
                        (SELECT coalesce(sum(quantity), 0) FROM sales WHERE sales.sku = stock.sku) \
                        FROM stock ORDER BY rowid";
            let mut rows = database.prepare(sold)?;
            rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
        })
        .await
    }

    async fn count_sales(&self) -> Result<usize, AppError> {
        self.query(|database| database.query_row("SELECT count(*) FROM sales", [], |row| row.get(0))).await
    }
}

// ---- the rush --------------------------------------------------------------------------------------------

const ORDERS: u64 = 60;

/// A deadlock would take for ever; this rush takes a second or so.
const TOO_LONG: Duration = Duration::from_secs(60);

/// Every order names some of the items, every second one from last to first. Together they ask for more
/// than there is.
fn orders() -> Vec<Order> {
    let line = |id: u64, (place, sku): (u64, &'static str)| {
        let wanted = (id + place) % 5 < 3;
        wanted.then(|| Line { sku, quantity: if (id + place).is_multiple_of(4) { 2 } else { 1 } })
    };
    let order = |id| {
        let mut lines: Vec<_> = (0..).zip(ITEMS).filter_map(|item| line(id, item)).collect();
        if id % 2 == 1 {
            lines.reverse();
        }
        Order { id, lines }
    };
    (1..=ORDERS).map(order).collect()
}

/// How a rush ended: first what the customers were told, then what the books say.
struct Outcome {
    accepted: usize,
    sold_out: usize,
    failed: usize,
    took: Duration,
    books: Vec<(String, i64, i64)>,
    /// Every accepted order has all its lines in the books, and no other order has any.
    whole: bool,
}

async fn rush(shop: &Shop, locked: bool) -> Result<Outcome, AppError> {
    let began = Instant::now();
    let mut customers = JoinSet::new();
    for order in orders() {
        let shop = shop.clone();
        customers.spawn(async move {
            let answer = if locked {
                place_order(&shop, &order).await
            } else {
                place_order_naive(&shop, &order).await
            };
            (order.lines.len(), answer)
        });
    }
    let (mut accepted, mut sold_out, mut failed, mut lines) = (0, 0, 0, 0);
    while let Some(customer) = customers.join_next().await {
        match customer? {
            (wanted, Ok(())) => (accepted, lines) = (accepted + 1, lines + wanted),
            (_, Err(AppError::SoldOut(_))) => sold_out += 1,
            (_, Err(error)) => {
                tracing::error!(%error, "an order failed");
                failed += 1;
            }
        }
    }
    let (took, whole) = (began.elapsed(), shop.count_sales().await? == lines);
    Ok(Outcome { accepted, sold_out, failed, took, books: shop.books().await?, whole })
}

impl Outcome {
    fn oversold(&self) -> i64 {
        self.books.iter().map(|(_, _, sold)| (sold - IN_STOCK).max(0)).sum()
    }

    /// What is left and what was sold is what there was.
    fn adds_up(&self) -> bool {
        self.books.iter().all(|(_, left, sold)| *left >= 0 && left + sold == IN_STOCK)
    }

    fn all_answered(&self) -> bool {
        self.failed == 0 && u64::try_from(self.accepted + self.sold_out) == Ok(ORDERS)
    }

    fn print(&self, title: &str) {
        let Self { accepted, sold_out, failed, took, books, .. } = self;
        out(&format!(
            "{title}: {accepted} orders accepted, {sold_out} sold out, {failed} failed, in {:.1} s",
            took.as_secs_f64()
        ));
        out("    item      in stock  sold  left  adds up");
        for (sku, left, sold) in books {
            let verdict = match left + sold - IN_STOCK {
                0 => "yes".to_owned(),
                wrong => format!("no, by {wrong}"),
            };
            out(&format!("    {sku:<10}{IN_STOCK:>8}{sold:>6}{left:>6}  {verdict}"));
        }
        out("");
    }
}

/// Whether what was to be proved is proved.
async fn run() -> Result<bool, Box<dyn Error>> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();

    // All that the attribute above needs: one manager, installed once.
    let (manager, store) = match env::var("REDIS_URL") {
        Ok(url) => (LockManager::connect(&url).await?, "the Redis server of REDIS_URL"),
        Err(_) => (LockManager::in_memory(), "this process (REDIS_URL names a real server)"),
    };
    set_global_manager(manager.clone())?;
    out(&format!("{ORDERS} orders at once, stock in SQLite, locks in {store}.\n"));

    let folder = tempfile::tempdir()?; // removed when dropped
    let naive = timeout(TOO_LONG, rush(&Shop::open(&folder.path().join("naive.sqlite"))?, false)).await??;
    naive.print("Without the attribute");
    let locked = timeout(TOO_LONG, rush(&Shop::open(&folder.path().join("shop.sqlite"))?, true))
        .await
        .map_err(|_| "the orders do not come to an end: a deadlock?")??;
    locked.print("With #[redis_lock]");

    // Lets releases that are still under way finish.
    manager.shutdown(Duration::from_secs(5)).await?;

    let right = locked.all_answered()
        && locked.oversold() == 0
        && locked.adds_up()
        && locked.whole
        && locked.sold_out > 0;
    if !right {
        out("NOT PROVED: the table \"With #[redis_lock]\" above is not as it must be.");
    } else if naive.oversold() == 0 {
        out("NOT PROVED: the orders did not get into each other's way, not even without the attribute.");
    } else {
        out(&format!(
            "Proved: with #[redis_lock], orders that name the same items in opposite orders all came to an\n\
             end, and the stock adds up. Without it, the same code sold {} items that were not there.",
            naive.oversold()
        ));
    }
    Ok(right && naive.oversold() > 0)
}

/// Not `println!`, which panics when its reader has gone (`| head`).
fn out(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "inventory: {error}");
            ExitCode::FAILURE
        }
    }
}
