//! The item under the attribute: what it is, whether it can be annotated, and where its body is.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Signature, Token, Visibility};

use crate::boxed::Boxed;
use crate::mentions::Mentions;

/// A function that can be annotated.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    pub(crate) body: Body,
}

/// Where the statements of the user are. They stay tokens, so that a body somebody is still typing passes
/// through.
pub(crate) enum Body {
    /// The block of an `async fn`, and the `#![...]` attributes at its start, which may not stand in an inner
    /// block.
    Async { inner_attrs: TokenStream, block: Group },
    /// A function that returns a boxed future.
    Boxed(Box<Boxed>),
}

/// An item as far as it can be told without knowing whether it will do.
struct Item {
    attrs: Vec<Attribute>,
    vis: Visibility,
    sig: Signature,
    body: Option<Group>,
}

impl Parse for Item {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        if let Some((kind, advice)) = other_kind(input) {
            return Err(
                input.error(format!("`redis_lock` goes on an `async fn`, and this is {kind}: {advice}"))
            );
        }
        let sig: Signature = input.parse()?;
        Ok(Self { attrs, vis, sig, body: braces(input.parse()?) })
    }
}

/// The group of a body; inside an invisible group when `macro_rules!` had it as a `$body:block`.
fn braces(token: TokenTree) -> Option<Group> {
    let TokenTree::Group(group) = token else { return None };
    match group.delimiter() {
        Delimiter::Brace => Some(group),
        Delimiter::None => group.stream().into_iter().next().and_then(braces),
        Delimiter::Parenthesis | Delimiter::Bracket => None,
    }
}

/// What stands here instead of a function, and what to do about it.
fn other_kind(input: ParseStream<'_>) -> Option<(&'static str, &'static str)> {
    const FUNCTION: &str = "put it on the function that needs the lock";
    if is_function(&input.fork()) {
        return None;
    }
    let at = |token: fn(&ParseStream<'_>) -> bool| {
        // `unsafe impl`, `unsafe extern "C" {`
        let after_unsafe = input.fork();
        after_unsafe.parse::<Option<Token![unsafe]>>().is_ok_and(|found| found.is_some())
            && token(&&after_unsafe)
            || token(&input)
    };
    Some(if at(|input| input.peek(Token![impl])) {
        ("an `impl` block", "put it on each method that needs the lock")
    } else if at(|input| input.peek(Token![trait])) {
        ("a trait", "put it on each method that has a body, or on the methods of the implementations")
    } else if at(|input| input.peek(Token![extern]) && !input.peek2(Token![crate])) {
        ("a block of foreign functions", "put it on an `async fn` that calls them")
    } else if at(|input| input.peek(Token![mod])) {
        ("a module", FUNCTION)
    } else if at(|input| input.peek(Token![struct]) || input.peek(Token![enum]) || input.peek(Token![type])) {
        ("a type", FUNCTION)
    } else if at(|input| input.peek(Token![const])) {
        ("a constant", FUNCTION)
    } else {
        ("no function", FUNCTION)
    })
}

/// Whether a function starts here: `fn` behind any number of its qualifiers.
fn is_function(input: ParseStream<'_>) -> bool {
    const QUALIFIERS: [&str; 7] = ["async", "const", "default", "extern", "gen", "safe", "unsafe"];
    while !input.peek(Token![fn]) {
        let is_qualifier = match input.parse() {
            Ok(TokenTree::Ident(ident)) => QUALIFIERS.iter().any(|qualifier| ident == qualifier),
            // The ABI of an `extern "C" fn`.
            Ok(TokenTree::Literal(_)) => true,
            _ => false,
        };
        if !is_qualifier {
            return false;
        }
    }
    true
}

impl Function {
    /// Reads the item, or says in one sentence why it cannot be annotated and what to do.
    pub(crate) fn parse(item: TokenStream) -> syn::Result<Self> {
        let Item { attrs, vis, sig, body } = syn::parse2(item)?;
        if let Some(constness) = &sig.constness {
            return Err(syn::Error::new(
                constness.span,
                "a `const fn` can run at compile time, where there is no lock to take: make it an `async fn`",
            ));
        }
        if let Some(abi) = &sig.abi {
            return Err(syn::Error::new(
                abi.extern_token.span,
                "an `extern` function has callers that cannot await a lock: \
                 move the work into an `async fn` without `extern` and annotate that",
            ));
        }
        if let Some(variadic) = &sig.variadic {
            return Err(syn::Error::new_spanned(
                variadic,
                "a function with variable arguments cannot be async: \
                 move the work into an `async fn` and annotate that",
            ));
        }
        let Some(block) = body else {
            return Err(syn::Error::new_spanned(
                &sig,
                "this method has no body to lock: put `redis_lock` on its implementations, or give it a default body",
            ));
        };
        let body = if sig.asyncness.is_some() {
            let (inner_attrs, block) = split_inner_attrs(&block);
            Body::Async { inner_attrs, block }
        } else {
            match Boxed::parse(&sig, &block) {
                Some(boxed) => Body::Boxed(Box::new(boxed?)),
                None => return Err(syn::Error::new(sig.fn_token.span, not_async(&attrs, &block))),
            }
        };
        Ok(Self { attrs, vis, sig, body })
    }
}

/// What to say about a function without `async`.
fn not_async(attrs: &[Attribute], block: &Group) -> &'static str {
    let is_test =
        attrs.iter().any(|attr| attr.path().segments.last().is_some_and(|last| last.ident == "test"));
    if Mentions::of(block.stream()).contains("block_on") || is_test {
        "this function is not async any more: an attribute above `redis_lock`, such as `#[tokio::test]` or \
         `#[tokio::main]`, has turned it into a blocking one; put `redis_lock` first, above that attribute"
    } else {
        "`redis_lock` goes on an `async fn`, because it awaits its lock: write `async fn`, or annotate the async \
         function that calls this one"
    }
}

/// Takes the `#![...]` attributes off the start of a block.
fn split_inner_attrs(block: &Group) -> (TokenStream, Group) {
    let tokens: Vec<TokenTree> = block.stream().into_iter().collect();
    let is_inner = |at: usize| {
        matches!(
            tokens.get(at..at + 3),
            Some([TokenTree::Punct(hash), TokenTree::Punct(bang), TokenTree::Group(group)])
                if hash.as_char() == '#' && bang.as_char() == '!' && group.delimiter() == Delimiter::Bracket
        )
    };
    let mut end = 0;
    while is_inner(end) {
        end += 3;
    }
    if end == 0 {
        return (TokenStream::new(), block.clone());
    }
    let (attrs, rest) = tokens.split_at(end);
    let mut inner = Group::new(Delimiter::Brace, rest.iter().cloned().collect());
    inner.set_span(block.span());
    (attrs.iter().map(ToTokens::to_token_stream).collect(), inner)
}
