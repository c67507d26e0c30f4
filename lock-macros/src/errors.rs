//! Mistakes are gathered, so that one compilation shows all of them.

use proc_macro2::{Span, TokenStream};

/// Every mistake found in one attribute so far.
#[derive(Default)]
pub(crate) struct Errors {
    found: Option<syn::Error>,
}

impl Errors {
    /// Adds a mistake that has its place and its words already.
    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.found {
            Some(found) => found.combine(error),
            None => self.found = Some(error),
        }
    }

    /// Adds a mistake at `span`.
    pub(crate) fn at(&mut self, span: Span, message: impl std::fmt::Display) {
        self.push(syn::Error::new(span, message));
    }

    /// Takes the value, or keeps the mistake and goes on without one.
    pub(crate) fn keep<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.push(error);
                None
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_none()
    }

    /// The `compile_error!`s, one for each mistake.
    pub(crate) fn into_tokens(self) -> TokenStream {
        self.found.map(syn::Error::into_compile_error).unwrap_or_default()
    }

    /// The messages alone, for tests.
    #[cfg(test)]
    pub(crate) fn messages(self) -> Vec<String> {
        self.found.into_iter().flatten().map(|error| error.to_string()).collect()
    }
}
