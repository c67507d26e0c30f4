//! What can be annotated: functions, parameters, bodies and return types of every shape, in the editions 2021 and 2024.
#![deny(warnings, rust_2018_idioms)]
#![allow(async_fn_in_trait)]

use std::future::Future;
use std::time::Duration;

use lock_runtime::{FromLockError, LockError, LockManager, redis_lock};
use tests::calls::{is_send, run, run_refused, run_with_keys, tick};

type Outcome<T = ()> = Result<T, LockError>;

mod functions {
    use super::*;
    use std::fmt::Display;
    use std::pin::{Pin, pin};
    use std::rc::Rc;
    use std::sync::Arc;

    trait Store {
        const REGION: &'static str;

        async fn save(&self, id: u64) -> Outcome<u64>;

        #[redis_lock(key = "load:<Self::REGION>:<id>", ttl = "30s")]
        async fn load(&self, id: u64) -> Outcome<u64> {
            self.save(id).await
        }

        fn plain(&self) -> impl Future<Output = Outcome<u64>> + Send;
    }

    struct Memory<'a, T> {
        name: &'a str,
        value: T,
    }

    impl<T: Clone + Into<u64> + Sync> Store for Memory<'_, T> {
        const REGION: &'static str = "eu";

        #[redis_lock(key = "<self.name>:<id>", ttl = "30s")]
        async fn save(&self, id: u64) -> Outcome<u64> {
            Ok(id + self.value.clone().into())
        }

        /// An `async fn` where the trait asks for a future that is `Send`.
        #[redis_lock(key = "<self.name>", ttl = "30s")]
        async fn plain(&self) -> Outcome<u64> {
            tick().await;
            Ok(self.value.clone().into())
        }
    }

    impl<'a, T> Memory<'a, T> {
        #[redis_lock(key = "<name>", ttl = "30s")]
        async fn new(name: &'a str, value: T) -> Outcome<Self> {
            Ok(Self { name, value })
        }

        #[redis_lock(key = "<self.name>", ttl = "30s")]
        async fn longest<'b>(&'b self, other: &'b str) -> Outcome<&'b str>
        where
            'a: 'b,
        {
            Ok(if other.len() > self.name.len() { other } else { self.name })
        }

        #[redis_lock(key = "<self.name>", ttl = "30s")]
        async fn pinned(self: Pin<&mut Self>) -> Outcome<&'a str> {
            Ok(self.name)
        }

        #[redis_lock(key = "<self.name>", ttl = "30s")]
        async fn pinned_mutable(mut self: Pin<&mut Self>, name: &'a str) -> Outcome<()>
        where
            Self: Unpin,
        {
            self.name = name;
            Ok(())
        }

        #[redis_lock(key = "<self.name>", ttl = "30s")]
        async fn shared(self: Arc<Self>) -> Outcome<&'a str> {
            Ok(self.name)
        }

        #[redis_lock(key = "<self.name>", ttl = "30s")]
        async fn local(self: &Rc<Self>) -> Outcome<usize> {
            Ok(Rc::strong_count(self))
        }

        #[redis_lock(key = "<self.name>", ttl = "30s")]
        async fn map<U, F>(&self, f: F) -> Outcome<U>
        where
            F: AsyncFn(&T) -> U,
        {
            Ok(f(&self.value).await)
        }
    }

    #[test]
    fn methods() {
        let memory = run(Memory::new("m", 5u32)).unwrap();
        assert_eq!(run_with_keys(memory.save(1)).1, ["m:1"]);
        assert_eq!(run_with_keys(memory.load(1)).1, ["load:eu:1", "m:1"]);
        assert_eq!(run(is_send(memory.plain())).unwrap(), 5);
        assert_eq!(run(is_send(memory.longest("longer"))).unwrap(), "longer");
        assert_eq!(run(memory.map(async |value| value + 1)).unwrap(), 6);
        assert_eq!(run(Rc::new(Memory { name: "rc", value: 1u8 }).local()).unwrap(), 1);
        assert_eq!(run(is_send(Arc::new(memory).shared())).unwrap(), "m");
        let mut memory = pin!(Memory { name: "p", value: 1u8 });
        run(memory.as_mut().pinned_mutable("q")).unwrap();
        assert_eq!(run_with_keys(memory.as_mut().pinned()).1, ["q"]);
    }

    #[redis_lock(key = "<item>", ttl = "30s")]
    async fn generic<const N: usize, T>(item: T, list: [T; N]) -> Outcome<usize>
    where
        T: Display + PartialEq,
    {
        Ok(list.iter().filter(|other| **other == item).count())
    }

    #[redis_lock(key = "<x>", ttl = "30s")]
    async fn higher_ranked<F>(x: u8, f: F) -> Outcome<usize>
    where
        F: for<'x> Fn(&'x str) -> &'x str,
    {
        Ok(f("abc").len() + usize::from(x))
    }

    #[redis_lock(key = "<value>", ttl = "30s")]
    async fn unsized_type<T: Display + ?Sized>(value: &T, mut each: impl FnMut(String)) -> Outcome {
        each(value.to_string());
        tick().await;
        each(value.to_string());
        Ok(())
    }

    #[redis_lock(key = "<value>", ttl = "30s")]
    async fn object(value: &(dyn Display + Sync), f: fn(u8) -> u8) -> Outcome<String> {
        Ok(format!("{value}{}", f(1)))
    }

    #[test]
    fn generics() {
        assert_eq!(run(generic(1, [1, 2, 1])).unwrap(), 2);
        assert_eq!(run(higher_ranked(1, |text| &text[1..])).unwrap(), 3);
        let mut all = Vec::new();
        run(unsized_type("x", |text| all.push(text))).unwrap();
        assert_eq!(all, ["x", "x"]);
        assert_eq!(run(is_send(object(&"x", |n| n + 1))).unwrap(), "x2");
    }

    #[test]
    fn inside_of_functions() {
        #[redis_lock(key = "<a>", ttl = "30s")]
        async fn outer(a: u8) -> Outcome<u8> {
            const LOCAL: u8 = 3;
            #[redis_lock(key = "<LOCAL>/<b>", ttl = "30s")]
            async fn inner(b: u8) -> Outcome<u8> {
                Ok(b + LOCAL)
            }
            inner(a).await
        }
        assert_eq!(run_with_keys(outer(1)).1, ["1", "3/1"]);
    }
}

mod parameters {
    use super::*;

    struct Line {
        sku: &'static str,
        count: (u8, [u8; 2]),
    }

    #[redis_lock(key = "<id>:<second>", ttl = "30s")]
    async fn patterns(
        (id, _): (u64, u8),
        Line { sku, count: (_, [second, ..]) }: Line,
        &(a, ref b): &(u8, String),
        [first, .., last]: [u8; 4],
        (Ok(either) | Err(either)): Result<u8, u8>,
        whole @ (part, _): (u8, u8),
        _: String,
    ) -> Outcome<String> {
        Ok(format!("{id} {sku} {second} {a} {b} {first} {last} {either} {whole:?} {part}"))
    }

    #[test]
    fn patterns_are_taken_apart() {
        let line = Line { sku: "s", count: (0, [8, 9]) };
        let pair = (3, "b".to_owned());
        let call = patterns((1, 2), line, &pair, [4, 5, 6, 7], Err(8), (9, 10), String::new());
        let (text, keys) = run_with_keys(is_send(call));
        assert_eq!(text.unwrap(), "1 s 8 3 b 4 7 8 (9, 10) 9");
        assert_eq!(keys, ["1:8"]);
    }

    #[redis_lock(key = "<größe>:ключ", ttl = "30s")]
    async fn unicode(größe: u8) -> Outcome<u8> {
        Ok(größe)
    }

    #[redis_lock(key = "<id>", ttl = "30s")]
    async fn shadowed(id: u8, mut list: Vec<u8>) -> Outcome<Vec<u8>> {
        let id = id + 1;
        list.push(id);
        let list = list;
        let id = id + 1;
        Ok([&list[..], &[id]].concat())
    }

    /// The body names a parameter only inside of a format string, only inside of a macro, and only inside of a closure.
    #[redis_lock(key = "o", ttl = "30s")]
    async fn hidden(a: String, mut b: String, c: String, d: String) -> Outcome<String> {
        let text = format!("{a} {:>width$}", "x", width = { c.len() });
        b.push_str(&text);
        let all = || [b, d].join(" ");
        Ok(all())
    }

    #[test]
    fn names_are_found() {
        assert_eq!(run_with_keys(unicode(1)).1, ["1:ключ"]);
        assert_eq!(run(shadowed(1, vec![])).unwrap(), [2, 3]);
        let text = run(hidden("a".into(), "b".into(), "ccc".into(), "d".into()));
        assert_eq!(text.unwrap(), "ba   x d");
    }
}

mod bodies {
    use super::*;
    use std::sync::atomic::{AtomicU8, Ordering};

    #[redis_lock(key = "<id>", ttl = "30s")]
    async fn control_flow(id: u8, list: &[Result<u8, String>]) -> Result<u8, Box<dyn std::error::Error>> {
        let Some(first) = list.first() else { return Ok(0) };
        let sum = 'sum: {
            let mut sum = first.clone()?;
            for item in &list[1..] {
                match item {
                    Ok(0) => {}
                    Ok(9) => break 'sum sum,
                    Ok(n) => sum += n,
                    Err(error) => return Err(error.as_str().into()),
                }
            }
            sum + 100
        };
        // These `return`s and `?`s are not of the function.
        let closure = |n: u8| -> Option<u8> {
            if n > 250 {
                return None;
            }
            Some(n.checked_add(id)? + 1)
        };
        let block = async {
            if sum == 1 {
                return Err("one");
            }
            tick().await;
            let next = closure(sum).ok_or("none")?;
            Ok(next)
        };
        Ok(block.await.unwrap_or(7))
    }

    #[test]
    fn control_flow_is_what_it_was() {
        let run = |list: &[Result<u8, String>]| run(control_flow(1, list)).map_err(|error| error.to_string());
        assert_eq!(run(&[]), Ok(0));
        assert_eq!(run(&[Ok(1), Ok(0), Ok(2)]), Ok(105));
        assert_eq!(run(&[Ok(1), Ok(9), Ok(2)]), Ok(7));
        assert_eq!(run(&[Ok(1), Err("x".to_owned())]), Err("x".to_owned()));
        assert_eq!(run(&[Ok(155)]), Ok(7));
    }

    #[redis_lock(key = "<a>", ttl = "30s")]
    async fn select(a: u8) -> Outcome<u8> {
        let (one, two) = tokio::join!(async { a + 1 }, async {
            tick().await;
            a + 2
        });
        tokio::select! {
            biased;
            () = std::future::ready(()), if one < two => Ok(one),
            () = tick() => Ok(two),
        }
    }

    #[redis_lock(key = "o", ttl = "30s")]
    async fn items() -> Outcome<u8> {
        static CALLS: AtomicU8 = AtomicU8::new(0);
        const STEP: u8 = 2;
        mod inner {
            pub(super) fn twice(n: u8) -> u8 {
                n * 2
            }
        }
        macro_rules! step {
            () => {
                CALLS.fetch_add(STEP, Ordering::Relaxed)
            };
        }
        step!();
        Ok(inner::twice(step!()))
    }

    /// Everything that a macro makes of a function's body is one token tree.
    macro_rules! function {
        ($($tokens:tt)*) => {
            #[redis_lock(key = "o:<id>", ttl = "30s")]
            $($tokens)*
        };
    }
    function! {
        async fn made_by_a_macro(id: u8) -> Outcome<u8> {
            let twice = |n| n * 2;
            Ok(twice(id))
        }
    }

    #[test]
    fn macros_and_items() {
        assert_eq!(run(is_send(select(1))).unwrap(), 2);
        assert_eq!(run(items()).unwrap(), 4);
        assert_eq!(run(items()).unwrap(), 12);
        assert_eq!(run(made_by_a_macro(3)).unwrap(), 6);
    }
}

mod results {
    use super::*;
    use std::borrow::Cow;
    use std::error::Error;

    #[derive(Debug, PartialEq)]
    enum App {
        Lock(String),
        Other,
    }
    impl From<LockError> for App {
        fn from(error: LockError) -> Self {
            Self::Lock(error.key().unwrap_or_default().to_owned())
        }
    }

    type Shortened<T> = Result<T, App>;

    #[redis_lock(key = "o", ttl = "1s")]
    async fn own(fail: bool) -> Result<u8, App> {
        if fail { Err(App::Other) } else { Ok(1) }
    }

    #[redis_lock(key = "o", ttl = "1s")]
    async fn alias() -> Shortened<u8> {
        Ok(1)
    }

    #[redis_lock(key = "o", ttl = "1s")]
    async fn boxed() -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }

    #[redis_lock(key = "o:<id>", ttl = "1s")]
    async fn generic<E: From<LockError>>(id: u8) -> Result<u8, E> {
        Ok(id)
    }

    #[redis_lock(key = "o", ttl = "1s")]
    async fn nested() -> Result<Result<u8, String>, App> {
        Ok(Err("inner".to_owned()))
    }

    #[test]
    fn errors_are_converted() {
        assert_eq!(run(own(true)), Err(App::Other));
        assert_eq!(run_refused("o", own(false)), Err(App::Lock("o".to_owned())));
        assert_eq!(run(alias()), Ok(1));
        assert_eq!(run_refused("o", alias()), Err(App::Lock("o".to_owned())));
        assert!(run(is_send(boxed())).is_ok());
        let error = run_refused("o", boxed()).unwrap_err();
        assert!(error.downcast_ref::<LockError>().is_some_and(LockError::is_busy));
        assert_eq!(run(generic::<App>(7)), Ok(7));
        assert!(run_refused("o:7", generic::<App>(7)).is_err());
        assert_eq!(run(nested()), Ok(Err("inner".to_owned())));
    }

    #[derive(Debug, PartialEq)]
    enum Answer {
        Done(u64),
        Later,
    }
    impl FromLockError for Answer {
        fn from_lock_error(_: LockError) -> Self {
            Self::Later
        }
    }

    #[redis_lock(key = "o", ttl = "1s")]
    async fn own_type() -> Answer {
        Answer::Done(1)
    }

    #[redis_lock(key = "o", ttl = "1s", or_else = |error| Err(std::io::Error::other(error)))]
    async fn io() -> std::io::Result<u8> {
        Ok(1)
    }

    #[redis_lock(key = "o:<text>", ttl = "1s", or_else = |_| text.into())]
    async fn borrowed(text: &str) -> Cow<'_, str> {
        text.replace('a', "b").into()
    }

    #[redis_lock(key = "o", ttl = "1s", or_else = |_| ([0; 2], "", ()))]
    async fn tuple() -> ([u8; 2], &'static str, ()) {
        ([1, 2], "x", ())
    }

    #[redis_lock(key = "o", ttl = "1s", or_else = Err)]
    async fn the_error_itself() -> Result<(), LockError> {
        Ok(())
    }

    #[test]
    fn other_types_are_answered() {
        assert_eq!((run(own_type()), run_refused("o", own_type())), (Answer::Done(1), Answer::Later));
        assert_eq!(run(io()).unwrap(), 1);
        assert!(run_refused("o", io()).unwrap_err().to_string().contains("held by someone else"));
        assert_eq!((run(borrowed("a")), run_refused("o:a", borrowed("a"))), ("b".into(), "a".into()));
        assert_eq!((run(tuple()), run_refused("o", tuple())), (([1, 2], "x", ()), ([0; 2], "", ())));
        assert!(run(the_error_itself()).is_ok());
        assert!(run_refused("o", the_error_itself()).is_err_and(|error| error.is_busy()));
    }

    fn named(_: LockError) -> u8 {
        1
    }

    #[redis_lock(key = "o", ttl = "1s", or_else = named)]
    async fn by_name() -> u8 {
        0
    }

    #[redis_lock(key = "o:<fallback>", ttl = "1s", or_else = move |_| fallback)]
    async fn of_a_parameter(fallback: u8) -> u8 {
        fallback + 1
    }

    #[redis_lock(key = "o:<name>", ttl = "1s", or_else = |_| name)]
    async fn of_what_the_body_leaves(name: String, mut other: String) -> String {
        other.push('x');
        other
    }

    #[redis_lock(key = "o", ttl = "1s", or_else = |_| Vec::new())]
    async fn inferred() -> Vec<u8> {
        vec![1]
    }

    #[redis_lock(key = "o", ttl = "1s", or_else = { let calls = 1; move |error: LockError| if error.is_busy() { calls } else { 2 } })]
    async fn of_a_block() -> u8 {
        0
    }

    #[test]
    fn or_else_is_any_function() {
        assert_eq!((run(by_name()), run_refused("o", by_name())), (0, 1));
        assert_eq!((run(of_a_parameter(5)), run_refused("o:5", of_a_parameter(5))), (6, 5));
        let call = || of_what_the_body_leaves("a".to_owned(), "b".to_owned());
        assert_eq!((run(call()), run_refused("o:a", call())), ("bx".to_owned(), "a".to_owned()));
        assert_eq!((run(inferred()), run_refused("o", inferred())), (vec![1], vec![]));
        assert_eq!((run(of_a_block()), run_refused("o", of_a_block())), (0, 1));
    }
}

mod options {
    use super::*;
    use std::sync::Arc;
    use tests::events::Recorder;

    const TTL: Duration = Duration::from_millis(1500);
    struct Config {
        ttl: Duration,
        locks: LockManager,
    }
    struct Service {
        config: Arc<Config>,
    }

    impl Service {
        #[redis_lock(
            key = "o:<id>",
            ttl = self.config.ttl,
            wait = TTL / 2,
            renew,
            max_hold = self.config.ttl * 3,
            manager = self.config.locks,
            tag = format_args!("{}-{}", id, self.config.ttl.as_millis()),
            release = wait,
            on_lost = continue,
        )]
        async fn method(&mut self, id: u8) -> Outcome {
            self.config = Arc::clone(&self.config);
            Ok(())
        }

        #[redis_lock(key = "by-reference", ttl = TTL, manager = &self.config.locks)]
        async fn by_reference(&self) -> Outcome {
            Ok(())
        }

        #[redis_lock(key = "by-value", ttl = "1m 30s", manager = if true { self.config.locks.clone() } else { unreachable!() })]
        async fn by_value(self) -> Outcome {
            Ok(())
        }
    }

    #[redis_lock(key = "shared", ttl = "1s", manager = locks)]
    async fn shared(locks: Arc<LockManager>) -> Outcome {
        Ok(())
    }

    #[redis_lock(key = "moved", ttl = "1s", manager = locks, guard = lock)]
    async fn moved(locks: LockManager) -> Outcome<String> {
        drop(locks);
        Ok(lock.key().to_owned())
    }

    #[redis_lock(key = "guarded", ttl = "10s", manager = locks, guard = lock)]
    async fn guarded(locks: &LockManager) -> Outcome<(String, bool)> {
        let remaining = lock.remaining();
        lock.extend(Duration::from_secs(60)).await?;
        let other = async { lock.is_lost() };
        Ok((lock.token().to_owned(), lock.remaining() > remaining && !other.await))
    }

    #[tokio::test]
    async fn reach_the_runtime() {
        let locks = LockManager::builder().prefix("").in_memory();
        let (recorder, _guard) = Recorder::install();
        let mut service =
            Service { config: Arc::new(Config { ttl: Duration::from_secs(2), locks: locks.clone() }) };
        is_send(service.method(7)).await.unwrap();
        is_send(service.by_reference()).await.unwrap();
        is_send(service.by_value()).await.unwrap();
        is_send(shared(Arc::new(locks.clone()))).await.unwrap();
        assert_eq!(is_send(moved(locks.clone())).await.unwrap(), "moved");
        let (token, extended) = is_send(guarded(&locks)).await.unwrap();
        assert!(!token.is_empty() && extended);

        let events = recorder.events();
        let granted = events.iter().filter(|event| event.field("outcome") == "granted");
        let seen: Vec<_> = granted
            .map(|event| ["key", "ttl_ms", "tag", "function"].map(|name| event.field(name)))
            .map(|[key, ttl, tag, function]| {
                format!("{key} {ttl} {tag} {}", function.rsplit("::").next().unwrap())
            })
            .collect();
        assert_eq!(
            seen,
            [
                "o:7 2000 7-2000 method",
                "by-reference 1500  by_reference",
                "by-value 90000  by_value",
                "shared 1000  shared",
                "moved 1000  moved",
                "guarded 10000  guarded",
            ]
        );
    }
}

mod several_keys {
    use super::*;

    struct Line {
        sku: &'static str,
    }

    fn lines() -> Vec<Line> {
        ["b", "a", "b"].map(|sku| Line { sku }).into()
    }

    #[redis_lock(key = "stock:<line.sku>", for line in &lines, ttl = "30s", guard = lock)]
    async fn borrowed(lines: Vec<Line>) -> Outcome<String> {
        tick().await;
        Ok(format!("{} {}", lines.len(), lock.keys().collect::<Vec<_>>().join(" ")))
    }

    #[redis_lock(key = "stock:<sku>", for Line { sku } in lines, ttl = "30s", guard = lock)]
    async fn of_a_slice(lines: &[Line]) -> Outcome<String> {
        tick().await;
        Ok(format!("{} {}", lines.len(), lock.keys().collect::<Vec<_>>().join(" ")))
    }

    /// The loop has used it up, and the body does not ask for it.
    #[redis_lock(key = "stock:<line.sku>", for line in lines, ttl = "30s", guard = lock)]
    async fn used_up(lines: Vec<Line>, name: &str) -> Outcome<String> {
        tick().await;
        Ok(format!("{name} {}", lock.keys().collect::<Vec<_>>().join(" ")))
    }

    #[redis_lock(key = "<name>:<from>/<n:02>", for (n, _) in (from..).zip(lines.iter()), ttl = "30s", guard = lock)]
    async fn of_an_expression(lines: &[Line], from: u8, name: &str) -> Outcome<String> {
        tick().await;
        Ok(lock.keys().collect::<Vec<_>>().join(" "))
    }

    struct Shop {
        lines: Vec<Line>,
    }

    impl Shop {
        #[redis_lock(key = "stock:<line.sku>", for line in &self.lines, ttl = "30s", guard = lock)]
        async fn method(&mut self) -> Outcome<usize> {
            self.lines.push(Line { sku: "c" });
            tick().await;
            Ok(lock.keys().len())
        }
    }

    #[async_trait::async_trait]
    trait Orders {
        async fn take(&self, lines: Vec<Line>) -> Outcome<usize>;
    }

    #[async_trait::async_trait]
    impl Orders for Shop {
        #[redis_lock(key = "stock:<line.sku>", for line in &lines, ttl = "30s", guard = lock)]
        async fn take(&self, lines: Vec<Line>) -> Outcome<usize> {
            tick().await;
            Ok(lock.keys().len() + lines.len())
        }
    }

    #[test]
    fn of_any_iterator() {
        assert_eq!(run(is_send(borrowed(lines()))).unwrap(), "3 stock:a stock:b");
        assert_eq!(run(is_send(of_a_slice(&lines()))).unwrap(), "3 stock:a stock:b");
        assert_eq!(run(is_send(used_up(lines(), "n"))).unwrap(), "n stock:a stock:b");
        assert_eq!(run(is_send(of_an_expression(&lines(), 8, "n"))).unwrap(), "n:8/08 n:8/09 n:8/10");
        let mut shop = Shop { lines: lines() };
        assert_eq!(run(is_send(shop.method())).unwrap(), 2);
        assert_eq!(run(is_send(shop.take(lines()))).unwrap(), 5);
    }
}

mod other_modes {
    use super::*;
    use lock_runtime::Succeeded;

    const PERMITS: u32 = 2;

    #[redis_lock(key = "report", ttl = "30s", shared)]
    async fn shared() -> Outcome<u8> {
        tick().await;
        Ok(1)
    }

    #[redis_lock(key = "report:<n>", ttl = "30s", permits = PERMITS + n, guard = lock)]
    async fn permits(n: u32) -> Outcome<usize> {
        tick().await;
        Ok(lock.key().len())
    }

    #[redis_lock(key = "report", ttl = "30s", fenced, guard = lock)]
    async fn fenced() -> Outcome<bool> {
        tick().await;
        Ok(lock.fence() > 0)
    }

    #[test]
    fn of_holding() {
        assert_eq!(run(is_send(shared())).unwrap(), 1);
        assert_eq!(run(is_send(permits(1))).unwrap(), 8);
        assert!(run(is_send(fenced())).unwrap());
    }

    enum Answer {
        Done,
        Failed,
    }
    impl Succeeded for Answer {
        fn succeeded(&self) -> bool {
            matches!(self, Self::Done)
        }
    }
    impl FromLockError for Answer {
        fn from_lock_error(_: LockError) -> Self {
            Self::Failed
        }
    }

    #[redis_lock(key = "job", ttl = "30s", hold_at_least = "20s", manager = locks)]
    async fn job(locks: &LockManager) -> Outcome {
        tick().await;
        Ok(())
    }

    #[redis_lock(key = "request", ttl = "30s", hold_after_ok = Duration::from_secs(20), manager = locks)]
    async fn request(locks: &LockManager) -> Outcome<u8> {
        tick().await;
        Ok(1)
    }

    #[redis_lock(key = "answer", ttl = "30s", hold_after_ok = "20s", release = background, manager = locks)]
    async fn answer(locks: &LockManager, fails: bool) -> Answer {
        tick().await;
        if fails { Answer::Failed } else { Answer::Done }
    }

    #[tokio::test(start_paused = true)]
    async fn of_keeping() {
        let locks = LockManager::builder().prefix("").in_memory();
        is_send(job(&locks)).await.unwrap();
        assert!(job(&locks).await.is_err_and(|error| error.is_busy()));
        is_send(request(&locks)).await.unwrap();
        assert!(request(&locks).await.is_err_and(|error| error.is_busy()));
        assert!(matches!(is_send(answer(&locks, true)).await, Answer::Failed));
        assert!(matches!(answer(&locks, false).await, Answer::Done));
        assert!(matches!(answer(&locks, false).await, Answer::Failed), "it is kept after the second call");
        tokio::time::sleep(Duration::from_secs(21)).await;
        job(&locks).await.unwrap();
        request(&locks).await.unwrap();
    }
}

mod axum_handlers {
    use super::*;
    use axum::Json;
    use axum::extract::{Path, State};
    use axum::handler::Handler;
    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};

    #[derive(Clone)]
    struct App {
        locks: LockManager,
    }

    struct Refused;
    impl From<LockError> for Refused {
        fn from(_: LockError) -> Self {
            Self
        }
    }
    impl IntoResponse for Refused {
        fn into_response(self) -> Response {
            StatusCode::CONFLICT.into_response()
        }
    }

    #[redis_lock(key = "order:<order_id>", ttl = "30s", manager = app.locks)]
    async fn pay(
        State(app): State<App>,
        Path(order_id): Path<u64>,
        Json(amount): Json<u64>,
    ) -> Result<Json<u64>, Refused> {
        tick().await;
        Ok(Json(order_id + amount))
    }

    #[redis_lock(key = "order:<order_id>/<line>", ttl = "30s", or_else = |error| error.to_string().into_response())]
    async fn pay_line(Path((order_id, line)): Path<(u64, u32)>, body: String) -> impl IntoResponse {
        tick().await;
        if body.is_empty() {
            return StatusCode::BAD_REQUEST.into_response();
        }
        format!("{order_id}/{line}").into_response()
    }

    fn is_handler<T, H: Handler<T, App>>(_: H) {}

    #[test]
    fn are_handlers() {
        is_handler(pay);
        is_handler(pay_line);
        let app = App { locks: LockManager::builder().prefix("").in_memory() };
        let paid = run(is_send(pay(State(app), Path(7), Json(1))));
        assert!(paid.is_ok_and(|Json(sum)| sum == 8));
        let status = |response: Response| response.status().as_u16();
        assert_eq!(status(run(pay_line(Path((7, 1)), String::new())).into_response()), 400);
        assert_eq!(
            status(run_refused("order:7/1", pay_line(Path((7, 1)), String::new())).into_response()),
            200
        );
    }
}
