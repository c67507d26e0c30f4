//! The body of the user, as an async block.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::quote_spanned;
use syn::parse::Parser;
use syn::{Block, Expr, Stmt};

use crate::mentions::Mentions;
use crate::returns::Output;
use crate::tokens::{ends, group};

/// `async move { ... }` around the user's block, with `start` in front of it.
pub(crate) fn future(output: &Output, start: &TokenStream, block: &Group) -> TokenStream {
    let braces = block.span();
    let inside = output.inside();
    // An item of no effect inside the user's braces: a pair of braces around nothing but one expression would
    // be linted as unnecessary. Errors about the block as a whole are reported at these braces, so they stay.
    let filler = quote_spanned!(Span::mixed_site()=> const _: () = (););
    let block = group(Delimiter::Brace, braces, filler.into_iter().chain(block.stream()).collect());
    // These braces are of our own edition: since 2024 the temporaries of a tail are dropped before what the
    // block binds, as they are dropped before the parameters of an `async fn` in every edition.
    let body = quote_spanned!(Span::mixed_site()=> { #inside #start #block });
    // The async block itself stands at the user's braces. The compiler does not name variables of code that
    // is not the user's: it would say "use of moved value" and not which.
    let body = group(Delimiter::Brace, braces, body);
    quote_spanned!(braces=> async move #body)
}

/// The variable `value`, as an expression that stands where the body gives its value.
///
/// A lifetime that is too short is noticed where the value leaves the function, in code of ours. Without the
/// attribute that is what the body ends in; with a `return` in the body it may be another place, and then it
/// is all of the body.
pub(crate) fn value(block: &Group) -> TokenStream {
    let mixed = Span::mixed_site();
    let Some(tail) = tail(block) else {
        return quote_spanned!(mixed.located_at(block.span())=> value);
    };
    let (first, last) = ends(&tail, block.span());
    // On stable no span reaches from one token to another, but that of an expression which starts and ends
    // there does.
    let value = quote_spanned!(mixed=> value,);
    let tuple = group(Delimiter::Parenthesis, mixed.located_at(first), value);
    let field = quote_spanned!(mixed.located_at(last)=> .0);
    quote_spanned!(mixed=> #tuple #field)
}

/// The expression that a block ends in, if the block can end nowhere else.
fn tail(block: &Group) -> Option<Expr> {
    if Mentions::of(block.stream()).contains("return") {
        return None;
    }
    // Only what follows the last `;` is read as Rust: the rest may be long, or not even Rust while it is
    // being typed.
    let mut tokens: Vec<TokenTree> = block.stream().into_iter().collect();
    let start =
        tokens.iter().rposition(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';'));
    let tokens = tokens.split_off(start.map_or(0, |semicolon| semicolon + 1));
    match Block::parse_within.parse2(tokens.into_iter().collect()).ok()?.pop()? {
        Stmt::Expr(tail, None) => Some(tail),
        _ => None,
    }
}
