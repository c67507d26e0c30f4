//! Functions that end in `Box::pin(async move { ... })`: what `#[async_trait]` makes of an `async fn`, and
//! what people write by hand. The lock goes inside the async block, so that nothing happens before the future
//! is polled.

use proc_macro2::{Delimiter, Group, Span, TokenTree};
use syn::{GenericArgument, PathArguments, ReturnType, Signature, Type, TypeParamBound};

/// The parts of the body around its async block.
pub(crate) struct Boxed {
    /// The braces of the function.
    pub(crate) braces: Span,
    /// Everything before the async block's braces, without the parentheses: `let a = 1; Box::pin`.
    pub(crate) before: Vec<TokenTree>,
    /// The parentheses of `Box::pin(...)`.
    pub(crate) parens: Span,
    /// `async move`
    pub(crate) introducer: Vec<TokenTree>,
    /// The block itself.
    pub(crate) block: Group,
    /// What the boxed future gives, when the return type says so.
    pub(crate) output: Option<Type>,
}

impl Boxed {
    /// Finds the async block; `None` when the function does not end in a boxed one.
    pub(crate) fn parse(sig: &Signature, body: &Group) -> Option<syn::Result<Self>> {
        let mut before: Vec<TokenTree> = body.stream().into_iter().collect();
        let Some(TokenTree::Group(call)) = before.pop() else { return None };
        if call.delimiter() != Delimiter::Parenthesis || !ends_in_box_pin(&before) {
            return None;
        }
        let mut introducer: Vec<TokenTree> = call.stream().into_iter().collect();
        introducer.pop_if(|last| matches!(last, TokenTree::Punct(comma) if comma.as_char() == ','));
        let Some(TokenTree::Group(block)) = introducer.pop() else { return None };
        let words: Vec<String> = introducer.iter().map(ToString::to_string).collect();
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["async", "move"] => {}
            ["async"] => {
                return Some(Err(syn::Error::new(
                    introducer.first().map_or_else(Span::call_site, TokenTree::span),
                    "the parameters must live as long as the lock: write `Box::pin(async move { .. })`",
                )));
            }
            _ => return None,
        }
        let output = match &sig.output {
            ReturnType::Type(_, ty) => output_of(ty),
            ReturnType::Default => None,
        };
        Some(Ok(Self { braces: body.span(), before, parens: call.span(), introducer, block, output }))
    }
}

/// Whether `tokens` end in `Box::pin`, under whatever path.
fn ends_in_box_pin(tokens: &[TokenTree]) -> bool {
    let Some([first, colon, other_colon, method]) = tokens.last_chunk() else { return false };
    let is = |token: &TokenTree, text: &str| token.to_string() == text;
    is(first, "Box") && is(colon, ":") && is(other_colon, ":") && is(method, "pin")
}

/// The `T` of `Pin<Box<dyn Future<Output = T>>>`, or of futures' `BoxFuture<'_, T>`.
fn output_of(ty: &Type) -> Option<Type> {
    match ty {
        Type::Group(group) => output_of(&group.elem),
        Type::Paren(paren) => output_of(&paren.elem),
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
            let types = arguments.args.iter().filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            });
            let mut types = types;
            if last.ident == "BoxFuture" || last.ident == "LocalBoxFuture" {
                return types.next().cloned();
            }
            types.find_map(output_of)
        }
        Type::TraitObject(object) => object.bounds.iter().find_map(|bound| {
            let TypeParamBound::Trait(bound) = bound else { return None };
            let PathArguments::AngleBracketed(arguments) = &bound.path.segments.last()?.arguments else {
                return None;
            };
            arguments.args.iter().find_map(|argument| match argument {
                GenericArgument::AssocType(output) if output.ident == "Output" => Some(output.ty.clone()),
                _ => None,
            })
        }),
        _ => None,
    }
}
