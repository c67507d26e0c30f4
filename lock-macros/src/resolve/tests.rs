use super::*;

/// The code that renders `key` for a function with this signature, or what is wrong with it.
fn rendered(signature: &str, key: &str) -> Result<String, Vec<String>> {
    let sig: Signature = syn::parse_str(signature).map_err(|error| vec![error.to_string()])?;
    let bindings = bindings::of(&sig);
    let key = LitStr::new(key, Span::call_site());
    let scope = Scope::new(&sig, &bindings, &Slot::default());
    let mut errors = Errors::default();
    match template(&key, &scope, &mut errors) {
        Some(template) => Ok(render(&template, &key, &scope).to_string().replace(' ', "")),
        None => Err(errors.messages()),
    }
}

#[test]
fn a_key_becomes_a_chain_of_calls() {
    for (signature, key, expected) in [
        (
            "async fn f(order_id: u64)",
            "order:<order_id>",
            ".literal(\"order:\").place(\"order_id\",::core::format_args!(\"{}\",order_id))",
        ),
        ("fn f(id: u8)", "<id:08>", ".place(\"id\",::core::format_args!(\"{:08}\",id))"),
        ("fn f(&self)", "<self.id>", ".place(\"self.id\",::core::format_args!(\"{}\",self.id))"),
        (
            "fn f(r#type: u8)",
            "<type>/<r#type.fn()>",
            ".place(\"type\",::core::format_args!(\"{}\",r#type)).literal(\"/\")\
             .place(\"r#type.fn()\",::core::format_args!(\"{}\",r#type.r#fn()))",
        ),
        (
            "fn f<const N: usize>(a: [u8; N])",
            "<N>/<a[0]>",
            ".place(\"N\",::core::format_args!(\"{}\",N)).literal(\"/\").place(\"a[0]\",::core::format_args!(\"{}\",a[0]))",
        ),
        ("fn f()", "<Self::X>", ".place(\"Self::X\",::core::format_args!(\"{}\",Self::X))"),
        ("fn f()", "nightly {tag}", ".literal(\"nightly{tag}\")"),
        (
            "fn f(Path((a, b)): Path<(u8, u8)>)",
            "<a>:<b.c(&a, -1, \"x\", 'y', true)>",
            ".place(\"a\",::core::format_args!(\"{}\",a)).literal(\":\").place(\"b.c(&a,-1,\\\"x\\\",'y',true)\",\
             ::core::format_args!(\"{}\",b.c(&a,-1,\"x\",'y',true)))",
        ),
    ] {
        assert_eq!(rendered(signature, key).as_deref(), Ok(expected), "{key}");
    }
}

#[test]
fn unknown_names_are_refused_with_the_nearest() {
    for (signature, key, said) in [
        ("fn f(order_id: u64)", "<oder_id>", "did you mean `<order_id>`?"),
        (
            "fn f(order_id: u64, amount: u64)",
            "<id>",
            "did you mean `<order_id>`? It has `order_id` and `amount`",
        ),
        ("fn f(a: u64)", "<customer>", "has no parameter `customer`: it has `a`"),
        ("fn f()", "<customer>", "nor any other"),
        ("fn f(&self)", "<slef>", "did you mean `<self>`?"),
        ("fn f(a: u8)", "<self.a>", "needs a `self`, and `f` has none"),
        ("fn f(a: u8)", "<a.b(c)>", "has no parameter `c`"),
        ("fn f(a: u8)", "<a[c]>", "has no parameter `c`"),
        ("fn f(order_id: u64)", "<Order_id>", "did you mean `<order_id>`?"),
    ] {
        let messages = rendered(signature, key).err().unwrap_or_default();
        assert!(messages.len() == 1 && messages[0].contains(said), "{key}: {messages:?}");
    }
}

#[test]
fn braces_around_a_parameter_are_refused() {
    for key in ["{id}", "{ id }", "x:{id.len()}", "{id:?}", "{id[0]}", "{{id}}"] {
        let messages = rendered("fn f(id: u64)", key).err().unwrap_or_default();
        assert!(messages.iter().any(|message| message.contains("write `<id")), "{key}: {messages:?}");
    }
    for key in ["{ids}", "{id-x}", "{id:v2}", "{<id>}", "{order:<id>}", "{ID}"] {
        assert!(rendered("fn f(id: u64)", key).is_ok(), "{key}");
    }
    assert!(rendered("fn f(&self)", "{self.id}").is_err());
    assert!(rendered("fn f()", "{self.id}").is_ok());
}
