//! The manager: what an application sets up once.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::background::Background;
use crate::error::{LockError, LockName, OptionFault};
use crate::gate::Gate;
use crate::guard::LockGuard;
use crate::key::{Key, Keys, visible};
use crate::lease::{Lease, bounded, check_ttl};
use crate::renew::RenewPolicy;
use crate::site::Site;
use crate::store::memory::MemoryStore;
use crate::store::redis::{Connections, Given, RedisStore};
use crate::store::{Claim, Mode, Store, StoreError, StoreErrorKind, needs_runtime};
use crate::terms::Terms;
use crate::token::Token;
use crate::wait;

const DEFAULT_PREFIX: &str = "lock:";
const DEFAULT_RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const DEFAULT_FENCE_EXPIRY: Duration = Duration::from_secs(7 * 86_400);

/// Where locks are kept, and how: one for each store an application uses. Cheap to clone; clones are the same manager.
///
/// Callers that wait queue by manager, and a call joins only a lease of the same manager: two managers on one server
/// are to each other like two processes.
///
/// # Examples
///
/// ```no_run
/// use lock_runtime::{LockError, LockManager, set_global_manager};
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), LockError> {
///     set_global_manager(LockManager::connect("redis://127.0.0.1:6379").await?)
/// }
/// ```
#[derive(Clone)]
pub struct LockManager(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    /// What the store is, for people: never a password.
    description: String,
    gate: Arc<Gate>,
    background: Background,
    prefix: Box<str>,
    owner: Option<Box<str>>,
    response_timeout: Duration,
    fence_expiry: Duration,
    shut_down: AtomicBool,
}

impl LockManager {
    /// A manager on the Redis server at `url` (`redis://[user:password@]host:port[/db]`, `unix:///path`), with the
    /// defaults of [`LockManagerBuilder`].
    ///
    /// # Errors
    ///
    /// [`LockError::Connect`] if the URL is unusable, the server cannot be reached within the connect timeout (1 s),
    /// or it asks for a password that the URL does not have.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::builder().connect(url).await
    }

    /// A manager on the Redis server that the environment variable `REDIS_URL` names.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); and if the variable is unset, empty or no Unicode. It never falls back to the
    /// in-memory store: two processes would then not see each other's locks.
    pub async fn from_env() -> Result<Self, LockError> {
        match std::env::var("REDIS_URL") {
            Ok(url) if !url.is_empty() => Self::connect(&url).await,
            _ => Err(configuration(
                "the environment variable REDIS_URL is not set: write REDIS_URL=redis://host:6379",
            )),
        }
    }

    /// A manager that keeps its locks in this process: for tests, and for programs that are a single process. Waiting,
    /// renewal, losing, joining and every way of holding work as they do on a server. It keeps tokio's time, so that a
    /// paused clock ends leases at once.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockError, LockManager};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let guard = locks.lock("nightly-report").ttl(Duration::from_secs(30)).acquire().await?;
    /// assert!(guard.remaining() > Duration::from_secs(29));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_memory() -> Self {
        Self::builder().in_memory()
    }

    /// A manager with other settings than the defaults.
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder {
            prefix: DEFAULT_PREFIX.into(),
            owner: None,
            response_timeout: DEFAULT_RESPONSE_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            fence_expiry: DEFAULT_FENCE_EXPIRY,
        }
    }

    /// Begins an acquisition by hand. The key is taken as it stands, behind the manager's prefix; it must not be
    /// empty nor longer than 1 KiB. Values are not encoded as they are in a template. Unlike the call of an annotated
    /// function it never joins a lease that the surrounding body holds: that is someone else's.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_runtime::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # async fn example(locks: &LockManager) -> Result<(), LockError> {
    /// let guard = locks
    ///     .lock("order:123")
    ///     .ttl(Duration::from_secs(30))
    ///     .wait(Duration::from_secs(5))
    ///     .acquire()
    ///     .await?;
    /// // … the work …
    /// guard.release().await;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn lock(&self, key: impl Into<String>) -> LockRequest {
        LockRequest {
            manager: self.clone(),
            site: Site::by_hand(Location::caller()),
            keys: Key::verbatim(key.into()).into(),
            ttl: None,
            terms: Terms::default(),
            tag: None,
        }
    }

    /// Begins an acquisition by hand of several keys, in one atomic step: all of them or none. Duplicates are merged; at
    /// least one and at most 1,000 keys, each as of [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_runtime::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # async fn example(locks: &LockManager) -> Result<(), LockError> {
    /// let guard = locks.lock_all(["stock:a", "stock:b"]).ttl(Duration::from_secs(10)).acquire().await?;
    /// assert_eq!(guard.keys().collect::<Vec<_>>(), ["lock:stock:a", "lock:stock:b"]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn lock_all<K: Into<String>>(&self, keys: impl IntoIterator<Item = K>) -> LockRequest {
        let mut several = Keys::several();
        for key in keys {
            several.push(Key::verbatim(key.into()));
        }
        LockRequest {
            manager: self.clone(),
            site: Site::by_hand(Location::caller()),
            keys: several,
            ttl: None,
            terms: Terms::default(),
            tag: None,
        }
    }

    /// Runs a future in which this manager is the global one: for tests, each with a store of its own. Tasks that
    /// the future spawns do not inherit it.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockError, LockManager, redis_lock};
    ///
    /// #[redis_lock(key = "order:<order_id>", ttl = "30s")]
    /// async fn pay_order(order_id: u64) -> Result<u64, LockError> {
    ///     Ok(order_id)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let locks = LockManager::in_memory();
    /// assert_eq!(locks.scope(pay_order(123)).await.ok(), Some(123));
    /// # }
    /// ```
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        SCOPED.scope(self.clone(), future).await
    }

    /// Gives no more locks, and finishes what is pending: releases that nobody awaits, those of `release = background`
    /// included, and clean-up of acquisitions whose outcome is unknown. It does not wait for requests that may stray
    /// about after their lock was released. Locks that are held at this time stay held, and can still be released; keys
    /// that stay for a while (`hold_at_least`, `hold_after_ok`) keep their time. Callers who wait for a lock are
    /// [`Unavailable`](LockError::Unavailable) when their turn comes.
    ///
    /// Call it before the process ends, after the servers and tasks that take locks have ended.
    ///
    /// # Errors
    ///
    /// [`Unfinished`] if `timeout` was over first. Keys that are left then end with their ttl.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), Unfinished> {
        self.0.shut_down.store(true, Ordering::Release);
        let background = self.background();
        // Outside a runtime there are no timers: what is finished now is finished.
        if needs_runtime().is_ok() && tokio::time::timeout(bounded(timeout), background.idle()).await.is_ok()
        {
            return Ok(());
        }
        match background.unfinished() {
            0 => Ok(()),
            releases => Err(Unfinished { releases }),
        }
    }

    /// The manager of an annotated call: the one it names, else the one in whose scope it runs, else the global one.
    pub(crate) fn current() -> Option<Self> {
        SCOPED.try_with(Self::clone).ok().or_else(|| GLOBAL.get().cloned())
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    /// Whether both are the same manager.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.0.gate
    }

    pub(crate) fn background(&self) -> &Background {
        &self.0.background
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.0.response_timeout
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.0.shut_down.load(Ordering::Acquire)
    }

    /// What is claimed, once everything that can be wrong with it has been looked at.
    pub(crate) fn lease(
        &self,
        site: Site,
        keys: Keys,
        ttl: Duration,
        tag: Option<&str>,
        terms: &Terms,
    ) -> Result<Arc<Lease>, LockError> {
        let keys = keys.finish(&self.0.prefix).map_err(|(key, fault)| LockError::InvalidKey {
            lock: LockName::new(key, site).into(),
            fault: Box::new(fault),
        })?;
        check_ttl(ttl).and_then(|()| terms.check(keys.len(), ttl)).map_err(|fault| {
            LockError::InvalidOption { lock: LockName::new(&*keys[0], site).into(), fault }
        })?;
        let token = Token::new(self.0.owner.as_deref(), tag)
            .map_err(|cause| LockError::Unavailable { lock: LockName::new(&*keys[0], site).into(), cause })?;
        // The counter must not be forgotten while its lock is held.
        let fence = terms.fenced.then_some(self.0.fence_expiry.max(ttl));
        let claim = Claim { keys, token: token.shared(), ttl, mode: terms.mode, fence };
        Ok(Arc::new(Lease::new(self.clone(), site, claim, token)))
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("store", &self.0.description)
            .field("prefix", &self.0.prefix)
            .field("owner", &self.0.owner)
            .finish_non_exhaustive()
    }
}

/// Settings of a [`LockManager`].
///
/// # Examples
///
/// ```
/// use lock_runtime::LockManager;
/// use std::time::Duration;
///
/// let locks = LockManager::builder()
///     .prefix("shop:lock:")
///     .owner("orders-7f9c")
///     .response_timeout(Duration::from_millis(200))
///     .in_memory();
/// # drop(locks);
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `connect`, `connection` or `in_memory` is called"]
pub struct LockManagerBuilder {
    prefix: Box<str>,
    owner: Option<Box<str>>,
    response_timeout: Duration,
    connect_timeout: Duration,
    fence_expiry: Duration,
}

impl LockManagerBuilder {
    /// What every key begins with. Default: `lock:`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into().into();
        self
    }

    /// What every token begins with, before a `:` and the UUID, so that `GET lock:order:123` tells an operator who
    /// holds it: the name of the service and instance. White space and control characters are percent-encoded.
    /// Default: nothing.
    pub fn owner(mut self, owner: impl AsRef<str>) -> Self {
        let owner = visible(owner.as_ref());
        self.owner = (!owner.is_empty()).then(|| owner.into());
        self
    }

    /// How long the store may take to answer, a reconnection included, before a call is
    /// [`Unavailable`](LockError::Unavailable). As long a call waits at most for a release or clean-up of its own
    /// process that is under way. A renewal may take a third of the ttl, if that is less. Default: 500 ms.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = bounded(timeout);
        self
    }

    /// How long making a connection may take. Default: 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = bounded(timeout);
        self
    }

    /// How long a key's counter of fencing tokens is kept after its last use. Default: 7 days. After that the server's
    /// clock alone keeps the tokens growing.
    pub fn fence_expiry(mut self, expiry: Duration) -> Self {
        self.fence_expiry = bounded(expiry).max(Duration::from_millis(1));
        self
    }

    /// Connects to a Redis server. Reconnection later is automatic, on the runtime that asks.
    ///
    /// # Errors
    ///
    /// As [`LockManager::connect`].
    pub async fn connect(self, url: &str) -> Result<LockManager, LockError> {
        // The crate's own message may quote the URL, and with it the password.
        let client = redis::Client::open(url).map_err(|error| {
            configuration(&format!(
                "the Redis URL cannot be used ({}): write redis://host:6379",
                error.category()
            ))
        })?;
        let description = format!("redis at {}", client.get_connection_info().addr());
        let store = RedisStore::new(
            Connections::new(client, self.connect_timeout, self.response_timeout),
            self.response_timeout,
        );
        store.probe(self.connect_timeout).await.map_err(|cause| LockError::Connect { cause })?;
        Ok(self.build(Arc::new(store), description))
    }

    /// Uses a connection that the application made, of any type of the `redis` crate that can be cloned. Reconnecting
    /// it is the application's business, and it must be driven by a runtime that lives as long as the manager and is
    /// not blocked: renewals go over it, too. Changes of keys are not told on it, so waiters poll (every 10 to 250 ms),
    /// and a deleted key is noticed at a renewal or the local deadline. Releases of `release = background` are put on it by
    /// the manager's own thread.
    pub fn connection(self, connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> LockManager {
        let store = RedisStore::new(Given::new(connection), self.response_timeout);
        self.build(Arc::new(store), "a connection of the application".to_owned())
    }

    /// Keeps the locks in this process: [`LockManager::in_memory`].
    #[must_use]
    pub fn in_memory(self) -> LockManager {
        self.build(Arc::<MemoryStore>::default(), "memory of this process".to_owned())
    }

    fn build(self, store: Arc<dyn Store>, description: String) -> LockManager {
        LockManager(Arc::new(Inner {
            store,
            description,
            gate: Arc::default(),
            background: Background::default(),
            prefix: self.prefix,
            owner: self.owner,
            response_timeout: self.response_timeout,
            fence_expiry: self.fence_expiry,
            shut_down: AtomicBool::new(false),
        }))
    }
}

/// An acquisition by hand, made by [`LockManager::lock`].
#[derive(Debug)]
#[must_use = "nothing is locked until `acquire` is awaited"]
pub struct LockRequest {
    manager: LockManager,
    site: Site,
    keys: Keys,
    ttl: Option<Duration>,
    terms: Terms,
    tag: Option<String>,
}

impl LockRequest {
    /// How long the lease lasts: at least 10 ms. Required.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long to wait for a busy lock, in order of arrival within this manager. Default: not at all; behind a holder
    /// or a queue of this manager the answer is then [`Busy`](LockError::Busy) without asking the store. Independent of
    /// the ttl: the lease counts from the attempt that won. Kept to within one round trip.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.terms.wait = wait;
        self
    }

    /// Extends the lease while the guard lives: every third of the ttl, from a thread of its own, so that it goes on
    /// while the holder blocks its thread. Nothing is sent for a lock that is held for less than that.
    ///
    /// An extension that gets no answer is tried again until the local deadline. One that finds the key gone, or
    /// someone else's, is a loss; the key is never created again. A guard that is leaked is renewed for ever, unless it
    /// has a [`max_hold`](Self::max_hold).
    pub fn renew(mut self) -> Self {
        self.terms.renew.get_or_insert_default();
        self
    }

    /// Stops extending when the lock has been held this long, so that a holder that hangs cannot keep it for ever. The
    /// lease is lost when the rest of its ttl is over, at most one ttl later. Must be longer than the ttl. Implies
    /// [`renew`](Self::renew).
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.terms.renew = Some(RenewPolicy { max_hold: Some(bounded(most)) });
        self
    }

    /// Holds beside any number of others that are `shared` too, or hold one of several [`permits`](Self::permits): many
    /// readers, or one writer. Within this manager, readers that come after a waiting writer queue behind it; across
    /// processes a writer may wait for as long as readers do not pause.
    pub fn shared(mut self) -> Self {
        self.terms.mode = Mode::Shared;
        self
    }

    /// Holds beside others that are not exclusive, `most` of them in all, at least 1. Each caller counts by its own
    /// number.
    pub fn permits(mut self, most: u32) -> Self {
        self.terms.mode = Mode::Permits(most);
        self
    }

    /// Draws a fencing token with the lock: [`Lease::fence`]. For a single key with an exclusive holder.
    pub fn fenced(mut self) -> Self {
        self.terms.fenced = true;
        self
    }

    /// The keys stay until they are this old even if they are released sooner. At most the ttl.
    pub fn hold_at_least(mut self, least: Duration) -> Self {
        self.terms.hold_at_least = Some(least);
        self
    }

    /// Something of the request, such as a trace id: it stands behind the token's UUID and in every event. White
    /// space and control characters are percent-encoded, and 128 characters are kept.
    pub fn tag(mut self, tag: impl fmt::Display) -> Self {
        self.tag = Some(tag.to_string());
        self
    }

    /// Takes the lock.
    ///
    /// # Errors
    ///
    /// [`LockError::Busy`], [`LockError::Unavailable`], [`LockError::InvalidKey`], and [`LockError::InvalidOption`] for a
    /// ttl that is missing, below 10 ms or above ten years, a `max_hold` not longer than the ttl, a `hold_at_least` longer
    /// than it, no permits, or `fenced` with several keys or beside other holders.
    pub async fn acquire(self) -> Result<LockGuard, LockError> {
        let Some(ttl) = self.ttl else {
            let keys = self.keys.finish(&self.manager.0.prefix);
            let key = keys.map_or_else(|(key, _)| key, |keys| keys[0].to_string());
            return Err(LockError::InvalidOption {
                lock: LockName::new(key, self.site).into(),
                fault: OptionFault::TtlMissing,
            });
        };
        let lease = self.manager.lease(self.site, self.keys, ttl, self.tag.as_deref(), &self.terms)?;
        wait::acquire(lease, self.terms).await
    }
}

/// Background work was left when the timeout of [`LockManager::shutdown`] was over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{releases} releases of locks were not finished in time; their keys end with their ttl")]
#[non_exhaustive]
pub struct Unfinished {
    /// How many.
    pub releases: usize,
}

static GLOBAL: OnceLock<LockManager> = OnceLock::new();

tokio::task_local! {
    static SCOPED: LockManager;
}

/// Installs the manager that annotated functions use unless they name one or run in another's
/// [`scope`](LockManager::scope). Once for the process.
///
/// # Errors
///
/// [`LockError::AlreadyConfigured`] if one is installed already; it stays.
pub fn set_global_manager(manager: LockManager) -> Result<(), LockError> {
    GLOBAL.set(manager).map_err(|_| LockError::AlreadyConfigured)
}

fn configuration(text: &str) -> LockError {
    LockError::Connect { cause: StoreError::new(StoreErrorKind::Configuration, text) }
}
