//! Connections: one for each tokio runtime that asks, made when it is needed, replaced when it has ended or has
//! fallen silent.
//!
//! A multiplexed connection is driven by a task of the runtime that made it, and dies or stands still with it. So
//! one manager that serves several runtimes (every `#[tokio::test]`, every worker of actix-web, the runtime's own
//! background thread) has one connection on each.

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, ProtocolVersion, RedisError, RedisFuture, Value,
};
use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::super::{Changed, StoreError, StoreErrorKind, needs_runtime};
use super::script;
use super::tracking::{Pushes, Tracking};

/// Requests that may wait for the connection's task before a sender has to wait for its turn.
const QUEUE: usize = 1024;

/// A connection in use. It is closed when the last clone is gone.
#[derive(Clone)]
pub(crate) struct Link(Arc<Channel>);

pub(crate) enum Channel {
    Own {
        connection: MultiplexedConnection,
        ended: Arc<AtomicBool>,
        runtime_watch: AbortHandle,
        /// None where the server cannot push.
        tracking: Option<Arc<Tracking>>,
    },
    Given(Box<dyn GivenConnection>),
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Self::Own { runtime_watch, tracking, .. } = self {
            runtime_watch.abort();
            if let Some(tracking) = tracking {
                tracking.tell_all();
            }
        }
    }
}

impl Link {
    /// Sends one command; an error reply is an error.
    pub(super) async fn send(&self, cmd: &Cmd) -> Result<Value, RedisError> {
        let value = match &*self.0 {
            Channel::Own { connection, .. } => connection.clone().send_packed_command(cmd).await?,
            Channel::Given(connection) => connection.send(cmd).await?,
        };
        value.extract_error()
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
    pub(super) async fn watch(&self, keys: &[Arc<str>]) -> Option<Changed> {
        let Channel::Own { tracking: Some(tracking), .. } = &*self.0 else { return None };
        let agreed = tracking
            .agreed
            .get_or_init(async || {
                let mut on = redis::cmd("CLIENT");
                on.arg("TRACKING").arg("ON");
                self.send(&on).await.is_ok()
            })
            .await;
        agreed.then(|| tracking.watch(keys))
    }

    /// Takes a connection that ended or fell silent out of use. One of the application's is for it to mend.
    pub(super) fn retire(&self) {
        if let Channel::Own { ended, .. } = &*self.0 {
            ended.store(true, Ordering::Release);
        }
        // Whoever waits for news on it would wait for ever.
        if let Channel::Own { tracking: Some(tracking), .. } = &*self.0 {
            tracking.tell_all();
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        match &*self.0 {
            Channel::Own { ended, .. } => !ended.load(Ordering::Acquire),
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
    pub(super) async fn link(&self) -> Result<Link, StoreError> {
        match self {
            Self::Own(connections) => connections.link().await,
            Self::Given(link) => Ok(link.clone()),
        }
    }

    /// Takes the connection of this runtime, which fell silent, out of use.
    pub(super) fn retire_current(&self) {
        if let (Self::Own(connections), Ok(runtime)) = (self, needs_runtime())
            && let Some(link) = connections.slot(runtime.id()).usable()
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
    slots: Mutex<HashMap<Id, Arc<Slot>>>,
    /// The server, or what stands before it, does not know RESP3.
    resp2: AtomicBool,
}

/// The place for the connection of one runtime.
#[derive(Default)]
struct Slot {
    link: Mutex<Option<Link>>,
    /// Held while connecting, so that those who find no connection at the same time make one.
    connecting: Arc<tokio::sync::Mutex<()>>,
}

impl Slot {
    fn usable(&self) -> Option<Link> {
        lock(&self.link).as_ref().filter(|link| link.is_usable()).cloned()
    }
}

impl Connections {
    pub(crate) fn new(client: Client, connect_timeout: Duration) -> Self {
        Self { client, connect_timeout, slots: Mutex::default(), resp2: AtomicBool::new(false) }
    }

    async fn link(self: &Arc<Self>) -> Result<Link, StoreError> {
        let runtime = needs_runtime()?;
        let slot = self.slot(runtime.id());
        if let Some(link) = slot.usable() {
            return Ok(link);
        }
        let turn = Arc::clone(&slot.connecting).lock_owned().await;
        if let Some(link) = slot.usable() {
            return Ok(link);
        }
        // A task of its own: on a slow network it may take longer than the caller waits, and is there for the next.
        let (connections, handle) = (Arc::clone(self), runtime.clone());
        let connecting = runtime.spawn(async move {
            let _turn = turn;
            // The handshake and the loading of the scripts included: whoever falls silent there blocks all others.
            let within = connections.connect_timeout;
            let connected = timeout(within, connections.connect(&handle)).await;
            let link = connected.unwrap_or_else(|_| Err(super::silent(within)))?;
            *lock(&slot.link) = Some(link.clone());
            Ok(link)
        });
        connecting
            .await
            .unwrap_or_else(|_| Err(StoreError::new(StoreErrorKind::Connection, "the runtime has ended")))
    }

    fn slot(&self, runtime: Id) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(&runtime) {
            return Arc::clone(slot);
        }
        // A new runtime is rare: the time to forget those that have ended. One that is being connected is in use.
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.usable().is_some());
        Arc::clone(slots.entry(runtime).or_default())
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
        let flag = EndedOnDrop(Arc::clone(&ended));
        // Dropped by the runtime when it ends, and with it the task that drives the connection.
        let runtime_watch = runtime.spawn(async move {
            let _flag = flag;
            pending::<()>().await;
        });
        let runtime_watch = runtime_watch.abort_handle();
        Ok(Link(Arc::new(Channel::Own { connection, ended, runtime_watch, tracking })))
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

struct EndedOnDrop(Arc<AtomicBool>);

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
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
