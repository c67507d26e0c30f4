//! The code that takes the place of an annotated function.

use proc_macro2::{Delimiter, Group, Ident, Literal, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{Expr, FnArg, LitStr, Pat, Signature};

use crate::bindings::{self, Binding};
use crate::body;
use crate::boxed::Boxed;
use crate::capture::{self, Uses};
use crate::check;
use crate::errors::Errors;
use crate::function::{Body, Function};
use crate::mentions::Mentions;
use crate::options::{Each, OnLost, Options, Release};
use crate::resolve::{self, Scope};
use crate::returns::Output;
use crate::tokens::{ends, group};

/// Expands one `#[redis_lock(args)] item`. On any mistake the item stays what it was, beside its errors, so
/// that the rest of the program is checked and an editor keeps the function while it is being written.
pub(crate) fn attribute(args: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    match expansion(args, item, &mut errors) {
        Some(expanded) if errors.is_empty() => expanded,
        _ => {
            let errors = errors.into_tokens();
            quote!(#item #errors)
        }
    }
}

fn expansion(args: TokenStream, item: &TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    let function = errors.keep(Function::parse(item.clone()));
    let options = Options::parse(args, errors);
    check::check(&options, errors);
    let function = function?;
    let expansion = Expansion::new(&options, &function, errors);
    Some(expansion?.expand(function))
}

/// What is known of a function and its options once both are found to be right.
struct Expansion<'a> {
    options: &'a Options,
    /// The path of the runtime crate.
    runtime: TokenStream,
    /// The name of the function, for messages.
    function: String,
    bindings: Vec<Binding>,
    receiver: Option<Ident>,
    uses: Uses,
    /// `.literal(..).place(..)`, one call for each part of the template.
    key: TokenStream,
    ttl: TokenStream,
}

impl<'a> Expansion<'a> {
    /// Looks up the names of the key; what is wrong with them goes to `errors`.
    fn new(options: &'a Options, function: &Function, errors: &mut Errors) -> Option<Self> {
        let bindings = bindings::of(&function.sig);
        let key = options.key.value()?;
        if let Some(guard) = options.guard.value() {
            guard_hides(guard, &bindings, errors);
        }
        let (key, used) = {
            let mut scope = Scope::new(&function.sig, &bindings, &options.each);
            if let Body::Boxed(boxed) = &function.body {
                scope = scope.with_boxed_body(boxed.block.stream());
            }
            let template = resolve::template(key, &scope, errors)?;
            scope.check_each(key, &template, errors);
            (resolve::render(&template, key, &scope), resolve::used(&template))
        };
        let items = options.each.value().map(|each| &each.items);
        // What is not borrowed may be used up by the loop, and must not be asked for again.
        let (borrowed, used_up) = match items {
            Some(Expr::Reference(_)) => (items, None),
            _ => (None, items),
        };
        let ttl = options.ttl.value()?.to_expression();
        let body = match &function.body {
            Body::Async { block, .. } => block.stream(),
            Body::Boxed(_) => TokenStream::new(),
        };
        let or_else = options.or_else.value();
        let kept = quote!(#or_else #used_up);
        let runtime = options.runtime.value().map_or_else(|| quote!(::lock_runtime), |path| quote!(#path));
        Some(Self {
            options,
            runtime,
            function: function.sig.ident.unraw().to_string(),
            receiver: function.sig.receiver().map(|receiver| Ident::new("self", receiver.self_token.span)),
            bindings,
            uses: Uses {
                assigned: Mentions::assigned_in(body.clone()),
                body: Mentions::of_variables(body),
                key: used.also_variables(borrowed.to_token_stream()),
                kept: Mentions::of_variables(kept),
            },
            key,
            ttl,
        })
    }

    fn expand(&self, function: Function) -> TokenStream {
        let Function { attrs, vis, mut sig, body } = function;
        let body = match body {
            Body::Async { inner_attrs, block } => {
                let output = Output::of_function(&sig.output, sig.ident.span());
                strip_mut(&mut sig);
                let captures = capture::into_body(&self.bindings, self.receiver.as_ref(), &self.uses);
                let mutable = capture::use_mutable(&self.bindings, &self.uses);
                let locked = self.locked(&output, &captures, &block);
                // With the user's braces: the compiler finds a function unused only if it ends in one that is
                // the user's.
                group(Delimiter::Brace, block.span(), quote!(#inner_attrs #mutable #locked))
                    .into_token_stream()
            }
            Body::Boxed(boxed) => self.boxed(*boxed),
        };
        quote!(#(#attrs)* #vis #sig #body)
    }

    /// Puts the lock inside the async block of a function that returns a boxed future.
    fn boxed(&self, boxed: Boxed) -> TokenStream {
        let Boxed { braces, before, parens, introducer, block, output } = boxed;
        let output = Output::of_future(output.as_ref(), block.span());
        let captures = capture::of_key(&self.bindings, self.receiver.as_ref(), &self.uses);
        let locked = self.locked(&output, &captures, &block);
        let locked = quote_spanned!(Span::mixed_site()=> #(#introducer)* { #locked });
        let call = group(Delimiter::Parenthesis, parens, locked);
        let body: TokenStream = before.into_iter().chain([TokenTree::Group(call)]).collect();
        group(Delimiter::Brace, braces, body).into_token_stream()
    }

    /// Take the lock, run the body, release it.
    fn locked(&self, output: &Output, captures: &TokenStream, block: &Group) -> TokenStream {
        let call = self.call();
        let (lease, lease_in_body) = self.guard();
        let hint = output.outside();
        let allowed = output.allowed();
        let future = body::future(output, &quote!(#captures #lease_in_body), block);
        let background = matches!(self.options.release.value(), Some(Release::Background));
        let judged = self.options.hold_after_ok.value().is_some();
        let run = match (background, judged) {
            (false, false) => "run",
            (true, false) => "run_background",
            (false, true) => "run_judged",
            (true, true) => "run_background_judged",
        };
        // Where the return type is written, so that one which is no success nor failure is reported there.
        let at = if judged { Span::mixed_site().located_at(output.written.0) } else { Span::mixed_site() };
        let run = Ident::new(run, at);
        let runtime = &self.runtime;
        let (future, drive) = match self.options.on_lost.value() {
            Some(OnLost::Cancel) => {
                (quote_spanned!(Span::mixed_site()=> ::core::option::Option::Some(#future)), "WhileHeld")
            }
            Some(OnLost::Continue) | None => (future, "ToItsEnd"),
        };
        let name = Ident::new(drive, Span::mixed_site());
        let drive = quote_spanned!(Span::mixed_site()=> #runtime::__private::#name);
        let (named, drive) = if judged {
            let name = Ident::new("drive", at);
            (quote_spanned!(Span::mixed_site()=> let drive = #drive;), name.into_token_stream())
        } else {
            (TokenStream::new(), drive)
        };
        let refused = self.refused(output);
        let value = output.value(body::value(block));
        // The call is bound before the body: when the future is dropped or panics, the body goes first and
        // the lock after. The body has no name of its own, because the compiler looks for `Send` in what is
        // held over an await in the order in which it is made: starting at the body itself it needs the
        // fewest steps for each nested call.
        quote_spanned! {Span::mixed_site()=>
            #hint
            #call
            #lease
            #named
            #allowed
            let out = call.#run(::core::pin::pin!(#future), #drive).await;
            match out {
                ::core::result::Result::Ok(value) => #value,
                #refused
            }
        }
    }

    /// `let mut call = ...`: everything that the options say, evaluated once.
    fn call(&self) -> TokenStream {
        let Self { runtime, key, ttl, options, .. } = self;
        let template = options.key.value().map(LitStr::value).unwrap_or_default();
        let template = Literal::string(&template);
        let function = Literal::string(&self.function);
        let duration = |name: &str, value: &TokenStream| {
            let name = Ident::new(name, Span::mixed_site());
            // A `let` with a type reports a value of another type at the user's own tokens.
            quote_spanned!(Span::mixed_site()=> let #name: ::core::time::Duration = #value;)
        };
        let allowed =
            capture::allow_underscore(self.bindings.iter().filter(|b| self.uses.key.contains(&b.name)));
        let key = quote_spanned!(Span::mixed_site()=> #runtime::__private::Key::new(site) #key);
        let new =
            Ident::new(if options.each.value().is_some() { "of_several" } else { "new" }, Span::mixed_site());
        let key = match options.each.value() {
            Some(Each { pat, items }) => quote_spanned! {Span::mixed_site()=>
                {
                    let mut keys = #runtime::__private::Keys::several();
                    for #pat in #items {
                        keys.push(#key);
                    }
                    keys
                }
            },
            None => key,
        };
        let ttl = duration("ttl", ttl);
        // Each `let` of a value, and the call that gives it to the runtime.
        let mut lets = TokenStream::new();
        let mut calls = TokenStream::new();
        for (name, time) in [
            ("wait", &options.wait),
            ("max_hold", &options.max_hold),
            ("hold_at_least", &options.hold_at_least),
            ("hold_after_ok", &options.hold_after_ok),
        ] {
            if let Some(time) = time.value() {
                lets.extend(duration(name, &time.to_expression()));
                let name = Ident::new(name, Span::mixed_site());
                calls.extend(quote_spanned!(Span::mixed_site()=> .#name(#name)));
            }
        }
        if let Some(permits) = options.permits.value() {
            lets.extend(quote_spanned!(Span::mixed_site()=> let permits: u32 = #permits;));
            calls.extend(quote_spanned!(Span::mixed_site()=> .permits(permits)));
        }
        for (name, flag) in
            [("renew", &options.renew), ("shared", &options.shared), ("fenced", &options.fenced)]
        {
            if flag.value().is_some() {
                let name = Ident::new(name, Span::mixed_site());
                calls.extend(quote_spanned!(Span::mixed_site()=> .#name()));
            }
        }
        let tag = options.tag.value();
        let tag = tag.map(|tag| quote_spanned!(Span::mixed_site()=> .tag(::core::format_args!("{}", #tag))));
        let manager = options.manager.value();
        let manager = manager.map(|manager| {
            let span = Span::mixed_site().located_at(ends(manager, Span::mixed_site()).0);
            // Printed as an expression, which gets its parentheses where it needs some.
            let manager = syn::ExprReference {
                attrs: Vec::new(),
                and_token: syn::Token![&](span),
                mutability: None,
                expr: Box::new(manager.clone()),
            };
            quote_spanned!(Span::mixed_site()=> .manager(#manager))
        });
        quote_spanned! {Span::mixed_site()=>
            let site: &'static #runtime::__private::Site = {
                static SITE: #runtime::__private::Site = #runtime::__private::Site::new(
                    #template,
                    ::core::concat!(::core::module_path!(), "::", #function),
                );
                &SITE
            };
            #allowed
            let key = #key;
            #ttl
            #lets
            let mut call = #runtime::__private::Call::#new(site, key, ttl) #calls #tag #manager;
        }
    }

    /// The lease outside of the body, and the name that the body knows it by.
    fn guard(&self) -> (TokenStream, TokenStream) {
        let Some(name) = self.options.guard.value() else {
            return Default::default();
        };
        let runtime = &self.runtime;
        (
            quote_spanned!(Span::mixed_site()=> let lease = call.lease();),
            // Inside the body, so that the reference cannot leave it.
            quote_spanned!(Span::mixed_site()=> let #name: &#runtime::Lease = &*lease;),
        )
    }

    /// The arm of the `match` on what came out, for when the body did not run to its end.
    fn refused(&self, output: &Output) -> TokenStream {
        let runtime = &self.runtime;
        let mixed = Span::mixed_site();
        let Some(or_else) = self.options.or_else.value() else {
            // All of it stands where the return type is written, so that one which cannot carry a `LockError`
            // is reported there; only the path of the runtime stays at the attribute.
            let (first, last) = output.written;
            let path = quote_spanned!(mixed.located_at(first)=> FromLockError::);
            let call = quote_spanned!(mixed.located_at(last)=> from_lock_error(error));
            return quote_spanned! {mixed=>
                ::core::result::Result::Err(error) => {
                    use #runtime::FromLockError;
                    #path #call
                }
            };
        };
        if output.is_never() {
            // `FnOnce(LockError) -> !`
            return quote_spanned! {mixed=>
                ::core::result::Result::Err(error) => #runtime::__private::or_else(#or_else, error),
            };
        }
        // From the whole result the compiler knows what a closure must give before it looks into it, so that
        // a `Box::new` in there becomes the box of a trait object.
        quote_spanned!(mixed=> refused => ::core::result::Result::unwrap_or_else(refused, #or_else),)
    }
}

/// Takes `mut` off the parameters that are bound anew inside the body, where they are `mut`, and what is expected of
/// it.
fn strip_mut(sig: &mut Signature) {
    for arg in &mut sig.inputs {
        if let FnArg::Typed(arg) = arg
            && let Pat::Ident(pat) = &mut *arg.pat
            && pat.by_ref.is_none()
            && pat.mutability.take().is_some()
        {
            arg.attrs.retain(|attr| !bindings::is_expectation(attr));
        }
    }
}

/// Refuses a guard by whose name the body could no longer reach a parameter.
fn guard_hides(guard: &Ident, bindings: &[Binding], errors: &mut Errors) {
    let name = guard.unraw().to_string();
    if bindings.iter().any(|binding| binding.name == name) {
        errors.at(
            guard.span(),
            format!("`guard = {name}` would hide the parameter `{name}`: choose another name"),
        );
    }
}

#[cfg(test)]
mod tests;
