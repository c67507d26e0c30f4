//! What goes wrong in attributes that rewrite functions: one module for each pitfall, with the issues of other projects
//! where it was found. Compiled in the editions 2021 and 2024, where annotating a function must add no warning.
//!
//! The pitfalls that have to be refused are under the same numbers in `refusals/`.
#![deny(warnings, rust_2018_idioms, let_underscore_drop)]
#![allow(async_fn_in_trait)]

use std::future::Future;

use lock_runtime::{LockError, LockManager, redis_lock};
use tests::calls::{is_send, run, run_for_a_while, run_refused, run_with_keys, tick};

/// What can carry a `LockError` and is not about errors.
type Outcome<T> = Result<T, LockError>;

/// tracing#2270, tracing#1056: a boxed trait object needs its expected type, behind `return` too.
mod pitfall_01_box_coercion {
    use super::*;
    use std::fmt::Debug;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |error| Box::new(error))]
    async fn f(id: u64) -> Box<dyn Debug> {
        if id > 1 {
            return Box::new(id);
        }
        Box::new("x")
    }

    #[test]
    fn boxes_become_trait_objects() {
        assert_eq!(format!("{:?}", run(f(7))), "7");
        assert_eq!(format!("{:?}", run(f(0))), "\"x\"");
        assert!(format!("{:?}", run_refused("o:7", f(7))).starts_with("Busy"));
    }
}

/// tracing#3257, tokio#4175: a function that never returns.
mod pitfall_02_never_type {
    use super::*;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |error| panic!("{error}"))]
    async fn f(id: u64, count: &Cell<u32>) -> ! {
        loop {
            count.set(count.get() + 1);
            tick().await;
        }
    }

    #[redis_lock(key = "outer:<id>", ttl = "30s", or_else = |_| std::process::exit(1))]
    async fn through_another(id: u64, count: &Cell<u32>) -> ! {
        f(id, count).await
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| std::process::abort())]
    async fn panics(id: u64) -> ! {
        panic!("{id}")
    }

    #[test]
    fn it_runs_for_ever() {
        let count = Cell::new(0);
        run_for_a_while(through_another(7, &count));
        assert!(count.get() > 3);
        let panic = catch_unwind(|| run(panics(7))).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("7"));
    }

    #[test]
    fn without_its_lock_it_ends_in_or_else() {
        let panic = catch_unwind(AssertUnwindSafe(|| run_refused("o:7", f(7, &Cell::new(0))))).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("held by someone else"), "{text}");
    }
}

/// async-trait#281, tracing#1244: `impl Trait` in a return type, which no `let` can name.
mod pitfall_03_impl_trait {
    use super::*;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |error| Err(error.to_string()))]
    async fn f(id: u64) -> Result<impl Iterator<Item = u64>, String> {
        if id == 0 {
            return Err("none".to_owned());
        }
        Ok(0..id)
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0..0)]
    async fn bare(id: u64) -> impl Iterator<Item = u64> {
        0..id
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn nested(id: u64) -> Outcome<(Vec<impl std::fmt::Debug>, Box<dyn Iterator<Item = impl Send>>)> {
        Ok((vec![id], Box::new(std::iter::once(id))))
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn closure(id: u64) -> Outcome<impl Fn(u64) -> u64> {
        Ok(move |x| x + id)
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn argument(id: impl std::fmt::Display + Clone) -> Outcome<String> {
        tick().await;
        Ok(id.to_string())
    }

    #[test]
    fn in_every_position() {
        assert_eq!(run(f(3)).map(Iterator::count), Ok(3));
        assert_eq!(run(f(0)).map(Iterator::count), Err("none".to_owned()));
        assert!(run_refused("o:3", f(3)).map(Iterator::count).is_err());
        assert_eq!(run(bare(4)).count(), 4);
        assert_eq!(run(nested(4)).map(|(list, rest)| list.len() + rest.count()).ok(), Some(2));
        assert_eq!(run(closure(4)).map(|f| f(1)).ok(), Some(5));
        assert_eq!(run(argument("x")).unwrap(), "x");
    }
}

/// async-backtrace#25: no lint about the type that the expansion writes down.
mod pitfall_04_lints_of_the_return_type {
    use super::*;
    use std::convert::Infallible;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |error| Err(error.to_string()))]
    async fn f(id: u64) -> Result<impl Iterator<Item = u64>, String> {
        Ok(0..id)
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| ())]
    async fn unit(id: u64) {
        let _ = id;
    }

    #[allow(clippy::unused_unit, reason = "it is the point")]
    mod written {
        use super::*;

        #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| ())]
        pub(super) async fn unit(id: u64) -> () {
            tick().await;
            let _ = id;
        }
    }

    type Handler = Box<dyn Fn(u8) -> u8>;

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn complex(id: u64) -> Outcome<Vec<Option<Result<(u8, Handler), Vec<Vec<u8>>>>>> {
        let _ = id;
        Ok(vec![None, Some(Ok((1, Box::new(|x| x))))])
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn infallible(id: &str) -> Result<Infallible, Box<dyn std::error::Error>> {
        Err(id)?
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |error| panic!("{error}"))]
    async fn uninhabited(id: u64) -> Infallible {
        loop {
            let _ = id;
            tick().await;
        }
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| unreachable!())]
    async fn generic<T: Clone>(id: u64, value: &T) -> T {
        let _ = id;
        value.clone()
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| std::future::ready(0))]
    async fn future(id: u64) -> impl Future<Output = u64> {
        std::future::ready(id)
    }

    #[test]
    fn none_is_added() {
        assert_eq!(run(f(1)).map(Iterator::count), Ok(1));
        run(unit(1));
        run(written::unit(1));
        assert_eq!(run(complex(1)).unwrap().len(), 2);
        assert_eq!(run(infallible("x")).unwrap_err().to_string(), "x");
        run_for_a_while(uninhabited(1));
        assert_eq!(run(generic(1, &2)), 2);
        assert_eq!(run(async { future(1).await.await }), 1);
    }
}

/// tracing#2717: a `mut` parameter may be given something that lives shorter than the argument.
mod pitfall_05_shorter_lifetime {
    use super::*;

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn f(id: u64, mut a: &str) -> Outcome<usize> {
        let s = String::from("longer");
        assert_eq!(a, "x");
        a = &s;
        tick().await;
        Ok(a.len() + usize::from(id == 1))
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn in_a_pattern(id: u64, (mut a, b): (&str, u8)) -> Outcome<usize> {
        let s = String::from("longer");
        assert_eq!(a, "x");
        a = &s;
        Ok(a.len() + usize::from(b) + usize::from(id == 1))
    }

    #[test]
    fn it_is_taken() {
        assert_eq!(run(f(1, "x")).unwrap(), 7);
        assert_eq!(run(in_a_pattern(1, ("x", 1))).unwrap(), 8);
    }
}

/// fn-error-context#5, tracing#342: the result borrows from a parameter.
mod pitfall_06_borrowed_result {
    use super::*;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| &0)]
    async fn f(id: u64, v: &mut u32) -> &u32 {
        *v += u32::from(id == 1);
        v
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn of_one_of_two<'a>(id: u64, v: &'a mut u32, w: &u32) -> Result<&'a mut u32, LockError> {
        *v += *w * u32::from(id == 1);
        Ok(v)
    }

    #[test]
    fn it_outlives_the_call() {
        let mut v = 1;
        assert_eq!(*run(f(1, &mut v)), 2);
        *run(of_one_of_two(1, &mut v, &2)).unwrap() += 5;
        assert_eq!(v, 9);
    }
}

/// tracing#2857, tracing#2847: a method returns a mutable borrow of `self`, which no closure can.
mod pitfall_07_borrow_of_self {
    use super::*;

    struct Store {
        id: u64,
        bytes: Vec<u8>,
        fallback: Vec<u8>,
    }

    impl Store {
        #[redis_lock(key = "o:<self.id>", ttl = "30s", or_else = |error| panic!("{error}"))]
        async fn f(&mut self) -> &mut Vec<u8> {
            self.bytes.push(1);
            tick().await;
            &mut self.bytes
        }

        #[redis_lock(key = "o:<id>", ttl = "30s")]
        async fn one_of_two(&mut self, id: u64) -> Outcome<&mut Vec<u8>> {
            if id == 0 {
                return Ok(&mut self.fallback);
            }
            Ok(&mut self.bytes)
        }
    }

    #[test]
    fn it_outlives_the_call() {
        let mut store = Store { id: 1, bytes: vec![], fallback: vec![] };
        run(store.f()).push(2);
        run(store.one_of_two(1)).unwrap().push(3);
        run(store.one_of_two(0)).unwrap().push(4);
        assert_eq!((store.bytes, store.fallback), (vec![1, 2, 3], vec![4]));
    }
}

/// tracing#1006: an early `return` leaves the body, and not the function around it: the lock is released.
mod pitfall_08_early_return {
    use super::*;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn f(id: u64) -> u64 {
        for i in 0.. {
            if i > id {
                return i;
            }
        }
        0
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn question_mark(id: &str) -> Result<u64, Box<dyn std::error::Error>> {
        Ok(id.parse::<u64>()?)
    }

    #[test]
    fn it_releases() {
        assert_eq!(run(f(5)), 6);
        assert!(run(question_mark("x")).is_err());
        assert_eq!(run(question_mark("7")).unwrap(), 7);
    }
}

/// tracing#3306: items and imports of the body do not change what the return type names.
mod pitfall_09_shadowed_return_type {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Foo(u8);

    mod bar {
        pub(super) struct Foo(pub(super) u8);
    }

    fn outer(id: u8) -> Foo {
        Foo(id)
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| outer(0))]
    async fn f(id: u8) -> Foo {
        use bar::*;
        let shadowed = Foo(id);
        super::pitfall_09_shadowed_return_type::Foo(shadowed.0)
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| Foo(0))]
    async fn by_an_item(id: u8) -> Foo {
        struct Foo(u8);
        let shadowed = Foo(id);
        outer(shadowed.0)
    }

    #[test]
    fn it_is_what_it_was() {
        assert_eq!(run(f(3)), Foo(3));
        assert_eq!(run(by_an_item(3)), Foo(3));
    }
}

/// tracing#2294: `#![...]` at the start of a body.
mod pitfall_10_inner_attributes {
    use super::*;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn f(id: u64) -> u64 {
        #![allow(unused_mut)]
        #![allow(clippy::let_and_return)]
        let mut x = id;
        x
    }

    #[test]
    fn they_stay_in_front() {
        assert_eq!(run(f(3)), 3);
    }
}

/// tracing#3320: parameters that are configured away.
#[allow(clippy::non_minimal_cfg, reason = "these are the shortest that are never and always true")]
mod pitfall_11_cfg_on_parameters {
    use super::*;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn f(id: u64, #[cfg(any())] g: u8) -> u64 {
        id
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn used(
        id: u64,
        #[cfg(any())] g: u8,
        #[cfg(any())] mut h: Vec<u8>,
        #[cfg(all())] mut i: u64,
    ) -> u64 {
        #[cfg(any())]
        let _ = (g, h.push(1));
        i += 1;
        id + i
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn patterns(id: u64, #[cfg(any())] _g: u8, #[cfg(any())] (a, mut b): (u8, u8)) -> u64 {
        id
    }

    #[test]
    fn they_are_not_named() {
        assert_eq!(run(f(3)), 3);
        assert_eq!(run(used(3, 4)), 8);
        assert_eq!(run(patterns(3)), 3);
    }
}

/// async-trait#288, no-panic#75: the generics keep their attributes.
#[allow(clippy::non_minimal_cfg, reason = "these are the shortest that are never and always true")]
mod pitfall_12_cfg_on_generics {
    use super::*;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn f<#[cfg(any())] T>(id: u64) -> u64 {
        id
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn both<#[cfg(any())] T, #[cfg(all())] U>(id: u64) -> u64
    where
        U: Default + Into<u64>,
    {
        id + U::default().into()
    }

    #[test]
    fn they_are_configured_away() {
        assert_eq!(run(f(3)), 3);
        assert_eq!(run(both::<u8>(3)), 3);
    }
}

/// tracing#1366, fn-error-context#3: what is unused, or otherwise worth a warning, still warns. An `expect` of a warning
/// that is not given is a warning itself.
mod pitfall_13_dead_code {
    use super::*;

    #[expect(dead_code, reason = "nobody calls it")]
    mod unused {
        use super::*;

        #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
        async fn f(id: u64) -> u64 {
            id
        }
    }

    #[redis_lock(key = "o:7", ttl = "30s", or_else = |_| 0)]
    #[expect(unused_variables, reason = "a parameter that nothing names")]
    async fn parameter(id: u64) -> u64 {
        1
    }

    #[redis_lock(key = "o:7", ttl = "30s", or_else = |_| 0)]
    #[expect(unused_variables, unused_mut, reason = "a parameter that nothing names")]
    async fn mutable_parameter(mut id: u64) -> u64 {
        1
    }

    #[redis_lock(key = "o:7", ttl = "30s", or_else = |_| 0)]
    #[expect(unused_mut, reason = "nothing changes it")]
    async fn not_changed(mut id: u64) -> u64 {
        id
    }

    #[redis_lock(key = "o:7", ttl = "30s", or_else = |_| 0)]
    #[expect(unused_mut, reason = "nothing changes it")]
    async fn not_changed_in_a_pattern((mut id, _): (u64, u64)) -> u64 {
        id
    }

    #[redis_lock(key = "o:7", ttl = "30s", or_else = |_| 0)]
    #[expect(unused_variables, reason = "b")]
    async fn part_of_a_pattern((a, b): (u64, u64)) -> u64 {
        a
    }

    #[redis_lock(key = "o:7", ttl = "30s", or_else = |_| 0)]
    #[expect(unused_assignments, reason = "the argument is overwritten")]
    async fn overwritten(mut a: u64) -> u64 {
        a = 1;
        a
    }

    #[redis_lock(key = "o:7", ttl = "30s", or_else = |_| 0)]
    #[expect(unreachable_code, reason = "the tail")]
    async fn unreachable(a: u64) -> u64 {
        return a;
        1
    }

    #[redis_lock(key = "o:7", ttl = "30s", or_else = |_| 0)]
    #[expect(unused_must_use, reason = "a future that nobody awaits")]
    async fn must_use(a: u64) -> u64 {
        tick();
        a
    }

    #[redis_lock(key = "o:7", ttl = "30s", guard = lock, or_else = |_| 0)]
    #[expect(unused_variables, reason = "the guard")]
    async fn guard(a: u64) -> u64 {
        a
    }

    #[redis_lock(key = "o:7", ttl = "30s", or_else = |_| 0)]
    #[expect(clippy::needless_return, reason = "it is the last")]
    async fn needless_return(a: u64) -> u64 {
        return a;
    }

    #[redis_lock(key = "o:7", ttl = "30s", or_else = |_| 0)]
    #[expect(clippy::let_and_return, reason = "a name that is used once")]
    async fn let_and_return(a: u64) -> u64 {
        let b = a + 1;
        b
    }

    #[test]
    fn what_warns_works() {
        assert_eq!(run(parameter(5)) + run(mutable_parameter(5)) + run(overwritten(5)), 3);
        assert_eq!(run(not_changed(5)) + run(not_changed_in_a_pattern((5, 6))), 10);
        assert_eq!(run(part_of_a_pattern((5, 6))) + run(unreachable(5)) + run(must_use(5)), 15);
        assert_eq!(run(guard(5)) + run(needless_return(5)) + run(let_and_return(5)), 16);
    }
}

/// tracing#1613, tracing#2876, tracing#3485, clippy#12281: no style lint falls on generated code. The whole file is a
/// test of it; these are bodies of one expression, and calls with everything at once.
mod pitfall_14_style_lints {
    use super::*;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn one_match(id: u64) -> u64 {
        match id {
            0 => 1,
            other => other,
        }
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn one_if(id: u64) -> u64 {
        if id == 0 { 1 } else { 2 }
    }

    #[redis_lock(key = "outer:<id>", ttl = "30s", or_else = |_| 0)]
    async fn one_await(id: u64) -> u64 {
        one_if(id).await
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn one_try(id: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let _ = id;
        Ok(())
    }

    #[redis_lock(key = "o:<_id>", ttl = "30s", or_else = |_| ())]
    async fn empty(_id: u64) {}

    #[redis_lock(key = "o:<_id>", ttl = "30s", or_else = |_| 0)]
    async fn one_async_block(_id: u64) -> u8 {
        async { 1 }.await
    }

    #[redis_lock(
        key = "o:<id>/<self_.0>/<name.len()>",
        ttl = "30s",
        wait = "1s",
        renew,
        max_hold = "10m",
        on_lost = cancel,
        hold_at_least = "10ms",
        release = background,
        fenced,
        tag = name,
        manager = locks,
        guard = lock,
        or_else = |_| 0
    )]
    async fn everything(locks: &LockManager, id: u64, self_: (u8,), name: &str) -> usize {
        tick().await;
        lock.key().len()
    }

    #[redis_lock(
        key = "o:<id>",
        for id in ids,
        ttl = "30s",
        hold_after_ok = "1s",
        permits = 3,
        or_else = Err
    )]
    async fn everything_else(ids: &[u8]) -> Outcome<usize> {
        tick().await;
        Ok(ids.len())
    }

    #[redis_lock(key = "o", ttl = "30s", or_else = |_| 0)]
    async fn no_place() -> usize {
        1
    }

    #[test]
    fn none_is_added() {
        assert_eq!(run(one_match(0)), 1);
        assert_eq!(run_with_keys(one_await(0)), (1, vec!["outer:0".to_owned(), "o:0".to_owned()]));
        assert!(run(one_try(0)).is_ok());
        run(empty(0));
        assert_eq!(run(one_async_block(0)), 1);
        assert_eq!(run(no_place()), 1);
        let locks = LockManager::builder().prefix("").in_memory();
        assert_eq!(run(everything(&locks, 1, (2,), "abc")), 7);
        assert_eq!(run(everything_else(&[1, 2])).unwrap(), 2);
    }
}

/// async-trait#147, async-trait#129, async-trait#21, tokio#6869, tokio#7650: lints that only some people turn on.
mod pitfall_15_restriction_lints {
    #![deny(
        clippy::absolute_paths,
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::let_underscore_must_use,
        clippy::let_underscore_untyped,
        clippy::min_ident_chars,
        clippy::missing_trait_methods,
        clippy::nursery,
        clippy::pattern_type_mismatch,
        clippy::question_mark_used,
        clippy::semicolon_outside_block,
        clippy::shadow_reuse,
        clippy::shadow_unrelated,
        clippy::std_instead_of_core,
        clippy::unwrap_in_result,
        clippy::unwrap_used,
        clippy::used_underscore_binding
    )]
    #![allow(
        clippy::significant_drop_tightening,
        reason = "it asks to release the lock earlier, and is aimed at the whole function, where nothing of ours can say no"
    )]
    use super::*;

    #[redis_lock(key = "o:<identity>", ttl = "30s")]
    async fn checked(identity: u64, mut text: String, _unused: &str) -> Outcome<String> {
        tick().await;
        text.push('x');
        Ok(text.repeat(usize::try_from(identity).unwrap_or(0)))
    }

    #[redis_lock(key = "o:<identity>", ttl = "30s", guard = lock, tag = identity, or_else = |_error| 0)]
    async fn with_guard(identity: u64, mut text: String) -> usize {
        text.push_str(lock.key());
        text.len()
    }

    #[redis_lock(key = "o:<_identity>", ttl = "30s", or_else = |_error| ())]
    async fn unit(_identity: u64) {
        tick().await;
    }

    #[test]
    fn none_is_added() {
        assert_eq!(run(checked(2, String::new(), "")).ok().as_deref(), Some("xx"));
        assert_eq!(run(with_guard(2, String::new())), 3);
        run(unit(2));
    }
}

/// tracing#2090: the braces of a body are one pair.
mod pitfall_16_unused_braces {
    use super::*;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| None)]
    async fn f(id: u64) -> Option<u8> {
        let _ = id;
        None
    }

    #[rustfmt::skip]
    #[redis_lock(key = "o:<_id>", ttl = "30s", or_else = |_| None)]
    async fn one_line(_id: u64) -> Option<u8> { None }

    #[test]
    fn none_is_doubled() {
        assert_eq!(run(f(1)), None);
        assert_eq!(run(one_line(1)), None);
    }
}

/// tracing#1296: statements in front of a boxed future stay.
mod pitfall_21_boxed_future {
    use super::*;
    use std::pin::Pin;

    type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

    #[redis_lock(key = "o", ttl = "30s", or_else = |_| 0)]
    fn f() -> Pin<Box<dyn Future<Output = u8>>> {
        let m = 1;
        Box::pin(async move { m })
    }

    #[redis_lock(key = "o:<name>", ttl = "30s")]
    fn borrowed<'a>(name: &'a str, list: &'a mut Vec<String>) -> BoxFuture<'a, Outcome<usize>> {
        let before = list.len();
        Box::pin(async move {
            tick().await;
            if before > 100 {
                return Ok(0);
            }
            list.push(name.to_owned());
            Ok(before)
        })
    }

    #[rustfmt::skip]
    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| Box::new(1))]
    fn coerces(id: u64, _unused: &str) -> Pin<Box<dyn Future<Output = Box<dyn std::fmt::Debug>>>> {
        std::boxed::Box::pin(async move {
            if id > 1 {
                return Box::new(id);
            }
            Box::new("x")
        },)
    }

    #[test]
    fn all_statements_run() {
        assert_eq!(run(f()), 1);
        let mut list = vec![String::new()];
        assert_eq!(run(is_send(borrowed("a", &mut list))).ok(), Some(1));
        assert_eq!(list[1], "a");
        assert_eq!(format!("{:?}", run(coerces(0, ""))), "\"x\"");
        assert_eq!(format!("{:?}", run_refused("o:7", coerces(7, ""))), "1");
    }
}

/// autometrics#155, tracing#711: methods that `#[async_trait]` has already rewritten.
mod pitfall_22_async_trait {
    use super::*;
    use async_trait::async_trait;

    #[async_trait]
    trait Orders {
        async fn f(&self) -> Outcome<u64>;
        async fn mutable(&mut self, mut list: Vec<u8>, name: &str) -> Outcome<String>;
        async fn by_value(self, id: u64) -> Result<u64, Failed>
        where
            Self: Sized;
        async fn associated(id: u64) -> u64
        where
            Self: Sized;
        async fn boxed(self: Box<Self>) -> Box<dyn std::fmt::Debug + Send>;
        fn number(&self) -> u64;

        #[redis_lock(key = "default:<id>/<self.number()>", ttl = "30s")]
        async fn with_default(&self, id: u64) -> Outcome<u64> {
            tick().await;
            Ok(id + self.number())
        }
    }

    struct Shop {
        id: u64,
    }

    #[derive(Debug)]
    struct Failed;
    impl From<LockError> for Failed {
        fn from(_: LockError) -> Self {
            Self
        }
    }

    #[async_trait]
    impl Orders for Shop {
        #[redis_lock(key = "o:<self.id>", ttl = "30s")]
        async fn f(&self) -> Outcome<u64> {
            tick().await;
            Ok(self.id)
        }

        #[redis_lock(key = "o:<self.id>/<name>/<list.len()>", ttl = "30s", guard = lock)]
        async fn mutable(&mut self, mut list: Vec<u8>, name: &str) -> Outcome<String> {
            self.id += 1;
            list.push(1);
            tick().await;
            Ok(format!("{} {} {name} {}", self.id, list.len(), lock.key()))
        }

        #[redis_lock(key = "o:<id>", ttl = "30s")]
        async fn by_value(self, id: u64) -> Result<u64, Failed> {
            if id == 0 {
                return Err(Failed);
            }
            Ok(self.id + id)
        }

        #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
        async fn associated(id: u64) -> u64 {
            id
        }

        #[redis_lock(key = "o:<self.id>", ttl = "30s", or_else = |error| Box::new(error))]
        async fn boxed(self: Box<Self>) -> Box<dyn std::fmt::Debug + Send> {
            if self.id == 0 {
                return Box::new("none");
            }
            Box::new(self.id)
        }

        fn number(&self) -> u64 {
            self.id
        }
    }

    #[async_trait(?Send)]
    trait Local {
        async fn local(&self, id: u64) -> Outcome<u64>;
        async fn pattern(&self, id: u64, pair: (u64, u64)) -> Outcome<u64>;
        async fn unit(&self, id: u64);
    }

    #[async_trait(?Send)]
    impl Local for Shop {
        #[redis_lock(key = "o:<id>", ttl = "30s")]
        async fn local(&self, id: u64) -> Outcome<u64> {
            let local = std::rc::Rc::new(id);
            tick().await;
            Ok(*local)
        }

        #[redis_lock(key = "o:<id>", ttl = "30s")]
        async fn pattern(&self, id: u64, (a, b): (u64, u64)) -> Outcome<u64> {
            Ok(id + a + b)
        }

        #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| ())]
        async fn unit(&self, id: u64) {
            tick().await;
            let _ = id;
        }
    }

    /// tonic re-exports the same attribute.
    #[tonic::async_trait]
    trait Service {
        async fn call(&self, request: String) -> Result<String, Failed>;
    }

    #[tonic::async_trait]
    impl Service for Shop {
        #[redis_lock(key = "o:<request>", ttl = "30s")]
        async fn call(&self, request: String) -> Result<String, Failed> {
            Ok(request)
        }
    }

    #[test]
    fn the_lock_goes_into_the_boxed_future() {
        let mut shop = Shop { id: 7 };
        assert_eq!(run_with_keys(is_send(shop.f())).1, ["o:7"]);
        assert_eq!(run(is_send(shop.mutable(vec![], "n"))).unwrap(), "8 1 n o:7/n/0");
        assert_eq!(run_with_keys(shop.with_default(1)).1, ["default:1/8"]);
        assert_eq!(run(shop.local(1)).unwrap(), 1);
        assert_eq!(run(shop.pattern(1, (2, 3))).unwrap(), 6);
        run(shop.unit(1));
        assert_eq!(run(shop.call("x".to_owned())).unwrap(), "x");
        assert_eq!(run(Shop::associated(4)), 4);
        assert_eq!(format!("{:?}", run(Box::new(Shop { id: 3 }).boxed())), "3");
        assert!(run_refused("o:1", Shop { id: 3 }.by_value(1)).is_err());
        assert_eq!(run(shop.by_value(1)).unwrap(), 9);
    }
}

/// async-trait#1, async-trait#53, async-trait#81, async-trait#87: `Self` and the generics around a method.
mod pitfall_24_self_and_outer_generics {
    use super::*;

    struct Shop<T, const N: usize>(T);

    impl<T: std::fmt::Display + Clone, const N: usize> Shop<T, N> {
        const REGION: &'static str = "eu";

        #[redis_lock(key = "o:<id>/<Self::REGION>/<N>", ttl = "30s", or_else = |_| None)]
        async fn f(id: u64, value: T) -> Option<Self> {
            (id > 0).then_some(Self(value))
        }

        #[redis_lock(key = "<self.0>", ttl = "30s", guard = lock, or_else = |_| String::new())]
        async fn method(&self) -> String {
            format!("{} {} {N}", lock.key(), Self::REGION)
        }

        #[redis_lock(key = "<M>", ttl = "30s", guard = lock, or_else = |_| String::new())]
        async fn own_generics<U: Default + std::fmt::Display, const M: usize>() -> String {
            format!("{} {} {}", lock.key(), U::default(), M + N)
        }
    }

    #[test]
    fn both_can_be_named() {
        let (shop, keys) = run_with_keys(Shop::<u8, 3>::f(1, 2));
        assert_eq!(keys, ["o:1/eu/3"]);
        assert_eq!(run(shop.unwrap().method()), "2 eu 3");
        assert_eq!(run(Shop::<u8, 3>::own_generics::<u8, 4>()), "4 0 7");
    }
}

/// async-trait#17, async-trait#68, async-trait#92: `self` inside of macros.
mod pitfall_25_self_in_macros {
    use super::*;

    struct Shop {
        id: u64,
    }

    macro_rules! id_of {
        ($s:expr) => {
            $s.id
        };
    }

    impl Shop {
        #[redis_lock(key = "o:<self.id>", ttl = "30s", or_else = |_| String::new())]
        async fn f(&self, name: &str) -> String {
            println!("{}", self.id);
            let text = format!("{} {name}", self.id);
            assert_eq!(id_of!(self), 7);
            tick().await;
            text
        }
    }

    #[test]
    fn it_is_not_renamed() {
        assert_eq!(run(Shop { id: 7 }.f("x")), "7 x");
    }
}

/// async-trait#46, async-trait#104: methods that macros make, with keys that are handed to the macro.
mod pitfall_26_hygiene {
    use super::*;

    struct Shop {
        id: u64,
    }

    macro_rules! method {
        ($name:ident, $key:literal) => {
            #[redis_lock(key = $key, ttl = "30s", guard = lock, or_else = |_| String::new())]
            async fn $name(&self, order: u64, (a, _b): (u64, u64)) -> String {
                format!("{} {} {order} {a}", self.id, lock.key())
            }
        };
        ($name:ident, $key:literal, $param:ident, $ttl:expr) => {
            #[redis_lock(key = $key, ttl = $ttl, guard = lock, or_else = |_| String::new())]
            async fn $name(&self, $param: u64) -> String {
                format!("{} {}", lock.key(), $param)
            }
        };
    }

    impl Shop {
        method!(f, "o:<self.id>/<order>/<a>");
        method!(own_parameter, "o:<other>/<self.id>", other, "30s");
    }

    #[test]
    fn names_are_found_where_they_were_written() {
        assert_eq!(run(Shop { id: 7 }.f(8, (9, 10))), "7 o:7/8/9 8 9");
        assert_eq!(run(Shop { id: 7 }.own_parameter(8)), "o:8/7 8");
    }
}

/// async-recursion#29, tokio#4513: types, blocks and expressions in the invisible groups of `macro_rules!`.
mod pitfall_27_invisible_groups {
    use super::*;
    use std::time::Duration;

    macro_rules! mk {
        ($name:ident, $arg:ty, $ret:ty, $body:block, $ttl:expr, $or_else:expr) => {
            #[redis_lock(key = "o:<id>", ttl = $ttl, or_else = $or_else)]
            async fn $name(id: $arg) -> $ret $body
        };
        ($vis:vis $name:ident) => {
            #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
            $vis async fn $name(id: u8) -> u8 {
                id
            }
        };
    }

    const TTL: Duration = Duration::from_secs(3);
    mk!(f, &str, u8, { 5 }, "30s", |_| 0);
    mk!(boxed, Wrapped<'_>, Box<dyn std::fmt::Debug>, { Box::new(5) }, TTL, |_| Box::new(""));
    mk!(private);
    mk!(pub(crate) visible);
    mk!(never, u8, !, { panic!("never") }, TTL * 2, |error| panic!("{error}"));

    struct Wrapped<'a>(&'a str);
    impl std::fmt::Display for Wrapped<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    #[test]
    fn they_are_seen_through() {
        assert_eq!(run(f("x")), 5);
        assert_eq!(format!("{:?}", run(boxed(Wrapped("x")))), "5");
        assert_eq!(run(private(5)) + run(visible(5)), 10);
        assert!(std::panic::catch_unwind(|| run(never(5))).is_err());
    }
}

/// async-recursion#34, async-recursion#37, async-recursion#7: lifetimes that are not written.
mod pitfall_28_elided_lifetimes {
    use super::*;

    struct View<'a>(&'a str);

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn f(id: u64, o: Option<&str>) -> usize {
        tick().await;
        o.map_or(0, str::len) + usize::from(id == 1)
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn everywhere(id: u64, v: View<'_>, w: &View<'_>, c: &dyn Fn(&str) -> usize) -> usize {
        tick().await;
        v.0.len() + c(w.0) + usize::from(id == 1)
    }

    #[redis_lock(key = "o:<v.0>", ttl = "30s", or_else = |_| View(""))]
    async fn named<'a>(v: &View<'a>) -> View<'a> {
        View(v.0)
    }

    #[redis_lock(key = "o:<v>", ttl = "30s")]
    async fn in_the_result(v: &str) -> Outcome<View<'_>> {
        Ok(View(v))
    }

    #[test]
    fn they_are_kept() {
        assert_eq!(run(f(1, Some("a"))), 2);
        assert_eq!(run(everywhere(1, View("bc"), &View("def"), &str::len)), 6);
        let text = String::from("x");
        assert_eq!(run(named(&View(&text))).0, "x");
        assert_eq!(run(in_the_result(&text)).unwrap().0, "x");
    }
}

/// cached#230, cached#114, memoize#21, emit#155: parameters with the names that the expansion uses.
mod pitfall_29_colliding_names {
    use super::*;

    #[redis_lock(key = "o:<key>", ttl = "30s", or_else = |_| 0)]
    async fn f(key: u64, guard: u8, out: u8) -> u64 {
        key + u64::from(guard) + u64::from(out)
    }

    #[allow(clippy::too_many_arguments, reason = "all of them at once")]
    #[redis_lock(
        key = "o:<key>/<site>",
        ttl = "30s",
        wait = "1s",
        renew,
        max_hold = "1h",
        hold_at_least = "10ms",
        permits = 1,
        guard = lock,
        tag = tag,
        manager = manager,
        or_else = |error| { drop(error); 0 }
    )]
    async fn all(
        key: u8,
        site: u8,
        ttl: u8,
        wait: u8,
        max_hold: u8,
        hold_at_least: u8,
        permits: u8,
        tag: u8,
        manager: &LockManager,
        call: u8,
        lease: u8,
        returns: u8,
        out: u8,
        value: u8,
        refused: u8,
        error: u8,
    ) -> usize {
        let _: &LockManager = manager;
        let sum = key + site + ttl + wait + max_hold + hold_at_least + permits + tag;
        let sum = sum + call + lease + returns + out + value + refused + error;
        usize::from(sum) + lock.key().len()
    }

    #[redis_lock(key = "o:<keys>/<key>", for (keys, key) in site, ttl = "30s", guard = lock, or_else = |_| 0)]
    async fn several(site: &[(u8, u8)], ttl: u8) -> usize {
        lock.keys().len() + usize::from(ttl)
    }

    /// An item may have the name of an item of the expansion.
    const SITE: &str = "site";
    static CALL: &str = "call";

    #[redis_lock(key = "o:<SITE>/<CALL>", ttl = "30s", guard = lease, or_else = |_| SITE.to_owned())]
    async fn items() -> String {
        let text: &str = SITE;
        format!("{text} {CALL} {}", lease.key())
    }

    #[redis_lock(key = "o:<__key>", ttl = "30s", or_else = |_| 0)]
    async fn underscores(__key: u8) -> u8 {
        1
    }

    #[test]
    fn they_do_not_meet() {
        assert_eq!(run(f(1, 2, 3)), 6);
        let locks = LockManager::builder().prefix("").in_memory();
        assert_eq!(run(all(1, 1, 1, 1, 1, 1, 1, 1, &locks, 1, 1, 1, 1, 1, 1, 1)), 15 + 5);
        assert_eq!(run(several(&[(1, 2), (3, 4)], 1)), 3);
        assert_eq!(run(items()), "site call o:site/call");
        assert_eq!(run(underscores(1)), 1);
    }
}

/// cached#96, memoize#32: `mut` parameters of every kind, and no warning about their `mut`.
mod pitfall_30_mut_arguments {
    use super::*;

    struct Pair {
        a: u8,
        b: Vec<u8>,
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn f(mut id: u8, mut v: Vec<u8>) -> usize {
        id += 1;
        v.push(id);
        tick().await;
        v.len()
    }

    #[redis_lock(key = "o:<a>", ttl = "30s", or_else = |_| 0)]
    async fn patterns(Pair { mut a, mut b }: Pair, (c, mut d): (u8, u8), [mut last, _]: [u8; 2]) -> usize {
        a += 1;
        b.push(a + c);
        d += 1;
        last += 1;
        b.len() + usize::from(d) + usize::from(last)
    }

    #[allow(clippy::toplevel_ref_arg, reason = "it is legal")]
    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn references(id: u8, v: &mut Vec<u8>, mut slice: &[u8], ref r: u8, ref mut m: u8) -> usize {
        v.push(id);
        slice = &slice[1..];
        *m += *r;
        slice.len() + usize::from(*m)
    }

    struct Counter(u8);
    impl Counter {
        #[redis_lock(key = "o:<self.0>", ttl = "30s", or_else = |_| 0)]
        async fn by_value(mut self, mut n: u8) -> u8 {
            self.0 += n;
            n += self.0;
            tick().await;
            n
        }
    }

    #[test]
    fn they_change() {
        assert_eq!(run(f(1, vec![])), 1);
        assert_eq!(run(patterns(Pair { a: 1, b: vec![] }, (1, 2), [3, 4])), 1 + 3 + 4);
        assert_eq!(run(references(1, &mut vec![], &[1, 2], 3, 4)), 8);
        assert_eq!(run(Counter(1).by_value(2)), 5);
    }
}

/// ntest#20, tokio#7997, tokio#7928: the user's own `Ok`, `Option`, `std`, `core` and macros.
#[allow(dead_code, unused_macros, reason = "they are there to be picked up by mistake")]
mod pitfall_31_shadowed_prelude {
    use lock_runtime::redis_lock;

    struct Ok;
    struct Err;
    struct Some;
    struct None;
    struct Option;
    struct Result;
    struct Box;
    struct Future;
    mod std {}
    mod core {}
    mod alloc {}
    macro_rules! format_args {
        () => {};
    }
    macro_rules! concat {
        () => {};
    }
    macro_rules! module_path {
        () => {};
    }
    macro_rules! pin {
        () => {};
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", wait = "1s", renew, tag = id, guard = lock, or_else = |_| 0)]
    async fn f(id: u64) -> usize {
        lock.key().len()
    }

    #[test]
    fn they_are_not_picked_up() {
        assert_eq!(super::run(f(3)), 3);
    }
}

/// The same without any prelude.
mod pitfall_31_no_prelude {
    #![no_implicit_prelude]
    use ::lock_runtime::redis_lock;

    #[redis_lock(key = "o:<id>", ttl = "30s", wait = "1s", renew, tag = id, guard = lock, or_else = |_| 0)]
    async fn f(id: u64) -> usize {
        lock.key().len()
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn with_mut(mut id: u64) -> ::core::result::Result<u64, ::lock_runtime::LockError> {
        id += 1;
        ::core::result::Result::Ok(id)
    }

    #[::core::prelude::v1::test]
    fn it_is_not_needed() {
        ::core::assert_eq!(super::run(f(3)), 3);
        ::core::assert!(::core::matches!(super::run(with_mut(3)), ::core::result::Result::Ok(4)));
    }
}

/// tokio#2312, tokio#3302: the runtime crate under another path.
mod pitfall_32_renamed_crate {
    use super::*;

    /// Stands for a crate of that name.
    pub(crate) mod my {
        pub(crate) mod lock {
            pub(crate) use lock_runtime::{__private, FromLockError, Lease};
        }
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", guard = lock, crate = self::my::lock)]
    async fn f(id: u64) -> Outcome<usize> {
        Ok(lock.key().len() + usize::from(id == 3))
    }

    #[redis_lock(crate = crate::pitfall_32_renamed_crate::my::lock, key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn absolute(id: u64) -> u64 {
        id
    }

    #[test]
    fn it_is_found() {
        assert_eq!(run(f(3)).unwrap(), 4);
        assert_eq!(run(absolute(3)), 3);
    }
}

/// serenity#1454, `function_name#4`, boltffi#625: raw identifiers.
mod pitfall_33_raw_identifiers {
    use super::*;

    struct Shop {
        r#type: u64,
    }
    impl Shop {
        fn r#fn(&self) -> u64 {
            self.r#type
        }
    }

    #[redis_lock(key = "o:<r#type>/<type>", ttl = "30s", or_else = |_| 0)]
    async fn r#match(r#type: u64) -> u64 {
        r#type
    }

    #[redis_lock(key = "o:<s.type>/<s.r#fn()>/<s.fn()>", ttl = "30s", guard = r#fn, or_else = |_| String::new())]
    async fn r#loop(s: Shop, mut r#mut: u8) -> String {
        r#mut += 1;
        format!("{} {} {}", s.r#type, r#mut, r#fn.key())
    }

    #[redis_lock(key = "o:<r#type>", ttl = "30s")]
    async fn r#where(r#type: u64) -> Outcome<u64> {
        Ok(r#type)
    }

    #[test]
    fn they_lose_their_prefix_in_texts_only() {
        assert_eq!(run_with_keys(r#match(3)), (3, vec!["o:3/3".to_owned()]));
        assert_eq!(run(r#loop(Shop { r#type: 4 }, 5)), "4 6 o:4/4/4");
        let error = run_refused("o:3", r#where(3)).unwrap_err();
        assert!(error.function().unwrap().ends_with("::pitfall_33_raw_identifiers::where"), "{error}");
    }
}

/// `serial_test#17`, `serial_test#81`, actix-web#1549, actix-web#2714: attributes, documentation, visibility and the return
/// type stay.
mod pitfall_34_attributes_and_visibility {
    use super::*;

    #[must_use]
    /** d */
    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "an attribute below")]
    pub(crate) async fn f(#[allow(unused_mut, reason = "of a parameter")] mut id: u64) -> u8 {
        id as u8
    }

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
    async fn of_parameters(
        id: u64,
        #[expect(unused_mut, reason = "nothing changes it")] mut one: u64,
        #[expect(unused_variables, reason = "nothing names it")] two: u64,
        #[allow(unused_mut, unused_variables, reason = "nothing names it")] mut three: u64,
        #[allow(unused_mut, unused_variables, reason = "nothing names them")] (mut four, five): (u64, u64),
        #[expect(unused_assignments, reason = "it is overwritten")] mut six: u64,
    ) -> u64 {
        six = 1;
        id + one + six
    }

    pub(crate) mod inner {
        use super::*;

        #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0)]
        #[must_use]
        pub(in super::super) async fn f(id: u64) -> u64
        where
            for<'a> &'a str: Sized,
        {
            id
        }
    }

    #[expect(unused_must_use, reason = "both say that it must be used")]
    async fn unused() {
        f(1);
        inner::f(1).await;
    }

    #[test]
    fn they_stay() {
        assert_eq!(run(f(1)), 1);
        assert_eq!(run(inner::f(3)), 3);
        assert_eq!(run(of_parameters(1, 2, 3, 4, (5, 6), 7)), 4);
        run(unused());
    }
}

/// test-case#152, rstest#346, `serial_test#155`: an attribute that makes a function blocking stands below this one.
mod pitfall_35_attribute_order {
    use super::*;

    #[redis_lock(key = "test", ttl = "30s", manager = LockManager::in_memory())]
    #[tokio::test]
    async fn with_a_result() -> Result<(), Box<dyn std::error::Error>> {
        tick().await;
        Ok(())
    }

    #[redis_lock(key = "test", ttl = "30s", manager = LockManager::in_memory(), or_else = |error| panic!("{error}"))]
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn without_one() {
        tick().await;
    }
}

/// tracing#616, tracing#3197, lance#8416: the limits of type length and recursion. How deep it goes is in
/// `transparent.rs`.
mod pitfall_37_recursion_limit {
    use super::*;

    macro_rules! nest {
        ($($name:ident calls $next:ident),* $(,)?) => {
            $(
                #[redis_lock(key = "o:<id>", ttl = "30s")]
                async fn $name(id: u64) -> Outcome<u64> {
                    $next(id).await
                }
            )*
        };
    }

    nest!(f1 calls f2, f2 calls f3, f3 calls f4, f4 calls f5, f5 calls f6, f6 calls f7, f7 calls f8, f8 calls f9);

    #[redis_lock(key = "innermost:<id>", ttl = "30s")]
    async fn f9(id: u64) -> Outcome<u64> {
        tick().await;
        Ok(id)
    }

    #[redis_lock(key = "o:<n>", ttl = "30s")]
    async fn recursive(n: u64) -> Outcome<u64> {
        if n == 0 {
            return Ok(0);
        }
        Ok(Box::pin(recursive(n - 1)).await? + 1)
    }

    #[test]
    fn they_are_far() {
        assert_eq!(run(is_send(f1(3))).unwrap(), 3);
        assert_eq!(run(is_send(recursive(5))).unwrap(), 5);
    }
}

/// rust#62958, rust#59087, rust#72454, moka#212: the future is not copied into another at each level. How large it is, is
/// in `transparent.rs`.
mod pitfall_38_future_size {
    use super::*;
    use std::mem::size_of_val;

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn big_local(id: u64) -> Outcome<u8> {
        let big = [1u8; 1024];
        tick().await;
        Ok(big[usize::from(id == 1)])
    }

    #[redis_lock(key = "outer:<id>", ttl = "30s")]
    async fn outer(id: u64) -> Outcome<u8> {
        big_local(id).await
    }

    #[test]
    fn a_level_adds_little() {
        let (one, two) = (size_of_val(&big_local(1)), size_of_val(&outer(1)));
        assert!(two < one + 256, "{one} B, and {two} B");
        assert_eq!(run(outer(1)).unwrap(), 1);
    }
}

/// rust-sdk#495, rust-sdk#1092, rust#126551: nothing is forced to be `Send`, and what was `Send` stays so.
mod pitfall_39_forced_send {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| Rc::new(0))]
    async fn f(id: u64, rc: Rc<u64>) -> Rc<u64> {
        tick().await;
        Rc::new(*rc + id)
    }

    #[redis_lock(key = "o:<id>", ttl = "30s")]
    async fn not_sync(id: u64, c: Cell<u8>, mut d: Cell<u8>, _e: Cell<u8>) -> Outcome<u8> {
        d.set(1);
        d = Cell::new(d.get() + u8::from(id == 3));
        tick().await;
        Ok(c.get() + d.get())
    }

    #[redis_lock(key = "o:<c.get()>", ttl = "30s", tag = c.get())]
    async fn options_of_not_sync(c: Cell<u8>) -> Outcome<u8> {
        tick().await;
        Ok(c.get())
    }

    #[test]
    fn it_is_what_it_was() {
        assert_eq!(*run(f(3, Rc::new(4))), 7);
        assert_eq!(run(is_send(not_sync(3, Cell::new(1), Cell::new(2), Cell::new(3)))).unwrap(), 3);
        assert_eq!(run(is_send(options_of_not_sync(Cell::new(1)))).unwrap(), 1);
    }
}

/// rust#132917: lifetimes that the edition 2024 captures otherwise change nothing, as everything in this file shows.
mod pitfall_40_capture_rules {
    use super::*;

    struct Shop {
        id: u64,
    }

    impl Shop {
        #[redis_lock(key = "o:<self.id>/<name>", ttl = "30s")]
        async fn f(&self, name: &str, mut out: &mut String) -> Outcome<()> {
            tick().await;
            out.push_str(name);
            let mut other = String::new();
            out = &mut other;
            out.push('x');
            Ok(())
        }
    }

    fn caller<'a>(
        shop: &'a Shop,
        name: &'a str,
        out: &'a mut String,
    ) -> impl Future<Output = Outcome<()>> + use<'a> {
        shop.f(name, out)
    }

    #[test]
    fn what_a_future_borrows_can_be_said() {
        let mut out = String::new();
        run(caller(&Shop { id: 1 }, "name", &mut out)).unwrap();
        assert_eq!(out, "name");
    }
}
