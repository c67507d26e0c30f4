use super::*;

/// A template as a test writes it down: literals as they are, places in guillemets.
fn read(key: &str) -> String {
    match Template::parse(key) {
        Ok(template) => template
            .parts
            .iter()
            .map(|part| match part {
                Part::Literal(text) => text.clone(),
                Part::Place(place) => match &place.spec {
                    Some(spec) => format!("«{}|{spec}»", place.text),
                    None => format!("«{}»", place.text),
                },
            })
            .collect(),
        Err(messages) => panic!("{key}: {messages:?}"),
    }
}

fn refused(key: &str) -> Vec<String> {
    Template::parse(key).err().unwrap_or_default()
}

#[test]
fn places_and_text() {
    for (key, expected) in [
        ("order:<order_id>", "order:«order_id»"),
        ("<a>", "«a»"),
        ("< a >", "«a»"),
        ("<a>:<b>", "«a»:«b»"),
        ("<id:08>/x", "«id|08»/x"),
        ("<state:?>", "«state|?»"),
        ("nightly-report", "nightly-report"),
        ("<self.id>", "«self.id»"),
        ("<config::REGION>:<id>", "«config::REGION»:«id»"),
        ("<config::ID:08>", "«config::ID|08»"),
        ("<m.get(\"a:b>c\")>", "«m.get(\"a:b>c\")»"),
        ("<m[\"]>\"]>", "«m[\"]>\"]»"),
    ] {
        assert_eq!(read(key), expected, "{key}");
    }
}

#[test]
fn doubled_angles_are_literal() {
    for (key, expected) in [
        ("a<<b", "a<b"),
        ("a>>b", "a>b"),
        ("a<<b>>c", "a<b>c"),
        ("<<<id>>>", "<«id»>"),
        ("<<<<", "<<"),
        ("<id>>>", "«id»>"),
    ] {
        assert_eq!(read(key), expected, "{key}");
    }
}

#[test]
fn braces_are_literal_and_remembered() {
    assert_eq!(read("{order:<id>}/x"), "{order:«id»}/x");
    assert_eq!(read("{<a>}:<b>"), "{«a»}:«b»");
    let braced = |key| Template::parse(key).map(|template| template.braced).unwrap_or_default();
    assert_eq!(braced("{orders}:<id>/{ x }"), ["orders", " x "]);
    assert_eq!(braced("{order:<id>}"), [""; 0]);
    assert_eq!(braced("{a{b}c}"), ["b", "a{b}c"]);
}

#[test]
fn what_is_unbalanced_is_refused() {
    for (key, said) in [
        ("o:<id", "`<id` is not closed"),
        ("<", "is not closed"),
        ("o:id>", "`>` that closes nothing"),
        ("<a>>b", "`>` that closes nothing"),
        ("o:{<id>", "`{` without its `}`"),
        ("o:<id>}", "`}` without its `{`"),
        ("}{", "`}` without its `{`"),
        ("o:{}", "pair of braces with nothing in it"),
        ("o:{ }", "pair of braces with nothing in it"),
        ("o:<>", "`<>` is empty"),
        ("o:< >", "is empty"),
        ("o:<:08>", "is empty"),
        ("", "the key is empty"),
        (" ", "the key is empty"),
    ] {
        let messages = refused(key);
        assert!(messages.iter().any(|message| message.contains(said)), "{key}: {messages:?}");
    }
}

#[test]
fn everything_wrong_is_reported_together() {
    assert_eq!(refused("<a/{}}").len(), 1, "what follows an open place cannot be told from it");
    assert_eq!(refused("<>/{}/}/>").len(), 4);
}

#[test]
fn two_places_need_a_separator_that_no_value_contains() {
    for separator in [":", "/", "{x}", "-:-", "}:{"] {
        let key = format!("{{<a>{separator}<b>}}");
        assert!(refused(&key).is_empty(), "{key}: {:?}", refused(&key));
    }
    for separator in ["", "-", ".", " ", "%"] {
        let key = format!("<a>{separator}<b>");
        let messages = refused(&key);
        assert!(messages[0].contains("nothing keeps `<a>` and `<b>` apart"), "{key}: {messages:?}");
    }
    assert_eq!(refused("<a>-<b>-<c>").len(), 2);
    assert!(refused("a-<b>-c").is_empty());
}

#[test]
fn a_key_too_long_for_the_runtime_is_refused() {
    assert!(refused(&"x".repeat(1024)).is_empty());
    assert!(refused(&"x".repeat(1025))[0].contains("longer than 1024 bytes"));
    assert!(refused(&format!("{}<id>", "x".repeat(1024)))[0].contains("longer than 1024 bytes"));
}
