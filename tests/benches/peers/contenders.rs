//! Who is measured: the product, the floor and the peers, behind one small interface.

use std::error::Error;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use lock_runtime::{LockError, LockGuard, LockManager, redis, redis_lock};
use redis::aio::MultiplexedConnection;
use redis::{IntoConnectionInfo, PushInfo};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// What a contender does, or why it could not.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long a lock lives if nobody releases it, for all contenders that are told.
const TTL: Duration = Duration::from_secs(30);
/// The token of the floor: as long as the tokens of the product, and made by nobody while the time is taken.
const TOKEN: &str = "00000000-0000-4000-8000-000000000000";

/// What is locked.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    /// What the product is given: it makes the name of the key itself, call by call.
    pub(crate) id: u64,
    /// The very name under which the product locks it, ready-made for all others.
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(id: u64) -> Self {
        Self { id, name: format!("lock:order:{id}") }
    }

    pub(crate) fn range(ids: RangeInclusive<u64>) -> Vec<Self> {
        ids.map(Self::new).collect()
    }
}

/// One way of locking, connected on the runtime on which it is measured. A clone shares the connection.
pub(crate) trait Contender: Clone + Send + Sync + 'static {
    /// How it is called in the tables.
    const NAME: &'static str;

    /// Connects with the settings that one gets who sets nothing.
    fn connect(at: &Place) -> impl Future<Output = Outcome<Self>> + Send;

    /// Takes and releases a lock that is free.
    fn cycle(&mut self, key: &Key) -> impl Future<Output = Outcome<()>> + Send;

    /// Waits for a lock, awaits `body` under it, and releases it. The floor does not know how to wait: it fails.
    fn hold<T: Send, B>(&mut self, key: &Key, body: B) -> impl Future<Output = Outcome<T>> + Send
    where
        B: Future<Output = T> + Send;
}

/// A contender whose guard can be dropped instead of released.
pub(crate) trait Droppable: Contender {
    /// Takes and releases a lock.
    fn released(&mut self, key: &Key) -> impl Future<Output = Outcome<()>> + Send {
        self.cycle(key)
    }

    /// Takes a lock and drops its guard.
    fn dropped(&mut self, key: &Key) -> impl Future<Output = Outcome<()>> + Send;
}

/// The server, and what the floor must know of the product.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) url: String,
    /// The SHA-1 of the script by which the product releases, as it was seen on the wire.
    pub(crate) release: String,
}

/// The annotated functions that are measured.
mod annotated {
    use super::{LockError, LockManager, redis_lock};

    #[redis_lock(key = "order:<id>", ttl = "30s", manager = locks)]
    pub(super) async fn pay(locks: &LockManager, id: u64) -> Result<u64, LockError> {
        Ok(id)
    }

    #[redis_lock(key = "order:<id>", ttl = "30s", release = background, manager = locks)]
    pub(super) async fn pay_in_background(locks: &LockManager, id: u64) -> Result<u64, LockError> {
        Ok(id)
    }

    #[redis_lock(key = "order:<id>", ttl = "30s", wait = "60s", manager = locks)]
    pub(super) async fn serve<T, B>(locks: &LockManager, id: u64, body: B) -> Result<T, LockError>
    where
        B: Future<Output = T>,
    {
        Ok(body.await)
    }

    #[redis_lock(key = "order:<id>", ttl = "30s", wait = "60s", release = background, manager = locks)]
    pub(super) async fn serve_in_background<T, B>(
        locks: &LockManager,
        id: u64,
        body: B,
    ) -> Result<T, LockError>
    where
        B: Future<Output = T>,
    {
        Ok(body.await)
    }
}

/// The product: an annotated function that awaits its release.
#[derive(Clone)]
pub(crate) struct Product(pub(crate) LockManager);

impl Contender for Product {
    const NAME: &'static str = "this product";

    async fn connect(at: &Place) -> Outcome<Self> {
        Ok(Self(LockManager::connect(&at.url).await?))
    }

    async fn cycle(&mut self, key: &Key) -> Outcome<()> {
        annotated::pay(&self.0, key.id).await?;
        Ok(())
    }

    async fn hold<T: Send, B>(&mut self, key: &Key, body: B) -> Outcome<T>
    where
        B: Future<Output = T> + Send,
    {
        Ok(annotated::serve(&self.0, key.id, body).await?)
    }
}

impl Product {
    /// Takes a lock by hand.
    pub(crate) async fn guard(&self, key: &Key) -> Outcome<LockGuard> {
        Ok(self.0.lock(format!("order:{}", key.id)).ttl(TTL).acquire().await?)
    }
}

impl Droppable for Product {
    async fn released(&mut self, key: &Key) -> Outcome<()> {
        self.guard(key).await?.release().await;
        Ok(())
    }

    async fn dropped(&mut self, key: &Key) -> Outcome<()> {
        drop(self.guard(key).await?);
        Ok(())
    }
}

/// The product: an annotated function that does not await its release.
#[derive(Clone)]
pub(crate) struct InBackground(LockManager);

impl Contender for InBackground {
    const NAME: &'static str = "this product, release = background";

    async fn connect(at: &Place) -> Outcome<Self> {
        Ok(Self(LockManager::connect(&at.url).await?))
    }

    async fn cycle(&mut self, key: &Key) -> Outcome<()> {
        annotated::pay_in_background(&self.0, key.id).await?;
        Ok(())
    }

    async fn hold<T: Send, B>(&mut self, key: &Key, body: B) -> Outcome<T>
    where
        B: Future<Output = T> + Send,
    {
        Ok(annotated::serve_in_background(&self.0, key.id, body).await?)
    }
}

/// What no lock can be faster than: the two commands, on the connection that the product uses too.
#[derive(Clone)]
pub(crate) struct Floor {
    connection: MultiplexedConnection,
    release: Arc<str>,
}

impl Contender for Floor {
    const NAME: &'static str = "floor: SET NX PX, EVALSHA";

    async fn connect(at: &Place) -> Outcome<Self> {
        let client = redis::Client::open(&*at.url)?;
        let connection = client.get_multiplexed_async_connection().await?;
        Ok(Self { connection, release: at.release.as_str().into() })
    }

    async fn cycle(&mut self, key: &Key) -> Outcome<()> {
        self.hold(key, async {}).await
    }

    async fn hold<T: Send, B>(&mut self, key: &Key, body: B) -> Outcome<T>
    where
        B: Future<Output = T> + Send,
    {
        if !self.take(key).await? {
            return Err("the key was held".into());
        }
        let output = body.await;
        self.release(key).await?;
        Ok(output)
    }
}

impl Floor {
    async fn take(&mut self, key: &Key) -> Outcome<bool> {
        let mut set = redis::cmd("SET");
        set.arg(&key.name).arg(TOKEN).arg("NX").arg("PX").arg(30_000);
        Ok(set.query_async(&mut self.connection).await?)
    }

    async fn release(&mut self, key: &Key) -> Outcome<()> {
        let mut release = redis::cmd("EVALSHA");
        release.arg(&*self.release).arg(1).arg(&key.name).arg(TOKEN);
        if release.query_async(&mut self.connection).await? { Ok(()) } else { Err("the key was lost".into()) }
    }
}

/// What no waiter can be woken faster by: the server tells a connection that has read the key of its next change.
#[derive(Clone)]
pub(crate) struct Pushed {
    floor: Floor,
    news: Arc<Mutex<UnboundedReceiver<PushInfo>>>,
}

impl Contender for Pushed {
    const NAME: &'static str = "floor: GET, a push, SET NX PX";

    async fn connect(at: &Place) -> Outcome<Self> {
        let info = at.url.as_str().into_connection_info()?;
        let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        let client = redis::Client::open(info.set_redis_settings(settings))?;
        let (sender, news) = unbounded_channel();
        let config = redis::AsyncConnectionConfig::new().set_push_sender(sender);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut connection).await?;
        let floor = Floor { connection, release: at.release.as_str().into() };
        Ok(Self { floor, news: Arc::new(Mutex::new(news)) })
    }

    async fn cycle(&mut self, key: &Key) -> Outcome<()> {
        self.floor.cycle(key).await
    }

    async fn hold<T: Send, B>(&mut self, key: &Key, body: B) -> Outcome<T>
    where
        B: Future<Output = T> + Send,
    {
        let mut news = self.news.lock().await;
        while !self.floor.take(key).await? {
            let mut get = redis::cmd("GET");
            get.arg(&key.name);
            let holder: Option<String> = get.query_async(&mut self.floor.connection).await?;
            if holder.is_some() {
                news.recv().await.ok_or("the connection has ended")?;
            }
        }
        let output = body.await;
        self.floor.release(key).await?;
        Ok(output)
    }
}

/// The crate `rslock`.
#[derive(Clone)]
pub(crate) struct Rslock(rslock::LockManager);

impl Contender for Rslock {
    const NAME: &'static str = "rslock 0.10";

    async fn connect(at: &Place) -> Outcome<Self> {
        Ok(Self(rslock::LockManager::new(vec![&*at.url])))
    }

    async fn cycle(&mut self, key: &Key) -> Outcome<()> {
        self.hold(key, async {}).await
    }

    async fn hold<T: Send, B>(&mut self, key: &Key, body: B) -> Outcome<T>
    where
        B: Future<Output = T> + Send,
    {
        let guard = self.0.acquire(&*key.name, TTL).await?;
        let output = body.await;
        guard.release().await;
        Ok(output)
    }
}

/// The crate `rlock`.
#[derive(Clone)]
pub(crate) struct Rlock(rlock::async_lock::RLock);

impl Contender for Rlock {
    const NAME: &'static str = "rlock 0.2";

    async fn connect(at: &Place) -> Outcome<Self> {
        Ok(Self(rlock::async_lock::RLock::new(&*at.url).await?))
    }

    async fn cycle(&mut self, key: &Key) -> Outcome<()> {
        self.hold(key, async {}).await
    }

    async fn hold<T: Send, B>(&mut self, key: &Key, body: B) -> Outcome<T>
    where
        B: Future<Output = T> + Send,
    {
        let mut guard = self.0.acquire_mutex(&key.name).await?;
        let output = body.await;
        guard.release().await?;
        Ok(output)
    }
}

impl Droppable for Rlock {
    async fn dropped(&mut self, key: &Key) -> Outcome<()> {
        drop(self.0.acquire_mutex(&key.name).await?);
        Ok(())
    }
}

/// The crate `async-redis-lock`.
#[derive(Clone)]
pub(crate) struct AsyncRedisLock(async_redis_lock::Locker);

impl Contender for AsyncRedisLock {
    const NAME: &'static str = "async-redis-lock 0.4";

    async fn connect(at: &Place) -> Outcome<Self> {
        Ok(Self(async_redis_lock::Locker::from_redis_url(&at.url).await?))
    }

    async fn cycle(&mut self, key: &Key) -> Outcome<()> {
        self.0.acquire(&key.name).await?.release().await?;
        Ok(())
    }

    async fn hold<T: Send, B>(&mut self, key: &Key, body: B) -> Outcome<T>
    where
        B: Future<Output = T> + Send,
    {
        // Its default gives up after a second, which some would here.
        let options = async_redis_lock::Options::new().timeout(None);
        let lock = self.0.acquire_with_options(&options, &key.name).await?;
        let output = body.await;
        lock.release().await?;
        Ok(output)
    }
}

impl Droppable for AsyncRedisLock {
    async fn dropped(&mut self, key: &Key) -> Outcome<()> {
        drop(self.0.acquire(&key.name).await?);
        Ok(())
    }
}

/// Does something with the type of the contender that is called so.
macro_rules! with_contender {
    ($name:expr, |$contender:ident| $work:expr) => {
        with_contender!(@ $name, $contender, $work, Product InBackground Floor Pushed Rslock Rlock AsyncRedisLock)
    };
    (@ $name:expr, $contender:ident, $work:expr, $($kind:ident)*) => {
        match $name {
            $(<$crate::contenders::$kind as $crate::contenders::Contender>::NAME => {
                type $contender = $crate::contenders::$kind;
                $work
            })*
            name => panic!("no contender is called {name:?}"),
        }
    };
}
pub(crate) use with_contender;
