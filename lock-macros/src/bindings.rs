//! The names that the parameters of a function bring into its body.

use proc_macro2::Ident;
use syn::ext::IdentExt;
use syn::{Attribute, FnArg, Pat, Signature, Token};

/// A name that a parameter binds.
pub(crate) struct Binding {
    /// As the signature has it, with its hygiene.
    pub(crate) ident: Ident,
    /// Without `r#`.
    pub(crate) name: String,
    /// The `mut` of `mut x`, which makes the variable itself mutable; not that of `ref mut x`.
    pub(crate) mutability: Option<Token![mut]>,
    /// Whether it is the whole parameter, not a part of a pattern.
    pub(crate) is_whole: bool,
    /// The `#[cfg]`s of its parameter: where it does not exist, neither may what we write about it.
    pub(crate) cfgs: Vec<Attribute>,
    /// The `#[allow]`s and their like of its parameter, which go where it is bound anew.
    pub(crate) lints: Vec<Attribute>,
}

/// Whether an attribute sets the level of lints.
fn is_of_lints(attr: &Attribute) -> bool {
    ["allow", "expect", "warn", "deny", "forbid"].iter().any(|level| attr.path().is_ident(level))
}

/// Every binding of the signature, in the order of declaration; not the receiver.
pub(crate) fn of(sig: &Signature) -> Vec<Binding> {
    let mut bindings = Vec::new();
    for arg in &sig.inputs {
        let FnArg::Typed(arg) = arg else { continue };
        let first = bindings.len();
        collect(&arg.pat, &mut bindings);
        let is_conditional =
            |attr: &&Attribute| attr.path().is_ident("cfg") || attr.path().is_ident("cfg_attr");
        let is_whole = matches!(&*arg.pat, Pat::Ident(_));
        // On a pattern an expectation stays where it is, because only one of two can be met.
        let is_lint = |attr: &&Attribute| is_of_lints(attr) && (is_whole || !is_expectation(attr));
        for binding in &mut bindings[first..] {
            binding.cfgs = arg.attrs.iter().filter(is_conditional).cloned().collect();
            binding.lints = arg.attrs.iter().filter(is_lint).cloned().collect();
            binding.is_whole = is_whole;
        }
    }
    bindings
}

/// Whether an attribute warns of a lint that does not fall.
pub(crate) fn is_expectation(attr: &Attribute) -> bool {
    attr.path().is_ident("expect")
}

/// Everything that a pattern binds.
pub(crate) fn in_pattern(pat: &Pat) -> Vec<Binding> {
    let mut bindings = Vec::new();
    collect(pat, &mut bindings);
    bindings
}

fn collect(pat: &Pat, into: &mut Vec<Binding>) {
    match pat {
        Pat::Ident(pat) => {
            into.push(Binding {
                name: pat.ident.unraw().to_string(),
                ident: pat.ident.clone(),
                mutability: pat.mutability.filter(|_| pat.by_ref.is_none()),
                is_whole: false,
                cfgs: Vec::new(),
                lints: Vec::new(),
            });
            if let Some((_, inner)) = &pat.subpat {
                collect(inner, into);
            }
        }
        // Every case of an or-pattern binds the same names.
        Pat::Or(pat) => pat.cases.iter().take(1).for_each(|case| collect(case, into)),
        Pat::Paren(pat) => collect(&pat.pat, into),
        Pat::Reference(pat) => collect(&pat.pat, into),
        Pat::Slice(pat) => pat.elems.iter().for_each(|elem| collect(elem, into)),
        Pat::Struct(pat) => pat.fields.iter().for_each(|field| collect(&field.pat, into)),
        Pat::Tuple(pat) => pat.elems.iter().for_each(|elem| collect(elem, into)),
        Pat::TupleStruct(pat) => pat.elems.iter().for_each(|elem| collect(elem, into)),
        Pat::Type(pat) => collect(&pat.pat, into),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_looked_into() {
        let sig: Signature = syn::parse_quote! {
            fn f(
                &self,
                id: u64,
                mut list: Vec<u8>,
                Path(r#type): Path<u64>,
                Order { sku, lines: [first, .., last], mut note, .. }: Order,
                whole @ (a, _): (u8, u8),
                &(ref b, (A { c } | B { c })): &T,
            )
        };
        let bindings = of(&sig);
        let names: Vec<_> = bindings.iter().map(|binding| binding.name.as_str()).collect();
        assert_eq!(names, ["id", "list", "type", "sku", "first", "last", "note", "whole", "a", "b", "c"]);
        let mutable = bindings.iter().filter(|binding| binding.mutability.is_some());
        assert_eq!(
            mutable.map(|b| (b.name.as_str(), b.is_whole)).collect::<Vec<_>>(),
            [("list", true), ("note", false)]
        );
    }

    #[test]
    fn a_condition_of_a_parameter_is_kept_with_its_names() {
        let sig: Signature = syn::parse_quote! { fn f(#[cfg(x)] (a, b): (u8, u8), #[doc = "c"] c: u8) };
        let conditions: Vec<_> = of(&sig).iter().map(|binding| binding.cfgs.len()).collect();
        assert_eq!(conditions, [1, 1, 0]);
    }

    #[test]
    fn lint_levels_of_a_parameter_are_kept_with_its_names() {
        let sig: Signature = syn::parse_quote! {
            fn f(#[allow(x)] (a, b): (u8, u8), #[doc = "c"] c: u8, #[expect(x)] #[deny(y)] d: u8, #[expect(x)] [e]: [u8; 1])
        };
        let levels: Vec<_> = of(&sig).iter().map(|binding| binding.lints.len()).collect();
        assert_eq!(levels, [1, 1, 0, 2, 0]);
    }
}
