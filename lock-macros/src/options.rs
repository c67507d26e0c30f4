//! The options of the attribute: which there are, and how each is written.

use std::time::Duration;

use proc_macro2::{Span, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Ident, LitStr, Pat, Path, Token};

use crate::duration::Time;
use crate::errors::Errors;
use crate::table;
use crate::tokens::peel;

/// The least value of every duration but the ttl: what a server can count.
const MILLISECOND: Duration = Duration::from_millis(1);
/// Below this a lease is over before its acquisition is answered.
const LEAST_TTL: Duration = Duration::from_millis(10);

/// Where the value of an option is kept.
pub(crate) struct Slot<T> {
    /// The option's name, where it was given.
    name: Option<Ident>,
    /// How many options were read before it.
    order: usize,
    /// `None` when the option was not given, or was given a value that has been reported as wrong.
    value: Option<T>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { name: None, order: 0, value: None }
    }
}

impl<T> Slot<T> {
    /// The name of the option, if it was given.
    pub(crate) fn name(&self) -> Option<&Ident> {
        self.name.as_ref()
    }

    /// The value of the option, if it was given a right one.
    pub(crate) fn value(&self) -> Option<&T> {
        self.value.as_ref()
    }

    pub(crate) fn is_given(&self) -> bool {
        self.name.is_some()
    }

    /// Whichever of two options was written second, if both were.
    pub(crate) fn later<'a, U>(&'a self, other: &'a Slot<U>) -> Option<&'a Ident> {
        let (one, two) = (self.name()?, other.name()?);
        Some(if self.order > other.order { one } else { two })
    }
}

/// `for PAT in EXPR`
pub(crate) struct Each {
    pub(crate) pat: Pat,
    pub(crate) items: Expr,
}

/// `on_lost = ...`
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLost {
    Continue,
    Cancel,
}

/// `release = ...`
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    Wait,
    Background,
}

/// The options of one attribute.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) key: Slot<LitStr>,
    pub(crate) each: Slot<Each>,
    pub(crate) ttl: Slot<Time>,
    pub(crate) wait: Slot<Time>,
    pub(crate) renew: Slot<()>,
    pub(crate) max_hold: Slot<Time>,
    pub(crate) on_lost: Slot<OnLost>,
    pub(crate) hold_at_least: Slot<Time>,
    pub(crate) hold_after_ok: Slot<Time>,
    pub(crate) release: Slot<Release>,
    pub(crate) shared: Slot<()>,
    pub(crate) permits: Slot<Expr>,
    pub(crate) fenced: Slot<()>,
    pub(crate) guard: Slot<Ident>,
    pub(crate) tag: Slot<Expr>,
    pub(crate) manager: Slot<Expr>,
    pub(crate) or_else: Slot<Expr>,
    pub(crate) runtime: Slot<Path>,
    /// The options that were probably meant where none was named.
    pub(crate) meant: Vec<&'static str>,
}

impl Options {
    /// Reads what stands between the parentheses of the attribute. What is wrong goes to `errors`, and the
    /// rest is read on, so that one compilation shows everything.
    pub(crate) fn parse(args: proc_macro2::TokenStream, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        let read = |input: ParseStream<'_>| {
            options.read_all(input, errors);
            Ok(())
        };
        if let Err(error) = Parser::parse2(read, args) {
            errors.push(error);
        }
        options
    }

    fn read_all(&mut self, input: ParseStream<'_>, errors: &mut Errors) {
        for order in 0.. {
            if input.is_empty() {
                return;
            }
            if let Err(error) = self.read_one(input, order, errors) {
                errors.push(error);
                skip_to_comma(input);
            }
            if input.is_empty() {
                return;
            }
            if input.peek(Token![,]) {
                skip_one(input);
            } else if input.peek(Ident::peek_any) {
                errors.at(input.span(), "a `,` is missing before this option");
            } else {
                errors.at(input.span(), "this belongs to no option: options are separated by commas");
                skip_to_comma(input);
            }
        }
    }

    fn read_one(&mut self, input: ParseStream<'_>, order: usize, errors: &mut Errors) -> syn::Result<()> {
        if !input.peek(Ident::peek_any) {
            let is_text = input.peek(LitStr);
            self.meant.extend(["key", "ttl"]);
            return Err(input.error(if is_text {
                "the name of the option is missing: write `key = \"order:<order_id>\", ttl = \"30s\"`"
            } else {
                "this is no option of `redis_lock`: write for example `key = \"order:<order_id>\", ttl = \"30s\"`"
            }));
        }
        let name = input.call(Ident::parse_any)?;
        let option = name.unraw().to_string();
        let read = Reading { input, errors, name, order };
        match option.as_str() {
            "key" => read.value(&mut self.key, key),
            "for" => read.each(&mut self.each),
            "ttl" => read.time(&mut self.ttl, LEAST_TTL),
            "wait" => read.time(&mut self.wait, MILLISECOND),
            "renew" => read.flag(&mut self.renew),
            "max_hold" => read.time(&mut self.max_hold, MILLISECOND),
            "on_lost" => {
                read.word(&mut self.on_lost, [("continue", OnLost::Continue), ("cancel", OnLost::Cancel)])
            }
            "hold_at_least" => read.time(&mut self.hold_at_least, MILLISECOND),
            "hold_after_ok" => read.time(&mut self.hold_after_ok, MILLISECOND),
            "release" => {
                read.word(&mut self.release, [("wait", Release::Wait), ("background", Release::Background)])
            }
            "shared" => read.flag(&mut self.shared),
            "permits" => read.value(&mut self.permits, permits),
            "fenced" => read.flag(&mut self.fenced),
            "guard" => read.value(&mut self.guard, guard),
            "tag" => read.value(&mut self.tag, |input, _| input.parse()),
            "manager" => read.value(&mut self.manager, |input, _| input.parse()),
            "or_else" => read.value(&mut self.or_else, |input, _| input.parse()),
            "crate" => read.value(&mut self.runtime, |input, _| input.call(Path::parse_mod_style)),
            unknown => {
                let meant = table::meant(unknown);
                self.meant.extend(meant);
                Err(syn::Error::new(read.name.span(), table::unknown(unknown, meant)))
            }
        }
    }
}

/// One option while it is being read.
struct Reading<'a, 'b> {
    input: ParseStream<'a>,
    errors: &'b mut Errors,
    name: Ident,
    order: usize,
}

impl Reading<'_, '_> {
    /// Puts a value where it belongs; a second one is reported at its own name.
    fn give<T>(self, slot: &mut Slot<T>, value: syn::Result<T>) -> syn::Result<()> {
        let (value, error) = match value {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error)),
        };
        if slot.is_given() {
            self.errors
                .at(self.name.span(), format!("`{}` is given twice: keep one of them", self.name.unraw()));
        } else {
            *slot = Slot { name: Some(self.name), order: self.order, value };
        }
        error.map_or(Ok(()), Err)
    }

    /// Steps over the `=` in front of a value.
    fn equals(&self) -> syn::Result<()> {
        let name = self.name.unraw();
        let usage = table::usage(&name.to_string());
        if self.input.peek(Token![=]) && !self.input.peek(Token![==]) {
            self.input.parse::<Token![=]>()?;
            if self.input.is_empty() || self.input.peek(Token![,]) {
                return Err(syn::Error::new(
                    name.span(),
                    format!("`{name}` lacks its value: write `{usage}`"),
                ));
            }
            return Ok(());
        }
        Err(syn::Error::new(name.span(), format!("`{name}` takes its value behind a `=`: write `{usage}`")))
    }

    fn value<T>(
        self,
        slot: &mut Slot<T>,
        parse: impl FnOnce(ParseStream<'_>, &Ident) -> syn::Result<T>,
    ) -> syn::Result<()> {
        let value = self.equals().and_then(|()| parse(self.input, &self.name));
        self.give(slot, value)
    }

    fn time(self, slot: &mut Slot<Time>, least: Duration) -> syn::Result<()> {
        self.value(slot, |input, name| {
            // Read whole before it is judged, so that a bad value is one mistake and not two.
            let value = input.parse()?;
            Time::read(&name.unraw().to_string(), least, value)
        })
    }

    fn flag(self, slot: &mut Slot<()>) -> syn::Result<()> {
        let value = if self.input.is_empty() || self.input.peek(Token![,]) || self.input.peek(Ident::peek_any)
        {
            Ok(())
        } else {
            let name = self.name.unraw();
            let error = format!("`{name}` takes no value: write `{name}` alone, or leave it out");
            Err(syn::Error::new(name.span(), error))
        };
        self.give(slot, value)
    }

    fn word<T: Copy>(self, slot: &mut Slot<T>, words: [(&str, T); 2]) -> syn::Result<()> {
        self.value(slot, |input, name| {
            let refuse = |span: Span| {
                let [(first, _), (second, _)] = words;
                let name = name.unraw();
                Err(syn::Error::new(
                    span,
                    format!("`{name}` is one of two words: write `{name} = {first}` or `{name} = {second}`"),
                ))
            };
            if !input.peek(Ident::peek_any) {
                return refuse(input.span());
            }
            let word = input.call(Ident::parse_any)?;
            match words.into_iter().find(|(known, _)| word == known) {
                Some((_, value)) => Ok(value),
                None => refuse(word.span()),
            }
        })
    }

    fn each(self, slot: &mut Slot<Each>) -> syn::Result<()> {
        let (input, span) = (self.input, self.name.span());
        let usage = |what: &str| {
            syn::Error::new(
                span,
                format!("`for` {what}: write `key = \"stock:<line.sku>\", for line in &order.lines`"),
            )
        };
        let each = || {
            let pat = Pat::parse_multi_with_leading_vert(input).map_err(|_| usage("lacks its pattern"))?;
            if !input.peek(Token![in]) {
                return Err(usage("lacks its `in`"));
            }
            input.parse::<Token![in]>()?;
            if input.is_empty() || input.peek(Token![,]) {
                return Err(usage("does not say over what"));
            }
            Ok(Each { pat, items: input.parse()? })
        };
        let value = each();
        self.give(slot, value)
    }
}

fn key(input: ParseStream<'_>, name: &Ident) -> syn::Result<LitStr> {
    if input.peek(LitStr) {
        return input.parse();
    }
    // A literal of another kind, `concat!(...)`, a constant: the template is read while the macro expands.
    let _: Expr = input.parse()?;
    Err(syn::Error::new(
        name.span(),
        "`key` must be a string literal, because its places are filled in at compile time: \
         write `key = \"order:<order_id>\"`, with `<CONSTANT>` for a constant",
    ))
}

fn permits(input: ParseStream<'_>, name: &Ident) -> syn::Result<Expr> {
    let value: Expr = input.parse()?;
    match peel(&value) {
        Expr::Lit(literal) => match &literal.lit {
            syn::Lit::Int(int) if int.base10_parse::<u32>().is_ok_and(|permits| permits > 0) => Ok(value),
            syn::Lit::Int(int) if int.base10_digits() == "0" => Err(syn::Error::new(
                int.span(),
                "`permits = 0` would let nobody in: write how many may hold the lock at once, at least 1",
            )),
            other => Err(syn::Error::new(
                other.span(),
                format!(
                    "`{name}` is how many may hold the lock at once: write `permits = 3`, or an expression"
                ),
            )),
        },
        _ => Ok(value),
    }
}

fn guard(input: ParseStream<'_>, name: &Ident) -> syn::Result<Ident> {
    let refuse = |span: Span| {
        Err(syn::Error::new(
            span,
            format!("`{name}` is the name by which the body knows its lock: write `guard = lock`"),
        ))
    };
    if !input.peek(Ident) {
        return refuse(input.span());
    }
    input.parse()
}

/// Goes to the next comma outside of brackets.
fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        skip_one(input);
    }
}

fn skip_one(input: ParseStream<'_>) {
    // Cannot fail where there is a token left.
    let _ = input.parse::<TokenTree>();
}
