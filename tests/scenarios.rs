//! The three histories that decide whether releasing is safe, on both stores, and the accident that they prevent.

use std::time::Duration;

use lock_runtime::{LockError, LockManager, ReleaseOutcome, redis_lock};
use tests::events::Recorder;
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};
use tokio::sync::{mpsc, oneshot};
use tracing::Level;

const TTL: Duration = Duration::from_millis(120);

/// The body tells its token, then works until it is told to end.
#[redis_lock(key = "order:<id>", ttl = "120ms", manager = locks, guard = lock)]
async fn pay(
    locks: &LockManager,
    id: u64,
    started: mpsc::UnboundedSender<String>,
    end: oneshot::Receiver<()>,
) -> Result<&'static str, LockError> {
    started.send(lock.token().to_owned()).ok();
    end.await.ok();
    Ok("the receipt of A")
}

struct Running {
    token: String,
    end: oneshot::Sender<()>,
    call: tokio::task::JoinHandle<Result<&'static str, LockError>>,
}

/// A call whose body has begun.
async fn begin(locks: &LockManager, id: u64) -> Running {
    let (locks, (started, mut tokens), (end, ended)) =
        (locks.clone(), mpsc::unbounded_channel(), oneshot::channel());
    let call = tokio::spawn(async move { pay(&locks, id, started, ended).await });
    let token = tokens.recv().await.expect("the body begins: the lock is free");
    Running { token, end, call }
}

impl Running {
    async fn end(self) -> Result<&'static str, LockError> {
        self.end.send(()).expect("the body is waiting");
        self.call.await.expect("the body does not panic")
    }
}

/// One of the two stores, and what can be seen of it from outside.
enum Store {
    Redis(RedisServer),
    Memory,
}

impl Store {
    async fn manager(&self) -> LockManager {
        match self {
            Self::Redis(server) => {
                LockManager::connect(&server.url()).await.expect("the server has just started")
            }
            Self::Memory => LockManager::in_memory(),
        }
    }

    /// Waits until a lease of [`TTL`] that has begun has ended in the store.
    async fn wait_for_expiry(&self) {
        match self {
            Self::Redis(server) => {
                eventually("the key expires", PATIENCE, async || !server.exists("lock:order:1").await).await;
            }
            Self::Memory => tokio::time::sleep(TTL).await,
        }
    }

    async fn assert_value(&self, expected: Option<&str>) {
        if let Self::Redis(server) = self {
            assert_eq!(server.get("lock:order:1").await.as_deref(), expected);
        }
    }
}

async fn is_busy(locks: &LockManager) -> bool {
    match locks.lock("order:1").ttl(TTL).acquire().await {
        Ok(guard) => {
            assert_eq!(guard.release().await, ReleaseOutcome::Released);
            false
        }
        Err(error) => {
            assert!(error.is_busy(), "{error}");
            true
        }
    }
}

async fn ends_in_time(store: Store) {
    let (events, _installed) = Recorder::install();
    let locks = store.manager().await;
    let a = begin(&locks, 1).await;
    store.assert_value(Some(&a.token)).await;
    assert!(is_busy(&locks).await);

    let token = a.token.clone();
    assert_eq!(a.end().await.unwrap(), "the receipt of A");

    store.assert_value(None).await;
    assert!(!is_busy(&locks).await);
    let event =
        events.wait_for(|event| event.field("token") == token && event.message == "lock released").await;
    assert_eq!((event.level, event.field("outcome")), (Level::DEBUG, "released"));
}

async fn ends_after_its_ttl(store: Store) {
    let (events, _installed) = Recorder::install();
    let locks = store.manager().await;
    let a = begin(&locks, 1).await;
    store.wait_for_expiry().await;

    let token = a.token.clone();
    assert_eq!(a.end().await.unwrap(), "the receipt of A", "the work was done: its result is returned");

    store.assert_value(None).await;
    let event = events.wait_for(|event| event.field("token") == token && event.level == Level::WARN).await;
    assert_eq!(event.field("outcome"), "expired");
}

async fn ends_after_another_has_begun(store: Store) {
    let (events, _installed) = Recorder::install();
    let locks = store.manager().await;
    let a = begin(&locks, 1).await;
    store.wait_for_expiry().await;
    // B's lease is to outlive the test's own steps.
    let b = locks.lock("order:1").ttl(Duration::from_secs(60)).acquire().await.expect("A's lease is over");

    let token = a.token.clone();
    assert_eq!(a.end().await.unwrap(), "the receipt of A");

    store.assert_value(Some(b.token())).await;
    assert!(is_busy(&locks).await, "B is undisturbed: nobody walks in");
    assert!(!b.is_lost());
    let event = events.wait_for(|event| event.field("token") == token && event.level == Level::WARN).await;
    assert_eq!((event.field("outcome"), event.field("found")), ("held_by_other", b.token()));
    assert_eq!(b.release().await, ReleaseOutcome::Released, "B's key was still there, with B's token");
    store.assert_value(None).await;
}

mod on_redis {
    use super::*;

    #[tokio::test]
    async fn one_a_body_that_ends_in_time_releases_its_key() {
        ends_in_time(Store::Redis(RedisServer::start().await)).await;
    }

    #[tokio::test]
    async fn two_a_body_that_outlives_its_lease_is_told_and_keeps_its_result() {
        ends_after_its_ttl(Store::Redis(RedisServer::start().await)).await;
    }

    #[tokio::test]
    async fn three_a_body_that_outlives_its_lease_leaves_the_next_holder_alone() {
        ends_after_another_has_begun(Store::Redis(RedisServer::start().await)).await;
    }

    /// The control: the same history with the release that everyone writes first. The accident must be visible here,
    /// or the tests above could not see it either.
    #[tokio::test]
    async fn a_bare_del_in_the_same_history_deletes_the_next_holders_lock() {
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        server.set_px("lock:order:1", "the naive A", 120).await;
        eventually("the key expires", PATIENCE, async || !server.exists("lock:order:1").await).await;
        let b = locks.lock("order:1").ttl(Duration::from_secs(60)).acquire().await.unwrap();

        server.del("lock:order:1").await;

        let another_process = LockManager::connect(&server.url()).await.unwrap();
        assert!(!is_busy(&another_process).await, "B's lock is gone while B works: C walks in");
        assert_eq!(b.release().await, ReleaseOutcome::NotHeld);
    }
}

mod in_memory {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_a_body_that_ends_in_time_releases_its_key() {
        ends_in_time(Store::Memory).await;
    }

    #[tokio::test(start_paused = true)]
    async fn two_a_body_that_outlives_its_lease_is_told_and_keeps_its_result() {
        ends_after_its_ttl(Store::Memory).await;
    }

    #[tokio::test(start_paused = true)]
    async fn three_a_body_that_outlives_its_lease_leaves_the_next_holder_alone() {
        ends_after_another_has_begun(Store::Memory).await;
    }

    #[redis_lock(key = "report", ttl = "30s", manager = locks)]
    async fn forty_seconds(locks: &LockManager) -> Result<(), LockError> {
        tokio::time::sleep(Duration::from_secs(40)).await;
        Ok(())
    }

    /// Paused time: the store's clock is tokio's, so a body of 40 s outlives a lease of 30 s in no time at all.
    #[tokio::test(start_paused = true)]
    async fn forty_seconds_over_a_lease_of_thirty_pass_at_once() {
        let (real, (events, _installed)) = (std::time::Instant::now(), Recorder::install());
        let locks = LockManager::in_memory();
        let in_time = tokio::time::Instant::now();
        let (a, b) = tokio::join!(forty_seconds(&locks), async {
            tokio::time::sleep(Duration::from_secs(29)).await;
            assert!(locks.lock("report").ttl(TTL).acquire().await.unwrap_err().is_busy());
            tokio::time::sleep(Duration::from_millis(1_001)).await;
            locks.lock("report").ttl(Duration::from_secs(60)).acquire().await.unwrap()
        });
        a.unwrap();
        assert_eq!(in_time.elapsed().as_secs(), 40);
        assert!(real.elapsed() < Duration::from_secs(5));
        assert_eq!(
            events.wait_for(|event| event.level == Level::WARN).await.field("outcome"),
            "held_by_other"
        );
        assert_eq!(b.release().await, ReleaseOutcome::Released);
    }
}
