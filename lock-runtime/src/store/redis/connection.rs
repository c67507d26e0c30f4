//! Connections: one for each tokio runtime that asks, made when it is needed, replaced when it has ended or has
//! fallen silent.
//!
//! A multiplexed connection is driven by a task of the runtime that made it, and dies or stands still with it. So
//! one manager that serves several runtimes (every `#[tokio::test]`, every worker of actix-web, the runtime's own
//! background thread) has one connection on each.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, ProtocolVersion, RedisError, RedisFuture, Value,
};
use tokio::runtime::{Handle, Id};
use tokio::task::{AbortHandle, unconstrained};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::{Changed, StoreError, StoreErrorKind, Told, Unwatched, needs_runtime};
use super::lane::{Lane, Trouble};
use super::script;
use super::tracking::{Pushes, Tracking};

/// Requests that may wait for the connection's task before a sender has to wait for its turn.
const QUEUE: usize = 1024;

/// A connection in use. It is closed when the last clone is gone.
#[derive(Clone)]
pub(crate) struct Link(Arc<Channel>);

pub(crate) enum Channel {
    Own { connection: MultiplexedConnection, state: Arc<State>, lane: Arc<Lane>, tasks: [AbortHandle; 2] },
    Given(Box<dyn GivenConnection>),
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Self::Own { state, tasks, .. } = self {
            tasks.iter().for_each(AbortHandle::abort);
            state.retire();
        }
    }
}

/// What is known of a connection of our own.
pub(super) struct State {
    ended: Arc<AtomicBool>,
    /// None where the server cannot push.
    tracking: Option<Arc<Tracking>>,
}

impl State {
    /// It has ended or fallen silent, and nothing is to be sent on it any more.
    pub(super) fn retire(&self) {
        self.ended.store(true, Ordering::Release);
        // Whoever waits for news on it would wait for ever.
        if let Some(tracking) = &self.tracking {
            tracking.tell_all();
        }
    }
}

impl Link {
    /// Sends one command, and waits for the answer until then; an error reply is an error. With `fresh`,
    /// nothing has been tried before, and the command may go with those of others.
    pub(super) async fn send(&self, cmd: Cmd, give_up: Instant, fresh: bool) -> Result<Value, Trouble> {
        let answered = match &*self.0 {
            Channel::Own { connection, lane, .. } => {
                let underway = lane.enter();
                if fresh && (underway.is_crowd() || lane.is_used()) {
                    let answer = timeout_at(give_up, lane.send(cmd)).await;
                    return error_reply(answer.unwrap_or(Err(Trouble::Silent))?);
                }
                // Boxed: it is large, and no part of a request that takes the lane.
                let mut connection = connection.clone();
                Box::pin(timeout_at(give_up, async move { connection.send_packed_command(&cmd).await })).await
            }
            Channel::Given(connection) => timeout_at(give_up, connection.send(&cmd)).await,
        };
        let answer = answered.map_err(|_| Trouble::Silent)?;
        error_reply(answer.map_err(Trouble::Failed)?)
    }

    /// Sends one command behind all that were sent before. Not on a connection of the application's: that may have
    /// reconnected meanwhile.
    pub(super) async fn send_behind(&self, cmd: Cmd, give_up: Instant) -> Result<Value, Trouble> {
        match &*self.0 {
            // A request may be waiting on the lane, which one beside it would overtake.
            Channel::Own { lane, .. } => match timeout_at(give_up, lane.send(cmd)).await {
                Ok(answer) => error_reply(answer?),
                Err(_) => Err(Trouble::Silent),
            },
            Channel::Given(_) => self.send(cmd, give_up, false).await,
        }
    }

    /// Sends the command of a release whose answer nobody awaits.
    pub(super) fn send_unwatched(&self, cmd: Cmd, told: Told) {
        match &*self.0 {
            Channel::Own { lane, .. } => lane.send_unwatched(cmd, told),
            Channel::Given(_) => told(Unwatched::Unsent),
        }
    }

    /// Sends several commands at once; each has its own answer, an error reply among them.
    pub(super) async fn send_all(&self, commands: &Pipeline, count: usize) -> Result<Vec<Value>, RedisError> {
        match &*self.0 {
            Channel::Own { connection, .. } => {
                connection.clone().send_packed_commands(commands, 0, count).await
            }
            Channel::Given(connection) => connection.send_all(commands, count).await,
        }
    }

    /// Watches keys for changes after the commands that are sent from now on. None where changes are not told: a
    /// connection of the application's, a server or proxy without RESP3, an account that may not use it.
    pub(super) async fn watch(&self, keys: &[Arc<str>], give_up: Instant) -> Option<Changed> {
        let Channel::Own { state, .. } = &*self.0 else { return None };
        let tracking = state.tracking.as_ref()?;
        let agreed = match tracking.agreed.get() {
            Some(agreed) => *agreed,
            // Boxed: once for each connection, and what it needs would be part of every request.
            None => Box::pin(self.agree(tracking, give_up)).await,
        };
        agreed.then(|| tracking.watch(keys))
    }

    async fn agree(&self, tracking: &Tracking, give_up: Instant) -> bool {
        let ask = async || {
            let mut on = redis::cmd("CLIENT");
            on.arg("TRACKING").arg("ON");
            self.send(on, give_up, false).await.is_ok()
        };
        *tracking.agreed.get_or_init(ask).await
    }

    /// Takes a connection that ended or fell silent out of use. One of the application's is for it to mend.
    pub(super) fn retire(&self) {
        if let Channel::Own { state, .. } = &*self.0 {
            state.retire();
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        match &*self.0 {
            Channel::Own { state, .. } => !state.ended.load(Ordering::Acquire),
            Channel::Given(_) => true,
        }
    }

    pub(super) fn carrier(&self) -> Arc<dyn std::any::Any + Send + Sync> {
        Arc::<Channel>::clone(&self.0)
    }

    /// The link of a request, if what is sent on it now is sure to come behind that request. A connection of the
    /// application's may have reconnected meanwhile.
    pub(super) fn of_carrier(carrier: Arc<dyn std::any::Any + Send + Sync>) -> Option<Self> {
        let link = carrier.downcast::<Channel>().ok().map(Self)?;
        (link.is_usable() && matches!(*link.0, Channel::Own { .. })).then_some(link)
    }
}

fn error_reply(answer: Value) -> Result<Value, Trouble> {
    answer.extract_error().map_err(Trouble::Failed)
}

/// Where links come from.
pub(crate) enum Source {
    Own(Arc<Connections>),
    Given(Link),
}

impl From<Connections> for Source {
    fn from(connections: Connections) -> Self {
        Self::Own(Arc::new(connections))
    }
}

impl From<Given> for Source {
    fn from(given: Given) -> Self {
        Self::Given(Link(Arc::new(Channel::Given(given.0))))
    }
}

impl Source {
    /// The connection of this runtime, if it has one.
    pub(super) fn ready(&self, runtime: &Handle) -> Option<Link> {
        match self {
            Self::Given(link) => Some(link.clone()),
            Self::Own(connections) => connections.usable(runtime.id()),
        }
    }

    /// The connection of this runtime, made by then if there is none.
    pub(super) async fn link(&self, give_up: Instant) -> Result<Link, StoreError> {
        let runtime = needs_runtime()?;
        if let Some(link) = self.ready(&runtime) {
            return Ok(link);
        }
        match self {
            Self::Given(link) => Ok(link.clone()),
            Self::Own(connections) => {
                let within = give_up.saturating_duration_since(Instant::now());
                // Boxed: seldom, and what it needs would be part of every request.
                let connected = Box::pin(timeout(within, Arc::clone(connections).connected(runtime)));
                connected.await.unwrap_or_else(|_| Err(super::silent(within)))
            }
        }
    }

    /// Takes the connection of this runtime, which fell silent, out of use.
    pub(super) fn retire_current(&self) {
        if let Ok(runtime) = needs_runtime()
            && let Some(link) = self.ready(&runtime)
        {
            link.retire();
        }
    }

    pub(super) fn reconnects(&self) -> bool {
        matches!(self, Self::Own(_))
    }
}

/// The connections that we make ourselves.
pub(crate) struct Connections {
    client: Client,
    connect_timeout: Duration,
    response_timeout: Duration,
    slots: Mutex<Vec<Slot>>,
    /// The server, or what stands before it, does not know RESP3.
    resp2: AtomicBool,
}

/// The place for the connection of one runtime.
struct Slot {
    runtime: Id,
    link: Option<Link>,
    /// Held while connecting, so that those who find no connection at the same time make one.
    connecting: Arc<tokio::sync::Mutex<()>>,
}

impl Slot {
    fn usable(&self) -> Option<&Link> {
        self.link.as_ref().filter(|link| link.is_usable())
    }
}

impl Connections {
    pub(crate) fn new(client: Client, connect_timeout: Duration, response_timeout: Duration) -> Self {
        let (slots, resp2) = (Mutex::default(), AtomicBool::new(false));
        Self { client, connect_timeout, response_timeout, slots, resp2 }
    }

    fn usable(&self, runtime: Id) -> Option<Link> {
        // There are few runtimes.
        lock(&self.slots).iter().find(|slot| slot.runtime == runtime)?.usable().cloned()
    }

    /// Makes the connection of a runtime that has none.
    async fn connected(self: Arc<Self>, runtime: Handle) -> Result<Link, StoreError> {
        let id = runtime.id();
        let turn = self.connecting(id).lock_owned().await;
        if let Some(link) = self.usable(id) {
            return Ok(link);
        }
        // A task of its own: on a slow network it may take longer than the caller waits, and is there for the next.
        let handle = runtime.clone();
        let connecting = runtime.spawn(async move {
            let _turn = turn;
            // The handshake and the loading of the scripts included: whoever falls silent there blocks all others.
            let within = self.connect_timeout;
            let connected = timeout(within, self.connect(&handle)).await;
            let link = connected.unwrap_or_else(|_| Err(super::silent(within)))?;
            if let Some(slot) = lock(&self.slots).iter_mut().find(|slot| slot.runtime == id) {
                slot.link = Some(link.clone());
            }
            Ok(link)
        });
        connecting
            .await
            .unwrap_or_else(|_| Err(StoreError::new(StoreErrorKind::Connection, "the runtime has ended")))
    }

    /// The turn at connecting for a runtime.
    fn connecting(&self, runtime: Id) -> Arc<tokio::sync::Mutex<()>> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.iter().find(|slot| slot.runtime == runtime) {
            return Arc::clone(&slot.connecting);
        }
        // A new runtime is rare: the time to forget those that have ended. One that is being connected is in use.
        slots.retain(|slot| Arc::strong_count(&slot.connecting) > 1 || slot.usable().is_some());
        let connecting = Arc::default();
        slots.push(Slot { runtime, link: None, connecting: Arc::clone(&connecting) });
        connecting
    }

    async fn connect(&self, runtime: &Handle) -> Result<Link, StoreError> {
        let ended = Arc::new(AtomicBool::new(false));
        let (mut connection, tracking) = self.open(&ended).await.map_err(|error| self.failed(&error))?;
        let mut load = redis::pipe();
        for script in script::at_connect() {
            load.add_command(script.load());
        }
        let loaded = connection.send_packed_commands(&load, 0, script::at_connect().len()).await;
        let loaded = loaded.map_err(|error| self.failed(&error))?;
        // Without a password nothing at all will work, so it is said now. Any other refusal (an ACL without SCRIPT, a
        // server that is still loading) may not concern the locks: EVAL takes over.
        for answer in loaded {
            if let Err(error) = answer.extract_error()
                && error.code() == Some("NOAUTH")
            {
                return Err(self.failed(&error));
            }
        }
        let state = Arc::new(State { ended, tracking });
        let lane = Arc::new(Lane::new(self.response_timeout));
        // Dropped by the runtime when it ends, as is the task that drives the connection. It waits for nothing that it
        // could go on with for long, and must not leave a request for its next turn.
        let lane_task = runtime.spawn(unconstrained(lane.run(connection.clone(), Arc::clone(&state))));
        let nudged = Arc::clone(&lane);
        let nudge = runtime.spawn(async move { nudged.nudged().await });
        let tasks = [lane_task.abort_handle(), nudge.abort_handle()];
        Ok(Link(Arc::new(Channel::Own { connection, state, lane, tasks })))
    }

    /// Opens a connection that can be told of changes if the server knows how.
    async fn open(
        &self,
        ended: &Arc<AtomicBool>,
    ) -> Result<(MultiplexedConnection, Option<Arc<Tracking>>), RedisError> {
        let config = || {
            AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.connect_timeout))
                // Whoever asks keeps the time of the whole exchange, the connecting included.
                .set_response_timeout(None)
                .set_pipeline_buffer_size(QUEUE)
        };
        if !self.resp2.load(Ordering::Relaxed) {
            let info = self.client.get_connection_info().clone();
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            let client = Client::open(info.set_redis_settings(settings))?;
            let tracking = Arc::<Tracking>::default();
            let pushes = Pushes { tracking: Arc::clone(&tracking), ended: Arc::clone(ended) };
            let config = config().set_push_sender(pushes);
            match client.get_multiplexed_async_connection_with_config(&config).await {
                Ok(connection) => return Ok((connection, Some(tracking))),
                Err(error) if knows_no_resp3(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let connection = self.client.get_multiplexed_async_connection_with_config(&config()).await?;
        self.resp2.store(true, Ordering::Relaxed);
        Ok((connection, None))
    }

    fn failed(&self, error: &RedisError) -> StoreError {
        let at = self.client.get_connection_info().addr();
        match error.code() {
            Some(_) => super::refused(error).at(at),
            None => StoreError::new(StoreErrorKind::Connection, error.to_string()).at(at),
        }
    }
}

/// Whether the error means that the handshake was not understood, rather than refused.
fn knows_no_resp3(error: &RedisError) -> bool {
    // Not any `ERR`: "max number of clients reached" is one, too, and passes.
    let unknown = || error.to_string().to_lowercase().contains("unknown command");
    error.kind() == ErrorKind::RESP3NotSupported || error.code() == Some("NOPROTO") || unknown()
}

/// A connection that the application made, whatever its type.
pub(crate) struct Given(Box<dyn GivenConnection>);

impl Given {
    pub(crate) fn new(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self(Box::new(connection))
    }
}

pub(crate) trait GivenConnection: Send + Sync {
    fn send<'a>(&'a self, cmd: &'a Cmd) -> RedisFuture<'a, Value>;
    fn send_all<'a>(&'a self, commands: &'a Pipeline, count: usize) -> RedisFuture<'a, Vec<Value>>;
}

impl<C: ConnectionLike + Clone + Send + Sync> GivenConnection for C {
    fn send<'a>(&'a self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(cmd).await })
    }

    fn send_all<'a>(&'a self, commands: &'a Pipeline, count: usize) -> RedisFuture<'a, Vec<Value>> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_commands(commands, 0, count).await })
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the whole client: its connection info holds the password.
        write!(f, "Connections({})", self.client.get_connection_info().addr())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
