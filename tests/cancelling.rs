//! Cancelling a call at any poll, and outcomes that nobody knows: nothing is left behind, and nobody is told Busy by
//! what this process left itself.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager, ReleaseOutcome, redis_lock};
use tests::poll::drop_after;
use tests::process::Process;
use tests::proxy::{Fault, Flow, Proxy};
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};

const TTL: Duration = Duration::from_secs(30);

async fn behind_a_proxy() -> (RedisServer, Proxy, LockManager) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    (server, proxy, locks)
}

/// The next call of this process, without wait, gets the lock.
async fn next_call_gets_it(locks: &LockManager, context: &str) {
    match locks.lock("order:1").ttl(TTL).acquire().await {
        Ok(guard) => assert_eq!(guard.release().await, ReleaseOutcome::Released, "{context}"),
        Err(error) => panic!("{context}: {error}"),
    }
}

/// A body of a few polls, in every combination of options that changes how a call is polled.
macro_rules! call {
    ($name:ident, $($option:tt)*) => {
        #[redis_lock(key = "order:<id>", ttl = "30s", manager = locks, $($option)*)]
        async fn $name(locks: &LockManager, id: u64) -> Result<(), LockError> {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        }
    };
}

call!(plain, release = wait);
call!(waits, wait = "5s");
call!(renews, renew, wait = "5s");
call!(watches, on_lost = cancel);
call!(in_background, release = background);
call!(all_of_it, release = background, renew, wait = "5s", on_lost = cancel);

macro_rules! for_each_call {
    ($locks:expr, $polls:expr, $context:expr) => {
        for_each_call!($locks, $polls, $context, plain, waits, renews, watches, in_background, all_of_it)
    };
    ($locks:expr, $polls:expr, $context:expr, $($name:ident),*) => {
        $({
            // Fewer polls than asked for are no failure: the call ended by itself.
            let _ = drop_after($name($locks, 1), $polls).await;
            next_call_gets_it($locks, &format!("{}, {} dropped after {} polls", $context, stringify!($name), $polls)).await;
        })*
    };
}

#[tokio::test]
async fn a_call_dropped_at_any_poll_leaves_nothing() {
    let (server, _proxy, redis) = behind_a_proxy().await;
    for (locks, context) in [(&redis, "redis"), (&LockManager::in_memory(), "memory")] {
        for polls in 1..=9 {
            for_each_call!(locks, polls, context);
        }
        locks.shutdown(PATIENCE).await.unwrap();
    }
    assert_eq!(server.keys("*").await, Vec::<String>::new());
}

#[tokio::test]
async fn nor_does_one_whose_replies_are_slow() {
    let (server, proxy, locks) = behind_a_proxy().await;
    proxy.replies(Flow::Delay(Duration::from_millis(15)));
    for polls in 1..=5 {
        for_each_call!(&locks, polls, "slow replies");
    }
    proxy.pass();
    proxy.requests(Flow::Delay(Duration::from_millis(15)));
    for polls in 1..=5 {
        for_each_call!(&locks, polls, "slow requests");
    }
    proxy.pass();
    locks.shutdown(PATIENCE).await.unwrap();
    assert_eq!(server.keys("*").await, Vec::<String>::new());
}

/// The reply never comes. The call is dropped while it waits for it; what it had set is found and removed.
#[tokio::test]
async fn nor_does_one_whose_reply_is_swallowed() {
    let (server, proxy, locks) = behind_a_proxy().await;
    for polls in 1..=2 {
        proxy.next("SET", Fault::SwallowReply);
        let _ = tokio::time::timeout(Duration::from_millis(50), drop_after(plain(&locks, 1), polls)).await;
        eventually("the key is cleaned up", PATIENCE, async || !server.exists("lock:order:1").await).await;
        proxy.clear_faults();
        next_call_gets_it(&locks, "after a swallowed reply").await;
    }
}

/// While a waiter is cancelled, the queue behind it goes on.
#[tokio::test]
async fn a_cancelled_head_hands_on_its_turn_and_its_orphan_is_not_held_against_the_next() {
    let (server, proxy, locks) = behind_a_proxy().await;
    for _ in 0..20 {
        proxy.next("SET", Fault::DelayReply(Duration::from_millis(20)));
        let head = tokio::spawn({
            let locks = locks.clone();
            async move { waits(&locks, 1).await }
        });
        tokio::task::yield_now().await;
        let next = tokio::spawn({
            let locks = locks.clone();
            async move { waits(&locks, 1).await }
        });
        eventually("the head's request is carried out", PATIENCE, async || {
            server.exists("lock:order:1").await
        })
        .await;
        head.abort();
        let asked = Instant::now();
        next.await.unwrap().unwrap();
        assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
    }
}

mod an_unknown_outcome {
    use super::*;

    /// The request is delayed on its way, and the client's connection ends: the clean-up asks before the request
    /// arrives, is told that there is nothing, and must not believe that this is the end.
    #[tokio::test]
    async fn is_cleaned_up_even_when_the_request_arrives_late() {
        let (server, proxy, locks) = behind_a_proxy().await;
        proxy.next("SET", Fault::DelayRequest(Duration::from_millis(900)));
        let error = locks.lock("order:1").ttl(Duration::from_secs(5)).acquire().await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        proxy.cut_clients();
        assert!(!server.exists("lock:order:1").await, "the request is still on its way");
        eventually("the request arrives", PATIENCE, async || server.exists("lock:order:1").await).await;
        let arrived = Instant::now();
        eventually("and is cleaned up", PATIENCE, async || !server.exists("lock:order:1").await).await;
        assert!(arrived.elapsed() < Duration::from_millis(1_500), "{:?}", arrived.elapsed());
    }

    #[tokio::test]
    async fn of_a_cancelled_call_too() {
        let (server, proxy, locks) = behind_a_proxy().await;
        proxy.next("SET", Fault::DelayRequest(Duration::from_millis(300)));
        let call = locks.lock("order:1").ttl(Duration::from_secs(5)).acquire();
        assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
        proxy.cut_clients();
        eventually("the request arrives", PATIENCE, async || server.exists("lock:order:1").await).await;
        eventually("and is cleaned up", PATIENCE, async || !server.exists("lock:order:1").await).await;
    }

    /// The first request strays, the second is granted: the clean-up must not touch the lock that is held, and must
    /// still find the stray when the lock was released.
    #[tokio::test]
    async fn of_a_request_that_was_sent_again_does_not_endanger_the_lock() {
        let (server, proxy, locks) = behind_a_proxy().await;
        proxy.next("SET", Fault::DelayRequest(Duration::from_millis(700)));
        let call = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("order:1").ttl(Duration::from_secs(3)).acquire().await }
        });
        proxy.wait_for("SET").await;
        proxy.cut_clients();
        let guard = call.await.unwrap().expect("sent again over a new connection");
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(40)).await;
            assert_eq!(server.get("lock:order:1").await.as_deref(), Some(guard.token()));
        }
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
        eventually("the stray arrives", PATIENCE, async || server.exists("lock:order:1").await).await;
        eventually("and is cleaned up", PATIENCE, async || !server.exists("lock:order:1").await).await;
    }
}

mod release_in_background {
    use super::*;

    /// The release is on the connection when the call returns, so the next call's request comes behind it.
    #[tokio::test]
    async fn is_sent_before_the_call_returns() {
        let (_server, proxy, locks) = behind_a_proxy().await;
        for _ in 0..50 {
            drop(proxy.take_commands());
            in_background(&locks, 1).await.unwrap();
            in_background(&locks, 1).await.unwrap();
            locks.lock("order:1").ttl(TTL).acquire().await.unwrap().release().await;
            let sent: Vec<_> = proxy.take_commands().iter().map(|c| c.words()[0].clone()).collect();
            assert_eq!(sent, ["SET", "EVALSHA", "SET", "EVALSHA", "SET", "EVALSHA"]);
        }
    }

    /// Refused while the release is unresolved: the next call awaits the outcome and tries again.
    #[tokio::test]
    async fn that_has_to_be_tried_again_is_awaited_by_the_next_call() {
        let (server, proxy, locks) = behind_a_proxy().await;
        for _ in 0..5 {
            server.script_flush().await;
            in_background(&locks, 1).await.unwrap();
            next_call_gets_it(&locks, "after NOSCRIPT").await;
        }
        proxy.next("EVALSHA", Fault::CutRequest);
        in_background(&locks, 1).await.unwrap();
        next_call_gets_it(&locks, "after a reconnect").await;
    }

    /// What is not `Send` may be returned, and the call's future is `Send` all the same, as it was un-annotated.
    #[tokio::test]
    async fn keeps_send_exact() {
        #[redis_lock(key = "order:<id>", ttl = "30s", manager = locks, release = background)]
        async fn not_send(
            locks: LockManager,
            id: u64,
        ) -> Result<std::rc::Rc<u64>, Box<dyn std::error::Error>> {
            tokio::task::yield_now().await;
            Ok(std::rc::Rc::new(id))
        }
        fn is_send<F: Future + Send>(future: F) -> F {
            future
        }
        let (_server, _proxy, locks) = behind_a_proxy().await;
        assert_eq!(*is_send(not_send(locks, 7)).await.unwrap(), 7);
    }
}

/// L1, S15: what a process leaves behind that ends in order, and one that is killed.
mod a_process {
    use super::*;

    const URL: &str = "LOCK_RUNTIME_TEST_ENDING";
    const HOW: &str = "LOCK_RUNTIME_TEST_HOW";

    #[tokio::test]
    async fn child() {
        let (Ok(url), Ok(how)) = (std::env::var(URL), std::env::var(HOW)) else { return };
        let locks = LockManager::connect(&url).await.unwrap();
        let mut guards = Vec::new();
        for n in 0..1_000 {
            guards.push(locks.lock(format!("n:{n}")).ttl(Duration::from_secs(2)).acquire().await.unwrap());
        }
        if how == "shutdown" {
            drop(guards);
            in_background(&locks, 1).await.unwrap();
            locks.shutdown(PATIENCE).await.unwrap();
            println!("down");
        } else {
            println!("holding");
            std::future::pending::<()>().await;
        }
    }

    #[tokio::test]
    async fn that_shuts_down_leaves_no_key() {
        let server = RedisServer::start().await;
        let child = Process::of_this_test("a_process::child", &[(URL, &server.url()), (HOW, "shutdown")]);
        child.wait_for_line("down").await;
        assert_eq!(server.keys("*").await, Vec::<String>::new());
        assert!(child.wait(PATIENCE).await.success());
    }

    #[tokio::test]
    async fn that_is_killed_leaves_keys_for_their_ttl_at_most() {
        let server = RedisServer::start().await;
        let child = Process::of_this_test("a_process::child", &[(URL, &server.url()), (HOW, "killed")]);
        child.wait_for_line("holding").await;
        child.kill();
        let killed = Instant::now();
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let guard = locks.lock("n:999").ttl(TTL).wait(PATIENCE).acquire().await.unwrap();
        assert!(killed.elapsed() < Duration::from_millis(2_000 + 200), "{:?}", killed.elapsed());
        drop(guard);
        eventually("all others are gone", PATIENCE, async || server.keys("lock:n:*").await.is_empty()).await;
    }
}
