use super::*;

fn expanded(args: &str, item: &str) -> String {
    let (args, item) = (args.parse().unwrap_or_default(), item.parse().unwrap_or_default());
    attribute(args, &item).to_string()
}

const OPTIONS: &str = "key = \"o:<id>\", ttl = \"30s\"";

#[test]
fn a_mistake_keeps_the_item_as_it_was() {
    for (args, item) in [
        ("key = \"o:<oder_id>\", ttl = \"30s\"", "async fn f (mut order_id : u64) -> u8 { 1 }"),
        ("", "# [doc = \"d\"] pub async fn f () { }"),
        (OPTIONS, "const fn f (id : u64) { }"),
        (OPTIONS, "impl S { }"),
        (OPTIONS, "async fn f (& self , id : u64) ;"),
    ] {
        let expanded = expanded(args, item);
        let item = item.parse::<TokenStream>().map(|item| item.to_string()).unwrap_or_default();
        assert!(expanded.starts_with(&item), "{expanded}");
        assert!(expanded[item.len()..].contains("compile_error"), "{expanded}");
    }
}

#[test]
fn the_item_and_the_options_are_judged_together() {
    let expanded = expanded("key = \"o\", tll = \"30s\", wait = 5", "const fn f() {}");
    assert_eq!(expanded.matches("compile_error").count(), 3, "{expanded}");
}

#[test]
fn a_body_that_is_still_being_typed_passes() {
    let expanded = expanded(OPTIONS, "async fn f(id: u64) { id. let = ; }");
    assert!(!expanded.contains("compile_error"), "{expanded}");
    assert!(expanded.contains("id . let = ;"), "{expanded}");
}

#[test]
fn what_cannot_be_annotated_is_named() {
    for (item, said) in [
        ("const fn f(id: u64) {}", "a `const fn` can run at compile time"),
        ("extern \"C\" fn f(id: u64) {}", "an `extern` function"),
        ("unsafe extern \"C\" fn f(id: u64, ...) {}", "an `extern` function"),
        ("unsafe fn f(id: u64, ...) {}", "variable arguments"),
        ("async fn f(id: u64);", "has no body"),
        ("fn f(id: u64) {}", "write `async fn`"),
        ("fn f(id: u64) -> X { Box::new(async move {}) }", "write `async fn`"),
        ("fn f(id: u64) -> X { Box::pin(async {}) }", "Box::pin(async move"),
        ("#[::core::prelude::v1::test] fn f() { async {}; }", "put `redis_lock` first"),
        ("fn main() { rt().block_on(async {}) }", "put `redis_lock` first"),
        ("impl S {}", "an `impl` block"),
        ("unsafe impl S for T {}", "an `impl` block"),
        ("pub trait T {}", "a trait"),
        ("unsafe trait T {}", "a trait"),
        ("struct S;", "a type"),
        ("enum E {}", "a type"),
        ("type A = B;", "a type"),
        ("pub(crate) mod m {}", "a module"),
        ("const X: u8 = 1;", "a constant"),
        ("unsafe extern \"C\" {}", "foreign functions"),
        ("extern crate a;", "no function"),
        ("macro_rules! m { () => {} }", "no function"),
    ] {
        let expanded = expanded("key = \"o\", ttl = \"30s\"", item);
        assert!(expanded.contains(said), "{item}: {expanded}");
    }
    for item in [
        "pub(crate) async fn f() {}",
        "async unsafe fn f() {}",
        "fn f() -> X { let a = 1; ::std::boxed::Box::pin(async move { a },) }",
    ] {
        let expanded = expanded("key = \"o\", ttl = \"30s\"", item);
        assert!(!expanded.contains("compile_error"), "{item}: {expanded}");
    }
}

#[test]
fn only_what_is_to_be_dropped_with_the_body_moves_into_it() {
    let moved = |item: &str, args: &str| {
        let expanded = expanded(args, item);
        let body = expanded.split("async move").nth(1).unwrap_or_default().to_owned();
        ["let _ = & a", "let _ = & b", "let _ = & self", "let mut b = b", "let c = c", "let _ = & _d"]
            .into_iter()
            .filter(|wanted| body.contains(wanted))
            .collect::<Vec<_>>()
    };
    let plain = "key = \"o\", ttl = \"30s\"";
    assert_eq!(
        moved("async fn f(&self, a: A, b: B) { b.c(self) }", plain),
        ["let _ = & b", "let _ = & self"]
    );
    assert_eq!(moved("async fn f(a: A, b: B) { println!(\"{a}\") }", plain), ["let _ = & a"]);
    assert_eq!(moved("async fn f(a: A, b: B) {}", "key = \"o:<b>\", ttl = \"30s\""), ["let _ = & b"]);
    assert_eq!(moved("async fn f(a: A, _d: D) {}", plain), ["let _ = & _d"]);
    assert_eq!(
        moved("async fn f(a: A, mut b: B, c: C) { c(a) }", plain),
        ["let _ = & a", "let mut b = b", "let c = c"]
    );
    assert_eq!(moved("async fn f(a: A) { a = 1 }", plain), [""; 0], "bound anew instead");
    let or_else = "key = \"o:<a>\", ttl = \"30s\", or_else = |_| a";
    assert_eq!(moved("async fn f(a: A, b: B) { b }", or_else), ["let _ = & b"]);
}
