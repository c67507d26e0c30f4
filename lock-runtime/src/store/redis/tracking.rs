//! Server-assisted invalidation: being told when a key that was read has changed.
//!
//! `CLIENT TRACKING` is switched on once for each connection, when the first caller has to wait on it. From then on
//! the server remembers which keys the connection reads, and pushes a message at the next change of each. Needs RESP3.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::aio::{AsyncPushSender, SendError};
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, OnceCell};

use super::super::Changed;

/// Who waits for news of which key.
type Watchers = HashMap<Arc<str>, Vec<(u64, Arc<Notify>)>>;

/// What one connection is told of.
#[derive(Default)]
pub(super) struct Tracking {
    watchers: Mutex<Watchers>,
    last: AtomicU64,
    /// Whether the server agreed to tell; unset before it was asked.
    pub(super) agreed: OnceCell<bool>,
}

impl Tracking {
    /// Ready when the server pushes news of one of these keys, or nothing more can come. Begins now, not at the first
    /// poll.
    pub(super) fn watch(self: &Arc<Self>, keys: &[Arc<str>]) -> Changed {
        let (id, news) = (self.last.fetch_add(1, Ordering::Relaxed), Arc::new(Notify::new()));
        let mut watchers = self.watchers();
        for key in keys {
            watchers.entry(Arc::clone(key)).or_default().push((id, Arc::clone(&news)));
        }
        drop(watchers);
        let watcher = Watcher { tracking: Arc::clone(self), keys: keys.to_vec(), id };
        Box::pin(async move {
            let _watcher = watcher;
            news.notified().await;
        })
    }

    fn tell(&self, key: &str) {
        for (_, news) in self.watchers().get(key).into_iter().flatten() {
            news.notify_one();
        }
    }

    /// The server forgot everything, or the connection is gone: whoever waits has to look.
    pub(super) fn tell_all(&self) {
        for (_, news) in self.watchers().values().flatten() {
            news.notify_one();
        }
    }

    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Watcher {
    tracking: Arc<Tracking>,
    keys: Vec<Arc<str>>,
    id: u64,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut watchers = self.tracking.watchers();
        for key in &self.keys {
            if let Some(of_key) = watchers.get_mut(key) {
                of_key.retain(|(id, _)| *id != self.id);
                if of_key.is_empty() {
                    watchers.remove(key);
                }
            }
        }
    }
}

/// The receiving end of a connection's pushes.
pub(super) struct Pushes {
    pub(super) tracking: Arc<Tracking>,
    /// Set when the connection is found to have ended, so that nobody sends anything on it.
    pub(super) ended: Arc<AtomicBool>,
}

impl AsyncPushSender for Pushes {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Invalidate => match push.data.first() {
                Some(Value::Array(keys)) => {
                    for key in keys {
                        if let Value::BulkString(key) = key
                            && let Ok(key) = std::str::from_utf8(key)
                        {
                            self.tracking.tell(key);
                        }
                    }
                }
                // FLUSHALL and FLUSHDB name no keys.
                _ => self.tracking.tell_all(),
            },
            PushKind::Disconnection => {
                self.ended.store(true, Ordering::Release);
                self.tracking.tell_all();
            }
            _ => {}
        }
        Ok(())
    }
}
