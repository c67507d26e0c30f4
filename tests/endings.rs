//! However a body ends, its lock is released; and however a guard is dropped, nothing panics and nothing blocks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager, ReleaseOutcome, redis_lock};
use tests::poll::{count_polls, drop_after};
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};

const TTL: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq)]
enum AppError {
    Body(std::num::ParseIntError),
    Busy,
    Lock(String),
}

impl From<LockError> for AppError {
    fn from(error: LockError) -> Self {
        if error.is_busy() { Self::Busy } else { Self::Lock(error.to_string()) }
    }
}

impl From<std::num::ParseIntError> for AppError {
    fn from(error: std::num::ParseIntError) -> Self {
        Self::Body(error)
    }
}

#[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
async fn parse(locks: &LockManager, id: u64, text: &str) -> Result<u32, AppError> {
    if text.is_empty() {
        return Ok(0);
    }
    tokio::task::yield_now().await;
    let number: u32 = text.parse()?;
    assert!(number != 13, "unlucky {number}");
    Ok(number)
}

#[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
async fn hang(locks: &LockManager, id: u64) -> Result<(), AppError> {
    loop {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn take(locks: &LockManager) -> LockGuard {
    locks.lock("order:1").ttl(TTL).acquire().await.expect("the lock is free")
}

/// Both stores, each with a way to see that the lock is free.
async fn both() -> (RedisServer, [LockManager; 2]) {
    let server = RedisServer::start().await;
    let redis = LockManager::connect(&server.url()).await.unwrap();
    (server, [redis, LockManager::in_memory()])
}

#[tokio::test]
async fn return_question_mark_and_the_end_release() {
    let (server, stores) = both().await;
    for locks in &stores {
        assert_eq!(parse(locks, 1, "").await, Ok(0));
        assert!(!server.exists("lock:order:1").await);
        assert!(matches!(parse(locks, 1, "x").await, Err(AppError::Body(_))));
        assert!(!server.exists("lock:order:1").await);
        assert_eq!(parse(locks, 1, "7").await, Ok(7));
        assert!(!server.exists("lock:order:1").await);
        assert_eq!(take(locks).await.release().await, ReleaseOutcome::Released);
    }
}

#[tokio::test]
async fn a_panic_goes_through_unchanged_and_releases() {
    let (server, stores) = both().await;
    for locks in stores {
        let call = tokio::spawn({
            let locks = locks.clone();
            async move { parse(&locks, 1, "13").await }
        });
        let panic = call.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("unlucky 13"));
        // The next call of the process waits for the release that is under way instead of being told Busy.
        assert_eq!(parse(&locks, 1, "7").await, Ok(7));
        eventually("the key is gone", PATIENCE, async || !server.exists("lock:order:1").await).await;
    }
}

#[tokio::test]
async fn a_dropped_call_releases_at_whatever_poll_it_was() {
    let (server, stores) = both().await;
    for locks in &stores {
        for polls in 1..=4 {
            assert!(drop_after(hang(locks, 1), polls).await.is_pending());
            assert_eq!(parse(locks, 1, "7").await, Ok(7), "after {polls} polls");
        }
        let (_, polls) = count_polls(parse(locks, 1, "7")).await;
        for polls in 1..polls {
            let _ = drop_after(parse(locks, 1, "7"), polls).await;
            assert_eq!(parse(locks, 1, "8").await, Ok(8), "after {polls} polls");
        }
    }
    for locks in &stores {
        locks.shutdown(PATIENCE).await.unwrap();
    }
    assert_eq!(server.keys("*").await, Vec::<String>::new());
}

/// The body's own values are dropped while the lock is held, when it ends and when its call is dropped.
#[tokio::test]
async fn what_the_body_owns_is_dropped_under_the_lock() {
    struct Transaction(LockManager, std::sync::mpsc::Sender<bool>);
    impl Drop for Transaction {
        fn drop(&mut self) {
            // In memory an attempt is answered at its first poll.
            let mut attempt = Box::pin(self.0.lock("order:1").ttl(TTL).acquire());
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let held = matches!(attempt.as_mut().poll(&mut cx), std::task::Poll::Ready(Err(error)) if error.is_busy());
            self.1.send(held).ok();
        }
    }
    #[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
    async fn write(
        locks: &LockManager,
        id: u64,
        _outer: Transaction,
        inner: Transaction,
        end: bool,
    ) -> Result<(), AppError> {
        let _inner = inner;
        if end {
            return Ok(());
        }
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let locks = LockManager::in_memory();
    for end in [true, false] {
        let (held, drops) = std::sync::mpsc::channel();
        let transaction = || Transaction(locks.clone(), held.clone());
        let done = drop_after(write(&locks, 1, transaction(), transaction(), end), 5).await;
        assert_eq!(done.is_ready(), end);
        assert_eq!(drops.try_iter().collect::<Vec<_>>(), [true, true], "ended by itself: {end}");
        assert_eq!(take(&locks).await.release().await, ReleaseOutcome::Released);
    }
}

/// Drops a guard in every surrounding, and sees the key go.
async fn drops_everywhere(server: &RedisServer, locks: &LockManager) {
    let gone = async || {
        eventually("the key is gone", PATIENCE, async || !server.exists("lock:order:1").await).await;
    };
    drop(take(locks).await);
    gone().await;
    let guard = take(locks).await;
    tokio::spawn(async move { drop(guard) }).await.unwrap();
    gone().await;
    let guard = take(locks).await;
    std::thread::spawn(move || drop(guard)).join().expect("no panic outside a runtime");
    gone().await;
    let guard = take(locks).await;
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        panic!("in a section by hand");
    }));
    assert!(unwound.is_err());
    gone().await;
}

#[tokio::test]
async fn a_guard_can_be_dropped_anywhere_on_a_current_thread_runtime() {
    let (server, stores) = both().await;
    for locks in &stores {
        drops_everywhere(&server, locks).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_can_be_dropped_anywhere_on_a_multi_thread_runtime() {
    let (server, stores) = both().await;
    for locks in &stores {
        drops_everywhere(&server, locks).await;
    }
}

/// The runtime that took the lock is gone when the guard is dropped.
#[test]
fn a_guard_outlives_its_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (outer, inner) = (runtime(), runtime());
    let (server, [locks, _]) = outer.block_on(both());
    let guard = inner.block_on(take(&locks));
    drop(inner);
    drop(guard);
    outer.block_on(eventually("the key is gone", PATIENCE, async || !server.exists("lock:order:1").await));
}

/// The server hangs: dropping a guard does not wait for it.
#[tokio::test]
async fn dropping_a_guard_does_not_block() {
    let (server, [locks, _]) = both().await;
    let guards = [take(&locks).await, locks.lock("order:2").ttl(TTL).acquire().await.unwrap()];
    server.pause();
    let dropped = Instant::now();
    drop(guards);
    assert!(dropped.elapsed() < Duration::from_millis(100), "{:?}", dropped.elapsed());
    server.resume();
    locks.shutdown(PATIENCE).await.unwrap();
    assert_eq!(server.keys("*").await, Vec::<String>::new());
}

#[tokio::test]
async fn ten_thousand_guards_dropped_at_once_are_all_released() {
    let (server, [locks, _]) = both().await;
    let mut guards = Vec::new();
    for n in 0..10_000 {
        guards.push(locks.lock(format!("order:{n}")).ttl(TTL).acquire().await.unwrap());
    }
    drop(guards);
    locks.shutdown(PATIENCE).await.unwrap();
    assert_eq!(server.keys("*").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_release_that_is_dropped_half_way_is_finished() {
    let (server, [locks, _]) = both().await;
    for polls in 1..=2 {
        let guard = take(&locks).await;
        let _ = drop_after(guard.release(), polls).await;
        assert_eq!(parse(&locks, 1, "7").await, Ok(7));
    }
    assert!(!server.exists("lock:order:1").await);
}
