//! Who waits, in what order, what wakes them, and what it costs the server.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager, ReleaseOutcome, redis};
use tests::proxy::{Fault, Proxy};
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(30);
/// What a busy machine may add to a wake-up.
const SLACK: Duration = Duration::from_millis(150);

type Taking = JoinHandle<Result<(LockGuard, Instant), LockError>>;

/// Begins to wait for `order:1`; the answer comes with its time.
fn waiting(locks: &LockManager, wait: Duration) -> Taking {
    let locks = locks.clone();
    tokio::spawn(async move {
        let guard = locks.lock("order:1").ttl(TTL).wait(wait).acquire().await?;
        Ok((guard, Instant::now()))
    })
}

async fn take(locks: &LockManager) -> Result<LockGuard, LockError> {
    locks.lock("order:1").ttl(TTL).acquire().await
}

/// A server with a proxy before it, a manager behind that, and the key held by someone in another process.
async fn held_elsewhere(px: u64) -> (RedisServer, Proxy, LockManager) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    server.set_px("lock:order:1", "someone else", px).await;
    (server, proxy, locks)
}

/// Waits until the head sleeps: it has asked with the script that makes the server tell of changes.
async fn asleep(proxy: &Proxy) {
    proxy.wait_for_where(|command| command.is("EVALSHA") || command.is("EVAL")).await;
    // Its answer has passed the proxy when a later command's has.
    tokio::time::sleep(Duration::from_millis(20)).await;
}

mod woken_by {
    use super::*;

    /// The time from `free` to the grant.
    async fn wake_up(free: impl AsyncFnOnce(&RedisServer, &Proxy)) -> Duration {
        let (server, proxy, locks) = held_elsewhere(60_000).await;
        let waiter = waiting(&locks, Duration::from_secs(20));
        asleep(&proxy).await;
        let freed = Instant::now();
        free(&server, &proxy).await;
        let (guard, granted) = waiter.await.unwrap().expect("the key was freed");
        assert_eq!(server.get("lock:order:1").await.as_deref(), Some(guard.token()));
        assert!(guard.remaining() > Duration::from_secs(29), "the lease counts from the attempt that won");
        granted - freed
    }

    #[tokio::test]
    async fn a_delete_by_anyone() {
        let took = wake_up(async |server, _| assert!(server.del("lock:order:1").await)).await;
        assert!(took < SLACK, "{took:?}");
    }

    #[tokio::test]
    async fn a_release_of_another_manager() {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let locks = LockManager::connect(&proxy.url()).await.unwrap();
        let elsewhere = LockManager::connect(&server.url()).await.unwrap();
        let guard = take(&elsewhere).await.unwrap();
        let waiter = waiting(&locks, Duration::from_secs(20));
        asleep(&proxy).await;
        let freed = Instant::now();
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
        let (_guard, granted) = waiter.await.unwrap().unwrap();
        assert!(granted - freed < SLACK, "{:?}", granted - freed);
    }

    #[tokio::test]
    async fn flushall() {
        let took = wake_up(async |server, _| server.flush().await).await;
        assert!(took < SLACK, "{took:?}");
    }

    #[tokio::test]
    async fn a_cut_connection() {
        // The news would have gone to the connection that is cut; the waiter looks by itself, over a new one.
        let took = wake_up(async |server, proxy| {
            proxy.replies(tests::proxy::Flow::Swallow);
            server.del("lock:order:1").await;
            proxy.cut();
            proxy.pass();
        })
        .await;
        assert!(took < SLACK, "{took:?}");
    }

    /// The server tells of an expiry late, if at all in time: what counts is the PTTL that it told.
    #[tokio::test]
    async fn an_expiry() {
        let (server, _proxy, locks) = held_elsewhere(400).await;
        let expires =
            Instant::now() + Duration::from_millis(u64::try_from(server.pttl("lock:order:1").await).unwrap());
        let (_guard, granted) = waiting(&locks, Duration::from_secs(20)).await.unwrap().unwrap();
        let late = granted.saturating_duration_since(expires);
        assert!(late < Duration::from_millis(20) + SLACK / 3, "{late:?} after the expiry");
    }

    #[tokio::test]
    async fn every_release_of_many_in_turn() {
        let (server, proxy, locks) = held_elsewhere(60_000).await;
        let waiters: Vec<_> = (0..5).map(|_| waiting(&locks, Duration::from_secs(20))).collect();
        asleep(&proxy).await;
        server.del("lock:order:1").await;
        for waiter in waiters {
            drop(waiter.await.unwrap().unwrap());
        }
        eventually("the last one releases", PATIENCE, async || !server.exists("lock:order:1").await).await;
    }
}

mod without_pushes {
    use super::*;

    async fn polls(server: &RedisServer, locks: &LockManager) {
        server.set_px("lock:order:1", "someone else", 60_000).await;
        let waiter = waiting(locks, Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let freed = Instant::now();
        server.del("lock:order:1").await;
        let (_guard, granted) = waiter.await.unwrap().unwrap();
        assert!(granted - freed < Duration::from_millis(250) + SLACK, "{:?}", granted - freed);

        // Never past the deadline, and never a sleep after the last try.
        server.set_px("lock:order:1", "someone else", 60_000).await;
        let locks = locks.clone();
        let asked = Instant::now();
        let error = locks.lock("order:1").ttl(TTL).wait(Duration::from_millis(400)).acquire().await;
        assert!(error.is_err() || asked.elapsed() < SLACK);
    }

    #[tokio::test]
    async fn an_account_that_may_not_use_client_polls() {
        let server = RedisServer::start().await;
        let _: String = server.call(&["ACL", "SETUSER", "svc", "on", ">pw", "~*", "+@all", "-client"]).await;
        let locks = LockManager::connect(&server.url_with("svc", "pw")).await.unwrap();
        polls(&server, &locks).await;
    }

    #[tokio::test]
    async fn a_connection_of_the_application_polls() {
        let server = RedisServer::start().await;
        let client = redis::Client::open(server.url()).unwrap();
        let locks =
            LockManager::builder().connection(client.get_multiplexed_async_connection().await.unwrap());
        polls(&server, &locks).await;
    }

    #[tokio::test]
    async fn a_proxy_without_resp3_polls() {
        let server = RedisServer::start().await;
        for refusal in ["ERR unknown command 'HELLO'", "NOPROTO unsupported protocol version"] {
            let proxy = Proxy::start(server.port());
            proxy.every("HELLO", Fault::error(refusal));
            let locks = LockManager::connect(&proxy.url()).await.unwrap();
            polls(&server, &locks).await;
            server.flush().await;
        }
    }
}

mod the_wait {
    use super::*;

    #[tokio::test]
    async fn is_honoured_and_its_length_told() {
        let (_server, _proxy, locks) = held_elsewhere(60_000).await;
        for ms in [1, 50, 300] {
            let wait = Duration::from_millis(ms);
            let asked = Instant::now();
            let error = waiting(&locks, wait).await.unwrap().unwrap_err();
            let took = asked.elapsed();
            assert!(took >= wait && took < wait + SLACK, "{took:?} instead of {wait:?}");
            let LockError::Busy { waited, .. } = error else { panic!("{error}") };
            assert!(waited >= wait && waited <= took, "{waited:?}");
        }
    }

    #[tokio::test]
    async fn is_independent_of_the_ttl() {
        let (server, _proxy, locks) = held_elsewhere(1_500).await;
        let guard = locks
            .lock("order:1")
            .ttl(Duration::from_secs(1))
            .wait(Duration::from_secs(5))
            .acquire()
            .await
            .expect("a wait longer than the ttl");
        assert!(guard.remaining() > Duration::from_millis(700), "{:?}", guard.remaining());
        assert!(server.pttl("lock:order:1").await > 700);
    }

    #[tokio::test(start_paused = true)]
    async fn is_honoured_in_memory_too() {
        let locks = LockManager::in_memory();
        let held = take(&locks).await.unwrap();
        let asked = tokio::time::Instant::now();
        assert!(waiting(&locks, Duration::from_secs(5)).await.unwrap().unwrap_err().is_busy());
        assert!((5_000..5_010).contains(&asked.elapsed().as_millis()), "{:?}", asked.elapsed());
        let waiter = waiting(&locks, Duration::from_secs(60));
        tokio::task::yield_now().await;
        drop(held);
        let asked = tokio::time::Instant::now();
        drop(waiter.await.unwrap().unwrap());
        assert!(asked.elapsed() < Duration::from_millis(5), "{:?}", asked.elapsed());
    }
}

mod the_gate {
    use super::*;

    /// Sixteen begin to wait one after the other, and are served so.
    async fn in_order(locks: &LockManager) {
        let held = take(locks).await.unwrap();
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for n in 0..16 {
            let (locks, served) = (locks.clone(), Arc::clone(&served));
            waiters.push(tokio::spawn(async move {
                let guard =
                    locks.lock("order:1").ttl(TTL).wait(Duration::from_secs(20)).acquire().await.unwrap();
                served.lock().unwrap().push(n);
                guard.release().await;
            }));
            // On a current-thread runtime this lets it take its place in the queue.
            tokio::task::yield_now().await;
        }
        held.release().await;
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert_eq!(*served.lock().unwrap(), (0..16).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn serves_in_order_of_arrival() {
        let server = RedisServer::start().await;
        in_order(&LockManager::connect(&server.url()).await.unwrap()).await;
        in_order(&LockManager::in_memory()).await;
    }

    #[tokio::test]
    async fn a_thousand_waiters_cost_the_server_what_one_costs() {
        let (server, proxy, locks) = held_elsewhere(60_000).await;
        drop(proxy.take_commands());
        let waiters: Vec<_> = (0..1_000).map(|_| waiting(&locks, Duration::from_secs(60))).collect();
        asleep(&proxy).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let sent = proxy.take_commands();
        assert!(sent.len() <= 4, "{:#?}", sent.iter().map(ToString::to_string).collect::<Vec<_>>());

        server.del("lock:order:1").await;
        for waiter in waiters {
            waiter.await.unwrap().expect("each has its turn").0.release().await;
        }
        let sent = proxy.take_commands().len();
        assert!(sent <= 2_200, "{sent} commands for a thousand holds");
    }

    #[tokio::test]
    async fn a_call_without_wait_is_busy_at_once_and_asks_nothing() {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let locks = LockManager::connect(&proxy.url()).await.unwrap();
        let held = take(&locks).await.unwrap();
        drop(proxy.take_commands());
        for _ in 0..100 {
            assert!(take(&locks).await.unwrap_err().is_busy());
        }
        assert_eq!(proxy.take_commands().len(), 0, "the holder is in this very process");
        drop(held);
        take(&locks).await.expect("free again, and not busy while the release is under way").release().await;

        // Behind a queue, too: the head knows.
        server.set_px("lock:order:1", "someone else", 60_000).await;
        let waiter = waiting(&locks, Duration::from_secs(20));
        asleep(&proxy).await;
        drop(proxy.take_commands());
        let asked = Instant::now();
        assert!(take(&locks).await.unwrap_err().is_busy());
        assert!(asked.elapsed() < SLACK);
        assert_eq!(proxy.take_commands().len(), 0);
        waiter.abort();
    }

    #[tokio::test]
    async fn a_waiter_that_leaves_disturbs_nobody() {
        let (server, proxy, locks) = held_elsewhere(60_000).await;
        let mut waiters: Vec<_> = (0..6).map(|_| waiting(&locks, Duration::from_secs(20))).collect();
        asleep(&proxy).await;
        // The head, one in the middle, and the last.
        for gone in [5, 2, 0] {
            let waiter = waiters.remove(gone);
            waiter.abort();
            assert!(waiter.await.unwrap_err().is_cancelled());
        }
        asleep(&proxy).await;
        let freed = Instant::now();
        server.del("lock:order:1").await;
        for waiter in waiters {
            waiter.await.unwrap().expect("still in the queue").0.release().await;
        }
        assert!(freed.elapsed() < SLACK * 2, "{:?}", freed.elapsed());
    }

    /// A holder that neither ends nor renews: its lease is over in the store, so the gate must not keep others out.
    #[tokio::test]
    async fn a_local_holder_past_its_deadline_opens_it() {
        let server = RedisServer::start().await;
        for locks in [LockManager::connect(&server.url()).await.unwrap(), LockManager::in_memory()] {
            let stuck = locks.lock("order:1").ttl(Duration::from_millis(200)).acquire().await.unwrap();
            let asked = Instant::now();
            let waiter = waiting(&locks, Duration::from_secs(20));
            let (guard, _) = waiter.await.unwrap().unwrap();
            assert!((150..600).contains(&asked.elapsed().as_millis()), "{:?}", asked.elapsed());
            // The old holder's end does not open the new one's gate.
            assert_eq!(stuck.release().await, ReleaseOutcome::NotHeld);
            assert!(take(&locks).await.unwrap_err().is_busy());
            assert_eq!(guard.release().await, ReleaseOutcome::Released);

            let stuck = locks.lock("order:1").ttl(Duration::from_millis(50)).acquire().await.unwrap();
            tokio::time::sleep(Duration::from_millis(60)).await;
            take(&locks).await.expect("without wait, too").release().await;
            drop(stuck);
        }
    }

    #[tokio::test]
    async fn when_the_head_meets_unavailable_all_in_the_queue_are_answered_so() {
        let (server, proxy, locks) = held_elsewhere(60_000).await;
        let waiters: Vec<_> = (0..50).map(|_| waiting(&locks, Duration::from_secs(60))).collect();
        asleep(&proxy).await;
        proxy.black_hole();
        // Wakes the head: its connection is gone for all it can tell.
        server.pause();
        proxy.cut();
        let cut = Instant::now();
        for waiter in waiters {
            let error = waiter.await.unwrap().unwrap_err();
            assert!(error.is_unavailable(), "{error}");
        }
        // Not fifty response timeouts one after the other.
        assert!(cut.elapsed() < Duration::from_millis(1_500), "{:?}", cut.elapsed());
        server.resume();
    }

    #[tokio::test]
    async fn two_calls_without_wait_at_the_same_time_are_decided_by_the_store() {
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let (one, other) = tokio::join!(take(&locks), take(&locks));
        assert!(one.is_ok() != other.is_ok());
        drop((one, other));
        server.kill().await;
        let (one, other) = tokio::join!(take(&locks), take(&locks));
        for error in [one.unwrap_err(), other.unwrap_err()] {
            assert!(error.is_unavailable(), "behind a head that gets no answer nobody is Busy: {error}");
        }
    }
}

mod the_price {
    use super::*;

    /// Ten seconds behind someone who does not renew.
    #[tokio::test]
    async fn of_ten_seconds_is_at_most_six_commands() {
        let (server, proxy, locks) = held_elsewhere(60_000).await;
        drop(proxy.take_commands());
        let waiter = waiting(&locks, Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(10_200)).await;
        server.del("lock:order:1").await;
        waiter.await.unwrap().unwrap().0.release().await;
        let sent = proxy.take_commands();
        assert!(sent.len() <= 6, "{:#?}", sent.iter().map(ToString::to_string).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn of_a_renewal_by_the_holder_is_at_most_two() {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let locks = LockManager::connect(&proxy.url()).await.unwrap();
        let elsewhere = LockManager::connect(&server.url()).await.unwrap();
        let holder =
            elsewhere.lock("order:1").ttl(Duration::from_millis(900)).renew().acquire().await.unwrap();
        let waiter = waiting(&locks, Duration::from_secs(30));
        asleep(&proxy).await;
        drop(proxy.take_commands());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let sent = proxy.take_commands();
        assert!(sent.len() <= 2 * 11, "{} commands over about ten renewals", sent.len());
        assert!(!holder.is_lost());
        holder.release().await;
        drop(waiter.await.unwrap().unwrap());
    }
}
