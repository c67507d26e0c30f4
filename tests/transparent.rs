//! What the attribute leaves as it was, where it can be measured: the size of futures, how deep calls nest, and whether
//! they are `Send`. `diagnostics.rs` compares what the compiler says, and `drops.rs` what is dropped when.
//!
//! The recursion limit of this crate is the default one, which is part of the test.
#![deny(warnings, rust_2018_idioms)]

use std::cell::Cell;
use std::mem::size_of_val;
use std::rc::Rc;

use lock_runtime::{LockError, redis_lock};
use tests::calls::{is_send, run, run_refused, run_with_keys, tick};

type Outcome<T> = Result<T, LockError>;

/// Functions that call each other, each under a lock of its own.
macro_rules! nest {
    ($($key:literal $name:ident calls $next:ident;)*) => {
        $(
            #[redis_lock(key = $key, ttl = "30s")]
            async fn $name(id: u64) -> Outcome<u64> {
                $next(id).await
            }
        )*
    };
}

/// Counted from the innermost, so that `level_8` is eight deep.
#[redis_lock(key = "1:<id>", ttl = "30s")]
async fn level_1(id: u64) -> Outcome<u64> {
    tokio::task::yield_now().await;
    Ok(id)
}

nest! {
    "2:<id>" level_2 calls level_1;
    "3:<id>" level_3 calls level_2;
    "4:<id>" level_4 calls level_3;
    "5:<id>" level_5 calls level_4;
    "6:<id>" level_6 calls level_5;
    "7:<id>" level_7 calls level_6;
    "8:<id>" level_8 calls level_7;
    "9:<id>" level_9 calls level_8;
    "10:<id>" level_10 calls level_9;
    "11:<id>" level_11 calls level_10;
    "12:<id>" level_12 calls level_11;
    "13:<id>" level_13 calls level_12;
    "14:<id>" level_14 calls level_13;
    "15:<id>" level_15 calls level_14;
    "16:<id>" level_16 calls level_15;
    "17:<id>" level_17 calls level_16;
    "18:<id>" level_18 calls level_17;
    "19:<id>" level_19 calls level_18;
    "20:<id>" level_20 calls level_19;
    "21:<id>" level_21 calls level_20;
    "22:<id>" level_22 calls level_21;
    "23:<id>" level_23 calls level_22;
    "24:<id>" level_24 calls level_23;
}

#[allow(clippy::large_types_passed_by_value, reason = "it is what this is about")]
mod the_size {
    use super::*;

    async fn plain(id: u64) -> Outcome<u8> {
        let big = [1u8; 1024];
        tick().await;
        Ok(big[usize::from(id == 1)])
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn locked(id: u64) -> Outcome<u8> {
        let big = [1u8; 1024];
        tick().await;
        Ok(big[usize::from(id == 1)])
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", wait = "5s", renew, on_lost = cancel, guard = lock, tag = id)]
    async fn with_options(id: u64) -> Outcome<u8> {
        let big = [1u8; 1024];
        lock.extend(lock.remaining()).await?;
        Ok(big[usize::from(id == 1)])
    }

    #[test]
    fn of_a_future_with_a_large_local() {
        let (plain, locked) = (size_of_val(&plain(1)), size_of_val(&locked(1)));
        println!(
            "1 KiB local: {plain} B, locked {locked} B, with options {} B",
            size_of_val(&with_options(1))
        );
        assert!(locked <= 1250, "{locked} B");
        assert!(locked - plain <= 160, "{plain} B without the attribute, {locked} B with it");
        assert_eq!(run(super::the_size::locked(1)).unwrap() + run(with_options(1)).unwrap(), 2);
    }

    #[redis_lock(key = "o", ttl = "30s")]
    async fn large_arguments(a: [u8; 1024], b: [u8; 1024]) -> Outcome<u8> {
        tick().await;
        Ok(a[0] + b[0])
    }

    async fn large_arguments_of_plain(a: [u8; 1024], b: [u8; 1024]) -> Outcome<u8> {
        tick().await;
        Ok(a[0] + b[0])
    }

    /// An `async fn` holds its arguments twice, once as they came and once in its body; a lock does not add a third.
    #[test]
    fn of_a_future_with_large_arguments() {
        let (plain, locked) = (
            size_of_val(&large_arguments_of_plain([1; 1024], [1; 1024])),
            size_of_val(&large_arguments([1; 1024], [1; 1024])),
        );
        println!("2 KiB of arguments: {plain} B, locked {locked} B");
        assert!(locked - plain <= 160, "{plain} B without the attribute, {locked} B with it");
        assert_eq!(run(large_arguments([1; 1024], [1; 1024])).unwrap(), 2);
    }

    #[test]
    fn of_calls_that_nest() {
        let (one, eight) = (size_of_val(&level_1(1)), size_of_val(&level_8(1)));
        println!("one call: {one} B, eight deep: {eight} B");
        assert!(eight <= 1000, "{eight} B");
        assert!(eight - one <= 7 * 120, "{} B for each level", (eight - one) / 7);
    }
}

mod the_depth {
    use super::*;

    /// Twenty-four are the most: each level is five steps of the compiler's 128.
    #[test]
    fn of_calls_that_run_and_are_send() {
        let (id, keys) = run_with_keys(is_send(level_24(7)));
        assert_eq!((id.unwrap(), keys.len()), (7, 24));
    }
}

mod send {
    use super::*;

    /// Without `release = background` the output is held while the release is awaited: see `output_is_not_send.rs` in
    /// `wrong_bodies/`.
    #[redis_lock(key = "o:<id>", ttl = "30s", release = background, or_else = |error| Err(error.into()))]
    async fn output_is_not_send(id: u64) -> Result<u64, Box<dyn std::error::Error>> {
        tick().await;
        Ok(id)
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", release = background, or_else = |_| Rc::new(0))]
    async fn output_is_an_rc(id: u64) -> Rc<u64> {
        tick().await;
        Rc::new(id)
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn output_is_send(id: u64) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        tick().await;
        Ok(id)
    }

    /// Nothing here is `Sync`, and no reference to it is held over an await.
    #[redis_lock(key = "o:<a.get()>", ttl = "30s", tag = b.get(), guard = lock, or_else = move |_| Cell::new(c.get()))]
    async fn nothing_is_sync(a: Cell<u8>, mut b: Cell<u8>, c: Cell<u8>) -> Cell<u8> {
        tick().await;
        b = Cell::new(b.get() + a.get());
        assert!(!lock.is_lost());
        tick().await;
        b
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn generic<T: Clone>(id: u64, value: T) -> Outcome<T> {
        tick().await;
        let _ = id;
        Ok(value.clone())
    }

    #[test]
    fn is_what_was() {
        assert_eq!(run(is_send(output_is_not_send(3))).unwrap(), 3);
        assert!(run_refused("o:3", output_is_not_send(3)).unwrap_err().is::<LockError>());
        assert_eq!(*run(is_send(output_is_an_rc(3))), 3);
        assert_eq!(run(is_send(output_is_send(3))).unwrap(), 3);
        let call = || is_send(nothing_is_sync(Cell::new(1), Cell::new(2), Cell::new(3)));
        assert_eq!((run(call()).get(), run_refused("o:1", call()).get()), (3, 3));
        assert_eq!(run(is_send(generic(1, 2))).unwrap(), 2);
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn holds_an_rc(id: u64, rc: Rc<u64>) -> Outcome<u64> {
        let local = Rc::clone(&rc);
        tick().await;
        Ok(*local + *rc + id)
    }

    #[test]
    fn is_not_asked_for() {
        assert_eq!(run(holds_an_rc(1, Rc::new(2))).unwrap(), 5);
        assert_eq!(*run(generic(1, Rc::new(2))).unwrap(), 2);
    }
}
