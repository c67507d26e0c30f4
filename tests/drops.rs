//! What is dropped when: the parameters of an annotated function go in the order in which they go without the
//! attribute, wherever the function ends, and what its body and key name goes before the lock is released.
#![deny(warnings, rust_2018_idioms)]
#![allow(async_fn_in_trait)]

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::{Context, Poll, Waker};

use lock_runtime::{LockError, LockManager, redis_lock};
use tests::PATIENCE;
use tests::events::Recorder;

/// Tells of its end.
struct D(&'static str);

impl Drop for D {
    fn drop(&mut self) {
        tracing::info!(target: "drops", "{}", self.0);
    }
}

impl D {
    fn touch(&self) {
        assert!(!self.0.is_empty());
    }

    fn temporary(&self) -> (Self, u8) {
        self.touch();
        (D("temporary"), 1)
    }
}

impl std::fmt::Display for D {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

struct Pair {
    left: D,
    right: D,
}

impl Pair {
    fn new() -> Self {
        Self { left: D("left"), right: D("right") }
    }
}

thread_local! {
    /// How many awaits the body has come to.
    static AWAITS: Cell<usize> = const { Cell::new(0) };
}

async fn tick() {
    AWAITS.set(AWAITS.get() + 1);
    tokio::task::yield_now().await;
}

/// Drops a call in its await of that number, the first being 1, or before its first poll, or else runs it to its end.
/// What was dropped, and `released` where a lock was.
fn drops<F: Future>(call: F, at: usize) -> Vec<String> {
    let (recorder, _guard) = Recorder::install();
    let locks = LockManager::in_memory();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    AWAITS.set(0);
    runtime.block_on(async {
        let mut call = Box::pin(locks.scope(call));
        while AWAITS.get() < at {
            let mut cx = Context::from_waker(Waker::noop());
            match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut cx))) {
                Ok(Poll::Pending) => tokio::task::yield_now().await,
                Ok(Poll::Ready(_)) | Err(_) => break,
            }
        }
        drop(call);
        locks.shutdown(PATIENCE).await.unwrap();
    });
    let events = recorder.events().into_iter();
    events
        .filter_map(|event| match (event.target.as_str(), event.field("outcome")) {
            ("drops", _) => Some(event.message),
            (_, "released") => Some("released".to_owned()),
            _ => None,
        })
        .collect()
}

/// Compares two functions wherever they can be dropped. The lock of the second is released after everything else.
fn compare<N: Future, L: Future>(native: impl Fn() -> N, locked: impl Fn() -> L) {
    let mut all = drops(native(), usize::MAX);
    let awaits = AWAITS.get();
    assert!(!all.is_empty() && awaits > 0, "there is something to compare");
    all.push("released".to_owned());
    assert_eq!(drops(locked(), usize::MAX), all, "run to the end");
    assert_eq!(AWAITS.get(), awaits);
    assert_eq!(drops(locked(), 0), drops(native(), 0), "never polled");
    for at in 1..=awaits {
        let mut expected = drops(native(), at);
        expected.push("released".to_owned());
        assert_eq!(drops(locked(), at), expected, "dropped in await {at}");
    }
}

/// Defines one function twice.
macro_rules! both {
    ($(#[$attributes:meta])* fn $name:ident($($params:tt)*) $(-> $ret:ty)? $body:block called $args:tt) => {
        mod $name {
            use super::*;

            async fn native($($params)*) $(-> $ret)? $body

            $(#[$attributes])*
            async fn locked($($params)*) $(-> $ret)? $body

            #[test]
            fn same() {
                compare(|| native $args, || locked $args);
            }
        }
    };
}

type Outcome = Result<(), LockError>;

both! {
    #[redis_lock(key = "o", ttl = "30s")]
    fn in_reverse(a: D, b: D, c: D) -> Outcome {
        a.touch();
        let _local = D("local");
        tick().await;
        c.touch();
        b.touch();
        Ok(())
    }
    called (D("a"), D("b"), D("c"))
}

both! {
    #[redis_lock(key = "o", ttl = "30s")]
    fn underscored(_a: D, b: D, _c: D) -> Outcome {
        tick().await;
        b.touch();
        Ok(())
    }
    called (D("a"), D("b"), D("c"))
}

both! {
    #[redis_lock(key = "o:<_a>/<_b>", ttl = "30s")]
    fn only_in_the_key(_a: D, _b: D) -> Outcome {
        tick().await;
        Ok(())
    }
    called (D("a"), D("b"))
}

both! {
    #[redis_lock(key = "o", ttl = "30s")]
    fn mutable_between(a: D, mut b: D, c: D, mut d: D, _e: D) -> Outcome {
        b.touch();
        c.touch();
        tick().await;
        d.touch();
        b = D("second b");
        d = D("second d");
        tick().await;
        a.touch();
        b.touch();
        d.touch();
        Ok(())
    }
    called (D("a"), D("b"), D("c"), D("d"), D("e"))
}

both! {
    #[redis_lock(key = "o:<left>", ttl = "30s")]
    fn patterns(Pair { left, right }: Pair, (x, mut y): (D, D), [z]: [D; 1]) -> Outcome {
        tick().await;
        left.touch();
        right.touch();
        x.touch();
        y.touch();
        y = D("second y");
        tick().await;
        y.touch();
        z.touch();
        Ok(())
    }
    called (Pair::new(), (D("x"), D("y")), [D("z")])
}

both! {
    #[redis_lock(key = "o", ttl = "30s")]
    fn moved_by_the_body(a: D, b: D, c: D) -> Outcome {
        drop(b);
        tick().await;
        drop(a);
        tick().await;
        c.touch();
        Ok(())
    }
    called (D("a"), D("b"), D("c"))
}

both! {
    #[redis_lock(key = "o", ttl = "30s")]
    fn parts_moved(a: Pair, b: D) -> Outcome {
        drop(a.left);
        tick().await;
        a.right.touch();
        b.touch();
        Ok(())
    }
    called (Pair::new(), D("b"))
}

both! {
    #[redis_lock(key = "o", ttl = "30s", or_else = |_| Ok(()))]
    fn question_mark(a: D, b: D) -> Result<(), std::num::ParseIntError> {
        let _local = D("local");
        tick().await;
        a.0.parse::<u8>()?;
        b.touch();
        Ok(())
    }
    called (D("a"), D("b"))
}

both! {
    #[redis_lock(key = "o", ttl = "30s")]
    fn panics(a: D, mut b: D, c: D) -> Outcome {
        let _local = D("local");
        tick().await;
        b.touch();
        b = D("second b");
        if a.0 == "a" {
            // As a panic, without its message.
            resume_unwind(Box::new(c.0));
        }
        b.touch();
        Ok(())
    }
    called (D("a"), D("b"), D("c"))
}

both! {
    #[redis_lock(key = "o", ttl = "30s", or_else = |_| 0)]
    fn tail_temporary(a: D, mut b: D) -> u8 {
        let _local = D("local");
        tick().await;
        b.touch();
        b = D("second b");
        a.touch();
        b.temporary().1
    }
    called (D("a"), D("b"))
}

both! {
    #[redis_lock(key = "o", ttl = "30s", or_else = |_| 0)]
    fn tail_temporary_of_a_block(a: D, b: D) -> u8 {
        tick().await;
        a.touch();
        if b.temporary().1 == 1 {
            let _local = D("local");
            return a.temporary().1;
        }
        b.temporary().1 + a.temporary().1
    }
    called (D("a"), D("b"))
}

both! {
    #[redis_lock(key = "o", ttl = "30s", guard = _lock, tag = a)]
    fn with_a_guard(a: D, b: D) -> Outcome {
        tick().await;
        b.touch();
        a.touch();
        Ok(())
    }
    called (D("a"), D("b"))
}

both! {
    #[redis_lock(key = "o", ttl = "30s", release = background, on_lost = cancel, renew)]
    fn with_other_ends(a: D, mut b: D) -> Outcome {
        tick().await;
        b.touch();
        b = D("second b");
        tick().await;
        b.touch();
        a.touch();
        Ok(())
    }
    called (D("a"), D("b"))
}

both! {
    #[redis_lock(key = "o", ttl = "30s", or_else = |_| ())]
    fn in_a_closure_and_a_block(a: D, b: D, c: D, d: D) {
        let closure = move || b.touch();
        let block = async move {
            tick().await;
            c.touch();
        };
        closure();
        block.await;
        a.touch();
        d.touch();
    }
    called (D("a"), D("b"), D("c"), D("d"))
}

both! {
    #[redis_lock(key = "o:<d>", for d in &_all, ttl = "30s")]
    fn keys_of_what_stays(_all: Vec<D>, b: D) -> Outcome {
        tick().await;
        b.touch();
        Ok(())
    }
    called (vec![D("first"), D("second")], D("b"))
}

both! {
    #[redis_lock(key = "o:<d>", for d in all.iter(), ttl = "30s")]
    fn keys_of_what_the_body_names(all: Vec<D>, b: D) -> Outcome {
        tick().await;
        b.touch();
        all[0].touch();
        Ok(())
    }
    called (vec![D("first"), D("second")], D("b"))
}

mod methods {
    use super::*;

    struct S(D);

    macro_rules! method {
        ($(#[$attribute:meta])* $name:ident) => {
            $(#[$attribute])*
            async fn $name(self, a: D, mut b: D) -> Outcome {
                tick().await;
                b.touch();
                b = D("second b");
                tick().await;
                b.touch();
                a.touch();
                self.0.touch();
                Ok(())
            }
        };
    }

    impl S {
        method!(native);
        method!(
            #[redis_lock(key = "o:<self.0>", ttl = "30s")]
            locked
        );
    }

    #[test]
    fn same() {
        compare(|| S(D("self")).native(D("a"), D("b")), || S(D("self")).locked(D("a"), D("b")));
    }
}

mod async_trait_methods {
    use super::*;

    struct S;

    #[async_trait::async_trait]
    trait T {
        async fn native(&self, a: D, mut b: D, _c: D) -> Outcome;
        async fn locked(&self, a: D, mut b: D, _c: D) -> Outcome;
    }

    #[async_trait::async_trait]
    impl T for S {
        async fn native(&self, a: D, mut b: D, _c: D) -> Outcome {
            tick().await;
            b.touch();
            b = D("second b");
            b.touch();
            a.touch();
            Ok(())
        }

        #[redis_lock(key = "o:<a>/<b>", ttl = "30s")]
        async fn locked(&self, a: D, mut b: D, _c: D) -> Outcome {
            tick().await;
            b.touch();
            b = D("second b");
            b.touch();
            a.touch();
            Ok(())
        }
    }

    #[test]
    fn same() {
        compare(|| S.native(D("a"), D("b"), D("c")), || S.locked(D("a"), D("b"), D("c")));
    }
}

/// What a pattern does not bind cannot move into the body, and what nobody names is not to: it is dropped when the
/// function has ended, and that is after the release. `_name` instead of `_` drops it before.
#[test]
fn what_nobody_names_goes_after_the_release() {
    #[redis_lock(key = "o", ttl = "30s")]
    async fn unbound(_: D, (a, _): (D, D)) -> Outcome {
        a.touch();
        Ok(())
    }
    #[allow(unused_variables, reason = "it is what this is about")]
    #[redis_lock(key = "o", ttl = "30s")]
    async fn unnamed(a: D, b: D, c: D) -> Outcome {
        a.touch();
        c.touch();
        Ok(())
    }
    let call = unbound(D("ignored"), (D("a"), D("rest")));
    assert_eq!(drops(call, usize::MAX), ["a", "released", "rest", "ignored"]);
    assert_eq!(drops(unnamed(D("a"), D("b"), D("c")), usize::MAX), ["c", "a", "released", "b"]);
}
