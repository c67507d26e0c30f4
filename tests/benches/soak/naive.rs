//! The control: the lock that everybody writes first. It takes the key as it should be taken, and believes its lease
//! no longer than the product does; but it releases with a plain DEL.

use std::process;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use tests::clock::now_ns;

use crate::CONTROL_KEYS;
use crate::child::Worker;

const TTL: Duration = Duration::from_millis(300);
/// How long the lease is believed: a hundredth and 2 ms less, as the product does.
const BELIEVED: Duration = Duration::from_millis(295);
/// As the product's.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Locks and releases until it is told that it is over.
pub(crate) async fn work(mut worker: Worker, url: String) {
    let client = Client::open(url).expect("the URL of the proxy is valid");
    let mut connection = None;
    while !worker.is_over() {
        worker.tally.add("calls");
        let outcome = match call(&mut worker, &client, &mut connection).await {
            Ok(true) => "ran",
            Ok(false) => "busy",
            Err(_) => {
                // It may have ended, or have fallen silent.
                connection = None;
                "unavailable"
            }
        };
        worker.tally.add(outcome);
        worker.think().await;
    }
}

/// One call; false if the lock was not had.
async fn call(
    worker: &mut Worker,
    client: &Client,
    connection: &mut Option<MultiplexedConnection>,
) -> RedisResult<bool> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(connect(client).await?),
    };
    let key = format!("lock:k:{}", worker.random.below(CONTROL_KEYS));
    let token = format!("process-{}:{}", process::id(), now_ns());
    let deadline = Instant::now() + BELIEVED;
    let mut set = redis::cmd("SET");
    set.arg(&key).arg(&token).arg("NX").arg("PX").arg(TTL.as_millis().to_string());
    let granted: Option<String> = set.query_async(connection).await?;
    // An answer that comes too late is as good as none.
    if granted.is_none() || Instant::now() >= deadline {
        return Ok(false);
    }
    worker.tally.add("lock granted");
    let section = worker.history.enter(&key, deadline, &token, None);
    tokio::time::sleep(worker.length(TTL)).await;
    drop(section);
    redis::cmd("DEL").arg(&key).query_async::<()>(connection).await?;
    Ok(true)
}

async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
    client.get_multiplexed_async_connection_with_config(&config).await
}
