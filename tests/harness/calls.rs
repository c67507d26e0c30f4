//! Calls of annotated functions, each on a store of its own.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lock_runtime::LockManager;
use tokio::runtime::Builder;

use crate::PATIENCE;
use crate::events::{Event, Recorder, keep_awake};

/// Runs a call to its end, and checks that it took a lock, and that every lock it took was released.
///
/// The manager is the global one inside of the call. It keeps its locks in memory, under keys without a prefix.
///
/// # Panics
///
/// If no lock was taken, or one was not released.
#[track_caller]
pub fn run<F: Future>(call: F) -> F::Output {
    run_with_keys(call).0
}

/// As [`run`], with the keys of the locks in the order in which they were taken.
///
/// # Panics
///
/// As [`run`].
#[track_caller]
pub fn run_with_keys<F: Future>(call: F) -> (F::Output, Vec<String>) {
    let (recorder, guard) = Recorder::install();
    let locks = LockManager::builder().prefix("").in_memory();
    let output = block_on(async {
        let output = locks.scope(call).await;
        locks.shutdown(PATIENCE).await.expect("every release ends");
        output
    });
    drop(guard);
    let keys = |outcome| {
        let events = recorder.events().into_iter().filter(move |event| event.field("outcome") == outcome);
        events.map(|event| event.field("key").to_owned()).collect::<Vec<_>>()
    };
    let (taken, mut released) = (keys("granted"), keys("released"));
    let mut sorted = taken.clone();
    sorted.sort();
    released.sort();
    assert!(!taken.is_empty(), "no lock was taken");
    assert_eq!(released, sorted, "the keys that were released, and those that were taken");
    (output, taken)
}

/// Runs a call while someone else holds `key`.
///
/// # Panics
///
/// If the call asks for other locks only, or keeps one.
#[track_caller]
pub fn run_refused<F: Future>(key: &str, call: F) -> F::Output {
    let (recorder, guard) = Recorder::install();
    let locks = LockManager::builder().prefix("").in_memory();
    let output = block_on(async {
        let other = locks.lock(key).ttl(Duration::from_secs(60)).acquire().await.expect("the lock is free");
        let output = locks.scope(call).await;
        other.release().await;
        output
    });
    drop(guard);
    let refused = |event: &Event| event.field("outcome") == "busy" && event.field("key") == key;
    assert!(recorder.events().iter().any(refused), "{key:?} was not asked for");
    output
}

/// Polls a future that never ends a few times.
///
/// # Panics
///
/// If it ends.
pub fn run_for_a_while<F: Future>(call: F) {
    keep_awake();
    let locks = LockManager::builder().prefix("").in_memory();
    block_on(async {
        let mut call = pin!(locks.scope(call));
        for _ in 0..10 {
            assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
    });
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime is built");
    runtime.block_on(future)
}

/// Gives way once.
pub async fn tick() {
    tokio::task::yield_now().await;
}

/// The same value, if it may be sent to other threads.
#[must_use]
pub fn is_send<T: Send>(value: T) -> T {
    value
}
