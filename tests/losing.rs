//! Losing a lease: how soon it is noticed, and what the body and its caller see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager, ReleaseOutcome, StoreErrorKind, redis_lock};
use tests::events;
use tests::process::Process;
use tests::proxy::{Fault, Proxy};
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};
use tokio::sync::mpsc;

/// Within which a loss is noticed that the server tells of; and what a busy machine adds.
const AT_ONCE: Duration = Duration::from_millis(50 + 100);

#[derive(Debug)]
enum AppError {
    Lost(Duration),
    Body,
    Other,
}

impl From<LockError> for AppError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Lost { held, .. } => Self::Lost(*held),
            _ => Self::Other,
        }
    }
}

/// What a body tells from inside.
#[derive(Clone, Default)]
struct Traces {
    polled: Arc<AtomicUsize>,
    dropped: Arc<AtomicBool>,
}

struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Works in small steps, for ever.
#[redis_lock(key = "order:<id>", ttl = ttl, on_lost = cancel, manager = locks, guard = lock)]
async fn cancelled(
    locks: &LockManager,
    id: u64,
    ttl: Duration,
    traces: Traces,
    began: mpsc::UnboundedSender<String>,
) -> Result<(), AppError> {
    let _on_drop = OnDrop(traces.dropped);
    began.send(lock.token().to_owned()).ok();
    loop {
        traces.polled.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn with_cancel_the_body_is_not_polled_after_its_local_deadline() {
    let server = RedisServer::start().await;
    for locks in [LockManager::connect(&server.url()).await.unwrap(), LockManager::in_memory()] {
        let (traces, (began, _tokens)) = (Traces::default(), mpsc::unbounded_channel());
        let asked = Instant::now();
        let error =
            cancelled(&locks, 1, Duration::from_millis(300), traces.clone(), began).await.unwrap_err();
        let took = asked.elapsed();
        assert!(traces.dropped.load(Ordering::SeqCst), "dropped before the caller is told");
        let AppError::Lost(held) = error else { panic!("{error:?}") };
        // 300 ms less the drift allowance of 5 ms.
        assert!(held >= Duration::from_millis(270) && held <= took, "{held:?} of {took:?}");
        assert!(took < Duration::from_millis(600), "{took:?}");
        let polled = traces.polled.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(traces.polled.load(Ordering::SeqCst), polled);
        // The next one gets in; nothing was left behind.
        let next = locks.lock("order:1").ttl(Duration::from_secs(30)).wait(PATIENCE).acquire().await.unwrap();
        assert_eq!(next.release().await, ReleaseOutcome::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn in_paused_time_the_deadline_is_exact() {
    events::keep_awake();
    let locks = LockManager::in_memory();
    let (began, _tokens) = mpsc::unbounded_channel();
    let asked = tokio::time::Instant::now();
    let error = cancelled(&locks, 1, Duration::from_secs(30), Traces::default(), began).await.unwrap_err();
    assert!(matches!(error, AppError::Lost(_)));
    // 30 s less 1 % and 2 ms.
    assert!((29_698..29_702).contains(&asked.elapsed().as_millis()), "{:?}", asked.elapsed());
}

mod the_server_tells_of {
    use super::*;

    async fn noticed(lose: impl AsyncFnOnce(&RedisServer)) {
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let (traces, (began, mut tokens)) = (Traces::default(), mpsc::unbounded_channel());
        let call = tokio::spawn({
            let (locks, traces) = (locks.clone(), traces.clone());
            async move { cancelled(&locks, 1, Duration::from_secs(60), traces, began).await }
        });
        tokens.recv().await.unwrap();
        // The watch is armed when the body first waits.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let gone = Instant::now();
        lose(&server).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, AppError::Lost(_)), "{error:?}");
        assert!(gone.elapsed() < AT_ONCE, "{:?}", gone.elapsed());
        assert!(traces.dropped.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_delete() {
        noticed(async |server| assert!(server.del("lock:order:1").await)).await;
    }

    #[tokio::test]
    async fn another_holder() {
        noticed(async |server| server.set_px("lock:order:1", "someone else", 60_000).await).await;
    }

    #[tokio::test]
    async fn a_flush() {
        noticed(async |server| server.flush().await).await;
    }

    /// S16: `allkeys-random` takes a lock like any other key.
    #[tokio::test]
    async fn an_eviction() {
        noticed(async |server| {
            server.config_set("maxmemory-policy", "allkeys-random").await;
            server.config_set("maxmemory", "1").await;
            // Each write evicts until the memory suffices, which it never does.
            let _ = server.try_call::<String>(&["SET", "filler", "x"]).await;
            eventually("the key is evicted", PATIENCE, async || !server.exists("lock:order:1").await).await;
        })
        .await;
    }

    #[tokio::test]
    async fn what_a_body_awaits_with_lost() {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let locks = LockManager::connect(&proxy.url()).await.unwrap();
        let guard = locks.lock("order:1").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        drop(proxy.take_commands());
        let mut lost = Box::pin(guard.lost());
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut lost).await.is_err());
        let sent: Vec<_> = proxy.take_commands().iter().map(ToString::to_string).collect();
        assert_eq!(
            sent,
            ["CLIENT TRACKING ON", "GET lock:order:1"],
            "one command, and the first time the switch"
        );
        server.del("lock:order:1").await;
        tokio::time::timeout(AT_ONCE, lost).await.expect("told at once");
        assert!(guard.is_lost() && guard.remaining().is_zero());
        assert_eq!(guard.release().await, ReleaseOutcome::NotHeld);
    }

    /// A cut connection is no loss: the watch is armed again on the next one.
    #[tokio::test]
    async fn a_delete_after_the_connection_was_cut() {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let locks = LockManager::connect(&proxy.url()).await.unwrap();
        let guard = locks.lock("order:1").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        let mut lost = Box::pin(guard.lost());
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut lost).await.is_err());
        drop(proxy.take_commands());
        proxy.cut();
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut lost).await.is_err(), "still held");
        assert!(proxy.commands().iter().any(|command| command.is("GET")), "looked at again");
        server.del("lock:order:1").await;
        tokio::time::timeout(AT_ONCE, lost).await.expect("told at once");
    }
}

#[redis_lock(key = "order:<id>", ttl = "200ms", manager = locks, guard = lock)]
async fn goes_on(locks: &LockManager, id: u64, ok: bool) -> Result<bool, AppError> {
    tokio::time::sleep(Duration::from_millis(260)).await;
    if ok { Ok(lock.is_lost()) } else { Err(AppError::Body) }
}

/// `on_lost = continue`, the default: the body's own result, an `Err` of its own included, and a report.
#[tokio::test]
async fn with_continue_the_bodys_own_result_is_returned_and_the_loss_reported() {
    let server = RedisServer::start().await;
    let events = events::global();
    for locks in [LockManager::connect(&server.url()).await.unwrap(), LockManager::in_memory()] {
        assert!(goes_on(&locks, 77, true).await.unwrap(), "the body can see it");
        assert!(matches!(goes_on(&locks, 77, false).await, Err(AppError::Body)));
    }
    let told = events.for_key("order:77").events();
    let told: Vec<_> = told.iter().map(|event| event.field("outcome")).filter(|o| *o == "expired").collect();
    assert_eq!(told.len(), 4);
}

/// S4: the reply comes when the lease it grants is over.
#[tokio::test]
async fn a_grant_that_arrives_after_its_deadline_is_refused_and_cleaned_up() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks =
        LockManager::builder().response_timeout(Duration::from_secs(5)).connect(&proxy.url()).await.unwrap();
    // The key outlives the reply: the request is late, not only the answer.
    for fault in
        [Fault::DelayReply(Duration::from_millis(400)), Fault::DelayRequest(Duration::from_millis(400))]
    {
        proxy.next("SET", fault);
        let error = locks.lock("order:1").ttl(Duration::from_millis(300)).acquire().await.unwrap_err();
        let LockError::Unavailable { cause, .. } = &error else { panic!("{error}") };
        assert_eq!(cause.kind(), StoreErrorKind::TooLate, "{error}");
        let next = locks.lock("order:1").ttl(Duration::from_secs(30)).acquire().await;
        let next = next.expect("the next call waits for the clean-up instead of being told Busy");
        assert_eq!(next.release().await, ReleaseOutcome::Released);
    }
    assert_eq!(server.keys("*").await, Vec::<String>::new());
}

/// S6: a process that is stopped for longer than its lease learns of it when it goes on.
mod a_paused_process {
    use super::*;

    const URL: &str = "LOCK_RUNTIME_TEST_PAUSED";

    #[tokio::test]
    async fn child() {
        let Ok(url) = std::env::var(URL) else { return };
        let locks = LockManager::connect(&url).await.unwrap();
        let (began, mut tokens) = mpsc::unbounded_channel();
        let call = tokio::spawn(async move {
            cancelled(&locks, 1, Duration::from_millis(500), Traces::default(), began).await
        });
        println!("began {}", tokens.recv().await.unwrap());
        match call.await.unwrap() {
            Err(AppError::Lost(held)) => println!("lost after {} ms", held.as_millis()),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn is_told_of_its_loss() {
        let server = RedisServer::start().await;
        let child = Process::of_this_test("a_paused_process::child", &[(URL, &server.url())]);
        child.wait_for_line("began").await;
        child.pause();
        eventually("its lease ends", PATIENCE, async || !server.exists("lock:order:1").await).await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let next = locks.lock("order:1").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        child.resume();
        child.wait_for_line("lost after").await;
        assert!(child.wait(PATIENCE).await.success());
        assert_eq!(
            server.get("lock:order:1").await.as_deref(),
            Some(next.token()),
            "the next holder is undisturbed"
        );
        assert_eq!(next.release().await, ReleaseOutcome::Released);
    }
}
