//! Which names a piece of code mentions.

use std::collections::HashSet;

use proc_macro2::{Spacing, TokenStream, TokenTree};
use syn::ext::IdentExt;

/// The names in some tokens, without `r#`; also those inside `"{name}"`, which macros such as `println!`
/// resolve.
#[derive(Default)]
pub(crate) struct Mentions {
    names: HashSet<String>,
}

impl Mentions {
    /// Every name.
    pub(crate) fn of(tokens: TokenStream) -> Self {
        let mut mentions = Self::default();
        mentions.collect(tokens, |_, _| true);
        mentions
    }

    /// The names that may be those of variables which are there already.
    pub(crate) fn of_variables(tokens: TokenStream) -> Self {
        Self::default().also_variables(tokens)
    }

    /// The names that stand in front of a `=` or a `+=`, without a `let` or a `.` in front of them.
    pub(crate) fn assigned_in(tokens: TokenStream) -> Self {
        let mut mentions = Self::default();
        mentions.collect_assigned(tokens);
        mentions
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Those, and the names in some more tokens that may be those of variables which are there already.
    pub(crate) fn also_variables(mut self, tokens: TokenStream) -> Self {
        self.collect(tokens, |before, after| !is_no_variable(before, after));
        self
    }

    pub(crate) fn insert(&mut self, name: &str) {
        self.names.insert(name.to_owned());
    }

    fn collect(&mut self, tokens: TokenStream, wanted: fn(&[TokenTree], &[TokenTree]) -> bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(ident) if wanted(&tokens[..at], &tokens[at + 1..]) => {
                    self.names.insert(ident.unraw().to_string());
                }
                TokenTree::Group(group) => self.collect(group.stream(), wanted),
                TokenTree::Literal(literal) => self.inline_arguments(&literal.to_string()),
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }

    fn collect_assigned(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                // `info!(id = 7)` names a field, and `select!(x = f() => ..)` a binding.
                TokenTree::Group(_) if ends_in(&tokens[..at], &["!"]) => {}
                TokenTree::Group(group) => self.collect_assigned(group.stream()),
                TokenTree::Ident(ident) if is_assignment(&tokens[at + 1..]) && !is_other(&tokens[..at]) => {
                    self.names.insert(ident.unraw().to_string());
                }
                _ => {}
            }
        }
    }

    /// `{name}`, `{name:?}` and `{x:name$}` in a format string. A literal that is none adds names that nobody has.
    fn inline_arguments(&mut self, literal: &str) {
        let is_name = |c: char| c == '_' || c.is_alphanumeric();
        for (at, _) in literal.match_indices('{') {
            let inside = literal[at + 1..].split('}').next().unwrap_or_default();
            let (name, spec) = inside.split_once(':').unwrap_or((inside, ""));
            let widths = spec.split('$').map(|part| part.rsplit(|c| !is_name(c)).next().unwrap_or_default());
            let names = widths.chain([name.trim()]);
            self.names.extend(names.filter(|name| !name.is_empty()).map(ToOwned::to_owned));
        }
    }
}

/// Whether a name between these tokens cannot be that of a variable which is there already: a field or a method, a part
/// of a path, the label of a field, or a binding of its own.
fn is_no_variable(before: &[TokenTree], after: &[TokenTree]) -> bool {
    let is_in_range = before.len() > 1 && ends_in(&before[..before.len() - 1], &["."]);
    let is_bound = match before {
        [.., first, last] if is(last, "mut") => is(first, "let"),
        _ => ends_in(before, &["let", "for", "fn"]),
    };
    (ends_in(before, &["."]) && !is_in_range)
        || matches!(before, [.., first, last] if is(first, ":") && is(last, ":"))
        || after.first().is_some_and(|token| is(token, ":"))
        || is_bound
}

/// Whether tokens start with `=` or `+=` or another operator that assigns.
fn is_assignment(tokens: &[TokenTree]) -> bool {
    let operator: String = tokens
        .iter()
        .take(4)
        .map_while(|token| match token {
            TokenTree::Punct(punct) => Some((punct.as_char(), punct.spacing())),
            _ => None,
        })
        // An operator ends where its characters no longer touch.
        .scan(true, |joint, (c, spacing)| std::mem::replace(joint, spacing == Spacing::Joint).then_some(c))
        .collect();
    ["=", "+=", "-=", "*=", "/=", "%=", "^=", "&=", "|=", "<<=", ">>="].contains(&operator.as_str())
}

/// Whether a name after these tokens is a field, a binding of its own, or what a reference points to.
fn is_other(before: &[TokenTree]) -> bool {
    ends_in(before, &[".", "let", "mut", "ref", "*"])
}

fn ends_in(tokens: &[TokenTree], words: &[&str]) -> bool {
    tokens.last().is_some_and(|token| words.iter().any(|word| is(token, word)))
}

fn is(token: &TokenTree, word: &str) -> bool {
    !matches!(token, TokenTree::Group(_)) && token.to_string() == word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_wherever_they_stand() {
        let mentions = Mentions::of(quote::quote! {
            let a = b.c(r#type); println!("{d} {e:?} {:>f$} {{g}} {}", [h], { i });
        });
        for name in ["a", "b", "c", "type", "d", "e", "f", "h", "i"] {
            assert!(mentions.contains(name), "{name}");
        }
        assert!(!mentions.contains("j"));
    }

    #[test]
    fn variables_are_told_from_other_names() {
        let mentions = Mentions::of_variables(quote::quote! {
            a = b.A(r#type); println!("{c} {d:?} {:>e$} {{g}} {}", [f], { g }); h..i; &mut j; (..k, S { l, B: m });
            n.C.D(); E::F::G; ::H; let I = o; let mut J: p = 1; for K in q { 'L: loop {} } fn M() {}
        });
        for name in "a b type c d e f g h i j k l m n o p q".split(' ') {
            assert!(mentions.contains(name), "{name}");
        }
        for name in "A B C D E F G H I J K L M".split(' ') {
            assert!(!mentions.contains(name), "{name}");
        }
    }

    #[test]
    fn assignments_are_told_from_comparisons() {
        let assigned = Mentions::assigned_in(quote::quote! {
            a = 1; b += 1; { c <<= 1 }; d == 1; e <= 1; f => 1; let g = 1; let mut h = 1; self.i = 1; j >>= *k; l = -m; *n = 1; o!(p = 1); q(|| r = 1);
        });
        for name in ["a", "b", "c", "j", "l", "r"] {
            assert!(assigned.contains(name), "{name}");
        }
        for name in ["d", "e", "f", "g", "h", "i", "k", "m", "n", "o", "p", "q"] {
            assert!(!assigned.contains(name), "{name}");
        }
    }
}
