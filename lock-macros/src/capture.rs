//! What moves into the body with it.
//!
//! The parameters of an `async fn` are dropped when its body has ended, the last first. The body is an async
//! block of its own here, which takes only what it mentions, in the order in which it mentions it; the rest
//! would be dropped after the release of the lock, when somebody else may hold it.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};

use crate::bindings::Binding;
use crate::mentions::Mentions;

/// Who mentions what.
pub(crate) struct Uses {
    pub(crate) body: Mentions,
    pub(crate) key: Mentions,
    /// What must not move into the body unless that names it: `or_else` may need it when the body never ran, and the
    /// loop of `for` may have used it up.
    pub(crate) kept: Mentions,
    /// The names that the body assigns to.
    pub(crate) assigned: Mentions,
}

impl Uses {
    /// Whether a parameter should be dropped with the body. One that nobody mentions stays where it is: to
    /// mention it would hide the compiler's warning that it is unused.
    fn moves(&self, name: &str) -> bool {
        self.body.contains(name) || (self.key.contains(name) || name.starts_with('_')) && self.spares(name)
    }

    /// Whether a variable that is bound anew in the body, where the compiler warns about it as it would have,
    /// is to move.
    fn moves_mutable(&self, name: &str) -> bool {
        self.body.contains(name) || self.spares(name)
    }

    fn spares(&self, name: &str) -> bool {
        !self.kept.contains(name)
    }
}

/// The statements at the start of the body's async block.
pub(crate) fn into_body(bindings: &[Binding], receiver: Option<&Ident>, uses: &Uses) -> TokenStream {
    // A captured variable has one type and lifetime for ever, which one that is assigned to may not keep: it
    // is bound anew. That one without `mut` is assigned to is a mistake, which is reported in the usual words
    // then.
    let changes = |binding: &Binding| binding.mutability.is_some() || uses.assigned.contains(&binding.name);
    let first_changing = bindings.iter().position(changes).unwrap_or(bindings.len());
    let (captured, bound) = bindings.split_at(first_changing);

    // What is captured is dropped in the order of capture, after everything that is bound in the block.
    let captured = captured.iter().rev().filter(|binding| uses.moves(&binding.name));
    let captured = captured.map(|binding| mention(&binding.ident, &binding.cfgs));
    let receiver = receiver.filter(|_| uses.moves("self")).map(|receiver| mention(receiver, &[]));

    // What must be dropped before one that is bound anew is bound too; not the others, because a binding
    // takes its room a second time.
    let bound = bound.iter().filter_map(|binding| {
        let Binding { ident, name, mutability, cfgs, lints, .. } = binding;
        let moves = if mutability.is_some() { uses.moves_mutable(name) } else { uses.moves(name) };
        let allowed = allow_underscore_in(name.starts_with('_'));
        moves.then(|| {
            quote_spanned!(Span::mixed_site()=> #(#cfgs)* #(#lints)* #allowed let #mutability #ident = #ident;)
        })
    });
    quote!(#(#captured)* #receiver #(#bound)*)
}

/// The same for the async block of a boxed future. What that takes is for its author to say, and may have to
/// outlive the parameters it does not name; only what the key takes there goes into the body as well.
pub(crate) fn of_key(bindings: &[Binding], receiver: Option<&Ident>, uses: &Uses) -> TokenStream {
    let taken = |name: &str| uses.key.contains(name) && uses.spares(name);
    let captured = bindings.iter().rev().filter(|binding| taken(&binding.name));
    let captured = captured.map(|binding| mention(&binding.ident, &binding.cfgs));
    let receiver = receiver.filter(|_| taken("self")).map(|receiver| mention(receiver, &[]));
    quote!(#(#captured)* #receiver)
}

/// Statements in front of the body's future for variables that are written `mut x` inside of a pattern. That
/// `mut` cannot be taken off there, because it changes how the rest of the pattern binds in the 2021 edition,
/// so it is used instead.
pub(crate) fn use_mutable(bindings: &[Binding], uses: &Uses) -> TokenStream {
    let in_patterns = bindings.iter().filter(|binding| binding.mutability.is_some() && !binding.is_whole);
    let moved = in_patterns.filter(|binding| uses.moves_mutable(&binding.name));
    moved
        .map(|Binding { ident, name, cfgs, .. }| {
            let allowed = allow_underscore_in(name.starts_with('_'));
            quote_spanned!(Span::mixed_site()=> #(#cfgs)* #allowed let _ = &mut #ident;)
        })
        .collect()
}

/// Captures a variable by naming it: a reference to it that nobody keeps takes no room in the future.
fn mention(ident: &Ident, cfgs: &[syn::Attribute]) -> TokenStream {
    let allowed = allow_underscore_in(ident.to_string().starts_with('_'));
    quote_spanned!(Span::mixed_site()=> #(#cfgs)* #allowed let _ = &#ident;)
}

/// For a statement of ours that names `bindings`: it is no business of the user's that it uses one that is
/// called `_x`.
pub(crate) fn allow_underscore<'a>(mut bindings: impl Iterator<Item = &'a Binding>) -> TokenStream {
    allow_underscore_in(bindings.any(|binding| binding.name.starts_with('_')))
}

fn allow_underscore_in(is_named: bool) -> TokenStream {
    if is_named {
        quote_spanned!(Span::mixed_site()=> #[allow(clippy::no_effect_underscore_binding, clippy::used_underscore_binding)])
    } else {
        TokenStream::new()
    }
}
