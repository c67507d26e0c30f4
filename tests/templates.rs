//! Templates through annotated functions: values that render differently never share a key, each feature renders
//! what it says, and what would be a lock for something else is refused.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::{self, Debug};

use lock_runtime::{KeyFault, LockError, LockManager, redis_lock};
use tokio::runtime::{Builder, Runtime};

/// Runs calls on a store of their own, and gives back the keys without the manager's prefix.
struct Keys {
    locks: LockManager,
    runtime: Runtime,
}

impl Keys {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        Self { locks: LockManager::builder().prefix("").in_memory(), runtime }
    }

    fn of<T>(&self, call: impl Future<Output = Result<T, LockError>>) -> Result<T, LockError> {
        self.runtime.block_on(self.locks.scope(call))
    }
}

mod uniqueness {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;
    use proptest::test_runner::TestRunner;

    /// A template, the function that carries it, and how its values look before they are encoded.
    struct Template {
        text: &'static str,
        places: usize,
        key: fn(&Keys, &[&str]) -> Result<String, LockError>,
        rendered: fn(&[&str]) -> Vec<String>,
    }

    macro_rules! templates {
        ($($name:ident($($value:ident as $format:literal),+) $key:literal;)+) => {
            $(
                #[redis_lock(key = $key, ttl = "30s", guard = lock)]
                async fn $name($($value: &str),+) -> Result<String, LockError> {
                    Ok(lock.key().to_owned())
                }
            )+

            const TEMPLATES: &[Template] = &[$(
                Template {
                    text: $key,
                    places: [$(stringify!($value)),+].len(),
                    key: |keys, values| {
                        let &[$($value),+] = values else { panic!("{} takes other values", $key) };
                        keys.of($name($($value),+))
                    },
                    rendered: |values| {
                        let &[$($value),+] = values else { panic!("{} takes other values", $key) };
                        vec![$(format!($format, $value)),+]
                    },
                }
            ),+];
        };
    }

    // Each separator alone, at every place of the literal; literals that look like values, and like encoded values.
    templates! {
        one(a as "{}") "<a>";
        embedded(a as "{}") "%:a<a>a:%";
        colon(a as "{}", b as "{}") "<a>:<b>";
        slash(a as "{}", b as "{}") "<a>/<b>";
        opening(a as "{}", b as "{}") "<a>{<b>}";
        closing(a as "{}", b as "{}") "{<a>}<b>";
        hash_tag(a as "{}", b as "{}") "cart:{user:<a>}:<b>";
        before_the_separator(a as "{}", b as "{}") "<a>a%:<b>";
        after_the_separator(a as "{}", b as "{}") "<a>:%3Aa<b>a";
        long_separator(a as "{}", b as "{}") "<a>:/:<b>";
        debug(a as "{:?}", b as "{:?}") "<a:?>:<b:?>";
        padded_and_cut(a as "{:3}", b as "{:.2}") "<a:3>:<b:.2>";
        three(a as "{}", b as "{}", c as "{}") "<a>:<b>/<c>";
        three_braced(a as "{}", b as "{}", c as "{}") "<a>{<b>}<c>";
    }

    /// What no value may leave as it is.
    const SEPARATORS: [char; 4] = [':', '/', '{', '}'];

    /// The rendered values that a key was made of. That they can be told from the key is what makes sure that no
    /// others give the same one.
    fn values_of(key: &str, template: &str) -> Option<Vec<String>> {
        // Text and places in turn, first and last a text.
        let mut texts = template.split(['<', '>']).step_by(2);
        let mut rest = key.strip_prefix(texts.next()?)?;
        let mut values = Vec::new();
        for text in texts {
            let end = match text.find(SEPARATORS) {
                // No value has a separator in it, so the first one is the template's.
                Some(at) => rest.find(SEPARATORS)?.checked_sub(at)?,
                // The template ends here.
                None => rest.len().checked_sub(text.len())?,
            };
            let (value, after) = rest.split_at_checked(end)?;
            rest = after.strip_prefix(text)?;
            values.push(decoded(value)?);
        }
        rest.is_empty().then_some(values)
    }

    fn decoded(value: &str) -> Option<String> {
        let mut parts = value.split('%');
        let mut bytes = parts.next()?.as_bytes().to_vec();
        for part in parts {
            let (digits, text) = part.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            bytes.extend(text.as_bytes());
        }
        String::from_utf8(bytes).ok()
    }

    /// Any text, and text made of what could be mistaken for something else.
    fn text() -> impl Strategy<Value = String> {
        let tricky = select(
            &[
                ":", "/", "{", "}", "%", "%3A", "%25", "3A", "25", "<", ">", "<<", "a", "A", "\"", "\\", " ",
                "\t", "\r\n", "\0", "\u{7f}", "\u{85}", "\u{9f}", "\u{a0}", "\u{1680}", "\u{2003}",
                "\u{2028}", "\u{3000}", "\u{feff}", "\u{200b}", "e\u{301}", "é", "上海", "🦀",
            ][..],
        );
        prop_oneof![
            3 => prop::collection::vec(tricky, 0..6).prop_map(|parts| parts.concat()),
            2 => prop::collection::vec(any::<char>(), 0..12).prop_map(String::from_iter),
            1 => (any::<char>(), 300..1030_usize).prop_map(|(c, times)| String::from_iter(vec![c; times])),
        ]
    }

    fn check(keys: &Keys, template: &Template, values: &[&str]) -> Result<(), TestCaseError> {
        let rendered = (template.rendered)(values);
        let key = match (template.key)(keys, values) {
            Ok(key) => key,
            Err(LockError::InvalidKey { fault, .. }) => {
                let empty = rendered.iter().any(String::is_empty);
                // At most three bytes of a key for one of a value, and less than a hundred of the template.
                let long = rendered.iter().map(String::len).sum::<usize>() > (1024 - 100) / 3;
                prop_assert!(empty || long, "refused, with {fault}, for no reason");
                return Ok(());
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        prop_assert!(rendered.iter().all(|value| !value.is_empty()), "{key:?} has an empty value in it");
        prop_assert!(key.len() <= 1024, "{} bytes", key.len());
        prop_assert!(!key.contains(|c: char| c.is_whitespace() || c.is_control()), "{key:?} cannot be read");
        prop_assert_eq!(values_of(&key, template.text), Some(rendered), "from the key {:?}", key);
        Ok(())
    }

    #[test]
    fn the_values_can_be_told_from_the_key() {
        let keys = Keys::new();
        let config = ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() };
        for template in TEMPLATES {
            let values = prop::collection::vec(text(), template.places);
            let outcome = TestRunner::new(config.clone()).run(&values, |values| {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                check(&keys, template, &values)
            });
            outcome.unwrap_or_else(|failure| panic!("{}: {failure}", template.text));
        }
    }

    /// The same without an oracle: all pairs of short texts, many of which would give one key if they were merely
    /// written one behind the other.
    #[test]
    fn no_two_sets_of_values_share_a_key() {
        const PARTS: [&str; 7] = [":", "/", "{", "}", "%", "%3A", "a"];
        let keys = Keys::new();
        let mut texts: Vec<String> = PARTS.iter().map(ToString::to_string).collect();
        texts.extend(PARTS.iter().flat_map(|first| PARTS.map(|second| format!("{first}{second}"))));
        for template in TEMPLATES.iter().filter(|template| template.places == 2) {
            let mut seen: HashMap<String, Vec<String>> = HashMap::new();
            for a in &texts {
                for b in &texts {
                    let values = [a.as_str(), b.as_str()];
                    let key = (template.key)(&keys, &values).unwrap();
                    let rendered = (template.rendered)(&values);
                    let earlier = seen.entry(key).or_insert_with(|| rendered.clone());
                    assert_eq!(*earlier, rendered, "both give one key of {}", template.text);
                }
            }
        }
    }
}

mod features {
    use super::*;

    /// Declares a function with a template, calls it, and compares the key.
    macro_rules! key {
        ($key:literal, fn($($parameters:tt)*), ($($values:expr),*), $expected:literal) => {{
            #[allow(unused_variables, reason = "most are used by the key only")]
            #[redis_lock(key = $key, ttl = "30s", guard = lock)]
            async fn annotated($($parameters)*) -> Result<String, LockError> {
                Ok(lock.key().to_owned())
            }
            assert_eq!(Keys::new().of(annotated($($values),*)).unwrap(), $expected, "{}", $key);
        }};
    }

    #[derive(Clone, Debug)]
    struct Order {
        id: u64,
        lines: Vec<Line>,
        place: (&'static str, (u8, u8)),
        r#match: bool,
    }

    #[derive(Clone, Debug)]
    struct Line {
        sku: String,
    }

    impl Order {
        fn id(&self) -> u64 {
            self.id
        }

        fn line(&self, at: usize) -> &Line {
            &self.lines[at]
        }
    }

    fn order() -> Order {
        let lines = ["left sock", "right/sock"].map(|sku| Line { sku: sku.to_owned() });
        Order { id: 7, lines: lines.into(), place: ("上海", (3, 4)), r#match: true }
    }

    #[test]
    fn parameters_through_display() {
        key!("order:<id>", fn(id: u64), (7), "order:7");
        key!("order:<id>:<name>", fn(name: &str, id: i8), ("Ann", -7), "order:-7:Ann");
        key!("twice:<id>/<id>", fn(id: char), ('x'), "twice:x/x");
        key!("<id>", fn(id: u64), (7), "7");
        key!("order:< id >", fn(id: u64), (7), "order:7");
        key!("migration", fn(), (), "migration");
        key!("订单:<id>", fn(id: &str), ("上海:1"), "订单:上海%3A1");
        key!("generic:<id>", fn(id: impl fmt::Display), (format_args!("{}-{}", 1, 2)), "generic:1-2");
    }

    #[test]
    fn values_are_encoded() {
        key!("<a>:<b>", fn(a: &str, b: &str), ("a:b", "c"), "a%3Ab:c");
        key!("<a>:<b>", fn(a: &str, b: &str), ("a", "b:c"), "a:b%3Ac");
        key!("v:<v>", fn(v: &str), ("%:/{}"), "v:%25%3A%2F%7B%7D");
        key!("v:<v>", fn(v: &str), ("a b\tc\n\u{a0}\u{3000}\0"), "v:a%20b%09c%0A%C2%A0%E3%80%80%00");
        key!("v:<v>", fn(v: &str), ("<é-_.~!*'()&=+,;@#>"), "v:<é-_.~!*'()&=+,;@#>");
    }

    #[test]
    fn fields_and_indices() {
        key!("order:<order.id>", fn(order: Order), (order()), "order:7");
        key!("order:<order.id>", fn(order: &mut Order), (&mut order()), "order:7");
        key!("sku:<order.lines[0].sku>", fn(order: &Order), (&order()), "sku:left%20sock");
        key!("sku:<order.lines[at].sku>", fn(order: &Order, at: usize), (&order(), 1), "sku:right%2Fsock");
        key!("place:<order.place.0>:<order.place.1.1>", fn(order: &Order), (&order()), "place:上海:4");
        key!("pair:<pair.0>/<pair.1>", fn(pair: (u8, u8)), ((1, 2)), "pair:1/2");
        key!("raw:<order.match>:<order.r#match>", fn(order: &Order), (&order()), "raw:true:true");
        let stock = HashMap::from([("eu", 5), ("us", 6)]);
        key!(r#"stock:<stock["us"]>"#, fn(stock: &HashMap<&str, u8>), (&stock), "stock:6");
        key!("matrix:<m[1][0]>", fn(m: [[u8; 2]; 2]), ([[1, 2], [3, 4]]), "matrix:3");
    }

    #[test]
    fn method_calls() {
        key!("order:<order.id()>", fn(order: Order), (order()), "order:7");
        key!("sku:<order.line(1).sku.len()>", fn(order: &Order), (&order()), "sku:10");
        key!("sku:<order.line(at).sku>", fn(order: &Order, at: usize), (&order(), 0), "sku:left%20sock");
        key!(r#"name:<name.replace('a', "-").to_uppercase()>"#, fn(name: &str), ("banana"), "name:B-N-N-");
        key!("has:<names.contains(&name)>", fn(names: &[&str], name: &str), (&["a", "b"], "b"), "has:true");
        key!("least:<a.min(b)>", fn(a: u64, b: u64), (7, 5), "least:5");
        key!("pow:<a.pow(2)>", fn(a: i32), (-3), "pow:9");
    }

    #[test]
    fn the_receiver() {
        struct Shop {
            region: &'static str,
            next: Cell<u32>,
        }
        impl Shop {
            fn region(&self) -> &str {
                self.region
            }

            #[redis_lock(key = "<self.region>:<self.region()>:<id>", ttl = "30s", guard = lock)]
            async fn by_reference(&self, id: u8) -> Result<String, LockError> {
                self.next.set(self.next.get() + 1);
                Ok(lock.key().to_owned())
            }

            #[redis_lock(key = "<self.next.get()>", ttl = "30s", guard = lock)]
            async fn mutable(&mut self) -> Result<String, LockError> {
                self.region = "us";
                Ok(lock.key().to_owned())
            }

            #[redis_lock(key = "<self.region>", ttl = "30s", guard = lock)]
            async fn by_value(self) -> Result<String, LockError> {
                Ok(lock.key().to_owned())
            }

            #[redis_lock(key = "<self.region>", ttl = "30s", guard = lock)]
            async fn boxed(self: Box<Self>) -> Result<String, LockError> {
                Ok(lock.key().to_owned())
            }
        }
        let keys = Keys::new();
        let mut shop = Shop { region: "eu", next: Cell::new(4) };
        assert_eq!(keys.of(shop.by_reference(7)).unwrap(), "eu:eu:7");
        assert_eq!(keys.of(shop.mutable()).unwrap(), "5");
        assert_eq!(keys.of(Box::new(Shop { region: "asia", next: Cell::new(0) }).boxed()).unwrap(), "asia");
        assert_eq!(keys.of(shop.by_value()).unwrap(), "us");
    }

    const REGION: &str = "eu west";
    static SHARD: u8 = 3;

    mod config {
        pub(super) const REGION: &str = "us";
        pub(super) mod nested {
            pub(in super::super) static SHARD: u8 = 4;
        }
    }

    #[test]
    fn constants() {
        trait Regional {
            const REGION: &'static str;

            #[redis_lock(key = "<Self::REGION>:<N>", ttl = "30s", guard = lock)]
            async fn sync<const N: usize>(&self, _: [u8; N]) -> Result<String, LockError> {
                Ok(lock.key().to_owned())
            }
        }
        struct Eu;
        impl Regional for Eu {
            const REGION: &'static str = "eu";
        }

        key!("<REGION>:<SHARD>:<id>", fn(id: u64), (7), "eu%20west:3:7");
        key!("<config::REGION>:<config::nested::SHARD>", fn(), (), "us:4");
        key!("<self::config::REGION>:<super::features::SHARD>", fn(), (), "us:3");
        key!("<crate::features::SHARD>", fn(), (), "3");
        key!("<::std::f64::consts::PI:.3>", fn(), (), "3.142");
        key!("<u8::MAX>:<REGION.len()>", fn(), (), "255:7");
        assert_eq!(Keys::new().of(Eu.sync([0; 5])).unwrap(), "eu:5");
    }

    #[test]
    fn bindings_inside_patterns() {
        struct Path<T>(T);

        #[redis_lock(key = "<count>:<first>", ttl = "30s", guard = lock)]
        async fn mutable(mut count: u64, (mut first, _): (u8, u8)) -> Result<String, LockError> {
            count += 1;
            first += 1;
            Ok(format!("{} {count} {first}", lock.key()))
        }

        key!("order:<order_id>", fn(Path(order_id): Path<u64>), (Path(7)), "order:7");
        key!("<user>:<cart>", fn(Path((user, cart)): Path<(u64, String)>), (Path((7, "c/1".into()))), "7:c%2F1");
        key!(
            "<id>:<first.sku>:<x>",
            fn(Order { id, place: (_, (x, _)), .. }: Order, [first, ..]: &[Line; 1]),
            (order(), &[Line { sku: "s".into() }]),
            "7:s:3"
        );
        key!("<whole.0>:<x>", fn(whole @ (x, _): (u8, u8)), ((1, 2)), "1:1");
        key!("<a>:<b>", fn(&(ref a, b): &(String, u8)), (&("a".to_owned(), 2)), "a:2");
        key!("<a>:<b>:<rest.len()>", fn([a, b, rest @ ..]: [u8; 5]), ([1, 2, 3, 4, 5]), "1:2:3");
        assert_eq!(Keys::new().of(mutable(7, (1, 2))).unwrap(), "7:1 8 2");
    }

    #[test]
    fn raw_identifiers() {
        key!("kind:<type>:<r#type>", fn(r#type: &str), ("a"), "kind:a:a");
        key!("kind:<r#kind>", fn(kind: &str), ("a"), "kind:a");
        key!("<r#move>:<r#fn.len()>", fn((r#move, r#fn): (u8, &str)), ((1, "ab")), "1:2");
    }

    #[derive(Debug)]
    #[expect(dead_code, reason = "only `Debug` reads what is in it")]
    enum State {
        Open,
        Paid { at: u8 },
    }

    #[test]
    fn format_specs() {
        key!("<id:08>", fn(id: u64), (7), "00000007");
        key!("<state:?>", fn(state: State), (State::Open), "Open");
        key!("<state:?>", fn(state: State), (State::Paid { at: 7 }), "Paid%20%7B%20at%3A%207%20%7D");
        key!("<text:?>", fn(text: &str), ("a\"b"), "\"a\\\"b\"");
        key!("<id:x>:<id:#X>:<id:#06b>:<id:o>", fn(id: u8), (10), "a:0xA:0b1010:12");
        key!("<ratio:.2>/<ratio:+.1>/<ratio:e>", fn(ratio: f64), (1234.567), "1234.57/+1234.6/1.234567e3");
        key!("[<name:4>]", fn(name: &str), ("ab"), "[ab%20%20]");
        key!("<name:-<4>:<name:-^4>:<name:.1>", fn(name: &str), ("ab"), "ab--:-ab-:a");
        key!("<order.id:03>:<order.lines[0].sku:.4>", fn(order: Order), (order()), "007:left");
        key!("<u8::MAX:x>", fn(), (), "ff");
    }

    #[test]
    fn angle_brackets_and_braces() {
        key!("a<<b>>c:<id>", fn(id: u64), (7), "a<b>c:7");
        key!("<<<id>>>", fn(id: u64), (7), "<7>");
        key!("<<id>>", fn(id: u64), (7), "<id>");
        key!("{user:<id>}:cart", fn(id: u64), (7), "{user:7}:cart");
        key!("{<id>}:cart", fn(id: u64), (7), "{7}:cart");
        key!("{carts}:<id>", fn(id: &str), ("{x}"), "{carts}:%7Bx%7D");
        key!("{a{<id>}}", fn(id: u64), (7), "{a{7}}");
        key!("100%:<id>\\\"\t'", fn(id: u64), (7), "100%:7\\\"\t'");
    }

    /// Nothing is rendered before the first poll, and nothing twice.
    #[test]
    fn a_key_is_rendered_once() {
        struct Counting<'a>(&'a Cell<u32>);
        impl fmt::Display for Counting<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.set(self.0.get() + 1);
                write!(f, "{}", self.0.get())
            }
        }
        #[redis_lock(key = "<value>", ttl = "30s", guard = lock)]
        async fn annotated(value: Counting<'_>) -> Result<String, LockError> {
            tokio::task::yield_now().await;
            Ok(lock.key().to_owned())
        }
        let rendered = Cell::new(0);
        let call = annotated(Counting(&rendered));
        assert_eq!(rendered.get(), 0);
        assert_eq!(Keys::new().of(call).unwrap(), "1");
        assert_eq!(rendered.get(), 1);
    }
}

mod refusals {
    use super::*;

    #[redis_lock(key = "user:<first.trim()>:<last:.1>", ttl = "30s")]
    async fn rename(first: &str, last: &str) -> Result<(), LockError> {
        panic!("the body of {first} {last} runs without a lock")
    }

    #[redis_lock(key = "doc:<name>", ttl = "30s", guard = lock)]
    async fn open(name: &str) -> Result<usize, LockError> {
        Ok(lock.key().len())
    }

    #[track_caller]
    fn fault<T: Debug>(outcome: Result<T, LockError>) -> (KeyFault, String) {
        let error = outcome.expect_err("the key is refused");
        let message = error.to_string();
        assert!(!error.is_busy() && !error.is_unavailable());
        let LockError::InvalidKey { fault, .. } = error else { panic!("{message}") };
        (*fault, message)
    }

    #[test]
    fn an_empty_place_is_named() {
        let keys = Keys::new();
        let (what, message) = fault(keys.of(rename("", "Lee")));
        assert_eq!(what, KeyFault::EmptyPlace("first.trim()"));
        assert_eq!(
            message,
            "lock \"user::L\" (template \"user:<first.trim()>:<last:.1>\", function templates::refusals::rename) \
             has no valid key: <first.trim()> rendered to an empty string"
        );
        let (what, message) = fault(keys.of(rename("Ann", "")));
        assert_eq!(what, KeyFault::EmptyPlace("last"));
        assert!(message.ends_with("has no valid key: <last> rendered to an empty string"), "{message}");
        assert!(message.starts_with("lock \"user:Ann:\""), "{message}");
        // White space that `trim` leaves nothing of; and the first of two is named.
        assert_eq!(fault(keys.of(rename(" \t", ""))).0, KeyFault::EmptyPlace("first.trim()"));
    }

    #[test]
    fn what_is_blank_but_not_empty_is_a_value() {
        assert_eq!(Keys::new().of(open(" ")).unwrap(), "doc:%20".len());
    }

    #[test]
    fn a_key_over_one_kib_is_refused() {
        let keys = Keys::new();
        assert_eq!(keys.of(open(&"n".repeat(1020))).unwrap(), 1024);
        let (what, message) = fault(keys.of(open(&"n".repeat(1021))));
        assert_eq!(what, KeyFault::TooLong);
        assert!(message.ends_with("has no valid key: the key is longer than 1024 bytes"), "{message}");
        let place = "(template \"doc:<name>\", function templates::refusals::open)";
        assert!(message.contains(place), "{message}");
        // As it is encoded, in bytes.
        assert_eq!(keys.of(open(&"%".repeat(340))).unwrap(), 1024);
        assert_eq!(fault(keys.of(open(&"%".repeat(341)))).0, KeyFault::TooLong);
        assert_eq!(keys.of(open(&"é".repeat(510))).unwrap(), 1024);
        assert_eq!(fault(keys.of(open(&"é".repeat(511)))).0, KeyFault::TooLong);
        // What is much too long is not all repeated.
        let (what, message) = fault(keys.of(open(&"n".repeat(1 << 20))));
        assert_eq!(what, KeyFault::TooLong);
        assert!(message.len() < 1500, "{} bytes", message.len());
    }

    #[test]
    fn the_prefix_does_not_count() {
        let keys = Keys { locks: LockManager::builder().prefix("p".repeat(2000)).in_memory(), ..Keys::new() };
        assert_eq!(keys.of(open(&"n".repeat(1020))).unwrap(), 3024);
        assert_eq!(fault(keys.of(open(&"n".repeat(1021)))).0, KeyFault::TooLong);
    }

    #[test]
    fn a_display_that_fails_is_refused() {
        struct Broken;
        impl fmt::Display for Broken {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("half")?;
                Err(fmt::Error)
            }
        }
        #[redis_lock(key = "<value>", ttl = "30s")]
        async fn annotated(value: Broken) -> Result<(), LockError> {
            Ok(())
        }
        fault(Keys::new().of(annotated(Broken)));
    }
}
