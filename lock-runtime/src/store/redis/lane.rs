//! The lane: requests of many callers at once, sent together.
//!
//! A request by itself costs the connection a message, a reply channel and a timer. Where many are under way anyway,
//! and where nobody awaits the answer, those that come up until the lane's task has its turn go as one pipeline instead.
//! Requests on the lane keep their order.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::super::Told;
use super::connection::State;

/// So many requests under way make a crowd. One or two of them are faster each by itself: it takes one task less to
/// bring them on their way.
const CROWD: usize = 8;
/// The most requests in one pipeline, whose first is answered with its last: so few that the server works on some while
/// the callers of others go on.
const PIPELINE: usize = 24;

/// Why there is no answer.
#[derive(Clone)]
pub(super) enum Trouble {
    /// Not in time.
    Silent,
    /// An error reply, or the connection ended.
    Failed(RedisError),
}

/// The lane of one connection.
pub(super) struct Lane {
    queue: Mutex<Queue>,
    /// Requests of the connection that are under way, on the lane or beside it.
    underway: AtomicUsize,
    response_timeout: Duration,
    nudge: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Requests>,
    /// How many went together last time.
    usual: usize,
    /// The lane's task, while it has nothing to send.
    idle: Option<Waker>,
    closed: bool,
}

/// Requests that go together, and who waits for which answer.
struct Requests {
    pipeline: Pipeline,
    callers: Vec<Caller>,
}

enum Caller {
    Waits(oneshot::Sender<Result<Value, Trouble>>),
    Told(Told),
}

impl Caller {
    fn answer(self, answer: Result<Value, Trouble>) {
        match self {
            // One that has gone is told nothing.
            Self::Waits(caller) => drop(caller.send(answer)),
            // A panic in it (of a `tracing` subscriber, say) must not end the lane.
            Self::Told(told) => {
                let told = AssertUnwindSafe(|| told(super::unwatched(answer)));
                drop(catch_unwind(told));
            }
        }
    }
}

/// One request under way.
pub(super) struct Underway<'a> {
    count: &'a AtomicUsize,
    before: usize,
}

impl Underway<'_> {
    /// Whether there are so many that it should take the lane.
    pub(super) fn is_crowd(&self) -> bool {
        self.before >= CROWD
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lane {
    /// A lane whose requests are given up when they have had no answer for this long.
    pub(super) fn new(response_timeout: Duration) -> Self {
        let (queue, underway, nudge) = (Mutex::default(), AtomicUsize::new(0), Notify::new());
        Self { queue, underway, response_timeout, nudge }
    }

    /// Counts a request as long as the value lives.
    pub(super) fn enter(&self) -> Underway<'_> {
        Underway { count: &self.underway, before: self.underway.fetch_add(1, Ordering::Relaxed) }
    }

    /// Sends one command with those of others.
    pub(super) async fn send(&self, command: Cmd) -> Result<Value, Trouble> {
        let (caller, answer) = oneshot::channel();
        self.push(command, Caller::Waits(caller));
        answer.await.unwrap_or_else(|_| {
            let ended = io::Error::new(io::ErrorKind::BrokenPipe, "the connection is no longer driven");
            Err(Trouble::Failed(ended.into()))
        })
    }

    /// Sends the command of a release whose answer nobody awaits.
    pub(super) fn send_unwatched(&self, command: Cmd, told: Told) {
        if self.push(command, Caller::Told(told)) {
            // Who was woken last runs next on the same worker thread, and no other may take it from there. The caller
            // goes on, perhaps for long, and must not keep the lane's task: another one takes its place.
            self.nudge.notify_one();
        }
    }

    /// Does nothing each time the lane's task has been woken by someone who goes on.
    pub(super) async fn nudged(&self) {
        loop {
            self.nudge.notified().await;
        }
    }

    /// Whether something waits to be sent: what comes along with it costs next to nothing.
    pub(super) fn is_used(&self) -> bool {
        !self.queue().waiting.is_empty()
    }

    /// Whether the lane's task was woken for it.
    fn push(&self, command: Cmd, caller: Caller) -> bool {
        let idle = self.queue().push(command, caller);
        match idle {
            Ok(None) => false,
            Ok(Some(task)) => {
                task.wake();
                true
            }
            // Not under the lock: it is told that no answer comes.
            Err(caller) => {
                drop(caller);
                false
            }
        }
    }

    /// Brings what is sent on the lane on its way and back, as long as it is polled.
    pub(super) fn run(self: &Arc<Self>, connection: MultiplexedConnection, state: Arc<State>) -> Run {
        Run { lane: Arc::clone(self), connection, state, sent: VecDeque::new(), stands_back: false }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// The lane's task, if it has to be woken; or the caller, if there is none any more.
    fn push(&mut self, command: Cmd, caller: Caller) -> Result<Option<Waker>, Caller> {
        if self.closed {
            return Err(caller);
        }
        if self.waiting.back().is_none_or(|last| last.callers.len() >= PIPELINE) {
            let (pipeline, callers) = (Pipeline::with_capacity(self.usual), Vec::with_capacity(self.usual));
            self.waiting.push_back(Requests { pipeline, callers });
        }
        if let Some(last) = self.waiting.back_mut() {
            last.pipeline.add_command(command);
            last.callers.push(caller);
        }
        Ok(self.idle.take())
    }
}

/// The task of a lane.
pub(super) struct Run {
    lane: Arc<Lane>,
    connection: MultiplexedConnection,
    state: Arc<State>,
    sent: VecDeque<Sent>,
    /// It has let the tasks that are ready go first.
    stands_back: bool,
}

/// Requests that are on the connection.
struct Sent {
    answers: Pin<Box<dyn Future<Output = Answers> + Send>>,
    callers: Vec<Caller>,
}

type Answers = Result<Vec<Value>, Trouble>;

impl Sent {
    fn new(requests: Requests, mut connection: MultiplexedConnection, within: Duration) -> Self {
        let Requests { pipeline, callers } = requests;
        let answers = Box::pin(async move {
            let answers = connection.send_packed_commands(&pipeline, 0, pipeline.len());
            match timeout(within, answers).await {
                Ok(answers) => answers.map_err(Trouble::Failed),
                Err(_) => Err(Trouble::Silent),
            }
        });
        Self { answers, callers }
    }

    fn poll(&mut self, cx: &mut Context<'_>, state: &State) -> Poll<()> {
        let answers = ready!(self.answers.as_mut().poll(cx));
        let callers = self.callers.drain(..);
        match answers {
            Ok(values) => callers.zip(values).for_each(|(caller, value)| caller.answer(Ok(value))),
            Err(trouble) => {
                // Before anyone is told, who would use it again.
                state.retire();
                callers.for_each(|caller| caller.answer(Err(trouble.clone())));
            }
        }
        Poll::Ready(())
    }
}

impl Future for Run {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            while let Some(first) = this.sent.front_mut()
                && first.poll(cx, &this.state).is_ready()
            {
                this.sent.pop_front();
            }
            let mut queue = this.lane.queue();
            if queue.waiting.is_empty() {
                queue.idle = Some(cx.waker().clone());
                return Poll::Pending;
            }
            this.stands_back = !this.stands_back;
            if this.stands_back {
                // Whoever is ready to ask as well goes along.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let Some(requests) = queue.waiting.pop_front() else { continue };
            queue.usual = requests.callers.len();
            drop(queue);
            let mut sent = Sent::new(requests, this.connection.clone(), this.lane.response_timeout);
            // What comes of it is looked at in turn; this puts it on the connection.
            if sent.poll(cx, &this.state).is_pending() {
                this.sent.push_back(sent);
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.state.retire();
        let mut queue = self.lane.queue();
        queue.closed = true;
        let left = std::mem::take(&mut queue.waiting);
        drop(queue);
        // Tells their callers.
        drop(left);
    }
}
