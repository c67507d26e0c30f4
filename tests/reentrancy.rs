//! A body that calls a function locked by its own key joins the lease it holds; everything else is told at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager, ReleaseOutcome, redis_lock};
use tests::PATIENCE;
use tests::proxy::Proxy;
use tests::server::RedisServer;
use tokio::sync::oneshot;

/// Counts who is inside at once.
#[derive(Clone, Default)]
struct Inside(Arc<AtomicUsize>);

impl Inside {
    async fn visit(&self) {
        assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), 0, "two joined calls at once");
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[redis_lock(key = "order:<id>", ttl = "10s", manager = locks, guard = lock)]
async fn inner(locks: &LockManager, id: u64, inside: &Inside) -> Result<String, LockError> {
    inside.visit().await;
    Ok(lock.token().to_owned())
}

/// Both stores.
async fn both() -> (RedisServer, Proxy, [LockManager; 2]) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let redis = LockManager::connect(&proxy.url()).await.unwrap();
    (server, proxy, [redis, LockManager::in_memory()])
}

#[redis_lock(key = "order:<id>", ttl = "60s", manager = locks, guard = lock)]
async fn outer(locks: &LockManager, id: u64, inside: &Inside) -> Result<(String, String), LockError> {
    let mine = lock.token().to_owned();
    Ok((mine, inner(locks, id, inside).await?))
}

#[tokio::test]
async fn a_callee_joins_and_sends_nothing() {
    let (_server, proxy, stores) = both().await;
    for locks in &stores {
        drop(proxy.take_commands());
        let (mine, joined) = outer(locks, 1, &Inside::default()).await.unwrap();
        assert_eq!(mine, joined, "the same lease");
    }
    let (_server, proxy, [locks, _]) = both().await;
    drop(proxy.take_commands());
    outer(&locks, 1, &Inside::default()).await.unwrap();
    assert_eq!(proxy.take_commands().len(), 2, "SET and EVALSHA of the outer call");
}

#[redis_lock(key = "order:<id>", ttl = "1s", manager = locks, guard = lock)]
async fn short_outer(locks: &LockManager, id: u64, inside: &Inside) -> Result<Duration, LockError> {
    inner(locks, id, inside).await?;
    Ok(lock.remaining())
}

#[tokio::test]
async fn a_lease_shorter_than_the_callees_is_extended() {
    let (_server, proxy, stores) = both().await;
    for locks in &stores {
        let remaining = short_outer(locks, 1, &Inside::default()).await.unwrap();
        assert!(remaining > Duration::from_secs(8), "{remaining:?}");
    }
    drop(proxy.take_commands());
    short_outer(&stores[0], 1, &Inside::default()).await.unwrap();
    assert_eq!(proxy.take_commands().len(), 3);
}

#[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
async fn two_at_once(locks: &LockManager, id: u64, inside: &Inside) -> Result<(), LockError> {
    let (one, other) = tokio::join!(inner(locks, id, inside), inner(locks, id, inside));
    one.and(other).map(drop)
}

#[tokio::test]
async fn joined_calls_exclude_each_other() {
    let (_server, _proxy, stores) = both().await;
    for locks in &stores {
        two_at_once(locks, 1, &Inside::default()).await.unwrap();
    }
}

#[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
async fn deep(locks: &LockManager, id: u64, depth: u32) -> Result<u32, LockError> {
    if depth == 0 {
        return Ok(0);
    }
    Ok(1 + Box::pin(deep(locks, id, depth - 1)).await?)
}

#[tokio::test]
async fn joined_calls_are_joined_in_turn() {
    let (server, _proxy, stores) = both().await;
    for locks in &stores {
        assert_eq!(deep(locks, 1, 10).await.unwrap(), 10);
        assert!(!server.exists("lock:order:1").await);
    }
}

/// The callee was polled once inside the body and then went on by itself: the lock is held for it, too.
#[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
async fn leaves_a_callee_behind(
    locks: &LockManager,
    id: u64,
    go: oneshot::Receiver<()>,
) -> Result<tokio::task::JoinHandle<Result<(), LockError>>, LockError> {
    #[redis_lock(key = "order:<id>", ttl = "10s", manager = locks)]
    async fn late(locks: LockManager, id: u64, go: oneshot::Receiver<()>) -> Result<(), LockError> {
        go.await.ok();
        Ok(())
    }
    let mut callee = Box::pin(late(locks.clone(), id, go));
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(callee.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
    Ok(tokio::spawn(callee))
}

#[tokio::test]
async fn the_release_waits_for_the_last_joined_call() {
    let (_server, _proxy, stores) = both().await;
    for locks in &stores {
        let (end, ended) = oneshot::channel();
        let mut call = Box::pin(leaves_a_callee_behind(locks, 1, ended));
        assert!(
            tokio::time::timeout(Duration::from_millis(100), &mut call).await.is_err(),
            "not released yet"
        );
        assert!(locks.lock("order:1").ttl(Duration::from_secs(1)).acquire().await.unwrap_err().is_busy());
        end.send(()).unwrap();
        call.await.unwrap().await.unwrap().unwrap();
        let next = locks.lock("order:1").ttl(Duration::from_secs(1)).acquire().await.unwrap();
        assert_eq!(next.release().await, ReleaseOutcome::Released);

        // The same when the outer call is dropped: whoever is left releases.
        let (end, ended) = oneshot::channel();
        let call = leaves_a_callee_behind(locks, 1, ended);
        assert!(tokio::time::timeout(Duration::from_millis(100), call).await.is_err());
        end.send(()).ok();
        let next = locks.lock("order:1").ttl(Duration::from_secs(1)).wait(PATIENCE).acquire().await.unwrap();
        assert_eq!(next.release().await, ReleaseOutcome::Released);
    }
}

#[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
async fn spawns(locks: &LockManager, id: u64) -> Result<bool, LockError> {
    let task = tokio::spawn({
        let locks = locks.clone();
        async move { inner(&locks, id, &Inside::default()).await }
    });
    Ok(task.await.unwrap().unwrap_err().is_busy())
}

#[tokio::test]
async fn a_spawned_task_is_someone_else() {
    let (_server, _proxy, stores) = both().await;
    for locks in &stores {
        assert!(spawns(locks, 1).await.unwrap());
    }
}

#[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
async fn by_hand(locks: &LockManager, id: u64) -> Result<bool, LockError> {
    let again = locks.lock(format!("order:{id}")).ttl(Duration::from_secs(1)).acquire().await;
    Ok(again.unwrap_err().is_busy())
}

#[tokio::test]
async fn an_acquisition_by_hand_never_joins() {
    let (_server, _proxy, stores) = both().await;
    for locks in &stores {
        assert!(by_hand(locks, 1).await.unwrap());
    }
}

#[redis_lock(key = "order:<id>", ttl = "80ms", manager = locks)]
async fn calls_after_its_loss(locks: &LockManager, id: u64) -> Result<(), LockError> {
    tokio::time::sleep(Duration::from_millis(120)).await;
    let asked = Instant::now();
    let error = inner(locks, id, &Inside::default()).await.unwrap_err();
    assert!(matches!(error, LockError::Reentrant { .. }), "{error}");
    assert!(error.to_string().contains("lock:order:"), "{error}");
    assert!(asked.elapsed() < Duration::from_millis(50));
    Ok(())
}

#[tokio::test]
async fn a_lost_lease_cannot_be_joined() {
    let (_server, _proxy, stores) = both().await;
    for locks in &stores {
        calls_after_its_loss(locks, 1).await.unwrap();
    }
}

#[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
async fn nested(locks: &LockManager, id: u64, server: Option<&RedisServer>) -> Result<(), LockError> {
    #[redis_lock(key = "stock:<id>", ttl = "60s", manager = locks)]
    async fn other(locks: &LockManager, id: u64, server: Option<&RedisServer>) -> Result<(), LockError> {
        if let Some(server) = server {
            assert_eq!(server.keys("lock:*").await.len(), 2);
        }
        // Through another lock, the first is still ours.
        inner(locks, id, &Inside::default()).await.map(drop)
    }
    other(locks, id, server).await
}

#[tokio::test]
async fn different_keys_nest_and_are_both_released() {
    let (server, _proxy, [redis, memory]) = both().await;
    nested(&redis, 1, Some(&server)).await.unwrap();
    assert_eq!(server.keys("*").await, Vec::<String>::new());
    nested(&memory, 1, None).await.unwrap();
    for key in ["order:1", "stock:1"] {
        assert_eq!(
            memory.lock(key).ttl(Duration::from_secs(1)).acquire().await.unwrap().release().await,
            ReleaseOutcome::Released
        );
    }
}

/// The same key of another manager is another lock.
#[redis_lock(key = "order:<id>", ttl = "60s", manager = one)]
async fn across(one: &LockManager, other: &LockManager, id: u64) -> Result<(), LockError> {
    inner(other, id, &Inside::default()).await.map(drop)
}

#[tokio::test]
async fn another_manager_is_another_lock() {
    let (_server, proxy, [redis, memory]) = both().await;
    drop(proxy.take_commands());
    across(&memory, &redis, 1).await.unwrap();
    assert_eq!(proxy.take_commands().len(), 2);
}

/// Whatever a body does with its callee, it cannot be locked out by it for longer than its own lease.
#[redis_lock(key = "order:<id>", ttl = "300ms", manager = locks)]
async fn parks_a_callee(locks: &LockManager, id: u64, inside: &Inside) -> Result<(), LockError> {
    let mut parked = Box::pin(inner_short(locks, id, inside));
    assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(parked.as_mut().poll(cx))).await.is_pending());
    let second = inner_short(locks, id, inside).await;
    assert!(matches!(second, Err(LockError::Reentrant { .. })), "{second:?}");
    Ok(())
}

#[redis_lock(key = "order:<id>", ttl = "10ms", manager = locks)]
async fn inner_short(locks: &LockManager, id: u64, inside: &Inside) -> Result<(), LockError> {
    inside.visit().await;
    Ok(())
}

#[tokio::test]
async fn a_callee_that_is_parked_cannot_hold_its_caller_up_for_ever() {
    let (_server, _proxy, stores) = both().await;
    for locks in &stores {
        tokio::time::timeout(PATIENCE, parks_a_callee(locks, 1, &Inside::default())).await.unwrap().unwrap();
    }
}
