//! Answers that nobody awaits: those of releases in the background.
//!
//! A task for each of them, woken by its answer, would cost as much as the request, and on a runtime with several
//! workers it wakes another one beside the caller that goes on. So they are looked at by whoever uses the connection
//! next, and by one task for all of them that looks every now and then while there are any.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::super::Unwatched;

/// How late an answer is noticed at most.
const PERIOD: Duration = Duration::from_millis(2);
/// So many answers are looked at by one caller: more than one adds, so they get fewer.
const SHARE: usize = 2;

#[derive(Default)]
pub(super) struct Unawaited {
    state: Mutex<State>,
    begun: Notify,
}

#[derive(Default)]
struct State {
    /// In the order of their requests, which is that in which they come.
    answers: VecDeque<Unwatched>,
    /// The task looks at them.
    watched: bool,
    closed: bool,
}

impl Unawaited {
    /// Sees to an answer whose request is on its way. Gives it back if the runtime has ended.
    pub(super) fn add(&self, answer: Unwatched) -> Result<(), Unwatched> {
        let mut state = self.state();
        if state.closed {
            return Err(answer);
        }
        state.answers.push_back(answer);
        if !std::mem::replace(&mut state.watched, true) {
            self.begun.notify_one();
        }
        Ok(())
    }

    /// Looks at the oldest ones.
    pub(super) fn look(&self) {
        for _ in 0..SHARE {
            if !self.look_at_first() {
                break;
            }
        }
    }

    /// False if there is none, or it has not come.
    fn look_at_first(&self) -> bool {
        let Some(mut answer) = self.state().answers.pop_front() else { return false };
        // Not under the lock: what an answer ends may be much.
        let come = answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if !come {
            let mut state = self.state();
            if !state.closed {
                state.answers.push_front(answer);
            }
        }
        come
    }

    /// Looks at all of them, as long as it is polled.
    pub(super) async fn run(&self) {
        let _closing = Closing(self);
        loop {
            self.begun.notified().await;
            loop {
                sleep(PERIOD).await;
                while self.look_at_first() {}
                let mut state = self.state();
                if state.answers.is_empty() {
                    state.watched = false;
                    break;
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The runtime has ended, or nobody uses the connection any more.
struct Closing<'a>(&'a Unawaited);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closed = true;
        let left = std::mem::take(&mut state.answers);
        drop(state);
        // Whoever waits for one of them finds another way.
        drop(left);
    }
}
