use super::*;

/// Everything that is wrong with some options.
fn refused(options: &str) -> Vec<String> {
    let mut errors = Errors::default();
    let tokens = options.parse().unwrap_or_default();
    let options = Options::parse(tokens, &mut errors);
    check(&options, &mut errors);
    errors.messages()
}

#[test]
fn what_goes_together_passes() {
    for options in [
        "key = \"o:<id>\", ttl = \"30s\"",
        "key = \"o:<id>\", ttl = TTL, wait = \"5s\", release = wait, renew, max_hold = \"10m\", on_lost = cancel,",
        "key = \"o\", ttl = \"30s\", guard = lock, tag = a.b(c, d), manager = self.locks, release = background",
        "crate = ::a::b, key = \"o\", ttl = \"30s\", or_else = |error, _: HashMap<A, B>| x",
        "key = \"o\", for x in y, ttl = \"30s\", hold_at_least = \"5s\"",
        "key = \"o\", ttl = \"30s\", shared, hold_after_ok = \"50s\"",
        "key = \"o\", ttl = \"30s\", permits = 3",
        "key = \"o\", ttl = \"30s\", fenced, guard = lock",
        "key = r#\"o\"#, ttl = if a { b } else { c }",
    ] {
        assert_eq!(refused(options), [""; 0], "{options}");
    }
}

#[test]
fn contradictions_are_refused() {
    for (options, said) in [
        ("max_hold = \"10m\"", "add `renew`"),
        ("renew, max_hold = \"30s\"", "not longer than `ttl`"),
        ("shared, permits = 3", "contradict each other"),
        ("fenced", "`fenced` without `guard`"),
        ("fenced, guard = lock, shared", "`shared` lets several readers in"),
        ("fenced, guard = lock, permits = 2", "`permits` lets several holders in"),
        ("fenced, guard = lock, for a in b", "takes several keys at once"),
        ("hold_at_least = \"31s\"", "longer than `ttl`"),
        ("hold_at_least = \"1s\", hold_after_ok = \"1s\"", "contradict each other"),
        ("permits = 0", "would let nobody in"),
        ("permits = \"3\"", "how many"),
    ] {
        let messages = refused(&format!("key = \"o\", ttl = \"30s\", {options}"));
        assert!(messages.len() == 1 && messages[0].contains(said), "{options}: {messages:?}");
    }
}

#[test]
fn what_is_written_wrong_is_refused_once() {
    for (options, said) in [
        ("key = \"o\"", "needs `ttl`"),
        ("ttl = \"30s\"", "needs `key`"),
        ("", "needs `key` and `ttl`"),
        ("key = \"o\", tll = \"30s\"", "did you mean `ttl`"),
        ("key = \"o\", ttl = \"30s\", ttl = \"30s\"", "given twice"),
        ("key = \"o\", ttl = 30", "write `ttl = \"30s\"`"),
        ("key = \"o\", ttl", "takes its value behind a `=`"),
        ("key = \"o\", ttl =", "lacks its value"),
        ("key = \"o\", ttl(\"30s\")", "takes its value behind a `=`"),
        ("key = \"o\" ttl = \"30s\"", "`,` is missing"),
        ("key = \"o\", ttl = \"30s\", renew = true", "takes no value"),
        ("key = \"o\", ttl = \"30s\", release = later", "`release = wait` or `release = background`"),
        ("key = \"o\", ttl = \"30s\", on_lost = \"cancel\"", "`on_lost = continue` or `on_lost = cancel`"),
        ("key = \"o\", ttl = \"30s\", guard = 5", "write `guard = lock`"),
        ("key = KEY, ttl = \"30s\"", "must be a string literal"),
        ("key = concat!(\"a\", \"b\"), ttl = \"30s\"", "must be a string literal"),
        ("key = \"o\", ttl = \"30s\", for a", "lacks its `in`"),
        ("key = \"o\", ttl = \"30s\", for a in", "over what"),
        ("\"o\", ttl = \"30s\"", "name of the option is missing"),
        ("key = \"o\", ttl = \"30s\", wait = \"0s\"", "leave `wait` out"),
    ] {
        let messages = refused(options);
        assert!(messages.len() == 1 && messages[0].contains(said), "{options}: {messages:?}");
    }
}

#[test]
fn mistakes_are_reported_together() {
    let messages =
        refused("key = 5, ttl = \"soon\", colour = red, renew = true, guard = \"x\", wait = \"5s\"");
    assert_eq!(messages.len(), 5, "{messages:?}");
}
