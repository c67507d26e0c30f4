//! The return type of a function, as its body needs to know it.
//!
//! An async block finds its type from the first `return` or the tail in it, and reports a mistake there in
//! other words and at other places than a function whose type is written. So it is told.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::{ReturnType, Type};

use crate::tokens::{ends, group};

/// What a body gives.
pub(crate) struct Output {
    /// The first and the last token of the type, or of what stands for it.
    pub(crate) written: (Span, Span),
    kind: Kind,
    looks_like_future: bool,
}

enum Kind {
    /// It never ends.
    Never,
    /// The return type of the function around it, where the compiler can look it up.
    OfFunction,
    /// A type that the body has to be told.
    Named(TokenStream),
    /// Only the compiler knows.
    Unknown,
}

impl Output {
    /// What an `async fn` gives; `name` is where to point when its type is not written.
    pub(crate) fn of_function(returns: &ReturnType, name: Span) -> Self {
        match returns {
            ReturnType::Default => {
                Self { written: (name, name), kind: Kind::OfFunction, looks_like_future: false }
            }
            ReturnType::Type(_, ty) => Self::of_type(ty, Kind::OfFunction),
        }
    }

    /// What a boxed future gives, if that is known; `body` is where to point otherwise.
    pub(crate) fn of_future(ty: Option<&Type>, body: Span) -> Self {
        let Some(ty) = ty else {
            return Self { written: (body, body), kind: Kind::Unknown, looks_like_future: false };
        };
        let tokens = ty.to_token_stream();
        // A body cannot name an `impl Trait`.
        let kind =
            if any_word(&tokens, &|word| word == "impl") { Kind::Unknown } else { Kind::Named(tokens) };
        Self::of_type(ty, kind)
    }

    fn of_type(ty: &Type, kind: Kind) -> Self {
        const FUTURES: [&str; 4] = ["Future", "JoinHandle", "Task", "Receiver"];
        let looks_like_future = |word: &str| FUTURES.iter().any(|future| word.ends_with(future));
        Self {
            written: ends(ty, Span::call_site()),
            kind: if is_never(ty) { Kind::Never } else { kind },
            looks_like_future: any_word(&ty.to_token_stream(), &looks_like_future),
        }
    }

    /// Whether the body never ends.
    pub(crate) fn is_never(&self) -> bool {
        matches!(self.kind, Kind::Never)
    }

    /// Statements in front of the async block, which those inside of it need.
    ///
    /// An array of no functions takes no room, and to `return` what one of them would give makes that the
    /// type of this function, whatever it is: `impl Trait` too, which cannot be written in a body. And a type
    /// that is not written a second time is not complained about a second time.
    pub(crate) fn outside(&self) -> TokenStream {
        match self.kind {
            Kind::OfFunction => {
                let inside = self.inside();
                quote_spanned!(Span::mixed_site()=> let returns: [fn() -> _; 0] = []; #inside)
            }
            Kind::Never | Kind::Named(_) | Kind::Unknown => TokenStream::new(),
        }
    }

    /// A statement at the start of the async block that tells it its type. Of a value of another type the
    /// compiler says "return type inferred here" and shows this, so it stands where the return type is
    /// written.
    pub(crate) fn inside(&self) -> TokenStream {
        let mixed = Span::mixed_site();
        let (first, last) = (mixed.located_at(self.written.0), mixed.located_at(self.written.1));
        let ty = match &self.kind {
            Kind::OfFunction => {
                let returned = quote_spanned!(first=> returns);
                let call = group(Delimiter::Parenthesis, last, TokenStream::new());
                return quote_spanned! {mixed=>
                    if let ::core::option::Option::Some(returns) = returns.first() {
                        return #returned #call;
                    }
                };
            }
            // `!` cannot be written here, and what never ends can be of any type that has no values.
            Kind::Never => quote_spanned!(mixed=> ::core::convert::Infallible),
            Kind::Named(ty) => ty.clone(),
            Kind::Unknown => return TokenStream::new(),
        };
        let returned = quote_spanned!(first=> returns);
        quote_spanned! {mixed=>
            if let ::core::option::Option::Some(returns) = ::core::option::Option::None::<#ty> {
                return #returned;
            }
        }
    }

    /// An attribute for the statement around the async block.
    ///
    /// Clippy takes an async block that gives a future for a forgotten `.await`; it says nothing of an `async
    /// fn` that does. Only where the return type looks like a future: an `allow` reaches into the user's code
    /// too.
    pub(crate) fn allowed(&self) -> TokenStream {
        if self.looks_like_future {
            quote_spanned!(Span::mixed_site()=> #[allow(clippy::async_yields_async)])
        } else {
            TokenStream::new()
        }
    }

    /// The value of the function, from the variable `value` that holds the body's.
    pub(crate) fn value(&self, value: TokenStream) -> TokenStream {
        if self.is_never() { quote_spanned!(Span::mixed_site()=> match #value {}) } else { value }
    }
}

/// Whether a type is `!`, through parentheses and the invisible groups that `macro_rules!` leaves around
/// `$t:ty`.
fn is_never(ty: &Type) -> bool {
    match ty {
        Type::Never(_) => true,
        Type::Group(group) => is_never(&group.elem),
        Type::Paren(paren) => is_never(&paren.elem),
        _ => false,
    }
}

/// Whether one of the words in some tokens is wanted.
fn any_word(tokens: &TokenStream, wanted: &dyn Fn(&str) -> bool) -> bool {
    tokens.clone().into_iter().any(|token| match token {
        TokenTree::Ident(ident) => wanted(&ident.to_string()),
        TokenTree::Group(group) => any_word(&group.stream(), wanted),
        _ => false,
    })
}
