//! Which commands go over the wire.

use std::time::Duration;

use lock_runtime::{LockError, LockManager, ReleaseOutcome, redis_lock};
use tests::monitor::{Executed, Monitor};
use tests::server::RedisServer;

#[redis_lock(key = "order:<order_id>", ttl = "30s", manager = locks, guard = lock)]
async fn pay_order(locks: &LockManager, order_id: u64) -> Result<String, LockError> {
    Ok(lock.token().to_owned())
}

#[redis_lock(key = "order:<order_id>", ttl = "30s", manager = locks, guard = lock, release = background)]
async fn pay_order_quickly(locks: &LockManager, order_id: u64) -> Result<String, LockError> {
    Ok(lock.token().to_owned())
}

fn words(commands: &[Executed]) -> Vec<String> {
    commands.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn an_uncontended_call_is_one_set_and_one_evalsha() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let monitor = Monitor::attach(&server);
    monitor.settled().await;
    drop(monitor.take());

    let token = pay_order(&locks, 123).await.unwrap();

    let wire = monitor.wire().await;
    let wire = words(&wire);
    assert_eq!(wire.len(), 2, "{wire:#?}");
    assert_eq!(wire[0], format!("SET lock:order:123 {token} NX PX 30000"));
    let release: Vec<_> = wire[1].split(' ').collect();
    assert_eq!(release[0], "EVALSHA", "the script was loaded when the connection was made");
    assert_eq!(release[2..], ["1", "lock:order:123", &token]);
}

#[tokio::test]
async fn the_background_release_costs_no_more() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let monitor = Monitor::attach(&server);
    monitor.settled().await;
    drop(monitor.take());

    pay_order_quickly(&locks, 123).await.unwrap();
    locks.shutdown(Duration::from_secs(5)).await.unwrap();

    let wire = words(&monitor.wire().await);
    assert_eq!(wire.len(), 2, "{wire:#?}");
    assert!(!server.exists("lock:order:123").await);
}

#[tokio::test]
async fn a_busy_call_without_wait_is_one_set() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    server.set_px("lock:order:123", "someone else", 60_000).await;
    let monitor = Monitor::attach(&server);
    monitor.settled().await;
    drop(monitor.take());

    assert!(pay_order(&locks, 123).await.unwrap_err().is_busy());

    let wire = words(&monitor.wire().await);
    assert_eq!(wire.len(), 1, "{wire:#?}");
    assert_eq!(server.get("lock:order:123").await.as_deref(), Some("someone else"));
}

#[tokio::test]
async fn an_invalid_key_asks_nothing_of_the_server() {
    #[redis_lock(key = "user:<name>", ttl = "30s", manager = locks)]
    async fn rename(locks: &LockManager, name: &str) -> Result<(), LockError> {
        Ok(())
    }
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let monitor = Monitor::attach(&server);
    monitor.settled().await;
    drop(monitor.take());

    for name in ["", &"n".repeat(1024)] {
        let error = rename(&locks, name).await.unwrap_err();
        assert!(matches!(error, LockError::InvalidKey { .. }), "{error}");
    }
    assert_eq!(words(&monitor.wire().await), Vec::<String>::new());
}

/// `SCRIPT FLUSH`, and a restart, make the server forget the scripts that were loaded when the connection was made.
#[tokio::test]
async fn a_server_that_forgot_the_script_is_told_again() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    server.script_flush().await;
    let guard = locks.lock("order:1").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    assert_eq!(guard.release().await, ReleaseOutcome::Released);
    assert!(!server.exists("lock:order:1").await);

    let guard = locks.lock("order:1").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    server.script_flush().await;
    guard.extend(Duration::from_secs(90)).await.unwrap();
    assert!(server.pttl("lock:order:1").await > 80_000);
    server.script_flush().await;
    drop(guard);
    locks.shutdown(Duration::from_secs(5)).await.unwrap();
    assert!(!server.exists("lock:order:1").await);
}

#[tokio::test]
async fn the_value_is_owner_uuid_and_tag() {
    #[redis_lock(key = "order:<id>", ttl = "30s", manager = locks, tag = format_args!("trace {}", id + 1), guard = lock)]
    async fn tagged(
        locks: &LockManager,
        id: u64,
        server: &RedisServer,
    ) -> Result<(String, Option<String>), LockError> {
        Ok((lock.token().to_owned(), server.get("mine:order:7").await))
    }
    let server = RedisServer::start().await;
    let locks =
        LockManager::builder().prefix("mine:").owner("orders-7f9c").connect(&server.url()).await.unwrap();

    let (token, value) = tagged(&locks, 7, &server).await.unwrap();

    assert_eq!(value.as_deref(), Some(&*token));
    let parts: Vec<_> = token.split(':').collect();
    assert_eq!((parts[0], parts[1].len(), parts[2]), ("orders-7f9c", 36, "trace%208"));
}

#[tokio::test]
async fn extend_never_shortens_and_never_recreates() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let guard = locks.lock("order:1").ttl(Duration::from_secs(30)).acquire().await.unwrap();

    guard.extend(Duration::from_secs(10)).await.unwrap();
    assert!(server.pttl("lock:order:1").await > 25_000, "not shortened");
    guard.extend(Duration::from_secs(60)).await.unwrap();
    assert!(server.pttl("lock:order:1").await > 55_000);
    assert!(guard.remaining() > Duration::from_secs(55));

    server.del("lock:order:1").await;
    let error = guard.extend(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    assert!(guard.is_lost());
    assert!(!server.exists("lock:order:1").await, "not re-created");

    server.set_px("lock:order:1", "someone else", 60_000).await;
    assert_eq!(guard.release().await, ReleaseOutcome::NotHeld);
    assert_eq!(server.get("lock:order:1").await.as_deref(), Some("someone else"));
}

/// A key of another type is someone else's.
#[tokio::test]
async fn a_key_that_is_no_string_is_busy_and_left_alone() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let _: i64 = server.call(&["RPUSH", "lock:order:1", "a list"]).await;
    assert!(locks.lock("order:1").ttl(Duration::from_secs(30)).acquire().await.unwrap_err().is_busy());

    server.del("lock:order:1").await;
    let guard = locks.lock("order:1").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    server.del("lock:order:1").await;
    let _: i64 = server.call(&["RPUSH", "lock:order:1", "a list"]).await;
    assert_eq!(guard.release().await, ReleaseOutcome::NotHeld);
    assert!(server.exists("lock:order:1").await);
}
