//! An order and inventory service whose handlers are locked by one line each.
//!
//! ```text
//! cargo run --example order_service                 fires a burst at itself and checks the books
//! cargo run --example order_service -- --serve      keeps listening and prints curl lines to try
//! REDIS_URL=redis://127.0.0.1/ cargo run ...        the locks live in that server, not in this process
//! ```
//!
//! Every route exists twice: as it is meant to be, and below `/naive` without the attribute. Both call the
//! same business code further down, which does what such code does everywhere: read, talk to a payment
//! gateway, write.

use std::{
    env,
    error::Error,
    io::Write,
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{Request, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use hyper_util::rt::TokioIo;
use lock_runtime::{LockError, LockManager, redis_lock, set_global_manager};
use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Barrier,
    task::{JoinError, JoinSet},
};

// ---- the locked handlers ---------------------------------------------------------------------------------

/// Pays an order. While one request works on order 7, every other request for order 7 is refused at once;
/// requests for other orders are not affected.
#[redis_lock(key = "order:<order_id>", ttl = "30s")]
async fn pay_order(State(shop): State<Shop>, Path(order_id): Path<u64>) -> Result<Json<Receipt>, AppError> {
    Ok(Json(shop.pay(order_id).await?))
}

/// Cancels an order. The same key as above, so that no order is paid and cancelled at the same time. A bare
/// status cannot carry a `LockError`: `or_else` says what to answer instead.
#[redis_lock(key = "order:<order_id>", ttl = "30s", or_else = refused)]
async fn cancel_order(State(shop): State<Shop>, Path(order_id): Path<u64>) -> StatusCode {
    shop.cancel(order_id).await.map_or_else(|error| error.status(), |()| StatusCode::NO_CONTENT)
}

fn refused(error: LockError) -> StatusCode {
    AppError::from(error).into_response().status()
}

impl Shop {
    /// Sells one item. Buyers are not turned away: each waits for its turn. What a client sends as `sku` is
    /// percent-encoded in the key, so that nobody can aim at a lock that is not theirs.
    #[redis_lock(key = "stock:<self.warehouse>:<sku>", ttl = "5s", wait = "10s")]
    async fn buy(&self, sku: &str) -> Result<Receipt, AppError> {
        self.sell(sku).await
    }
}

async fn buy_item(State(shop): State<Shop>, Path(sku): Path<String>) -> Result<Json<Receipt>, AppError> {
    Ok(Json(shop.buy(&sku).await?))
}

// ---- the same handlers without it ------------------------------------------------------------------------

async fn pay_order_naive(
    State(shop): State<Shop>,
    Path(order_id): Path<u64>,
) -> Result<Json<Receipt>, AppError> {
    Ok(Json(shop.pay(order_id).await?))
}

async fn cancel_order_naive(State(shop): State<Shop>, Path(order_id): Path<u64>) -> StatusCode {
    shop.cancel(order_id).await.map_or_else(|error| error.status(), |()| StatusCode::NO_CONTENT)
}

async fn buy_item_naive(
    State(shop): State<Shop>,
    Path(sku): Path<String>,
) -> Result<Json<Receipt>, AppError> {
    Ok(Json(shop.sell(&sku).await?))
}

fn routes(shop: Shop) -> Router {
    let naive = Router::new()
        .route("/orders/{order_id}/pay", post(pay_order_naive))
        .route("/orders/{order_id}/cancel", post(cancel_order_naive))
        .route("/stock/{sku}/buy", post(buy_item_naive));
    Router::new()
        .route("/orders/{order_id}/pay", post(pay_order))
        .route("/orders/{order_id}/cancel", post(cancel_order))
        .route("/orders/{order_id}", get(show_order))
        .route("/stock/{sku}/buy", post(buy_item))
        .route("/stock/{sku}", get(show_item))
        .nest("/naive", naive)
        .with_state(shop)
}

// ---- what a refused caller is told -----------------------------------------------------------------------

#[derive(Debug, thiserror::Error)]
enum AppError {
    /// This is all that `?` and the attribute need.
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("there is no such order or item")]
    NotFound,
    #[error("this order is {0} already")]
    Closed(String),
    #[error("this item is sold out")]
    SoldOut,
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
}

impl AppError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Lock(LockError::Busy { .. }) => StatusCode::CONFLICT,
            // No lock was asked for: the client sent something that makes no key, such as a name of 2 KiB.
            Self::Lock(LockError::InvalidKey { .. }) => StatusCode::BAD_REQUEST,
            // Whether someone holds the lock is not known: not this client's fault, and worth a retry.
            Self::Lock(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Closed(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::SoldOut => StatusCode::GONE,
            Self::Database(_) | Self::Task(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        let status = self.status();
        // Keys and function names are for the log, not for the client.
        match status {
            StatusCode::CONFLICT => {
                tracing::info!(error = %self, "refused");
                let retry = [(header::RETRY_AFTER, "1")];
                (status, retry, "This is being processed for another request. Please try again.\n")
                    .into_response()
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::INTERNAL_SERVER_ERROR => {
                tracing::error!(error = %self, "failed");
                (status, [(header::RETRY_AFTER, "5")], "Please try again later.\n").into_response()
            }
            StatusCode::BAD_REQUEST => (status, "That is no name of an order or item.\n").into_response(),
            _ => (status, format!("{self}\n")).into_response(),
        }
    }
}

// ---- the business code, which knows nothing of locks -----------------------------------------------------

#[derive(Clone)]
struct Shop {
    warehouse: &'static str,
    database: Arc<Mutex<Connection>>,
    /// How long the payment gateway takes to answer.
    gateway: Duration,
}

#[derive(Serialize)]
struct Receipt {
    item: String,
    cents: i64,
}

#[derive(Serialize)]
struct Order {
    state: String,
    payments: i64,
}

#[derive(Serialize)]
struct Item {
    left: i64,
    sold: i64,
}

const ORDERS: u64 = 20;
const ITEMS: [&str; 4] = ["teapot", "teacup", "saucer", "spoon"];
const IN_STOCK: i64 = 10;

impl Shop {
    fn open(file: &std::path::Path, gateway: Duration) -> Result<Self, rusqlite::Error> {
        let database = Connection::open(file)?;
        database.execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = NORMAL;
             CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL, cents INTEGER NOT NULL);
             CREATE TABLE payments (order_id INTEGER NOT NULL, cents INTEGER NOT NULL);
             CREATE TABLE stock (sku TEXT PRIMARY KEY, available INTEGER NOT NULL, cents INTEGER NOT NULL);
             CREATE TABLE sales (sku TEXT NOT NULL);",
        )?;
        for order_id in 1..=ORDERS {
            database.execute("INSERT INTO orders VALUES (?1, 'open', 4900)", [order_id])?;
        }
        for sku in ITEMS {
            database.execute("INSERT INTO stock VALUES (?1, ?2, 1200)", params![sku, IN_STOCK])?;
        }
        Ok(Self { warehouse: "north", database: Arc::new(Mutex::new(database)), gateway })
    }

    /// Each query by itself is safe, as with any database. What happens between two of them is not.
    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, AppError> {
        let database = Arc::clone(&self.database);
        let blocking = move || query(&mut database.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(tokio::task::spawn_blocking(blocking).await??)
    }

    async fn call_gateway(&self) {
        tokio::time::sleep(self.gateway).await;
    }

    async fn pay(&self, order_id: u64) -> Result<Receipt, AppError> {
        let cents = self.open_order(order_id).await?;
        self.call_gateway().await; // takes the money
        self.query(move |database| {
            let change = database.transaction()?;
            change.execute("UPDATE orders SET state = 'paid' WHERE id = ?1", [order_id])?;
            change.execute(
                "INSERT INTO payments (order_id, cents) VALUES (?1, ?2)",
                params![order_id, cents],
            )?;
            change.commit()
        })
        .await?;
        Ok(Receipt { item: format!("order {order_id}"), cents })
    }

    async fn cancel(&self, order_id: u64) -> Result<(), AppError> {
        self.open_order(order_id).await?;
        self.call_gateway().await; // gives up the reservation
        self.query(move |database| {
            database.execute("UPDATE orders SET state = 'cancelled' WHERE id = ?1", [order_id])
        })
        .await?;
        Ok(())
    }

    async fn sell(&self, sku: &str) -> Result<Receipt, AppError> {
        let item = sku.to_owned();
        let sku = item.clone();
        let row = self
            .query(move |database| {
                database
                    .query_row("SELECT available, cents FROM stock WHERE sku = ?1", [sku], |row| {
                        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
                    })
                    .optional()
            })
            .await?;
        let (available, cents) = row.ok_or(AppError::NotFound)?;
        if available <= 0 {
            return Err(AppError::SoldOut);
        }
        self.call_gateway().await; // takes the money
        let sku = item.clone();
        self.query(move |database| {
            let change = database.transaction()?;
            change.execute("UPDATE stock SET available = ?2 WHERE sku = ?1", params![sku, available - 1])?;
            change.execute("INSERT INTO sales (sku) VALUES (?1)", [sku])?;
            change.commit()
        })
        .await?;
        Ok(Receipt { item, cents })
    }

    /// What is to be paid for an order, if it still is to be paid.
    async fn open_order(&self, order_id: u64) -> Result<i64, AppError> {
        let row = self
            .query(move |database| {
                database
                    .query_row("SELECT state, cents FROM orders WHERE id = ?1", [order_id], |row| {
                        Ok((row.get::<_, String>(0)?, row.get(1)?))
                    })
                    .optional()
            })
            .await?;
        match row {
            None => Err(AppError::NotFound),
            Some((state, cents)) if state == "open" => Ok(cents),
            Some((state, _)) => Err(AppError::Closed(state)),
        }
    }

    async fn order(&self, order_id: u64) -> Result<Order, AppError> {
        let read = "SELECT state, (SELECT count(*) FROM payments WHERE order_id = orders.id) \
                    FROM orders WHERE id = ?1";
        self.query(move |database| {
            database
                .query_row(read, [order_id], |row| Ok(Order { state: row.get(0)?, payments: row.get(1)? }))
                .optional()
        })
        .await?
        .ok_or(AppError::NotFound)
    }

    async fn item(&self, sku: String) -> Result<Item, AppError> {
        let read = "SELECT available, (SELECT count(*) FROM sales WHERE sku = stock.sku) \
                    FROM stock WHERE sku = ?1";
        self.query(move |database| {
            database
                .query_row(read, [sku], |row| Ok(Item { left: row.get(0)?, sold: row.get(1)? }))
                .optional()
        })
        .await?
        .ok_or(AppError::NotFound)
    }
}

async fn show_order(State(shop): State<Shop>, Path(order_id): Path<u64>) -> Result<Json<Order>, AppError> {
    Ok(Json(shop.order(order_id).await?))
}

async fn show_item(State(shop): State<Shop>, Path(sku): Path<String>) -> Result<Json<Item>, AppError> {
    Ok(Json(shop.item(sku).await?))
}

// ---- the burst -------------------------------------------------------------------------------------------

/// How a burst ended: first what the clients were told, then what the books say.
#[derive(Default)]
struct Outcome {
    requests: usize,
    succeeded: usize,
    busy: usize,
    /// Already paid, already cancelled, sold out: refused by the business code, not by the lock.
    too_late: usize,
    oversold: i64,
    duplicate_payments: i64,
}

impl Outcome {
    /// Nobody was left without a sensible answer.
    fn all_answered(&self) -> bool {
        self.succeeded + self.busy + self.too_late == self.requests
    }

    fn print(&self, title: &str) {
        let Self { requests, succeeded, busy, too_late, oversold, duplicate_payments } = self;
        out(&format!(
            "{title:<38}{requests:>9}{succeeded:>11}{busy:>6}{too_late:>10}{oversold:>10}{duplicate_payments:>20}"
        ));
    }
}

const TITLES: &str = "                                       requests  succeeded  busy  too late  oversold  duplicate payments";

/// Posts to all `paths` at once: every client has its own connection, and none sends before all are
/// connected.
async fn fire(server: SocketAddr, paths: Vec<String>) -> Outcome {
    let mut outcome = Outcome { requests: paths.len(), ..Outcome::default() };
    let ready = Arc::new(Barrier::new(paths.len()));
    let mut clients = JoinSet::new();
    for path in paths {
        clients.spawn(post_to(server, path, Arc::clone(&ready)));
    }
    while let Some(answer) = clients.join_next().await {
        match answer {
            Ok(Ok(StatusCode::OK | StatusCode::NO_CONTENT)) => outcome.succeeded += 1,
            Ok(Ok(StatusCode::CONFLICT)) => outcome.busy += 1,
            Ok(Ok(StatusCode::UNPROCESSABLE_ENTITY | StatusCode::GONE)) => outcome.too_late += 1,
            unexpected => tracing::error!(?unexpected, "a request failed"),
        }
    }
    outcome
}

async fn post_to(
    server: SocketAddr,
    path: String,
    ready: Arc<Barrier>,
) -> Result<StatusCode, Box<dyn Error + Send + Sync>> {
    let connected = TcpStream::connect(server).await;
    ready.wait().await; // before `?`: the others must not wait for a client that failed
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(connected?)).await?;
    tokio::spawn(connection);
    let request = Request::post(path).header(header::HOST, server.to_string()).body(String::new())?;
    Ok(client.send_request(request).await?.status())
}

async fn pay_burst(shop: &Shop, server: SocketAddr, under: &str, order_id: u64) -> Result<Outcome, AppError> {
    let mut outcome = fire(server, vec![format!("{under}/orders/{order_id}/pay"); 50]).await;
    outcome.duplicate_payments = shop.order(order_id).await?.payments - 1;
    Ok(outcome)
}

async fn pay_or_cancel_burst(
    shop: &Shop,
    server: SocketAddr,
    under: &str,
    order_id: u64,
) -> Result<Outcome, AppError> {
    let path = |turn| format!("{under}/orders/{order_id}/{}", if turn % 2 == 0 { "pay" } else { "cancel" });
    let mut outcome = fire(server, (0..50).map(path).collect()).await;
    // If the order was cancelled, no payment at all is right.
    outcome.duplicate_payments = (shop.order(order_id).await?.payments - 1).max(0);
    Ok(outcome)
}

async fn buy_burst(shop: &Shop, server: SocketAddr, under: &str, sku: &str) -> Result<Outcome, AppError> {
    let mut outcome = fire(server, vec![format!("{under}/stock/{sku}/buy"); 100]).await;
    outcome.oversold = (shop.item(sku.to_owned()).await?.sold - IN_STOCK).max(0);
    Ok(outcome)
}

/// Runs every burst without and with the attribute; says whether the locked ones ended as they must.
async fn burst(shop: &Shop, server: SocketAddr) -> Result<bool, AppError> {
    const WITHOUT: &str = "  without the attribute";
    const WITH: &str = "  with #[redis_lock]";
    out(TITLES);

    out("one order, paid 50 times at once");
    let naive_pay = pay_burst(shop, server, "/naive", 1).await?;
    naive_pay.print(WITHOUT);
    let pay = pay_burst(shop, server, "", 2).await?;
    pay.print(WITH);

    out("one order, 25 pay and 25 cancel");
    pay_or_cancel_burst(shop, server, "/naive", 3).await?.print(WITHOUT);
    let cancel = pay_or_cancel_burst(shop, server, "", 4).await?;
    cancel.print(WITH);

    out("the last 10 items, 100 buyers");
    let naive_buy = buy_burst(shop, server, "/naive", "teapot").await?;
    naive_buy.print(WITHOUT);
    let buy = buy_burst(shop, server, "", "teacup").await?;
    buy.print(WITH);

    let right = pay.succeeded == 1
        && pay.duplicate_payments == 0
        && cancel.succeeded == 1
        && cancel.duplicate_payments == 0
        && buy.succeeded == 10
        && buy.oversold == 0
        && [&pay, &cancel, &buy].into_iter().all(Outcome::all_answered);
    out("");
    if right {
        out(&format!(
            "Proved: with #[redis_lock], 50 requests paid one order exactly once, and 100 buyers bought\n\
             exactly the 10 items there were. Without it, the same code took {} payments and sold {} items too many.",
            naive_pay.duplicate_payments, naive_buy.oversold
        ));
    } else {
        out("NOT PROVED: a line \"with #[redis_lock]\" above is not as it must be.");
    }
    Ok(right)
}

/// Not `println!`, which panics when its reader has gone (`| head`).
fn out(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

// ---- setting up and shutting down ------------------------------------------------------------------------

const HELP: &str = "\
An order and inventory service whose handlers are locked by one line each.

  order_service                  fire a burst at itself, print the books, exit 0 if the locked run is right
  order_service --serve [ADDR]   keep listening (default 127.0.0.1:3000) and print curl lines to try
  order_service --help           this text

REDIS_URL, if set, names the Redis server for the locks; without it they live in this process.";

enum Mode {
    Burst,
    Serve(SocketAddr),
    Help,
}

fn mode(mut arguments: impl Iterator<Item = String>) -> Result<Mode, Box<dyn Error>> {
    let mode = match arguments.next().as_deref() {
        None => Mode::Burst,
        Some("--help" | "-h") => Mode::Help,
        Some("--serve") => {
            let address = arguments.next();
            Mode::Serve(address.as_deref().unwrap_or("127.0.0.1:3000").parse()?)
        }
        Some(other) => return Err(format!("unknown argument {other:?}; try --help").into()),
    };
    match arguments.next() {
        None => Ok(mode),
        Some(extra) => Err(format!("unexpected argument {extra:?}; try --help").into()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "order_service: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether what was to be proved is proved.
async fn run() -> Result<bool, Box<dyn Error>> {
    let mode = mode(env::args().skip(1))?;
    let (address, gateway, level) = match mode {
        Mode::Help => {
            out(HELP);
            return Ok(true);
        }
        Mode::Burst => (([127, 0, 0, 1], 0).into(), Duration::from_millis(20), tracing::Level::WARN),
        // Slow enough to be overtaken by hand, from a second terminal.
        Mode::Serve(address) => (address, Duration::from_secs(1), tracing::Level::INFO),
    };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();

    // All that the attributes above need: one manager, installed once.
    let (manager, store) = match env::var("REDIS_URL") {
        Ok(url) => (LockManager::connect(&url).await?, "the Redis server of REDIS_URL"),
        Err(_) => (LockManager::in_memory(), "this process (REDIS_URL names a real server)"),
    };
    set_global_manager(manager.clone())?;

    let folder = tempfile::tempdir()?; // removed when dropped
    let shop = Shop::open(&folder.path().join("shop.sqlite"), gateway)?;
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    out(&format!("Order service on http://{address}, orders in SQLite, locks in {store}.\n"));

    let server = axum::serve(listener, routes(shop.clone()));
    let right = if let Mode::Serve(_) = mode {
        out(&curl_lines(address));
        server.with_graceful_shutdown(ctrl_c()).await?;
        true
    } else {
        tokio::select! {
            stopped = server => return Err(format!("the server stopped: {stopped:?}").into()),
            right = burst(&shop, address) => right?,
        }
    };

    // Lets releases that are still under way finish.
    manager.shutdown(Duration::from_secs(5)).await?;
    Ok(right)
}

async fn ctrl_c() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::error!(%error, "cannot listen for Ctrl-C");
        std::future::pending::<()>().await;
    }
    out("\nShutting down.");
}

fn curl_lines(address: SocketAddr) -> String {
    format!(
        "The payment gateway takes one second here. Orders 1 to {ORDERS} are open; of {} there are {IN_STOCK} each.

  the same order twice at once: one receipt, one 409
    for i in 1 2; do curl -s -w '%{{http_code}}\\n' -X POST http://{address}/orders/7/pay & done; wait
    curl -s http://{address}/orders/7

  without the attribute: two receipts, and two payments in the books
    for i in 1 2; do curl -s -w '%{{http_code}}\\n' -X POST http://{address}/naive/orders/8/pay & done; wait
    curl -s http://{address}/orders/8

  paid and cancelled at once: one of them gets 409
    for do in pay cancel; do curl -s -w '%{{http_code}}\\n' -X POST http://{address}/orders/9/$do & done; wait

  three buyers, each waits for its turn
    for i in 1 2 3; do curl -s -w '%{{http_code}}\\n' -X POST http://{address}/stock/teapot/buy & done; wait
    curl -s http://{address}/stock/teapot

Ctrl-C stops the service.
",
        ITEMS.join(", ")
    )
}
