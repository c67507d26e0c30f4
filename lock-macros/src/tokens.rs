//! Small helpers over tokens and spans.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::Expr;

/// The expression inside invisible groups, which `macro_rules!` leaves around `$x:expr`, and inside
/// parentheses.
pub(crate) fn peel(expr: &Expr) -> &Expr {
    match expr {
        Expr::Group(group) => peel(&group.expr),
        Expr::Paren(paren) => peel(&paren.expr),
        other => other,
    }
}

/// The spans of the first and the last token. On stable two spans cannot be joined, but tokens that carry
/// these two are underlined from the one to the other.
pub(crate) fn ends(of: &impl ToTokens, otherwise: Span) -> (Span, Span) {
    let mut tokens = of.to_token_stream().into_iter();
    let first = tokens.next().map_or(otherwise, |token| token.span());
    let last = tokens.last().map_or(first, |token| token.span());
    (first, last)
}

/// Moves tokens to where `place` is written; what they name stays the same.
pub(crate) fn relocate(tokens: TokenStream, place: Span) -> TokenStream {
    tokens
        .into_iter()
        .map(|mut token| {
            let span = token.span().located_at(place);
            if let TokenTree::Group(group) = &token {
                token = Group::new(group.delimiter(), relocate(group.stream(), place)).into();
            }
            token.set_span(span);
            token
        })
        .collect()
}

/// A group with a span.
pub(crate) fn group(delimiter: Delimiter, span: Span, stream: TokenStream) -> Group {
    let mut group = Group::new(delimiter, stream);
    group.set_span(span);
    group
}
