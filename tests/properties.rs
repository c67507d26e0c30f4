//! Properties over many operations: exclusion is checked on a recorded history, with and without faults, and a naive
//! lock under the same faults shows that the check can see a violation.
//!
//! Where each property of the suite is shown:
//!
//! | property | shown by |
//! |---|---|
//! | one valid holder | `two_hundred_tasks_on_twenty_keys_exclude_each_other`, `under_faults_no_two_believe_to_hold_one_lock` |
//! | a stale holder can neither release nor renew | `scenarios`, `renewing::a_renewal_that_finds_nothing_is_a_loss_and_creates_nothing` |
//! | an ambiguous acquisition leaves nothing | `unavailable::an_acquisition_whose_reply_is_lost_leaves_no_key`, `cancelling::an_unknown_outcome` |
//! | a grant slower than its ttl is refused | `losing::a_grant_that_arrives_after_its_deadline_is_refused_and_cleaned_up` |
//! | an ambiguous renewal or release is harmless | `renewing::an_error_is_retried`, `unavailable::a_release_that_is_sent_again_…` |
//! | a client that was paused learns of its loss | `losing::a_paused_process` |
//! | cancellation at any point | `cancelling::a_call_dropped_at_any_poll_leaves_nothing` |
//! | panics | `endings::a_panic_goes_through_unchanged_and_releases` |
//! | the end of a runtime and of a process | `endings::a_guard_outlives_its_runtime`, `cancelling::a_process` |
//! | eviction | `losing::the_server_tells_of::an_eviction` |
//! | error replies | `unavailable::a_server_that_refuses_is_unavailable_and_says_why` |
//! | a killed holder frees the key within its ttl | `cancelling::a_process::that_is_killed_leaves_keys_for_their_ttl_at_most` |
//! | waits are bounded | `waiting::the_wait`, `unavailable::waiting_ends_when_the_server_does` |
//! | renewal ends with the body | `renewing::ten_thousand_taken_and_dropped_leave_no_key_and_no_renewal` |
//! | holding is bounded | `renewing::max_hold` |
//! | ten thousand at once | `endings::ten_thousand_guards_dropped_at_once_are_all_released` |

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager, redis, redis_lock};
use tests::history::History;
use tests::process::Process;
use tests::proxy::Proxy;
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};

/// A small generator with a seed, so that a failing run can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[redis_lock(key = "k:<n>", ttl = "30s", wait = "30s", manager = locks, guard = lock)]
async fn section(locks: &LockManager, n: usize, history: &History) -> Result<(), LockError> {
    let _section = history.enter(lock.key(), Instant::now() + lock.remaining(), lock.token(), None);
    tokio::task::yield_now().await;
    Ok(())
}

/// S1: two hundred tasks, twenty keys, no faults.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_tasks_on_twenty_keys_exclude_each_other() {
    let server = RedisServer::start().await;
    for locks in [LockManager::connect(&server.url()).await.unwrap(), LockManager::in_memory()] {
        let history = History::new();
        let tasks: Vec<_> = (0..200)
            .map(|n| {
                let (locks, history) = (locks.clone(), history.clone());
                tokio::spawn(async move {
                    for round in 0..5 {
                        section(&locks, (n + round) % 20, &history).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(history.len(), 1_000);
        history.assert_clean();
        locks.shutdown(PATIENCE).await.unwrap();
    }
    assert_eq!(server.keys("*").await, Vec::<String>::new());
}

/// The faults of one run: replies and requests that are slow, and connections that are cut, at random.
async fn disturb(proxies: [Arc<Proxy>; 2], seed: u64, until: Instant) {
    let mut random = Random(seed);
    while Instant::now() < until {
        let proxy = &proxies[usize::try_from(random.next(2)).unwrap()];
        let slow = tests::proxy::Flow::Delay(Duration::from_millis(random.next(40)));
        match random.next(4) {
            0 => proxy.replies(slow),
            1 => proxy.requests(slow),
            2 => proxy.cut_clients(),
            _ => proxy.pass(),
        }
        tokio::time::sleep(Duration::from_millis(20 + random.next(60))).await;
    }
    for proxy in proxies {
        proxy.pass();
    }
}

const TTL: Duration = Duration::from_millis(60);
const RUN: Duration = Duration::from_secs(4);
const SEED: u64 = 20_260_501;

/// How long a body works: one in six outlives its lease.
fn work(random: &mut Random) -> Duration {
    Duration::from_millis(if random.next(6) == 0 { 90 } else { random.next(10) })
}

/// Runs sections of `task` from eight tasks on both sides of two proxies under faults, and gives back what happened.
async fn under_faults<T>(task: impl Fn(String, usize, History, Instant) -> T) -> (History, RedisServer)
where
    T: Future<Output = ()> + Send + 'static,
{
    let server = RedisServer::start().await;
    let proxies = [Arc::new(Proxy::start(server.port())), Arc::new(Proxy::start(server.port()))];
    let (history, until) = (History::new(), Instant::now() + RUN);
    let tasks: Vec<_> =
        (0..8).map(|n| tokio::spawn(task(proxies[n % 2].url(), n, history.clone(), until))).collect();
    disturb(proxies.clone(), SEED, until).await;
    for task in tasks {
        task.await.unwrap();
    }
    (history, server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_faults_no_two_believe_to_hold_one_lock() {
    let (history, server) = under_faults(async |url: String, n, history: History, until| {
        let locks = LockManager::connect(&url).await.unwrap();
        let mut random = Random(SEED + n as u64);
        while Instant::now() < until {
            let attempt = locks.lock("k").ttl(TTL).wait(Duration::from_millis(300)).acquire().await;
            // Busy and Unavailable are what faults are for.
            let Ok(guard) = attempt else { continue };
            let section = history.enter(guard.key(), Instant::now() + guard.remaining(), guard.token(), None);
            tokio::time::sleep(work(&mut random)).await;
            drop(section);
            if random.next(3) == 0 {
                drop(guard);
            } else {
                guard.release().await;
            }
        }
        locks.shutdown(PATIENCE).await.unwrap();
    })
    .await;
    assert!(history.len() > 50, "only {} sections: the faults stopped everything", history.len());
    history.assert_clean();
    eventually("nothing is left", PATIENCE, async || server.keys("*").await.is_empty()).await;
}

/// The control: `SET NX PX` and a bare `DEL`, under the same faults. The same check must see the accident.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_the_same_faults_the_naive_lock_is_caught() {
    let (history, _server) = under_faults(async |url: String, n, history: History, until| {
        let client = redis::Client::open(url).unwrap();
        let mut random = Random(SEED + n as u64);
        let mut connection = None;
        while Instant::now() < until {
            if connection.is_none() {
                connection = client.get_multiplexed_async_connection().await.ok();
            }
            let Some(open) = &mut connection else { continue };
            let asked = Instant::now();
            let set: redis::RedisResult<Option<String>> =
                redis::cmd("SET").arg("k").arg(n).arg("NX").arg("PX").arg(60).query_async(open).await;
            match set {
                Ok(Some(_)) => {
                    let section = history.enter("k", asked + TTL, &n.to_string(), None);
                    tokio::time::sleep(work(&mut random)).await;
                    drop(section);
                    let deleted: redis::RedisResult<i64> = redis::cmd("DEL").arg("k").query_async(open).await;
                    if deleted.is_err() {
                        connection = None;
                    }
                }
                Ok(None) => tokio::time::sleep(Duration::from_millis(2)).await,
                Err(_) => connection = None,
            }
        }
    })
    .await;
    assert!(!history.violations().is_empty(), "{} sections and no violation seen", history.len());
}

/// Four processes of four waiters share one key: none gets less than half its share.
mod four_processes {
    use super::*;

    const URL: &str = "LOCK_RUNTIME_TEST_SHARE";

    #[tokio::test]
    async fn child() {
        let Ok(url) = std::env::var(URL) else { return };
        let locks = LockManager::connect(&url).await.unwrap();
        println!("ready");
        // All begin when the parent lets go of the key.
        drop(locks.lock("start").ttl(TTL).wait(PATIENCE).acquire().await.unwrap());
        let until = Instant::now() + Duration::from_secs(5);
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    let mut grants = 0;
                    while Instant::now() < until {
                        let guard = locks
                            .lock("shared")
                            .ttl(Duration::from_secs(5))
                            .wait(PATIENCE)
                            .acquire()
                            .await
                            .unwrap();
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        guard.release().await;
                        grants += 1;
                    }
                    grants
                })
            })
            .collect();
        let mut grants = 0;
        for waiter in waiters {
            grants += waiter.await.unwrap();
        }
        println!("grants {grants}");
    }

    #[tokio::test]
    async fn share_one_key_fairly() {
        let server = RedisServer::start().await;
        server.set_px("lock:start", "not yet", 60_000).await;
        let children: Vec<_> =
            (0..4).map(|_| Process::of_this_test("four_processes::child", &[(URL, &server.url())])).collect();
        for child in &children {
            child.wait_for_line("ready").await;
        }
        server.del("lock:start").await;
        let mut grants = Vec::new();
        for child in &children {
            let line = child.wait_for_line("grants ").await;
            grants.push(line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
            assert!(child.wait(PATIENCE).await.success());
        }
        let total: u64 = grants.iter().sum();
        println!("{grants:?} of {total}");
        assert!(grants.iter().all(|share| share * 8 >= total), "{grants:?}: less than half a share");
    }
}
