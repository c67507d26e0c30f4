//! Every way of holding: several keys, shared, counted, at least for a while, fenced. One suite for both stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{KeyFault, LockError, LockGuard, LockManager, OptionFault, ReleaseOutcome, redis_lock};
use tests::events;
use tests::monitor::Monitor;
use tests::proxy::{Fault, Proxy};
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};

const TTL: Duration = Duration::from_secs(30);

/// A store, and another manager on it where there is one: another process.
struct Place {
    server: Option<RedisServer>,
    locks: LockManager,
    elsewhere: LockManager,
}

async fn places() -> [Place; 2] {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let elsewhere = LockManager::connect(&server.url()).await.unwrap();
    let memory = LockManager::in_memory();
    [
        Place { server: Some(server), locks, elsewhere },
        Place { server: None, locks: memory.clone(), elsewhere: memory },
    ]
}

async fn take(locks: &LockManager, key: &str) -> Result<LockGuard, LockError> {
    locks.lock(key).ttl(TTL).acquire().await
}

async fn all(locks: &LockManager, keys: &[&str]) -> Result<LockGuard, LockError> {
    locks.lock_all(keys.iter().copied()).ttl(TTL).acquire().await
}

async fn shared(locks: &LockManager, key: &str) -> Result<LockGuard, LockError> {
    locks.lock(key).ttl(TTL).shared().acquire().await
}

async fn permit(locks: &LockManager, key: &str, most: u32) -> Result<LockGuard, LockError> {
    locks.lock(key).ttl(TTL).permits(most).acquire().await
}

fn busy(attempt: Result<LockGuard, LockError>) -> LockError {
    match attempt {
        Err(error) if error.is_busy() => error,
        other => panic!("not busy: {other:?}"),
    }
}

mod several_keys {
    use super::*;

    struct Line {
        sku: &'static str,
    }

    #[redis_lock(key = "stock:<line.sku>", for line in lines, ttl = "10s", manager = locks, guard = lock)]
    async fn reserve(locks: &LockManager, lines: &[Line]) -> Result<Vec<String>, LockError> {
        Ok(lock.keys().map(str::to_owned).collect())
    }

    #[tokio::test]
    async fn are_sorted_merged_and_named() {
        for place in places().await {
            let lines = [Line { sku: "b" }, Line { sku: "a" }, Line { sku: "b" }];
            assert_eq!(reserve(&place.locks, &lines).await.unwrap(), ["lock:stock:a", "lock:stock:b"]);
            let error = reserve(&place.locks, &[]).await.unwrap_err();
            let LockError::InvalidKey { fault, .. } = &error else { panic!("{error}") };
            assert_eq!(**fault, KeyFault::NoKeys, "{error}");
            assert_eq!(
                take(&place.locks, "stock:a").await.unwrap().release().await,
                ReleaseOutcome::Released
            );
        }
    }

    #[tokio::test]
    async fn are_taken_all_or_none_and_busy_names_the_one_that_was_held() {
        for place in places().await {
            let held = take(&place.elsewhere, "stock:b").await.unwrap();
            let error = busy(all(&place.locks, &["stock:a", "stock:b", "stock:c"]).await);
            assert_eq!(error.key(), Some("lock:stock:b"));
            for free in ["stock:a", "stock:c"] {
                take(&place.elsewhere, free).await.expect("nothing was half taken").release().await;
            }
            held.release().await;
            let guard = all(&place.locks, &["stock:a", "stock:b", "stock:c"]).await.unwrap();
            for key in ["stock:a", "stock:b", "stock:c"] {
                busy(take(&place.elsewhere, key).await);
            }
            if let Some(server) = &place.server {
                for key in guard.keys() {
                    assert_eq!(server.get(key).await.as_deref(), Some(guard.token()));
                }
            }
            assert_eq!(guard.release().await, ReleaseOutcome::Released);
            take(&place.elsewhere, "stock:c").await.unwrap().release().await;
        }
    }

    #[tokio::test]
    async fn cost_one_command_each_way() {
        let [place, _] = places().await;
        let monitor = Monitor::attach(place.server.as_ref().unwrap());
        monitor.settled().await;
        drop(monitor.take());
        all(&place.locks, &["a", "b", "c"]).await.unwrap().release().await;
        let wire: Vec<_> = monitor.wire().await.iter().map(|command| command.args[0].clone()).collect();
        assert_eq!(wire, ["EVALSHA", "EVALSHA"]);
    }

    /// In opposite orders, with waiting, from two processes: nobody deadlocks and nobody holds half.
    #[tokio::test]
    async fn in_opposite_orders_never_deadlock() {
        for place in places().await {
            let inside = Arc::new(AtomicUsize::new(0));
            let tasks: Vec<_> = (0..12)
                .map(|n| {
                    let locks = if n % 2 == 0 { place.locks.clone() } else { place.elsewhere.clone() };
                    let inside = Arc::clone(&inside);
                    tokio::spawn(async move {
                        for round in 0..4 {
                            let keys = if (n + round) % 3 == 0 { ["x", "y"] } else { ["y", "x"] };
                            let guard = locks.lock_all(keys).ttl(TTL).wait(PATIENCE).acquire().await.unwrap();
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            tokio::task::yield_now().await;
                            inside.fetch_sub(1, Ordering::SeqCst);
                            guard.release().await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_thousand_pass_and_one_more_does_not() {
        for place in places().await {
            let keys: Vec<String> = (0..=1_000).map(|n| format!("n:{n}")).collect();
            let guard = place.locks.lock_all(&keys[..1_000]).ttl(TTL).acquire().await.unwrap();
            assert_eq!(guard.keys().len(), 1_000);
            assert_eq!(guard.release().await, ReleaseOutcome::Released);
            let error = place.locks.lock_all(&keys).ttl(TTL).acquire().await.unwrap_err();
            assert!(error.to_string().contains("more than 1000 keys"), "{error}");
            // Duplicates do not count, and hide nothing: each key that was named is locked.
            let mut many = vec!["same"; 2_000];
            many.push("other");
            let guard = all(&place.locks, &many).await.unwrap();
            assert_eq!(guard.keys().collect::<Vec<_>>(), ["lock:other", "lock:same"]);
        }
    }

    #[tokio::test]
    async fn a_key_of_another_type_does_not_keep_the_others_from_their_release() {
        let [place, _] = places().await;
        let server = place.server.as_ref().unwrap();
        let guard = all(&place.locks, &["a", "b", "c"]).await.unwrap();
        server.del("lock:b").await;
        let _: i64 = server.call(&["RPUSH", "lock:b", "a list"]).await;
        assert_eq!(guard.release().await, ReleaseOutcome::NotHeld);
        assert_eq!(server.keys("*").await, ["lock:b"]);
    }

    #[tokio::test]
    async fn wait_and_are_woken_by_the_one_that_was_in_the_way() {
        let [place, _] = places().await;
        let held = take(&place.elsewhere, "b").await.unwrap();
        let waiter = tokio::spawn({
            let locks = place.locks.clone();
            async move {
                locks.lock_all(["a", "b"]).ttl(TTL).wait(PATIENCE).acquire().await.map(|_| Instant::now())
            }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let freed = Instant::now();
        held.release().await;
        assert!(waiter.await.unwrap().unwrap() - freed < Duration::from_millis(150));
    }

    #[tokio::test]
    async fn are_renewed_and_extended_together() {
        for place in places().await {
            let guard = place
                .locks
                .lock_all(["a", "b"])
                .ttl(Duration::from_millis(300))
                .renew()
                .acquire()
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_millis(700)).await;
            assert!(!guard.is_lost());
            guard.extend(Duration::from_secs(60)).await.unwrap();
            if let Some(server) = &place.server {
                for key in ["lock:a", "lock:b"] {
                    assert!(server.pttl(key).await > 50_000);
                }
                server.del("lock:b").await;
                assert!(matches!(guard.extend(Duration::from_secs(90)).await, Err(LockError::Lost { .. })));
                assert!(!server.exists("lock:b").await, "not re-created");
            }
        }
    }

    /// The reply is lost: the clean-up finds all of them.
    #[tokio::test]
    async fn leave_nothing_when_the_reply_is_lost() {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let locks = LockManager::connect(&proxy.url()).await.unwrap();
        proxy.next("EVALSHA", Fault::SwallowReply);
        assert!(all(&locks, &["a", "b"]).await.unwrap_err().is_unavailable());
        eventually("both keys are cleaned up", PATIENCE, async || server.keys("*").await.is_empty()).await;
    }

    #[redis_lock(key = "stock:<sku>", for sku in ["a", "b"], ttl = "10s", manager = locks)]
    async fn both(locks: &LockManager) -> Result<(), LockError> {
        one(locks, "a").await?;
        // Only in part its own.
        let partly = three(locks).await.unwrap_err();
        assert!(matches!(partly, LockError::Reentrant { .. }), "{partly}");
        Ok(())
    }

    #[redis_lock(key = "stock:<sku>", ttl = "1s", manager = locks)]
    async fn one(locks: &LockManager, sku: &str) -> Result<(), LockError> {
        Ok(())
    }

    #[redis_lock(key = "stock:<sku>", for sku in ["b", "c"], ttl = "1s", manager = locks)]
    async fn three(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    #[tokio::test]
    async fn can_be_joined_by_a_part_of_them() {
        for place in places().await {
            both(&place.locks).await.unwrap();
        }
    }
}

mod shared_and_counted {
    use super::*;

    #[redis_lock(key = "doc:<id>", ttl = "10s", shared, manager = locks, guard = lock)]
    async fn read(locks: &LockManager, id: u64) -> Result<bool, LockError> {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(lock.is_lost())
    }

    #[redis_lock(key = "gpu:<id>", ttl = "10s", permits = most, manager = locks)]
    async fn compute(
        locks: &LockManager,
        id: u64,
        most: u32,
        inside: &AtomicUsize,
    ) -> Result<usize, LockError> {
        let others = inside.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(30)).await;
        inside.fetch_sub(1, Ordering::SeqCst);
        Ok(others)
    }

    #[tokio::test]
    async fn many_readers_or_one_writer() {
        for place in places().await {
            let (one, other) = tokio::join!(read(&place.locks, 1), read(&place.elsewhere, 1));
            assert!(!one.unwrap() && !other.unwrap(), "at once");
            let reader = shared(&place.locks, "doc:1").await.unwrap();
            let another = shared(&place.locks, "doc:1").await.unwrap();
            busy(take(&place.elsewhere, "doc:1").await);
            busy(take(&place.locks, "doc:1").await);
            assert_eq!(reader.release().await, ReleaseOutcome::Released);
            busy(take(&place.elsewhere, "doc:1").await);
            assert_eq!(another.release().await, ReleaseOutcome::Released);
            let writer = take(&place.elsewhere, "doc:1").await.expect("the last reader has gone");
            busy(shared(&place.locks, "doc:1").await);
            assert_eq!(writer.release().await, ReleaseOutcome::Released);
            shared(&place.locks, "doc:1").await.unwrap().release().await;
        }
    }

    #[tokio::test]
    async fn at_most_n() {
        for place in places().await {
            let inside = AtomicUsize::new(0);
            let call = |n: usize| compute([&place.locks, &place.elsewhere][n % 2], 1, 3, &inside);
            let calls = tokio::join!(call(0), call(1), call(2), call(3), call(4), call(5));
            let calls = [calls.0, calls.1, calls.2, calls.3, calls.4, calls.5];
            let had: Vec<_> = calls.into_iter().filter_map(Result::ok).collect();
            assert_eq!(had.len(), 3);
            assert!(had.iter().all(|others| *others < 3));
            let error = compute(&place.locks, 1, 0, &inside).await.unwrap_err();
            let LockError::InvalidOption { fault, .. } = error else { panic!("{error}") };
            assert_eq!(fault, OptionFault::NoPermits);
        }
    }

    /// Each caller counts by its own number, and a shared holder counts as one.
    #[tokio::test]
    async fn by_the_callers_own_number() {
        for place in places().await {
            let _one = permit(&place.locks, "gpu", 5).await.unwrap();
            let _two = shared(&place.locks, "gpu").await.unwrap();
            busy(permit(&place.elsewhere, "gpu", 2).await);
            let _three = permit(&place.elsewhere, "gpu", 3).await.unwrap();
            busy(take(&place.elsewhere, "gpu").await);
        }
    }

    #[tokio::test]
    async fn a_crashed_readers_share_ends_with_its_own_lease() {
        for place in places().await {
            let short =
                place.locks.lock("doc").ttl(Duration::from_millis(150)).permits(2).acquire().await.unwrap();
            let long = place.locks.lock("doc").ttl(TTL).permits(2).acquire().await.unwrap();
            busy(permit(&place.elsewhere, "doc", 2).await);
            // As if its process had been killed: nobody releases it.
            let lost = short.lost();
            let asked = Instant::now();
            let next =
                place.elsewhere.lock("doc").ttl(TTL).permits(2).wait(PATIENCE).acquire().await.unwrap();
            assert!(asked.elapsed() < Duration::from_millis(400), "{:?}", asked.elapsed());
            lost.await;
            if let Some(server) = &place.server {
                let pttl = server.pttl("lock:doc").await;
                assert!(pttl > 25_000, "{pttl}: the key lives as long as its longest-lived holder");
            }
            assert_eq!(short.release().await, ReleaseOutcome::NotHeld);
            assert_eq!(long.release().await, ReleaseOutcome::Released);
            assert_eq!(next.release().await, ReleaseOutcome::Released);
        }
    }

    /// What other clients of the field see.
    #[tokio::test]
    async fn a_plain_set_nx_is_refused_while_readers_hold_and_readers_while_a_string_is_there() {
        let [place, _] = places().await;
        let server = place.server.as_ref().unwrap();
        let reader = shared(&place.locks, "doc").await.unwrap();
        let set: Option<String> = server.call(&["SET", "lock:doc", "other", "NX", "PX", "1000"]).await;
        assert_eq!(set, None);
        let kind: String = server.call(&["TYPE", "lock:doc"]).await;
        assert_eq!(kind, "zset");
        reader.release().await;
        assert_eq!(server.keys("*").await, Vec::<String>::new());
        server.set_px("lock:doc", "other", 60_000).await;
        busy(shared(&place.locks, "doc").await);
        busy(permit(&place.locks, "doc", 9).await);
        assert_eq!(server.get("lock:doc").await.as_deref(), Some("other"));
    }

    #[tokio::test]
    async fn a_writers_release_that_meets_readers_is_not_held_and_no_error() {
        let [place, _] = places().await;
        let server = place.server.as_ref().unwrap();
        let writer = take(&place.locks, "doc").await.unwrap();
        server.del("lock:doc").await;
        let reader = shared(&place.elsewhere, "doc").await.unwrap();
        assert_eq!(writer.release().await, ReleaseOutcome::NotHeld);
        assert_eq!(reader.release().await, ReleaseOutcome::Released, "the reader is undisturbed");
    }

    /// In one process readers that come after a waiting writer queue behind it.
    #[tokio::test]
    async fn a_waiting_writer_is_not_starved_by_readers_of_its_process() {
        for place in places().await {
            let first = shared(&place.locks, "doc").await.unwrap();
            let order = Arc::new(std::sync::Mutex::new(Vec::new()));
            let mut tasks = Vec::new();
            for who in ["writer", "reader", "reader"] {
                let (locks, order) = (place.locks.clone(), Arc::clone(&order));
                tasks.push(tokio::spawn(async move {
                    let request = locks.lock("doc").ttl(TTL).wait(PATIENCE);
                    let request = if who == "reader" { request.shared() } else { request };
                    let guard = request.acquire().await.unwrap();
                    order.lock().unwrap().push(who);
                    guard.release().await;
                }));
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(order.lock().unwrap().is_empty(), "nobody passes the writer");
            first.release().await;
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(order.lock().unwrap()[0], "writer");
        }
    }

    #[tokio::test]
    async fn shares_are_renewed_and_watched_like_any_lease() {
        let [place, _] = places().await;
        let server = place.server.as_ref().unwrap();
        let reader =
            place.locks.lock("doc").ttl(Duration::from_millis(300)).shared().renew().acquire().await.unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!reader.is_lost());
        busy(take(&place.elsewhere, "doc").await);
        let mut lost = Box::pin(reader.lost());
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut lost).await.is_err());
        server.del("lock:doc").await;
        tokio::time::timeout(Duration::from_millis(200), lost).await.expect("told at once");
    }

    #[redis_lock(key = "doc:<id>", ttl = "10s", shared, manager = locks)]
    async fn reads_again(locks: &LockManager, id: u64) -> Result<(), LockError> {
        let error = read(locks, id).await.unwrap_err();
        assert!(matches!(error, LockError::Reentrant { .. }), "a shared lease cannot be joined: {error}");
        Ok(())
    }

    #[tokio::test]
    async fn a_shared_lease_cannot_be_joined() {
        for place in places().await {
            reads_again(&place.locks, 1).await.unwrap();
        }
    }
}

mod at_least_for_a_while {
    use super::*;

    #[redis_lock(key = "job", ttl = "10s", hold_at_least = "400ms", manager = locks)]
    async fn job(locks: &LockManager, ran: &AtomicUsize, ok: bool) -> Result<(), LockError> {
        ran.fetch_add(1, Ordering::SeqCst);
        assert!(ok, "the job fails");
        Ok(())
    }

    #[tokio::test]
    async fn the_key_stays_until_it_is_that_old_however_the_body_ended() {
        for place in places().await {
            for ok in [true, false] {
                let ran = Arc::new(AtomicUsize::new(0));
                let began = Instant::now();
                let first = tokio::spawn({
                    let (locks, ran) = (place.locks.clone(), Arc::clone(&ran));
                    async move { job(&locks, &ran, ok).await }
                });
                assert_eq!(first.await.is_ok(), ok, "the panic goes through");
                for locks in [&place.locks, &place.elsewhere] {
                    assert!(job(locks, &ran, true).await.unwrap_err().is_busy(), "once in a window");
                }
                let next = place.elsewhere.lock("job").ttl(TTL).wait(PATIENCE).acquire().await.unwrap();
                let age = began.elapsed();
                assert!(age >= Duration::from_millis(395) && age < Duration::from_millis(700), "{age:?}");
                assert_eq!(ran.load(Ordering::SeqCst), 1);
                next.release().await;
            }
        }
    }

    #[redis_lock(
        key = "req:<id>", ttl = "10s", hold_after_ok = "300ms", manager = locks,
        or_else = |error| Err(error.to_string())
    )]
    async fn request(locks: &LockManager, id: u64, answer: Option<bool>) -> Result<u64, String> {
        match answer {
            Some(true) => Ok(id),
            Some(false) => Err("refused by the body".to_owned()),
            None => std::future::pending().await,
        }
    }

    #[redis_lock(
        key = "req:<id>", ttl = "10s", hold_after_ok = "300ms", manager = locks, release = background,
        or_else = |error| Err(error.to_string())
    )]
    async fn request_in_background(locks: &LockManager, id: u64, ok: bool) -> Result<u64, String> {
        if ok { Ok(id) } else { Err("refused by the body".to_owned()) }
    }

    #[tokio::test]
    async fn after_ok_the_key_stays_and_after_err_it_does_not() {
        for place in places().await {
            assert!(request_in_background(&place.locks, 1, false).await.is_err());
            assert_eq!(
                request_in_background(&place.locks, 1, true).await,
                Ok(1),
                "a failed request may be retried"
            );
            let done = Instant::now();
            let again = request_in_background(&place.elsewhere, 1, true).await.unwrap_err();
            assert!(again.contains("held by someone else"), "{again}");
            let next = place.elsewhere.lock("req:1").ttl(TTL).wait(PATIENCE).acquire().await.unwrap();
            assert!((280..600).contains(&done.elapsed().as_millis()), "{:?}", done.elapsed());
            next.release().await;
        }
    }

    struct Reply(u16);

    impl lock_runtime::Succeeded for Reply {
        fn succeeded(&self) -> bool {
            self.0 < 400
        }
    }

    #[redis_lock(
        key = "reply:<status>", ttl = "10s", hold_after_ok = "60s", manager = locks, or_else = |_| Reply(503)
    )]
    async fn reply(locks: &LockManager, status: u16) -> Reply {
        Reply(status)
    }

    #[tokio::test]
    async fn a_type_of_ones_own_says_whether_it_is_a_success() {
        for place in places().await {
            assert_eq!(reply(&place.locks, 500).await.0, 500);
            assert_eq!(reply(&place.locks, 500).await.0, 500);
            assert_eq!(reply(&place.locks, 200).await.0, 200);
            assert_eq!(reply(&place.locks, 200).await.0, 503, "a successful one is not repeated");
        }
    }

    /// The outcome is fixed when the body returns: the caller drops the call while it awaits the release.
    #[tokio::test]
    async fn a_drop_during_the_release_does_not_undo_the_hold_and_a_resent_one_does_not_lengthen_it() {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let locks = LockManager::connect(&proxy.url()).await.unwrap();
        proxy.next("EVALSHA", Fault::HoldRequest);
        let call = tokio::time::timeout(Duration::from_millis(100), reply(&locks, 200)).await;
        assert!(call.is_err(), "the release is on its way");
        proxy.release();
        eventually("the key is held", PATIENCE, async || {
            let left = server.pttl("lock:reply:200").await;
            left > 50_000 && left <= 60_000
        })
        .await;
    }

    #[tokio::test]
    async fn a_cancelled_request_may_be_retried_at_once() {
        for place in places().await {
            let call = request(&place.locks, 5, None);
            assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
            assert_eq!(request(&place.locks, 5, Some(true)).await, Ok(5));
        }
    }

    #[tokio::test]
    async fn a_hold_whose_key_was_lost_is_a_warning() {
        let [place, _] = places().await;
        let server = place.server.as_ref().unwrap();
        let guard = place.locks.lock("held-lost").ttl(TTL).hold_at_least(TTL).acquire().await.unwrap();
        server.del("lock:held-lost").await;
        let recorder = events::global();
        assert_eq!(guard.release().await, ReleaseOutcome::NotHeld);
        assert!(!server.exists("lock:held-lost").await, "not re-created");
        recorder.for_key("held-lost").wait_for(|event| event.field("outcome") == "expired").await;
    }

    #[tokio::test]
    async fn it_must_not_exceed_the_ttl() {
        for place in places().await {
            let error = place.locks.lock("x").ttl(TTL).hold_at_least(TTL * 2).acquire().await.unwrap_err();
            let LockError::InvalidOption { fault, .. } = error else { panic!("{error}") };
            assert_eq!(fault, OptionFault::HoldLongerThanTtl);
        }
    }

    /// `shutdown` finishes what is pending, and holds keep their time.
    #[tokio::test]
    async fn a_hold_outlives_the_shutdown() {
        let [place, _] = places().await;
        let guard =
            place.locks.lock("kept").ttl(TTL).hold_at_least(Duration::from_secs(20)).acquire().await.unwrap();
        drop(guard);
        place.locks.shutdown(PATIENCE).await.unwrap();
        let left = place.server.as_ref().unwrap().pttl("lock:kept").await;
        assert!((15_000..=20_000).contains(&left), "{left}");
    }
}

mod fenced {
    use super::*;

    #[redis_lock(key = "order:<id>", ttl = "10s", fenced, guard = lock, manager = locks)]
    async fn write(locks: &LockManager, id: u64) -> Result<u64, LockError> {
        Ok(lock.fence())
    }

    #[tokio::test]
    async fn a_fence_grows_with_every_acquisition_and_is_ahead_of_the_clock() {
        for place in places().await {
            let micros = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros();
            let mut last = u64::try_from(micros).unwrap() - 1_000_000;
            for n in 0..20 {
                let fence = write(if n % 2 == 0 { &place.locks } else { &place.elsewhere }, 1).await.unwrap();
                assert!(fence > last, "{fence} after {last}");
                last = fence;
            }
            if let Some(server) = &place.server {
                let left = server.pttl("fence:{lock:order:1}").await;
                assert!(left > 6 * 86_400_000, "{left}: nothing lives without an expiry");
                // A server that forgot everything goes on growing.
                server.flush().await;
                assert!(write(&place.locks, 1).await.unwrap() > last);
            }
            let plain = take(&place.locks, "order:1").await.unwrap();
            assert_eq!(plain.fence(), 0, "less than any fence");
        }
    }

    #[tokio::test]
    async fn a_fence_costs_no_further_round_trip() {
        let [place, _] = places().await;
        let monitor = Monitor::attach(place.server.as_ref().unwrap());
        monitor.settled().await;
        drop(monitor.take());
        write(&place.locks, 1).await.unwrap();
        let wire: Vec<_> = monitor.wire().await.iter().map(|command| command.args[0].clone()).collect();
        assert_eq!(wire, ["EVALSHA", "EVALSHA"]);
    }

    /// A counter that is ahead of the clock (another server's was fast) is not overtaken by it.
    #[tokio::test]
    async fn a_counter_ahead_of_the_clock_goes_on_from_there() {
        let [place, _] = places().await;
        let server = place.server.as_ref().unwrap();
        server.set_px("fence:{lock:order:1}", "9000000000000000", 60_000).await;
        assert_eq!(write(&place.locks, 1).await.unwrap(), 9_000_000_000_000_001);
    }

    #[tokio::test]
    async fn it_needs_one_key_and_an_exclusive_holder() {
        for place in places().await {
            for request in [place.locks.lock("a").shared(), place.locks.lock_all(["a", "b"])] {
                let error = request.ttl(TTL).fenced().acquire().await.unwrap_err();
                assert!(matches!(error, LockError::InvalidOption { .. }), "{error}");
            }
        }
    }

    #[redis_lock(key = "order:<id>", ttl = "10s", manager = locks)]
    async fn plain_outer(locks: &LockManager, id: u64) -> Result<(), LockError> {
        assert!(matches!(write(locks, id).await.unwrap_err(), LockError::Reentrant { .. }));
        Ok(())
    }

    #[redis_lock(key = "order:<id>", ttl = "10s", fenced, guard = lock, manager = locks)]
    async fn fenced_outer(locks: &LockManager, id: u64) -> Result<(), LockError> {
        assert_eq!(write(locks, id).await?, lock.fence());
        Ok(())
    }

    #[tokio::test]
    async fn a_fence_is_joined_only_where_there_is_one() {
        for place in places().await {
            plain_outer(&place.locks, 1).await.unwrap();
            fenced_outer(&place.locks, 1).await.unwrap();
        }
    }
}

/// Every way of holding goes together with waiting, renewing, watching and both ways of releasing.
mod together {
    use super::*;

    macro_rules! way {
        ($name:ident, $key:literal, $($option:tt)*) => {
            #[redis_lock(
                key = $key, ttl = "300ms", wait = "10s", renew, on_lost = cancel, manager = locks, guard = lock,
                release = background, $($option)*
            )]
            async fn $name(locks: &LockManager, id: u64, started: &AtomicUsize) -> Result<u64, LockError> {
                started.fetch_add(1, Ordering::SeqCst);
                // Longer than the ttl: it is renewed.
                tokio::time::sleep(Duration::from_millis(450)).await;
                assert!(!lock.is_lost());
                Ok(id)
            }
        };
    }

    way!(plainly, "way:<id>", tag = "t");
    way!(together, "way:<id>:<part>", for part in [1, 2, 3]);
    way!(as_reader, "way:<id>", shared);
    way!(counted, "way:<id>", permits = 1);
    way!(for_a_while, "way:<id>", hold_at_least = "100ms");
    way!(after_success, "way:<id>", hold_after_ok = "50ms");
    way!(with_a_fence, "way:<id>", fenced);

    macro_rules! in_each_way {
        ($($name:ident),*) => {$(
            #[tokio::test]
            async fn $name() {
                for place in places().await {
                    let started = AtomicUsize::new(0);
                    let (one, other) = tokio::join!(
                        super::$name(&place.locks, 1, &started),
                        super::$name(&place.elsewhere, 1, &started),
                    );
                    assert_eq!((one.unwrap(), other.unwrap()), (1, 1));
                    if let Some(server) = &place.server {
                        // Lost under the body: it is dropped, and the caller is told.
                        let call = super::$name(&place.locks, 2, &started);
                        let lose = async {
                            eventually("the body runs", PATIENCE, async || started.load(Ordering::SeqCst) == 3).await;
                            tokio::time::sleep(Duration::from_millis(30)).await;
                            server.flush().await;
                        };
                        let (lost, ()) = tokio::join!(call, lose);
                        assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
                    }
                    for locks in [&place.locks, &place.elsewhere] {
                        locks.shutdown(PATIENCE).await.unwrap();
                    }
                    if let Some(server) = &place.server {
                        let held = async || server.keys("lock:*").await.is_empty();
                        eventually("nothing is left but fences", PATIENCE, held).await;
                    }
                }
            }
        )*};
    }

    mod calls {
        use super::*;

        in_each_way!(plainly, together, as_reader, counted, for_a_while, after_success, with_a_fence);
    }

    #[redis_lock(key = "order:<id>", ttl = "10s", manager = locks)]
    async fn outer(locks: &LockManager, id: u64) -> Result<(), LockError> {
        inner(locks, id).await
    }

    #[redis_lock(key = "order:<id>", ttl = "5s", hold_after_ok = "20s", manager = locks)]
    async fn inner(locks: &LockManager, id: u64) -> Result<(), LockError> {
        Ok(())
    }

    /// A callee's hold passes to the lease that it joined.
    #[tokio::test]
    async fn a_joined_calls_hold_passes_to_its_caller() {
        let [place, _] = places().await;
        outer(&place.locks, 1).await.unwrap();
        let left = place.server.as_ref().unwrap().pttl("lock:order:1").await;
        assert!((15_000..=20_000).contains(&left), "{left}");
    }
}

/// What a review of the ways of holding found.
mod found {
    use super::*;

    async fn behind_a_proxy() -> (RedisServer, Proxy, LockManager, LockManager) {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let locks = LockManager::connect(&proxy.url()).await.unwrap();
        let elsewhere = LockManager::connect(&server.url()).await.unwrap();
        (server, proxy, locks, elsewhere)
    }

    /// The clean-up after an acquisition that was sent twice leaves the hold alone.
    #[tokio::test]
    async fn a_resent_acquisition_keeps_its_hold() {
        let (server, proxy, locks, elsewhere) = behind_a_proxy().await;
        proxy.next("SET", Fault::CutReply);
        let guard =
            locks.lock("job").ttl(TTL).hold_at_least(Duration::from_secs(20)).acquire().await.unwrap();
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            busy(take(&elsewhere, "job").await);
        }
        let left = server.pttl("lock:job").await;
        assert!((15_000..=20_000).contains(&left), "{left}");
    }

    #[tokio::test]
    async fn readers_ask_side_by_side_and_nobody_is_busy_without_a_writer() {
        let (_server, proxy, locks, _) = behind_a_proxy().await;
        proxy.requests(tests::proxy::Flow::Delay(Duration::from_millis(20)));
        let readers: Vec<_> = (0..100)
            .map(|_| {
                let locks = locks.clone();
                tokio::spawn(async move { shared(&locks, "doc").await })
            })
            .collect();
        let mut held = Vec::new();
        for reader in readers {
            held.push(reader.await.unwrap().expect("no writer anywhere"));
        }
    }

    #[tokio::test]
    async fn a_key_nobody_holds_is_not_busy_because_another_of_several_is() {
        let (server, proxy, locks, _) = behind_a_proxy().await;
        server.set_px("lock:b", "someone else", 60_000).await;
        proxy.next("EVALSHA", Fault::DelayReply(Duration::from_millis(50)));
        let (several, one) = tokio::join!(all(&locks, &["a", "b"]), take(&locks, "a"));
        assert_eq!(busy(several).key(), Some("lock:b"));
        drop(one.expect("nobody ever held it"));
    }

    /// An extension that was on its way when the body ended must not stretch the hold to a whole ttl.
    #[tokio::test]
    async fn a_late_renewal_does_not_stretch_a_hold() {
        let (server, proxy, locks, _) = behind_a_proxy().await;
        let request = locks.lock("job").ttl(Duration::from_secs(3)).renew();
        let guard = request.hold_at_least(Duration::from_millis(2_500)).acquire().await.unwrap();
        let began = Instant::now();
        drop(proxy.take_commands());
        proxy.next("EVALSHA", Fault::DelayRequest(Duration::from_millis(150)));
        proxy.wait_for("EVALSHA").await;
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
        eventually("the key is free", PATIENCE, async || !server.exists("lock:job").await).await;
        assert!(began.elapsed() < Duration::from_millis(2_900), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_sorted_set_of_someone_elses_is_left_alone() {
        let [place, _] = places().await;
        let server = place.server.as_ref().unwrap();
        let _: i64 = server.call(&["ZADD", "lock:board", "10", "alice", "20", "bob"]).await;
        busy(shared(&place.locks, "board").await);
        busy(permit(&place.locks, "board", 9).await);
        let count: i64 = server.call(&["ZCARD", "lock:board"]).await;
        assert_eq!((count, server.pttl("lock:board").await), (2, -1));
    }

    /// A script that fails half way leaves nothing.
    #[tokio::test]
    async fn an_account_that_may_not_finish_a_script_leaves_nothing() {
        let server = RedisServer::start().await;
        for missing in ["-time", "-pexpireat"] {
            let user = ["ACL", "SETUSER", missing, "on", ">pw", "~*", "+@all", missing];
            let _: String = server.call(&user).await;
            let locks = LockManager::connect(&server.url_with(missing, "pw")).await.unwrap();
            let attempt = match missing {
                "-time" => locks.lock("x").ttl(TTL).fenced().acquire().await,
                _ => shared(&locks, "x").await,
            };
            assert!(attempt.unwrap_err().is_unavailable());
            eventually("nothing is left", PATIENCE, async || server.keys("lock:*").await.is_empty()).await;
        }
    }

    /// A counter of another type, and one that was lost under a holder whose acquisition is sent again.
    #[tokio::test]
    async fn a_broken_fence_takes_no_lock_and_a_lost_one_is_drawn_anew() {
        let (server, proxy, locks, _) = behind_a_proxy().await;
        let _: i64 = server.call(&["RPUSH", "fence:{lock:x}", "a list"]).await;
        let fenced = async || locks.lock("x").ttl(TTL).fenced().acquire().await;
        assert!(fenced().await.unwrap_err().is_unavailable());
        eventually("nothing is left", PATIENCE, async || !server.exists("lock:x").await).await;
        server.del("fence:{lock:x}").await;
        proxy.next("EVALSHA", Fault::CutReply);
        let guard = fenced().await.unwrap();
        assert!(guard.fence() > 0);
    }

    /// A reader without a wait is answered at once while another waits for a writer elsewhere.
    #[tokio::test]
    async fn a_reader_without_wait_is_answered_at_once() {
        let (server, _proxy, locks, _) = behind_a_proxy().await;
        server.set_px("lock:doc", "a writer", 60_000).await;
        let waiter = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("doc").ttl(TTL).shared().wait(PATIENCE).acquire().await }
        });
        for _ in 0..20 {
            let asked = Instant::now();
            busy(shared(&locks, "doc").await);
            assert!(asked.elapsed() < Duration::from_millis(300), "{:?}", asked.elapsed());
        }
        server.del("lock:doc").await;
        drop(waiter.await.unwrap().unwrap());
    }
}
