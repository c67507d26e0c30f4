//! Managers: the global one, scopes, several runtimes, shutting down, and keeping secrets.

use std::time::Duration;

use lock_runtime::{
    LockError, LockManager, ReleaseOutcome, StoreErrorKind, redis, redis_lock, set_global_manager,
};
use tests::events;
use tests::process::Process;
use tests::proxy::{Flow, Proxy};
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};

const TTL: Duration = Duration::from_secs(60);

#[redis_lock(key = "order:<id>", ttl = "60s", guard = lock)]
async fn pay(id: u64) -> Result<String, LockError> {
    tokio::task::yield_now().await;
    Ok(lock.key().to_owned())
}

/// One process has one global manager, so what depends on it runs in processes of its own.
mod global {
    use super::*;

    const CHILD: &str = "LOCK_RUNTIME_TEST_CHILD";

    /// The child's part of the tests below: nothing to do in the parent's own run.
    #[test]
    fn child() {
        let Ok(part) = std::env::var(CHILD) else { return };
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        match &*part {
            "unset" => {
                let error = runtime().block_on(pay(1)).unwrap_err();
                assert!(matches!(error, LockError::NotConfigured { .. }), "{error}");
                println!("told: {error}");
                let error = runtime().block_on(LockManager::from_env()).unwrap_err();
                println!("told: {error}");
            }
            // What several `#[tokio::test]` functions do: each has a runtime of its own, one after the other and
            // side by side, and all use the manager that the first of them made.
            "runtimes" => {
                runtime().block_on(async {
                    set_global_manager(LockManager::from_env().await.unwrap()).unwrap();
                    let second = set_global_manager(LockManager::in_memory());
                    assert!(matches!(second, Err(LockError::AlreadyConfigured)));
                    pay(0).await.unwrap();
                });
                for id in 1..20 {
                    runtime().block_on(pay(id)).unwrap();
                }
                let threads: Vec<_> = (20..30)
                    .map(|id| {
                        std::thread::spawn(move || {
                            for _ in 0..5 {
                                runtime().block_on(pay(id)).unwrap();
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().unwrap();
                }
                println!("all paid");
            }
            other => panic!("no part {other}"),
        }
    }

    #[tokio::test]
    async fn without_a_manager_the_error_shows_the_line_to_write() {
        let child = Process::of_this_test("global::child", &[(CHILD, "unset"), ("REDIS_URL", "")]);
        let told = child.wait_for_line("told: ").await;
        for part in ["set_global_manager(", "LockManager::connect(", "order:<id>", "managers::pay", "order:1"]
        {
            assert!(told.contains(part), "{told:?} does not show {part}");
        }
        assert!(child.wait_for_line("REDIS_URL").await.contains("is not set"));
        assert!(child.wait(PATIENCE).await.success());
    }

    #[tokio::test]
    async fn one_manager_serves_many_runtimes() {
        let server = RedisServer::start().await;
        let child =
            Process::of_this_test("global::child", &[(CHILD, "runtimes"), ("REDIS_URL", &server.url())]);
        child.wait_for_line("all paid").await;
        assert!(child.wait(PATIENCE).await.success());
        assert_eq!(server.keys("*").await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_scope_is_the_global_manager_of_its_future_only() {
    let (one, other) = (LockManager::builder().prefix("one:").in_memory(), LockManager::in_memory());
    assert_eq!(one.scope(pay(1)).await.unwrap(), "one:order:1");
    let nested = one.scope(async {
        let inner = other.scope(pay(1)).await.unwrap();
        let spawned = tokio::spawn(pay(1)).await.unwrap();
        (inner, spawned.is_err(), pay(1).await.unwrap())
    });
    assert_eq!(nested.await, ("lock:order:1".to_owned(), true, "one:order:1".to_owned()));
}

/// The connection's task lives on a runtime that exists but does not run: it falls silent, and is replaced. Other
/// runtimes never depended on it.
#[test]
fn a_runtime_that_stands_still_holds_nobody_up() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (standing, running) = (runtime(), runtime());
    let server = running.block_on(RedisServer::start());
    let locks = standing.block_on(LockManager::connect(&server.url())).unwrap();
    running.block_on(async {
        let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
    });
}

/// A manager that has served a thousand runtimes has not kept a thousand connections.
#[test]
fn connections_end_with_their_runtimes() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let main = runtime();
    let server = main.block_on(RedisServer::start());
    let locks = main.block_on(LockManager::connect(&server.url())).unwrap();
    for _ in 0..100 {
        runtime().block_on(async {
            let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
            assert_eq!(guard.release().await, ReleaseOutcome::Released);
        });
    }
    main.block_on(eventually("only the main runtime's connections are left", PATIENCE, async || {
        server.connections().await <= 3
    }));
}

#[test]
fn outside_a_runtime_the_call_is_refused_and_nothing_panics() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(RedisServer::start());
    let locks = runtime.block_on(LockManager::connect(&server.url())).unwrap();
    let mut call = Box::pin(locks.lock("order:1").ttl(TTL).acquire());
    // No executor at all: one poll by hand. Redis needs tokio's timers, so this is as far as it gets.
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        call.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }))
    .expect("no panic");
    let std::task::Poll::Ready(Err(LockError::Unavailable { cause, .. })) = polled else {
        panic!("{polled:?}");
    };
    assert_eq!(cause.kind(), StoreErrorKind::NoRuntime);
}

#[tokio::test]
async fn a_connection_of_the_application_is_used_as_it_is() {
    let server = RedisServer::start().await;
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let locks = LockManager::builder().connection(connection);
    let before = server.connections().await;
    let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
    assert!(locks.lock("order:1").ttl(TTL).acquire().await.unwrap_err().is_busy());
    drop(guard);
    locks.shutdown(PATIENCE).await.unwrap();
    assert!(!server.exists("lock:order:1").await);
    assert_eq!(server.connections().await, before);
}

#[tokio::test]
async fn shutdown_finishes_what_is_pending_and_refuses_what_is_new() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    let held = locks.lock("held").ttl(TTL).acquire().await.unwrap();
    let dropped = locks.lock("dropped").ttl(TTL).acquire().await.unwrap();
    proxy.requests(Flow::Delay(Duration::from_millis(100)));
    drop(dropped);
    assert!(server.exists("lock:dropped").await);
    locks.shutdown(PATIENCE).await.unwrap();
    assert!(!server.exists("lock:dropped").await);
    proxy.pass();

    let error = locks.lock("new").ttl(TTL).acquire().await.unwrap_err();
    let LockError::Unavailable { cause, .. } = &error else { panic!("{error}") };
    assert_eq!(cause.kind(), StoreErrorKind::ShutDown);
    assert_eq!(held.release().await, ReleaseOutcome::Released, "what is held can still be released");
}

#[tokio::test]
async fn shutdown_says_what_it_could_not_finish() {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
    server.pause();
    drop(guard);
    let unfinished = locks.shutdown(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(unfinished.releases, 1);
    server.resume();
}

#[tokio::test]
async fn a_password_is_told_to_nobody() {
    let recorder = events::global();
    let server = RedisServer::start().await;
    let _: String = server.call(&["ACL", "SETUSER", "svc", "on", ">hunter2", "~*", "+@all"]).await;
    let locks = LockManager::connect(&server.url_with("svc", "hunter2")).await.unwrap();
    let mut said = vec![format!("{locks:?}"), format!("{:?}", locks.lock("order:1"))];
    let guard = locks.lock("order:1").ttl(TTL).acquire().await.unwrap();
    said.push(format!("{guard:?}"));
    assert_eq!(guard.release().await, ReleaseOutcome::Released);
    server.kill().await;
    let error = locks.lock("order:1").ttl(TTL).acquire().await.unwrap_err();
    said.extend([error.to_string(), format!("{error:?}")]);
    let dead = server.url_with("svc", "hunter2");
    for url in [
        &*dead,
        "redis://svc:hunter2@127.0.0.1:port",
        "rediss://svc:hunter2@127.0.0.1",
        "hunter2",
        "redis://:hunter2@[::1",
    ] {
        let error = LockManager::connect(url).await.unwrap_err();
        said.extend([error.to_string(), format!("{error:?}")]);
    }
    said.extend(recorder.events().iter().map(ToString::to_string));
    for text in said {
        assert!(!text.contains("hunter2"), "{text}");
    }
}
