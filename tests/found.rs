//! What went wrong once, each from where its user stands: how it must end instead.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lock_runtime::redis::aio::{ConnectionLike, MultiplexedConnection};
use lock_runtime::{
    KeyFault, LockError, LockManager, OptionFault, ReleaseOutcome, StoreErrorKind, redis, redis_lock,
};
use tests::events::{self, Event};
use tests::monitor::{Executed, Monitor};
use tests::proxy::{Command, Fault, Flow, Proxy};
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};

const TTL: Duration = Duration::from_secs(60);

/// The future of a call that returns another.
type Joined = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

async fn behind_a_proxy() -> (RedisServer, Proxy, LockManager) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    (server, proxy, locks)
}

async fn both() -> (RedisServer, [LockManager; 2]) {
    let server = RedisServer::start().await;
    let redis = LockManager::connect(&server.url()).await.unwrap();
    (server, [redis, LockManager::in_memory()])
}

/// Polls a future once, as a body does that then turns to something else.
fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A request of a script, by hash or by text, about this key.
fn scripted(command: &Command, key: &str) -> bool {
    (command.is("EVALSHA") || command.is("EVAL")) && command.words().iter().any(|word| word == key)
}

/// The same, carried out.
fn executed(command: &Executed, key: &str) -> bool {
    (command.is("EVALSHA") || command.is("EVAL")) && command.args.iter().any(|arg| arg == key)
}

/// A connection that answers the first words and then nothing.
mod a_silent_handshake {
    use super::*;

    #[tokio::test]
    async fn is_given_up_and_the_next_call_makes_another_connection() {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let locks = LockManager::builder().response_timeout(TTL).connect(&proxy.url()).await.unwrap();
        proxy.every("SCRIPT", Fault::SwallowRequest);
        proxy.cut();
        let asked = Instant::now();
        let error = locks.lock("order:1").ttl(TTL).acquire().await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(asked.elapsed() < PATIENCE, "the connect timeout is 1 s: {:?}", asked.elapsed());
        proxy.clear_faults();
        eventually("a new connection serves", PATIENCE, async || {
            match locks.lock("order:1").ttl(TTL).acquire().await {
                Ok(guard) => guard.release().await == ReleaseOutcome::Released,
                Err(_) => false,
            }
        })
        .await;
    }

    #[tokio::test]
    async fn of_the_background_does_not_keep_dropped_locks() {
        let (server, proxy, locks) = behind_a_proxy().await;
        let guards = [
            locks.lock("order:1").ttl(TTL).acquire().await.unwrap(),
            locks.lock("order:2").ttl(TTL).acquire().await.unwrap(),
        ];
        drop(proxy.take_commands());
        proxy.every("SCRIPT", Fault::SwallowRequest);
        drop(guards);
        proxy.wait_for("SCRIPT").await;
        proxy.clear_faults();
        eventually("the keys are released", PATIENCE, async || server.keys("lock:*").await.is_empty()).await;
    }

    /// The first renewal needs the background's connection.
    #[tokio::test]
    async fn of_the_background_does_not_lose_a_renewed_lease() {
        let (server, proxy, locks) = behind_a_proxy().await;
        proxy.every("SCRIPT", Fault::SwallowRequest);
        drop(proxy.take_commands());
        let guard = locks.lock("order:1").ttl(Duration::from_secs(6)).renew().acquire().await.unwrap();
        proxy.wait_for("SCRIPT").await;
        proxy.clear_faults();
        proxy.wait_for_where(|command| scripted(command, "lock:order:1")).await;
        eventually("it is renewed", PATIENCE, async || server.pttl("lock:order:1").await > 4_500).await;
        assert!(!guard.is_lost());
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
    }
}

/// A request that was sent twice and whose first sending arrives long after the lock was had and extended.
mod a_late_acquisition_shortens_nothing {
    use super::*;

    #[tokio::test]
    async fn of_an_extended_lease() {
        let (server, proxy, locks) = behind_a_proxy().await;
        server.set_px("lock:order:1", "someone else", 60_000).await;
        let monitor = Monitor::attach(&server);
        let waiter = tokio::spawn(
            locks.lock("order:1").ttl(Duration::from_secs(5)).wait(Duration::from_secs(20)).acquire(),
        );
        monitor.wait_for(|command| executed(command, "lock:order:1")).await;
        drop(proxy.take_commands());
        // The head is woken, and what it asks stays on its way; the connection ends meanwhile.
        proxy.next_where(|command| scripted(command, "lock:order:1"), Fault::HoldRequest);
        server.del("lock:order:1").await;
        proxy.wait_for_where(|command| scripted(command, "lock:order:1")).await;
        proxy.cut_clients();
        let guard = waiter.await.unwrap().expect("asked again over a new connection");
        guard.extend(TTL).await.unwrap();
        drop(monitor.settled().await);
        drop(monitor.take());
        proxy.release();
        monitor.wait_for(|command| executed(command, "lock:order:1")).await;
        monitor.settled().await;
        let left = server.pttl("lock:order:1").await;
        assert!(left > 40_000, "the holder believes {:?}, the key ends in {left} ms", guard.remaining());
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
    }
}

/// The head of the queue is asking when its caller goes away.
mod a_cancelled_head_fails_nobody {
    use super::*;

    #[tokio::test]
    async fn and_each_behind_it_has_its_turn() {
        let (server, proxy, locks) = behind_a_proxy().await;
        server.set_px("lock:order:1", "someone else", 60_000).await;
        let monitor = Monitor::attach(&server);
        let waiting = || tokio::spawn(locks.lock("order:1").ttl(TTL).wait(Duration::from_secs(30)).acquire());
        let head = waiting();
        monitor.wait_for(|command| executed(command, "lock:order:1")).await;
        let mut behind: Vec<_> = (0..5).map(|_| waiting()).collect();
        // For longer than the response timeout.
        tokio::time::sleep(Duration::from_millis(700)).await;
        monitor.settled().await;
        drop(proxy.take_commands());
        // A slow network, far within the response timeout.
        proxy.replies(Flow::Delay(Duration::from_millis(50)));
        server.set_px("lock:order:1", "another one", 60_000).await;
        proxy.wait_for_where(|command| scripted(command, "lock:order:1")).await;
        head.abort();
        assert!(head.await.unwrap_err().is_cancelled());
        server.del("lock:order:1").await;
        for waiter in behind.drain(..) {
            let guard = waiter.await.unwrap().expect("its wait is not over, and the server is healthy");
            assert_eq!(guard.release().await, ReleaseOutcome::Released);
        }
    }
}

/// `Duration::MAX` says "no limit", and so do the spans that a clock cannot add.
mod times_without_end {
    use super::*;

    const NEARLY: [Duration; 4] = [
        Duration::MAX,
        Duration::from_secs(u64::MAX / 2),
        Duration::from_secs(u64::MAX / 2 - 10_000_000),
        Duration::from_secs(u64::MAX / 4),
    ];

    #[tokio::test]
    async fn of_a_wait() {
        let (_server, stores) = both().await;
        for locks in &stores {
            for wait in NEARLY {
                let guard = locks.lock("order:1").ttl(TTL).wait(wait).acquire().await.unwrap();
                let mut waiter = pin!(locks.lock("order:1").ttl(TTL).wait(wait).acquire());
                assert!(poll_once(waiter.as_mut()).is_pending());
                assert_eq!(guard.release().await, ReleaseOutcome::Released);
                assert_eq!(waiter.await.unwrap().release().await, ReleaseOutcome::Released);
            }
        }
    }

    #[tokio::test]
    async fn of_max_hold_end_nobodys_renewal() {
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let ttl = Duration::from_millis(1_500);
        let plain = locks.lock("order:1").ttl(ttl).renew().acquire().await.unwrap();
        let mut held = Vec::new();
        for (n, most) in NEARLY.into_iter().enumerate() {
            held.push(locks.lock(format!("bounded:{n}")).ttl(ttl).max_hold(most).acquire().await.unwrap());
        }
        let monitor = Monitor::attach(&server);
        for key in std::iter::once(plain.key()).chain(held.iter().map(|guard| guard.key())) {
            let mut renewals = 0;
            monitor
                .wait_for(|command| {
                    renewals += usize::from(executed(command, key));
                    renewals == 2
                })
                .await;
        }
        for guard in std::iter::once(plain).chain(held) {
            assert!(!guard.is_lost(), "{}", guard.key());
            assert_eq!(guard.release().await, ReleaseOutcome::Released);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_max_hold_in_memory() {
        let locks = LockManager::in_memory();
        for most in NEARLY {
            let guard = locks.lock("order:1").ttl(TTL).max_hold(most).acquire().await.unwrap();
            tokio::time::sleep(TTL * 100).await;
            assert!(!guard.is_lost());
            assert_eq!(guard.release().await, ReleaseOutcome::Released);
        }
    }

    #[tokio::test]
    async fn of_the_managers_settings() {
        let server = RedisServer::start().await;
        for span in NEARLY {
            let builder =
                || LockManager::builder().response_timeout(span).connect_timeout(span).fence_expiry(span);
            for locks in [builder().connect(&server.url()).await.unwrap(), builder().in_memory()] {
                let guard = locks.lock("order:1").ttl(TTL).fenced().acquire().await.unwrap();
                let mut waiter = pin!(locks.lock("order:1").ttl(TTL).wait(span).acquire());
                assert!(poll_once(waiter.as_mut()).is_pending());
                assert!(guard.fence() > 0);
                assert_eq!(guard.release().await, ReleaseOutcome::Released);
                drop(waiter.await.unwrap());
                locks.shutdown(span).await.unwrap();
            }
        }
        assert!(!server.exists("lock:order:1").await);
    }

    #[tokio::test]
    async fn of_a_lease_are_refused() {
        let locks = LockManager::in_memory();
        for ttl in NEARLY {
            let error = locks.lock("order:1").ttl(ttl).acquire().await.unwrap_err();
            assert!(
                matches!(error, LockError::InvalidOption { fault: OptionFault::TtlTooLong, .. }),
                "{error}"
            );
            let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
            assert!(matches!(guard.extend(ttl).await, Err(LockError::InvalidOption { .. })));
            assert!(!guard.is_lost());
        }
    }
}

/// A body calls a function with `renew` twice; only the first call's renewal had counted.
mod a_second_joined_renewal {
    use super::*;

    const STEP: Duration = Duration::from_millis(2_500);

    #[redis_lock(key = "order:<id>", ttl = "1s", renew, manager = locks, guard = lock)]
    async fn step(locks: &LockManager, id: u64) -> Result<bool, LockError> {
        // Longer than two leases.
        tokio::time::sleep(STEP).await;
        Ok(lock.is_lost())
    }

    #[redis_lock(key = "order:<id>", ttl = "1s", manager = locks)]
    async fn two_steps(locks: &LockManager, id: u64) -> Result<[bool; 2], LockError> {
        Ok([step(locks, id).await?, step(locks, id).await?])
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn keeps_the_lease_too() {
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        assert_eq!(two_steps(&locks, 1).await.unwrap(), [false, false], "lost under `renew`");
        assert!(!server.exists("lock:order:1").await);
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_the_lease_in_memory_too() {
        let locks = LockManager::in_memory();
        assert_eq!(two_steps(&locks, 1).await.unwrap(), [false, false], "lost under `renew`");
        drop(locks.lock("order:1").ttl(TTL).acquire().await.expect("released"));
    }
}

mod shutdown_waits_for_background_releases {
    use super::*;
    use tokio::runtime::{Builder, Runtime};

    #[redis_lock(key = "job:<n>", ttl = "60s", release = background, manager = locks)]
    async fn job(locks: &LockManager, n: u32) -> Result<(), LockError> {
        tokio::task::yield_now().await;
        Ok(())
    }

    /// What a `main` does: some calls, then the shutdown, and its runtime is gone.
    fn leaves_nothing(server: &RedisServer, outside: &Runtime, main: Runtime) {
        main.block_on(async {
            let locks = LockManager::connect(&server.url()).await.unwrap();
            for n in 0..20 {
                job(&locks, n).await.unwrap();
            }
            locks.shutdown(PATIENCE).await.expect("all releases end in time");
        });
        drop(main);
        assert_eq!(outside.block_on(server.keys("*")), Vec::<String>::new());
    }

    #[test]
    fn of_a_runtime_that_is_dropped_at_once() {
        let outside = Builder::new_current_thread().enable_all().build().unwrap();
        let server = outside.block_on(RedisServer::start());
        for _ in 0..5 {
            leaves_nothing(&server, &outside, Builder::new_current_thread().enable_all().build().unwrap());
            let several = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            leaves_nothing(&server, &outside, several);
        }
    }

    #[tokio::test]
    async fn and_refuses_who_waits_in_the_queue() {
        let (server, stores) = both().await;
        for locks in &stores {
            let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
            let wait = |_| Box::pin(locks.lock("order:1").ttl(TTL).wait(TTL).acquire());
            let mut waiters: Vec<_> = (0..3).map(wait).collect();
            for waiter in &mut waiters {
                assert!(poll_once(waiter.as_mut()).is_pending());
            }
            locks.shutdown(PATIENCE).await.unwrap();
            assert_eq!(guard.release().await, ReleaseOutcome::Released, "held locks stay held");
            for waiter in waiters {
                let LockError::Unavailable { cause, .. } = waiter.await.unwrap_err() else {
                    panic!("not told of the shutdown")
                };
                assert_eq!(cause.kind(), StoreErrorKind::ShutDown, "{cause}");
            }
        }
        assert!(!server.exists("lock:order:1").await);
    }

    #[tokio::test]
    async fn and_refuses_who_waits_for_another_process() {
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        server.set_px("lock:order:1", "someone else", 60_000).await;
        let monitor = Monitor::attach(&server);
        let waiter = tokio::spawn(locks.lock("order:1").ttl(TTL).wait(TTL).acquire());
        monitor.wait_for(|command| executed(command, "lock:order:1")).await;
        locks.shutdown(PATIENCE).await.unwrap();
        server.del("lock:order:1").await;
        let LockError::Unavailable { cause, .. } = waiter.await.unwrap().unwrap_err() else {
            panic!("not told of the shutdown")
        };
        assert_eq!(cause.kind(), StoreErrorKind::ShutDown, "{cause}");
        assert!(!server.exists("lock:order:1").await);
    }
}

/// The body returns a call that has joined its lease: its own caller would wait for it for ever.
mod a_joined_call_in_the_output {
    use super::*;

    #[redis_lock(key = "order:<id>", ttl = "1s", manager = locks)]
    async fn part(locks: LockManager, id: u64) -> Result<(), LockError> {
        std::future::pending().await
    }

    fn joined(locks: &LockManager, id: u64) -> Joined {
        let mut part: Joined = Box::pin(part(locks.clone(), id));
        assert!(poll_once(part.as_mut()).is_pending());
        part
    }

    #[redis_lock(key = "order:<id>", ttl = "1s", manager = locks)]
    async fn plain(locks: &LockManager, id: u64) -> Result<Joined, LockError> {
        Ok(joined(locks, id))
    }

    #[redis_lock(key = "order:<id>", ttl = "1s", renew, manager = locks)]
    async fn renewed(locks: &LockManager, id: u64) -> Result<Joined, LockError> {
        Ok(joined(locks, id))
    }

    async fn returns_within_a_ttl(call: impl Future<Output = Result<Joined, LockError>>) -> Joined {
        let called = tokio::time::Instant::now();
        let output = tokio::time::timeout(PATIENCE, call).await.expect("the caller is not kept").unwrap();
        assert!(called.elapsed() < Duration::from_secs(3), "{:?} with a ttl of 1 s", called.elapsed());
        output
    }

    async fn is_free(locks: &LockManager) -> bool {
        match locks.lock("order:1").ttl(TTL).acquire().await {
            Ok(guard) => guard.release().await == ReleaseOutcome::Released,
            Err(error) => {
                assert!(error.is_busy(), "{error}");
                false
            }
        }
    }

    #[tokio::test]
    async fn returns_within_about_one_ttl() {
        let (_server, stores) = both().await;
        for locks in &stores {
            let output = returns_within_a_ttl(plain(locks, 1)).await;
            eventually("the lease ends", PATIENCE, async || is_free(locks).await).await;
            drop(output);
        }
    }

    #[tokio::test]
    async fn keeps_a_renewed_lock_until_it_is_dropped() {
        let (server, stores) = both().await;
        for locks in &stores {
            let output = returns_within_a_ttl(renewed(locks, 1)).await;
            assert!(!is_free(locks).await, "the joined call may go on under the lock");
            drop(output);
            eventually("the key is released", PATIENCE, async || is_free(locks).await).await;
        }
        eventually("the key is gone", PATIENCE, async || !server.exists("lock:order:1").await).await;
    }

    #[tokio::test(start_paused = true)]
    async fn returns_after_exactly_one_ttl_in_paused_time() {
        let locks = LockManager::in_memory();
        let called = tokio::time::Instant::now();
        let output = tokio::time::timeout(PATIENCE, renewed(&locks, 1)).await.expect("not for ever");
        drop(output.unwrap());
        assert!((990..1_010).contains(&called.elapsed().as_millis()), "{:?}", called.elapsed());
        assert!(is_free(&locks).await);
    }
}

/// A callee that was polled once and then left has the turn among the callees; the lease would never be over.
mod a_parked_callee_under_a_renewed_lease {
    use super::*;

    #[redis_lock(key = "order:<id>", ttl = "10ms", manager = locks)]
    async fn callee(locks: &LockManager, id: u64) -> Result<(), LockError> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(())
    }

    #[redis_lock(key = "order:<id>", ttl = "1s", renew, manager = locks)]
    async fn parks(locks: &LockManager, id: u64) -> Result<(), LockError> {
        let mut parked = Box::pin(callee(locks, id));
        assert!(poll_once(parked.as_mut()).is_pending());
        callee(locks, id).await
    }

    #[tokio::test]
    async fn the_second_is_told_within_about_one_ttl() {
        let (_server, stores) = both().await;
        for locks in &stores {
            let called = Instant::now();
            let told = tokio::time::timeout(PATIENCE, parks(locks, 1)).await.expect("not for ever");
            assert!(matches!(told, Err(LockError::Reentrant { .. })), "{told:?}");
            assert!(called.elapsed() < Duration::from_secs(3), "{:?}", called.elapsed());
            drop(locks.lock("order:1").ttl(TTL).acquire().await.expect("released"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_is_told_after_exactly_one_ttl_in_paused_time() {
        let locks = LockManager::in_memory();
        let called = tokio::time::Instant::now();
        let told = tokio::time::timeout(PATIENCE, parks(&locks, 1)).await.expect("not for ever");
        assert!(matches!(told, Err(LockError::Reentrant { .. })), "{told:?}");
        assert!((990..1_010).contains(&called.elapsed().as_millis()), "{:?}", called.elapsed());
    }
}

/// As the `ConnectionManager` of `redis` does: the next request goes over another socket than the last.
mod an_applications_connection_that_reconnects {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone)]
    struct Reconnecting(Arc<Mutex<MultiplexedConnection>>);

    impl Reconnecting {
        fn current(&self) -> MultiplexedConnection {
            self.0.lock().unwrap().clone()
        }
    }

    impl ConnectionLike for Reconnecting {
        fn req_packed_command<'a>(&'a mut self, cmd: &'a redis::Cmd) -> redis::RedisFuture<'a, redis::Value> {
            let mut current = self.current();
            Box::pin(async move { current.req_packed_command(cmd).await })
        }

        fn req_packed_commands<'a>(
            &'a mut self,
            pipeline: &'a redis::Pipeline,
            offset: usize,
            count: usize,
        ) -> redis::RedisFuture<'a, Vec<redis::Value>> {
            let mut current = self.current();
            Box::pin(async move { current.req_packed_commands(pipeline, offset, count).await })
        }

        fn get_db(&self) -> i64 {
            0
        }
    }

    #[tokio::test]
    async fn leaves_no_orphan_of_a_request_that_arrives_late() {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let client = redis::Client::open(proxy.url()).unwrap();
        let connect = async || client.get_multiplexed_async_connection().await.unwrap();
        let connection = Reconnecting(Arc::new(Mutex::new(connect().await)));
        let locks = LockManager::builder().connection(connection.clone());
        let monitor = Monitor::attach(&server);
        proxy.next("SET", Fault::HoldRequest);
        let call = tokio::spawn(locks.lock("order:1").ttl(TTL).acquire());
        proxy.wait_for("SET").await;
        let another = connect().await;
        *connection.0.lock().unwrap() = another;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        // The clean-up comes to the server before what it cleans up.
        monitor.wait_for(|command| executed(command, "lock:order:1")).await;
        proxy.release();
        monitor.wait_for(|command| command.is("SET")).await;
        eventually("what arrived late is removed", PATIENCE, async || !server.exists("lock:order:1").await)
            .await;
    }
}

/// Whoever holds knows that it does not any more; those who wait in its own process need not wait for the ttl.
mod a_known_loss_opens_the_gate {
    use super::*;

    async fn lets_the_next_one_in(learn: impl AsyncFnOnce(&lock_runtime::Lease, &RedisServer)) {
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
        let waiter = tokio::spawn(locks.lock("order:1").ttl(TTL).wait(TTL).acquire());
        tokio::task::yield_now().await;
        learn(&guard, &server).await;
        assert!(guard.is_lost());
        let next = tokio::time::timeout(PATIENCE, waiter).await.expect("not only when the ttl is over");
        let next = next.unwrap().unwrap();
        assert_eq!(server.get("lock:order:1").await.as_deref(), Some(next.token()));
        assert_eq!(guard.release().await, ReleaseOutcome::NotHeld);
        assert_eq!(next.release().await, ReleaseOutcome::Released);
    }

    #[tokio::test]
    async fn from_an_extension() {
        lets_the_next_one_in(async |lease, server| {
            server.del("lock:order:1").await;
            assert!(matches!(lease.extend(TTL).await, Err(LockError::Lost { .. })));
        })
        .await;
    }

    #[tokio::test]
    async fn from_the_servers_news() {
        lets_the_next_one_in(async |lease, server| {
            tokio::join!(lease.lost(), async { server.del("lock:order:1").await });
        })
        .await;
    }
}

/// A server that is full for a moment says `ERR`, as one that does not know the command does.
mod an_err_at_hello_does_not_turn_pushes_off {
    use super::*;

    #[tokio::test]
    async fn for_good() {
        let (server, proxy, locks) = behind_a_proxy().await;
        proxy.next("HELLO", Fault::error("ERR max number of clients reached"));
        proxy.cut();
        let error = locks.lock("order:1").ttl(TTL).acquire().await.unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("max number of clients"), "{error}");
        locks.lock("order:1").ttl(TTL).acquire().await.expect("that has passed").release().await;

        server.set_px("lock:order:1", "someone else", 60_000).await;
        let monitor = Monitor::attach(&server);
        let waiter = tokio::spawn(locks.lock("order:1").ttl(TTL).wait(TTL).acquire());
        monitor.wait_for(|command| executed(command, "lock:order:1")).await;
        let asked = monitor.settled().await;
        let tracking = |command: &Executed| command.is("CLIENT") && command.args[1] == "TRACKING";
        assert!(asked.iter().any(tracking), "{asked:?}");
        server.del("lock:order:1").await;
        waiter.await.unwrap().unwrap().release().await;
    }
}

mod a_very_short_renewed_ttl {
    use super::*;

    /// Three renewals in each ttl are what it takes; a busy machine may make them fewer.
    #[tokio::test]
    async fn costs_a_bounded_number_of_commands() {
        let (_server, proxy, locks) = behind_a_proxy().await;
        for ttl in [10, 15, 30] {
            let mut guard = None;
            // On a busy machine a grant may arrive after its lease has ended.
            eventually("it is granted in time", PATIENCE, async || {
                let ttl = Duration::from_millis(ttl);
                guard = locks.lock("order:1").ttl(ttl).renew().acquire().await.ok();
                guard.is_some()
            })
            .await;
            drop(proxy.take_commands());
            let began = Instant::now();
            tokio::time::sleep(Duration::from_millis(500)).await;
            let held = began.elapsed();
            let sent = proxy.take_commands().iter().filter(|c| scripted(c, "lock:order:1")).count();
            let leases = usize::try_from(held.as_millis()).unwrap() / usize::try_from(ttl).unwrap();
            assert!(sent <= leases * 4 + 10, "{sent} renewals in {held:?} of a ttl of {ttl} ms");
            drop(guard);
        }
    }
}

/// All renewals of a manager share a connection: whose has the most time must not wait it out for the others.
mod a_renewal_behind_a_silent_one {
    use super::*;

    #[tokio::test]
    async fn is_not_lost() {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let locks = LockManager::builder().response_timeout(TTL).connect(&proxy.url()).await.unwrap();
        let long = locks.lock("long").ttl(Duration::from_secs(9)).renew().acquire().await.unwrap();
        let short = locks.lock("short").ttl(Duration::from_secs(2)).renew().acquire().await.unwrap();
        // From its first renewal on, nothing comes back on the connections that are there.
        proxy.next_where(|command| scripted(command, "lock:long"), Fault::SwallowReply);
        let silent = proxy.wait_for_where(|command| scripted(command, "lock:long")).await.connection;
        proxy.black_hole_existing();
        proxy.wait_for_where(|command| command.connection > silent && scripted(command, "lock:short")).await;
        eventually("it is renewed", PATIENCE, async || short.remaining() > Duration::from_millis(1_400))
            .await;
        proxy.wait_for_where(|command| command.connection > silent && scripted(command, "lock:long")).await;
        assert!(!long.is_lost());
    }
}

mod a_loss_is_reported_once {
    use super::*;

    fn losses(told: &[Event]) -> Vec<&str> {
        let lost = told.iter().filter(|event| event.message.starts_with("lock was lost"));
        lost.inspect(|event| assert_eq!(event.level, tracing::Level::WARN))
            .map(|event| event.field("outcome"))
            .collect()
    }

    /// By whoever meets it first: the one who waits for it, or the renewal.
    #[tokio::test]
    async fn of_a_renewed_lease() {
        let events = events::global();
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let ttl = Duration::from_millis(900);
        let guard = locks.lock("once:renewed").ttl(ttl).renew().acquire().await.unwrap();
        tokio::join!(guard.lost(), async { server.del("lock:once:renewed").await });
        // Due later, by the same task.
        let monitor = Monitor::attach(&server);
        let later = locks.lock("once:later").ttl(ttl).renew().acquire().await.unwrap();
        monitor.wait_for(|command| executed(command, "lock:once:later")).await;
        assert_eq!(guard.release().await, ReleaseOutcome::NotHeld);
        later.release().await;
        assert_eq!(losses(&events.for_key("once:renewed").events()), ["gone"]);
    }

    #[redis_lock(key = "once:<what>", ttl = "500ms", on_lost = cancel, manager = locks)]
    async fn cancelled(locks: &LockManager, what: &str) -> Result<(), LockError> {
        std::future::pending().await
    }

    #[tokio::test]
    async fn of_a_body_that_is_cancelled_at_its_deadline() {
        let events = events::global();
        let (_server, stores) = both().await;
        for (locks, what) in stores.iter().zip(["on-a-server", "in-memory"]) {
            let told = cancelled(locks, what).await;
            assert!(matches!(told, Err(LockError::Lost { .. })), "{told:?}");
            locks.shutdown(PATIENCE).await.unwrap();
            assert_eq!(losses(&events.for_key(&format!("once:{what}")).events()), ["deadline"], "{what}");
        }
    }
}

/// All of them find that it is being found out whether the key is free.
mod a_burst_without_wait {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};

    /// What this thread has worked: other processes of a busy machine do not count.
    fn worked() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
    }

    #[tokio::test]
    async fn is_answered_in_time_that_grows_with_its_size_only() {
        let locks = LockManager::builder().response_timeout(TTL).in_memory();
        let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
        let mut head = pin!(locks.lock("order:1").ttl(TTL).wait(TTL).acquire());
        assert!(poll_once(head.as_mut()).is_pending());
        // Its turn now; nobody knows yet what it will be told.
        guard.release().await;
        let began = worked();
        let mut burst: Vec<_> =
            (0..8_000).map(|_| Box::pin(locks.lock("order:1").ttl(TTL).acquire())).collect();
        for call in &mut burst {
            assert!(poll_once(call.as_mut()).is_pending());
        }
        let guard = head.await.unwrap();
        for call in burst {
            assert!(call.await.unwrap_err().is_busy());
        }
        let took = worked().checked_sub(began).unwrap();
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
    }
}

/// It was told that it is its turn, and its task does something else.
mod a_caller_that_is_not_polled {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn is_overtaken_after_the_response_timeout() {
        let timeout = Duration::from_millis(500);
        for wait in [Duration::ZERO, Duration::from_secs(3)] {
            let locks = LockManager::builder().response_timeout(timeout).in_memory();
            let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
            let mut idle = pin!(locks.lock("order:1").ttl(TTL).wait(TTL).acquire());
            assert!(poll_once(idle.as_mut()).is_pending());
            guard.release().await;

            let asked = tokio::time::Instant::now();
            let next = locks.lock("order:1").ttl(TTL).wait(wait).acquire().await.expect("nobody holds it");
            let took = asked.elapsed();
            assert!(took >= timeout && took < timeout + Duration::from_millis(10), "{took:?}");

            // Polled again at last, it is the first of those who wait.
            assert!(poll_once(idle.as_mut()).is_pending());
            assert_eq!(next.release().await, ReleaseOutcome::Released);
            assert_eq!(idle.await.unwrap().release().await, ReleaseOutcome::Released);
        }
    }
}

/// Its tasks are polled on the body's own stack.
mod a_local_set_inside_a_body {
    use super::*;
    use tokio::task::{LocalSet, spawn_local};

    #[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
    async fn task(locks: LockManager, id: u64) -> Result<(), LockError> {
        Ok(())
    }

    #[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
    async fn drives_a_set(locks: &LockManager, id: u64) -> Result<(), LockError> {
        let set = LocalSet::new();
        let told = set.run_until(async { spawn_local(task(locks.clone(), id)).await.unwrap() }).await;
        assert!(told.as_ref().is_err_and(LockError::is_busy), "a task is someone else: {told:?}");
        // What is not in a task of its own is the body.
        set.run_until(task(locks.clone(), id)).await
    }

    #[tokio::test]
    async fn drives_tasks_that_are_someone_else() {
        let (_server, stores) = both().await;
        for locks in &stores {
            drives_a_set(locks, 1).await.expect("the body joins itself");
        }
    }

    /// Here the body is in no task.
    #[test]
    fn on_a_bare_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { drives_a_set(&LockManager::in_memory(), 1).await }).unwrap();
    }
}

/// The key may live as long as it was asked to, whatever became of the answer.
mod an_unanswered_extension {
    use super::*;

    #[tokio::test]
    async fn is_released_after_the_lease_it_would_have_extended() {
        let (server, proxy, locks) = behind_a_proxy().await;
        let ttl = Duration::from_secs(1);
        let guard = locks.lock("order:1").ttl(ttl).acquire().await.unwrap();
        let granted = Instant::now();
        proxy.every_where(|command| scripted(command, "lock:order:1"), Fault::CutReply);
        let told = guard.extend(TTL).await;
        assert!(matches!(told, Err(LockError::Unavailable { .. })), "{told:?}");
        assert!(server.pttl("lock:order:1").await > 40_000, "carried out all the same");

        // Nothing can be released until the lease, as it was granted, is long over.
        proxy.clear_faults();
        proxy.every_where(|command| scripted(command, "lock:order:1"), Fault::CutRequest);
        drop(proxy.take_commands());
        drop(guard);
        proxy
            .wait_for_where(|command| {
                scripted(command, "lock:order:1") && command.at > granted + Duration::from_millis(2_500)
            })
            .await;
        proxy.clear_faults();
        eventually("the key is released", PATIENCE, async || !server.exists("lock:order:1").await).await;
    }
}

mod a_too_long_key {
    use super::*;

    #[redis_lock(key = "order:<id>", ttl = "60s", manager = locks)]
    async fn pay(locks: &LockManager, id: &str) -> Result<(), LockError> {
        Ok(())
    }

    #[tokio::test]
    async fn makes_no_long_message() {
        let locks = LockManager::in_memory();
        let long = "长".repeat(1_000_000);
        let by_hand = locks.lock(long.as_str()).ttl(TTL).acquire().await.unwrap_err();
        let of_several = locks.lock_all(["short", &long]).ttl(TTL).acquire().await.unwrap_err();
        let in_a_template = pay(&locks, &long).await.unwrap_err();
        for error in [by_hand, of_several, in_a_template] {
            let LockError::InvalidKey { fault, .. } = &error else { panic!("{}", error.to_string().len()) };
            assert_eq!(**fault, KeyFault::TooLong);
            let (shown, debug) = (error.to_string(), format!("{error:?}"));
            assert!(shown.len() < 1_000 && debug.len() < 1_000, "{} and {} bytes", shown.len(), debug.len());
            assert!(shown.contains("长长长") && shown.contains("1024 bytes"), "{shown}");
        }
    }
}

mod shutdown_outside_a_runtime {
    use super::*;

    #[test]
    fn does_not_panic() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(RedisServer::start());
        let redis = runtime.block_on(LockManager::connect(&server.url())).unwrap();
        for locks in [redis, LockManager::in_memory()] {
            assert_eq!(poll_once(pin!(locks.shutdown(Duration::from_secs(1)))), Poll::Ready(Ok(())));
            let refused = runtime.block_on(locks.lock("order:1").ttl(TTL).acquire());
            assert!(refused.is_err_and(|error| error.is_unavailable()));
        }
    }
}

/// The store in memory reckons renewals instead of making them: what it reckons is what the lease says.
mod a_joined_renewal_of_an_extended_lease {
    use super::*;

    #[redis_lock(key = "order:<id>", ttl = "1s", renew, max_hold = "30s", manager = locks)]
    async fn renewed(locks: &LockManager, id: u64) -> Result<(), LockError> {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    }

    #[redis_lock(key = "order:<id>", ttl = "1s", manager = locks, guard = lock)]
    async fn extends_first(locks: &LockManager, id: u64) -> Result<(), LockError> {
        lock.extend(TTL).await?;
        renewed(locks, id).await?;
        // 60 s less 1 % and 2 ms.
        tokio::time::sleep(Duration::from_secs(54)).await;
        assert!(!lock.is_lost(), "it was extended to a minute");
        let asked = tokio::time::Instant::now();
        locks.lock("order:1").ttl(TTL).wait(Duration::from_secs(10)).acquire().await?.release().await;
        assert!(lock.is_lost());
        assert!(asked.elapsed() < Duration::from_millis(1_100), "{:?} later", asked.elapsed());
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn ends_for_the_holder_and_for_all_others() {
        extends_first(&LockManager::in_memory(), 1).await.unwrap();
    }
}

mod a_release_that_was_sent_twice {
    use super::*;

    /// The first sending may have deleted the key before the other took it.
    #[tokio::test]
    async fn and_finds_someone_elses_lock_is_no_proof_of_a_loss() {
        let (server, proxy, locks) = behind_a_proxy().await;
        let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
        drop(proxy.take_commands());
        proxy.next("EVALSHA", Fault::CutReply);
        let release = tokio::spawn(guard.release());
        proxy.wait_for("EVALSHA").await;
        proxy.requests(Flow::Hold);
        eventually("the release was carried out", PATIENCE, async || !server.exists("lock:order:1").await)
            .await;
        server.set_px("lock:order:1", "someone else", 60_000).await;
        proxy.pass();
        assert_eq!(release.await.unwrap(), ReleaseOutcome::Unknown);
        assert_eq!(server.get("lock:order:1").await.as_deref(), Some("someone else"));
    }
}

mod an_acquisition_that_arrives_when_its_lease_is_over {
    use super::*;

    /// It sets the key anew; that the release then finds it does not mean that it was there all the time.
    #[tokio::test]
    async fn does_not_make_a_lost_lease_a_kept_one() {
        let (server, proxy, locks) = behind_a_proxy().await;
        drop(proxy.take_commands());
        proxy.next("SET", Fault::HoldRequest);
        let asking = tokio::spawn(locks.lock("order:1").ttl(Duration::from_millis(300)).acquire());
        proxy.wait_for("SET").await;
        proxy.cut_clients();
        let guard = asking.await.unwrap().unwrap();
        guard.lost().await;
        eventually("the lease ended", PATIENCE, async || !server.exists("lock:order:1").await).await;
        proxy.release();
        eventually("the late request arrived", PATIENCE, async || server.exists("lock:order:1").await).await;
        assert_eq!(guard.release().await, ReleaseOutcome::Unknown);
        eventually("nothing is left of it", PATIENCE, async || !server.exists("lock:order:1").await).await;
    }
}

mod a_task_that_goes_on_after_a_release_in_the_background {
    use super::*;

    #[redis_lock(key = "order:<id>", ttl = "60s", release = background, manager = locks)]
    async fn pay(locks: &LockManager, id: u64) -> Result<u64, LockError> {
        Ok(id)
    }

    /// It does not wait for anything, and keeps its worker thread; the others go on.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn holds_up_neither_the_release_nor_other_calls() {
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        // The connection of this runtime is made, and idle.
        locks.lock("warm").ttl(TTL).acquire().await.unwrap().release().await;
        let (free, blocked) = std::sync::mpsc::channel::<()>();
        let task = tokio::spawn({
            let locks = locks.clone();
            async move {
                pay(&locks, 1).await.unwrap();
                // Until the test is over.
                blocked.recv_timeout(2 * PATIENCE).unwrap_err();
            }
        });
        eventually("it is released", PATIENCE, async || {
            !server.exists("lock:order:1").await && locks.lock("other").ttl(TTL).acquire().await.is_ok()
        })
        .await;
        drop(free);
        task.await.unwrap();
    }
}

mod a_short_lease_beside_ten_thousand {
    use super::*;

    /// What is renewed for the others takes long; its turn comes all the same.
    #[tokio::test]
    async fn is_renewed_in_time() {
        let server = RedisServer::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let take = |key: String, ttl| locks.lock(key).ttl(ttl).renew().acquire();
        let many: Vec<_> = (0..10_000).map(|n| take(format!("n:{n}"), Duration::from_secs(3))).collect();
        let many: Vec<_> = many.into_iter().map(tokio::spawn).collect();
        let mut guards = Vec::new();
        for guard in many {
            guards.push(guard.await.unwrap().unwrap());
        }
        let short = take("short".to_owned(), Duration::from_millis(300)).await.unwrap();
        let lost = tokio::time::timeout(Duration::from_secs(3), short.lost()).await;
        assert!(lost.is_err(), "it was lost");
        assert!(guards.iter().all(|guard| !guard.is_lost()));
    }
}
