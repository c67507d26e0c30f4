//! A server that is down, hangs or refuses: `Unavailable` in time, never `Busy`, and recovery without help.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager, ReleaseOutcome, StoreErrorKind, redis_lock};
use tests::proxy::{Fault, Flow, Proxy};
use tests::server::RedisServer;
use tests::{PATIENCE, eventually, free_port};

const TTL: Duration = Duration::from_secs(30);
/// The default response timeout, and what a busy machine may add to it.
const IN_TIME: Duration = Duration::from_millis(500 + 400);

async fn take(locks: &LockManager) -> Result<LockGuard, LockError> {
    locks.lock("order:1").ttl(TTL).acquire().await
}

/// Asserts that a call is answered `Unavailable` within the response timeout, and tells with which kind.
async fn unavailable(locks: &LockManager) -> StoreErrorKind {
    let asked = Instant::now();
    let error = take(locks).await.expect_err("the store cannot grant anything");
    assert!(asked.elapsed() < IN_TIME, "answered after {:?}: {error}", asked.elapsed());
    for part in ["lock:order:1", "(by hand)", "unavailable.rs"] {
        assert!(error.to_string().contains(part), "{error} does not name {part}");
    }
    match error {
        LockError::Unavailable { cause, .. } => cause.kind(),
        other => panic!("not `Unavailable`: {other}"),
    }
}

async fn works(locks: &LockManager) {
    assert_eq!(take(locks).await.expect("the server is there").release().await, ReleaseOutcome::Released);
}

#[tokio::test]
async fn connecting_to_a_dead_port_fails_at_once_and_to_a_silent_one_within_the_connect_timeout() {
    let asked = Instant::now();
    let error = LockManager::connect(&format!("redis://127.0.0.1:{}", free_port())).await.unwrap_err();
    assert!(matches!(error, LockError::Connect { .. }), "{error}");
    assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());

    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    proxy.black_hole();
    let asked = Instant::now();
    let error = LockManager::builder()
        .connect_timeout(Duration::from_millis(200))
        .connect(&proxy.url())
        .await
        .unwrap_err();
    assert!(matches!(error, LockError::Connect { .. }), "{error}");
    assert!((200..700).contains(&asked.elapsed().as_millis()), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_server_that_is_killed_is_unavailable_and_one_that_returns_is_used() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    works(&locks).await;
    server.kill().await;
    for _ in 0..3 {
        assert_eq!(unavailable(&locks).await, StoreErrorKind::Connection);
    }
    server.restart().await;
    works(&locks).await;
}

#[tokio::test]
async fn a_server_that_hangs_is_unavailable_within_the_response_timeout() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    works(&locks).await;
    server.pause();
    for _ in 0..2 {
        assert_eq!(unavailable(&locks).await, StoreErrorKind::Timeout);
    }
    server.resume();
    // What was sent while it hung is executed now, and cleaned up: nobody is left holding the lock.
    eventually("the server works again, and nothing stays behind", PATIENCE, async || {
        match take(&locks).await {
            Ok(guard) => guard.release().await == ReleaseOutcome::Released,
            Err(_) => false,
        }
    })
    .await;
}

#[tokio::test]
async fn the_response_timeout_can_be_set() {
    let server = RedisServer::start().await;
    let locks = LockManager::builder()
        .response_timeout(Duration::from_millis(50))
        .connect(&server.url())
        .await
        .unwrap();
    server.pause();
    let asked = Instant::now();
    assert!(take(&locks).await.unwrap_err().is_unavailable());
    assert!((50..450).contains(&asked.elapsed().as_millis()), "{:?}", asked.elapsed());
    server.resume();
}

/// What a server says when it does not serve: none of it is `Busy`, and each recovers on the same connection.
#[tokio::test]
async fn a_server_that_refuses_is_unavailable_and_says_why() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    for refusal in [
        "READONLY You can't write against a read only replica.",
        "NOAUTH Authentication required.",
        "NOPERM User default has no permissions to run the 'set' command",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "NOREPLICAS Not enough good replicas to write.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "CLUSTERDOWN The cluster is down",
        "MOVED 3999 127.0.0.1:6381",
        "ERR something nobody has heard of",
    ] {
        proxy.next("SET", Fault::error(refusal));
        let error = take(&locks).await.unwrap_err();
        let code = refusal.split(' ').next().unwrap();
        assert!(error.is_unavailable(), "{refusal}: {error}");
        let LockError::Unavailable { cause, .. } = &error else { unreachable!() };
        assert_eq!(cause.kind(), StoreErrorKind::Refused, "{error}");
        assert!(code == "ERR" || error.to_string().contains(code), "{error} does not say {code}");
        works(&locks).await;
    }
    proxy.next("SET", Fault::Answer(b":42\r\n".to_vec()));
    assert_eq!(unavailable(&locks).await, StoreErrorKind::Nonsense);
}

/// The real thing, for the refusals that a single server can be made to give.
#[tokio::test]
async fn real_refusals_are_unavailable() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    server.config_set("maxmemory", "1").await;
    assert_eq!(unavailable(&locks).await, StoreErrorKind::Refused);
    server.config_set("maxmemory", "0").await;
    works(&locks).await;

    let other = RedisServer::start().await;
    let _: String = server.call(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).await;
    assert_eq!(unavailable(&locks).await, StoreErrorKind::Refused);
    let _: String = server.call(&["REPLICAOF", "NO", "ONE"]).await;
    works(&locks).await;

    server.config_set("requirepass", "hunter2").await;
    let error = LockManager::connect(&server.url()).await.unwrap_err();
    assert!(error.to_string().contains("NOAUTH"), "{error}");
}

/// Only the old connection is black-holed; new ones work. Nothing would ever tell the client.
#[tokio::test]
async fn a_connection_that_fell_silent_is_replaced() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    works(&locks).await;
    proxy.black_hole_existing();
    assert_eq!(unavailable(&locks).await, StoreErrorKind::Timeout, "the first call finds out");
    works(&locks).await;
}

/// A connection that was cut while nobody used it is no failure: the call reconnects.
#[tokio::test]
async fn a_connection_that_was_cut_while_idle_goes_unnoticed() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    for _ in 0..3 {
        works(&locks).await;
        server.kill_connections().await;
    }
    works(&locks).await;
}

/// The request was executed, and the connection cut instead of the reply: the attempt is made again, and knows its
/// own token.
#[tokio::test]
async fn an_acquisition_that_is_sent_again_recognises_its_own_token() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    proxy.next("SET", Fault::CutReply);

    let guard = take(&locks).await.expect("the key carries this very token");
    assert_eq!(server.get("lock:order:1").await.as_deref(), Some(guard.token()));
    assert_eq!(guard.release().await, ReleaseOutcome::Released);
    assert!(!server.exists("lock:order:1").await);
}

/// The reply is swallowed: the caller errs, and the key that was set is removed behind its back.
#[tokio::test]
async fn an_acquisition_whose_reply_is_lost_leaves_no_key() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    proxy.next("SET", Fault::SwallowReply);
    assert_eq!(unavailable(&locks).await, StoreErrorKind::Timeout);
    eventually("the key is cleaned up", PATIENCE, async || !server.exists("lock:order:1").await).await;
    works(&locks).await;
}

/// The release was executed, and its reply lost with the connection: sent again it finds nothing. That may be its own
/// doing or a loss, and the caller is told neither.
#[tokio::test]
async fn a_release_that_is_sent_again_and_finds_nothing_does_not_claim_to_know_why() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    let guard = take(&locks).await.unwrap();
    proxy.next("EVALSHA", Fault::CutReply);
    assert_eq!(guard.release().await, ReleaseOutcome::Unknown);
    assert!(!server.exists("lock:order:1").await);

    let guard = take(&locks).await.unwrap();
    proxy.next("EVALSHA", Fault::CutRequest);
    assert_eq!(guard.release().await, ReleaseOutcome::Released, "the second request found the key: no doubt");
}

/// The server forgets everything while a body runs, and its release has to be sent twice: that is no `Released`.
#[tokio::test]
async fn a_server_that_restarted_empty_under_a_holder_is_not_reported_as_a_release() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let guard = take(&locks).await.unwrap();
    server.kill().await;
    server.restart().await;
    assert_ne!(guard.release().await, ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_release_that_gets_no_answer_is_finished_in_the_background() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    let guard = take(&locks).await.unwrap();
    proxy.requests(Flow::Swallow);
    assert_eq!(guard.release().await, ReleaseOutcome::Unknown);
    assert!(server.exists("lock:order:1").await);
    proxy.pass();
    locks.shutdown(PATIENCE).await.unwrap();
    assert!(!server.exists("lock:order:1").await);
}

#[tokio::test]
async fn an_error_of_the_release_does_not_replace_the_bodys_result() {
    #[redis_lock(key = "order:<id>", ttl = "30s", manager = locks)]
    async fn pay(locks: &LockManager, id: u64, proxy: &Proxy, ok: bool) -> Result<u64, Failed> {
        proxy.every("EVALSHA", Fault::error("LOADING Redis is loading the dataset in memory"));
        if ok { Ok(id) } else { Err(Failed::Body) }
    }
    #[derive(Debug, PartialEq)]
    enum Failed {
        Body,
        Lock,
    }
    impl From<LockError> for Failed {
        fn from(_: LockError) -> Self {
            Self::Lock
        }
    }
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    assert_eq!(pay(&locks, 7, &proxy, true).await, Ok(7));
    assert_eq!(pay(&locks, 8, &proxy, false).await, Err(Failed::Body));
    proxy.clear_faults();
    locks.shutdown(PATIENCE).await.unwrap();
    assert_eq!(server.keys("*").await, Vec::<String>::new());
}

/// While a call waits, the server dies: the wait ends with the truth, not at its end with `Busy`.
#[tokio::test]
async fn waiting_ends_when_the_server_does() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    server.set_px("lock:order:1", "someone else", 60_000).await;
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("order:1").ttl(TTL).wait(Duration::from_secs(60)).acquire().await }
    });
    let elsewhere = LockManager::connect(&server.url()).await.unwrap();
    assert!(take(&elsewhere).await.unwrap_err().is_busy());
    server.kill().await;
    let killed = Instant::now();
    let error = waiter.await.unwrap().unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
}
