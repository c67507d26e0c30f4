//! Futures that are dropped half-way.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::{PATIENCE, clock, lock};

/// Polls a future `polls` times and drops it right after the last; its output, if it was ready before.
///
/// Between two polls it waits until the future has asked to be polled again, so a test that counts `polls` up meets
/// every await point at which the future really waits. With 0 the future is dropped before its first poll.
///
/// # Panics
///
/// If the future does not ask to be polled again within [`PATIENCE`].
pub async fn drop_after<F: Future>(future: F, polls: usize) -> Poll<F::Output> {
    // Boxed, so that it is dropped before this function returns and not merely when its own future is.
    let mut future = Box::pin(future);
    let mut next = NextPoll::default();
    for poll in 1..=polls {
        if let Poll::Ready(output) = next.poll(future.as_mut(), poll).await {
            return Poll::Ready(output);
        }
    }
    drop(future);
    Poll::Pending
}

/// The output of a future, and how often it had to be polled.
///
/// # Panics
///
/// If the future does not ask to be polled again within [`PATIENCE`].
pub async fn count_polls<F: Future>(future: F) -> (F::Output, usize) {
    let mut future = pin!(future);
    let mut next = NextPoll::default();
    let mut polls = 0;
    loop {
        polls += 1;
        if let Poll::Ready(output) = next.poll(future.as_mut(), polls).await {
            return (output, polls);
        }
    }
}

#[derive(Default)]
struct NextPoll {
    bell: Arc<Bell>,
}

// A waker of the future's own: the task around it is woken, and polls, for other reasons too.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    outer: Mutex<Option<Waker>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        if let Some(outer) = &*lock(&self.outer) {
            outer.wake_by_ref();
        }
    }
}

impl NextPoll {
    async fn poll<F: Future>(&mut self, mut future: Pin<&mut F>, poll: usize) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.bell));
        let once = poll_fn(|outer| {
            *lock(&self.bell.outer) = Some(outer.waker().clone());
            // The first poll needs no invitation.
            if poll > 1 && !self.bell.rung.swap(false, Ordering::SeqCst) {
                return Poll::Pending;
            }
            Poll::Ready(future.as_mut().poll(&mut Context::from_waker(&waker)))
        });
        clock::timeout(PATIENCE, once)
            .await
            .unwrap_or_else(|| panic!("the future did not ask for poll {poll} within {PATIENCE:?}"))
    }
}
