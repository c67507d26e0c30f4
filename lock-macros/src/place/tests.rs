use super::*;

fn place(inside: &str) -> Place {
    match Place::parse(inside) {
        Ok(place) => place,
        Err(message) => panic!("{inside}: {message}"),
    }
}

fn refused(inside: &str) -> String {
    Place::parse(inside).err().unwrap_or_default()
}

fn name(name: &str) -> Root {
    Root::Name(name.to_owned())
}

fn path(leading_colon: bool, segments: &[&str]) -> Root {
    Root::Path { leading_colon, segments: segments.iter().map(ToString::to_string).collect() }
}

fn field(name: &str) -> Step {
    Step::Field(name.to_owned())
}

#[test]
fn roots() {
    for (inside, root) in [
        ("id", name("id")),
        ("r#type", name("type")),
        ("größe", name("größe")),
        ("self", Root::Receiver),
        ("REGION", name("REGION")),
        ("Self::REGION", path(false, &["Self", "REGION"])),
        ("config::eu::REGION", path(false, &["config", "eu", "REGION"])),
        ("::app::REGION", path(true, &["app", "REGION"])),
        ("self::REGION", path(false, &["self", "REGION"])),
        ("crate :: REGION", path(false, &["crate", "REGION"])),
    ] {
        let place = place(inside);
        assert_eq!((place.expr.root, place.expr.steps.len()), (root, 0), "{inside}");
    }
}

#[test]
fn steps() {
    let int = |text: &str| Arg::Int(text.to_owned());
    let by_value = |root: Root| Arg::Place { by_reference: false, expr: Expr { root, steps: vec![] } };
    for (inside, steps) in [
        ("a.b", vec![field("b")]),
        ("a . r#type", vec![field("type")]),
        ("a.0.1", vec![Step::TupleField(0), Step::TupleField(1)]),
        ("a[0]", vec![Step::Index(int("0"))]),
        ("a[i].c", vec![Step::Index(by_value(name("i"))), field("c")]),
        ("a[\"x\"]", vec![Step::Index(Arg::Str("x".to_owned()))]),
        ("a.b()", vec![Step::Call("b".to_owned(), vec![])]),
        (
            "a.b(1, -2i8, \"c\\\"\", 'd', true, false,)",
            vec![Step::Call(
                "b".to_owned(),
                vec![
                    int("1"),
                    int("-2i8"),
                    Arg::Str("c\"".to_owned()),
                    Arg::Char('d'),
                    Arg::Bool(true),
                    Arg::Bool(false),
                ],
            )],
        ),
        (
            "a.b(&c.d, self)",
            vec![Step::Call(
                "b".to_owned(),
                vec![
                    Arg::Place {
                        by_reference: true,
                        expr: Expr { root: name("c"), steps: vec![field("d")] },
                    },
                    by_value(Root::Receiver),
                ],
            )],
        ),
    ] {
        assert_eq!(place(inside).expr.steps, steps, "{inside}");
    }
}

#[test]
fn format_specs() {
    for (inside, text, spec) in [
        ("id:08", "id", Some("08")),
        ("id:?", "id", Some("?")),
        ("id :#06x", "id", Some("#06x")),
        ("id:+.3e", "id", Some("+.3e")),
        ("id:*^10", "id", Some("*^10")),
        ("id:<4", "id", Some("<4")),
        ("id::<4", "id", None),
        ("a::B:08", "a::B", Some("08")),
        ("a.b(\":\"):4", "a.b(\":\")", Some("4")),
    ] {
        if spec.is_none() {
            // `::` is a path, never a spec filled with colons.
            assert!(!refused(inside).is_empty(), "{inside}");
            continue;
        }
        let place = place(inside);
        assert_eq!((place.text.as_str(), place.spec.as_deref()), (text, spec), "{inside}");
    }
    for (inside, said) in [
        ("id:", "empty format spec"),
        ("id:zz", "no format spec of Rust"),
        ("id:08 ", "no format spec of Rust"),
        ("id:{}", "no format spec of Rust"),
        ("id:w$", "from elsewhere"),
        ("id:.*", "from elsewhere"),
        ("id:.", "digits should follow"),
    ] {
        assert!(refused(inside).contains(said), "{inside}: {}", refused(inside));
    }
}

#[test]
fn what_is_no_place_is_refused() {
    for (inside, said) in [
        ("0", "starts with a number"),
        ("\"x\"", "holds a literal"),
        ("*id", "cannot be read at `*id`"),
        ("&id", "cannot be read at `&id`"),
        ("id + 1", "cannot be read at `+ 1`"),
        ("id as u8", "cannot be read at `as u8`"),
        ("a b", "cannot be read at `b`"),
        ("id?", "uses `?`"),
        ("id.await", "awaits"),
        ("f(id)", "calls a function"),
        ("a.b::<u8>()", "type arguments"),
        ("a::<u8>::B", "type arguments"),
        ("a <b", "has a `<` in it"),
        ("a.", "ends where a name should follow `.`"),
        ("a.-", "has `-` where a name should follow `.`"),
        ("a::", "ends where a name should follow `::`"),
        ("::", "ends where a name should follow `::`"),
        ("a[0", "lacks a `]`"),
        ("a[0..1]", "lacks a `]`"),
        ("a..b", "range"),
        ("a.b(1", "lacks the `)`"),
        ("a.b(1 2)", "lacks the `)`"),
        ("a.b(\"x)", "without its closing `\"`"),
        ("a.b('xy')", "one character"),
        ("a.b(\"\\q\")", "escape"),
        ("a.b(1.5)", "lacks the `)`"),
        ("a.b(0x1)", "decimal number"),
        ("a.b(-x)", "decimal number"),
        ("a.99999999999", "for a field"),
    ] {
        assert!(refused(inside).contains(said), "{inside}: {}", refused(inside));
    }
}
