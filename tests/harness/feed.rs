//! A list that grows while others wait for what comes into it.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;

use crate::{clock, lock};

pub(crate) struct Feed<T> {
    items: Mutex<Items<T>>,
    grown: Notify,
}

struct Items<T> {
    list: Vec<T>,
    // How many were taken out before: a waiter that has looked at some must not look at others instead.
    taken: usize,
}

impl<T> Default for Feed<T> {
    fn default() -> Self {
        Self { items: Mutex::new(Items { list: Vec::new(), taken: 0 }), grown: Notify::new() }
    }
}

impl<T: Clone> Feed<T> {
    pub(crate) fn push(&self, item: T) {
        lock(&self.items).list.push(item);
        self.grown.notify_waiters();
    }

    pub(crate) fn list(&self) -> Vec<T> {
        lock(&self.items).list.clone()
    }

    pub(crate) fn take(&self) -> Vec<T> {
        let mut items = lock(&self.items);
        items.taken += items.list.len();
        std::mem::take(&mut items.list)
    }

    /// The first item, of those that are there and those to come, for which `wanted` holds.
    pub(crate) async fn find(&self, within: Duration, mut wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let mut seen = 0;
        clock::timeout(within, async {
            loop {
                let grown = self.grown.notified();
                tokio::pin!(grown);
                // Before looking, so that what comes between looking and waiting is not missed.
                grown.as_mut().enable();
                {
                    let items = lock(&self.items);
                    let start = seen.max(items.taken) - items.taken;
                    if let Some(found) = items.list[start..].iter().find(|item| wanted(item)) {
                        return found.clone();
                    }
                    seen = items.taken + items.list.len();
                }
                grown.await;
            }
        })
        .await
    }
}
