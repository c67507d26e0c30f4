//! Renewal: leases last as long as their bodies, not longer, and cost what they must.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager, ReleaseOutcome, redis_lock};
use tests::events::{self, Recorder};
use tests::proxy::{Command, Fault, Flow, Proxy};
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};
use tracing::Level;

async fn renewed(locks: &LockManager, key: &str, ttl_ms: u64) -> LockGuard {
    locks.lock(key).ttl(Duration::from_millis(ttl_ms)).renew().acquire().await.expect("the lock is free")
}

fn is_script(command: &Command) -> bool {
    command.is("EVALSHA") || command.is("EVAL")
}

async fn behind_a_proxy() -> (RedisServer, Proxy, LockManager) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    (server, proxy, locks)
}

#[tokio::test]
async fn a_renewed_lease_outlives_its_ttl_and_is_renewed_every_third_of_it() {
    let (server, proxy, locks) = behind_a_proxy().await;
    let guard = renewed(&locks, "order:1", 300).await;
    drop(proxy.take_commands());
    tokio::time::sleep(Duration::from_millis(1_250)).await;
    assert_eq!(server.get("lock:order:1").await.as_deref(), Some(guard.token()));
    assert!(!guard.is_lost());
    let renewals = proxy.take_commands().into_iter().filter(is_script).count();
    assert!((8..=13).contains(&renewals), "{renewals} renewals in 1,250 ms at one each 100 ms");
    assert_eq!(guard.release().await, ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_body_shorter_than_a_third_of_its_ttl_sends_nothing_more() {
    let (_server, proxy, locks) = behind_a_proxy().await;
    drop(proxy.take_commands());
    for _ in 0..20 {
        let guard = renewed(&locks, "order:1", 30_000).await;
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
    }
    assert_eq!(proxy.take_commands().len(), 40, "a SET and an EVALSHA each");
}

#[redis_lock(key = "order:<id>", ttl = "300ms", renew, manager = locks, guard = lock)]
async fn block(locks: &LockManager, id: u64) -> Result<bool, LockError> {
    // What a body should not do, and does: nothing of tokio runs on this thread.
    std::thread::sleep(Duration::from_millis(600));
    Ok(lock.is_lost())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_goes_on_while_the_body_blocks_its_thread() {
    let server = RedisServer::start().await;
    for locks in [LockManager::connect(&server.url()).await.unwrap(), LockManager::in_memory()] {
        for id in 0..3 {
            let lost = tokio::spawn({
                let locks = locks.clone();
                async move { block(&locks, id).await.unwrap() }
            });
            assert!(!lost.await.unwrap(), "held for twice its ttl on a blocked thread");
        }
    }
}

#[tokio::test]
async fn and_on_a_current_thread_runtime() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    assert!(!block(&locks, 1).await.unwrap());
    assert!(!server.exists("lock:order:1").await);
}

#[tokio::test(start_paused = true)]
async fn in_memory_a_renewed_lease_lasts_and_ends_in_paused_time() {
    events::keep_awake();
    let locks = LockManager::in_memory();
    let guard = renewed(&locks, "order:1", 30_000).await;
    tokio::time::advance(Duration::from_secs(3_600)).await;
    assert!(!guard.is_lost() && guard.remaining() > Duration::from_secs(19));
    assert!(locks.lock("order:1").ttl(Duration::from_secs(1)).acquire().await.unwrap_err().is_busy());
    assert_eq!(guard.release().await, ReleaseOutcome::Released);
}

mod an_error_is_retried {
    use super::*;

    /// The lease survives what happens to its renewals for a while.
    async fn survives(ttl_ms: u64, fault: impl AsyncFnOnce(&RedisServer, &Proxy)) {
        let (server, proxy, locks) = behind_a_proxy().await;
        let guard = renewed(&locks, "order:1", ttl_ms).await;
        fault(&server, &proxy).await;
        tokio::time::sleep(Duration::from_millis(ttl_ms)).await;
        assert!(!guard.is_lost());
        assert_eq!(server.get("lock:order:1").await.as_deref(), Some(guard.token()));
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
    }

    #[tokio::test]
    async fn a_cut_connection() {
        survives(600, async |_, proxy| {
            for _ in 0..3 {
                proxy.wait_for_where(is_script).await;
                proxy.cut();
                drop(proxy.take_commands());
            }
        })
        .await;
    }

    #[tokio::test]
    async fn error_replies() {
        survives(900, async |_, proxy| {
            for refusal in
                ["LOADING Redis is loading", "BUSY Redis is busy running a script", "READONLY no", "OOM no"]
            {
                proxy.next_where(is_script, Fault::error(refusal));
                proxy.wait_for_where(is_script).await;
                drop(proxy.take_commands());
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_reply_that_is_swallowed() {
        survives(1_500, async |_, proxy| {
            proxy.next_where(is_script, Fault::SwallowReply);
            proxy.wait_for_where(is_script).await;
        })
        .await;
    }

    #[tokio::test]
    async fn a_script_that_was_forgotten() {
        survives(600, async |server, proxy| {
            for _ in 0..3 {
                server.script_flush().await;
                proxy.wait_for_where(is_script).await;
                drop(proxy.take_commands());
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_server_that_hangs_for_a_while() {
        survives(1_500, async |server, _| {
            server.pause();
            tokio::time::sleep(Duration::from_millis(800)).await;
            server.resume();
        })
        .await;
    }

    /// Until the local deadline, and no longer: then it is a loss, and is told.
    #[tokio::test]
    async fn but_not_for_ever() {
        let (_server, proxy, locks) = behind_a_proxy().await;
        let events = events::global();
        let guard = renewed(&locks, "order:never-answered", 600).await;
        let began = Instant::now();
        proxy.every_where(is_script, Fault::error("LOADING Redis is loading"));
        guard.lost().await;
        assert!((400..900).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
        let lost = events
            .for_key("order:never-answered")
            .wait_for(|event| event.field("outcome") == "not_renewed")
            .await;
        assert_eq!(lost.level, Level::WARN);
        proxy.pass();
    }
}

/// What it finds gone it never makes again.
#[tokio::test]
async fn a_renewal_that_finds_nothing_is_a_loss_and_creates_nothing() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let events = events::global();
    for foreign in [None, Some("someone else")] {
        let guard = renewed(&locks, "order:gone", 300).await;
        server.del("lock:order:gone").await;
        if let Some(foreign) = foreign {
            server.set_px("lock:order:gone", foreign, 60_000).await;
        }
        let mine = guard.token().to_owned();
        let told = events
            .for_key("order:gone")
            .wait_for(|event| event.field("outcome") == "gone" && event.field("token") == mine)
            .await;
        assert_eq!(told.level, Level::WARN);
        assert!(guard.is_lost());
        assert_eq!(server.get("lock:order:gone").await.as_deref(), foreign);
        assert_eq!(guard.release().await, ReleaseOutcome::NotHeld);
        assert_eq!(server.get("lock:order:gone").await.as_deref(), foreign);
        server.flush().await;
    }
}

#[tokio::test]
async fn ten_thousand_taken_and_dropped_leave_no_key_and_no_renewal() {
    let (server, proxy, locks) = behind_a_proxy().await;
    let mut guards = Vec::new();
    for n in 0..10_000 {
        guards.push(renewed(&locks, &format!("order:{n}"), 60_000).await);
    }
    drop(guards);
    eventually("every key is gone", PATIENCE, async || server.keys("*").await.is_empty()).await;
    drop(proxy.take_commands());
    // The same with renewals under way when the bodies end.
    for n in 0..60 {
        guards = vec![renewed(&locks, &format!("order:{n}"), 600).await];
        if n % 6 == 0 {
            tokio::time::sleep(Duration::from_millis(205)).await;
        }
        drop(guards);
    }
    eventually("every key is gone", PATIENCE, async || server.keys("*").await.is_empty()).await;
    drop(proxy.take_commands());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(proxy.take_commands().len(), 0, "nothing is renewed any more");
}

/// Many leases are renewed together, by one task in pipelines over one connection: none is late.
#[tokio::test]
async fn ten_thousand_live_leases_are_all_renewed() {
    let (server, proxy, locks) = behind_a_proxy().await;
    let mut guards = Vec::new();
    for n in 0..10_000 {
        guards.push(renewed(&locks, &format!("order:{n}"), 9_000).await);
    }
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(guards.iter().filter(|guard| guard.is_lost()).count(), 0);
    assert_eq!(server.keys("*").await.len(), 10_000);
    assert!(proxy.open() <= 2, "one connection of this runtime and one of the background");
    drop(guards);
    locks.shutdown(PATIENCE).await.unwrap();
    assert_eq!(server.keys("*").await, Vec::<String>::new());
}

mod max_hold {
    use super::*;

    #[redis_lock(key = "report:<id>", ttl = "300ms", renew, max_hold = "700ms", manager = locks, guard = lock)]
    async fn hang(locks: &LockManager, id: u64) -> Result<(), LockError> {
        lock.lost().await;
        Ok(())
    }

    #[tokio::test]
    async fn ends_the_renewal_of_a_body_that_hangs() {
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let events = events::global();
        let began = Instant::now();
        let hung = tokio::spawn({
            let locks = locks.clone();
            async move { hang(&locks, 1).await }
        });
        let next = locks.lock("report:1").ttl(Duration::from_secs(30)).wait(Duration::from_secs(10));
        tokio::task::yield_now().await;
        let guard = next.acquire().await.unwrap();
        assert!((690..1_500).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
        let told = events.for_key("report:1").wait_for(|event| event.field("outcome") == "max_hold").await;
        assert_eq!(told.level, Level::WARN);
        hung.await.unwrap().unwrap();
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
    }

    #[tokio::test(start_paused = true)]
    async fn in_memory_too() {
        let (events, _installed) = Recorder::install();
        let locks = LockManager::in_memory();
        let (hung, next) = tokio::join!(hang(&locks, 1), async {
            tokio::task::yield_now().await;
            let began = tokio::time::Instant::now();
            let guard = locks.lock("report:1").ttl(Duration::from_secs(30)).wait(Duration::from_secs(10));
            (guard.acquire().await.unwrap(), began.elapsed())
        });
        hung.unwrap();
        assert!((690..1_100).contains(&next.1.as_millis()), "{:?}", next.1);
        events.wait_for(|event| event.field("outcome") == "max_hold").await;
    }
}

/// A release must not be overtaken by the renewals of a slow connection.
#[tokio::test]
async fn a_renewal_under_way_when_the_body_ends_revives_nothing() {
    let (server, proxy, locks) = behind_a_proxy().await;
    let guard = renewed(&locks, "order:1", 600).await;
    proxy.next_where(is_script, Fault::HoldRequest);
    proxy.wait_for_where(is_script).await;
    assert_eq!(guard.release().await, ReleaseOutcome::Released);
    proxy.release();
    proxy.requests(Flow::Pass);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.keys("*").await, Vec::<String>::new());
    let again = renewed(&locks, "order:1", 600).await;
    assert_eq!(again.release().await, ReleaseOutcome::Released);
}
