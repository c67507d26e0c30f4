//! The names in a key, looked up in the signature of the function, and the code that renders the key.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{GenericParam, LitStr, Signature};

use crate::bindings::{self, Binding};
use crate::errors::Errors;
use crate::mentions::Mentions;
use crate::names;
use crate::options::{Each, Slot};
use crate::place::{Arg, Expr, Place, Root, Step};
use crate::template::{Part, Template};
use crate::tokens::relocate;

/// What a place may name.
pub(crate) struct Scope<'a> {
    function: String,
    bindings: &'a [Binding],
    /// What `for PAT in ..` binds.
    each: Vec<Binding>,
    /// Whether there is a `for` that cannot be read, so that nobody knows what it binds.
    each_is_unknown: bool,
    receiver: Option<Span>,
    const_generics: Vec<&'a Ident>,
    /// What the body mentions, when `#[async_trait]` has hidden a pattern of a parameter in it.
    hidden: Option<Mentions>,
}

impl<'a> Scope<'a> {
    pub(crate) fn new(sig: &'a Signature, bindings: &'a [Binding], each: &Slot<Each>) -> Self {
        let const_generics = sig.generics.params.iter().filter_map(|param| match param {
            GenericParam::Const(param) => Some(&param.ident),
            _ => None,
        });
        Self {
            function: sig.ident.unraw().to_string(),
            bindings,
            each: each.value().map(|each| bindings::in_pattern(&each.pat)).unwrap_or_default(),
            each_is_unknown: each.is_given() && each.value().is_none(),
            receiver: sig.receiver().map(|receiver| receiver.self_token.span),
            const_generics: const_generics.collect(),
            hidden: None,
        }
    }

    /// Tells the scope of the body that `#[async_trait]` made, for a better message about a name it has moved
    /// there.
    pub(crate) fn with_boxed_body(mut self, body: TokenStream) -> Self {
        if self.bindings.iter().any(|binding| is_positional(&binding.name)) {
            self.hidden = Some(Mentions::of(body));
        }
        self
    }

    /// A parameter, or what `for` binds, which hides a parameter of its name.
    fn binding(&self, name: &str) -> Option<&Binding> {
        self.each.iter().chain(self.bindings).find(|binding| binding.name == name)
    }

    fn knows_variable(&self, name: &str) -> bool {
        self.binding(name).is_some()
    }

    fn const_generic(&self, name: &str) -> Option<&'a Ident> {
        self.const_generics.iter().copied().find(|ident| *ident == name)
    }

    fn knows(&self, name: &str) -> bool {
        self.binding(name).is_some()
            || self.each.iter().any(|each| each.name == name)
            || self.const_generic(name).is_some()
            || is_constant(name)
            || self.each_is_unknown
    }

    /// Refuses a key that is the same for all elements of a `for`.
    pub(crate) fn check_each(&self, key: &LitStr, template: &Template, errors: &mut Errors) {
        let used = used(template);
        if !self.each.is_empty() && !self.each.iter().any(|each| used.contains(&each.name)) {
            let names = names::list(self.each.iter().map(|each| each.name.as_str()));
            errors.at(
                key.span(),
                format!(
                    "the key is the same for every element of `for`: name {names} in it, or leave `for` out"
                ),
            );
        }
    }

    /// What a key of this function can name, for messages.
    fn available(&self) -> Vec<&str> {
        let bindings = self.bindings.iter().map(|binding| binding.name.as_str());
        let receiver = self.receiver.map(|_| "self");
        bindings
            .filter(|name| !is_positional(name) && *name != "_")
            .chain(self.each.iter().map(|each| each.name.as_str()))
            .chain(receiver)
            .collect()
    }
}

/// `__arg1`: what `#[async_trait]` calls a parameter whose pattern it has moved into the body.
fn is_positional(name: &str) -> bool {
    name.strip_prefix("__arg").is_some_and(|number| number.parse::<usize>().is_ok())
}

/// Whether a name is written the way that constants and statics are.
fn is_constant(name: &str) -> bool {
    name.chars().any(char::is_uppercase) && !name.chars().any(char::is_lowercase)
}

/// Reads the template of a key and looks up its names; reports at the literal what is wrong.
pub(crate) fn template(key: &LitStr, scope: &Scope<'_>, errors: &mut Errors) -> Option<Template> {
    let template = match Template::parse(&key.value()) {
        Ok(template) => template,
        Err(messages) => {
            for message in messages {
                errors.at(key.span(), message);
            }
            return None;
        }
    };
    let mut messages = Vec::new();
    for braced in &template.braced {
        messages.extend(braced_place(braced, scope));
    }
    for place in template.places() {
        each_root(&place.expr, &mut |root| messages.extend(unknown(root, place, scope)));
    }
    let is_known = messages.is_empty();
    for message in messages {
        errors.at(key.span(), message);
    }
    is_known.then_some(template)
}

/// Calls `visit` for the root of a place and of every place in its arguments.
fn each_root<'a>(expr: &'a Expr, visit: &mut impl FnMut(&'a Root)) {
    visit(&expr.root);
    for step in &expr.steps {
        let args = match step {
            Step::Index(arg) => std::slice::from_ref(arg),
            Step::Call(_, args) => args,
            Step::Field(_) | Step::TupleField(_) => &[],
        };
        for arg in args {
            if let Arg::Place { expr, .. } = arg {
                each_root(expr, visit);
            }
        }
    }
}

/// The names of parameters that the template uses; `self` among them.
pub(crate) fn used(template: &Template) -> Mentions {
    let mut mentions = Mentions::default();
    for place in template.places() {
        each_root(&place.expr, &mut |root| match root {
            Root::Receiver => mentions.insert("self"),
            Root::Name(name) => mentions.insert(name),
            Root::Path { .. } => {}
        });
    }
    mentions
}

/// What to say about `{order_id}` where `<order_id>` was meant. A brace pair is literal, so that it would
/// lock one key for all values.
fn braced_place(braced: &str, scope: &Scope<'_>) -> Option<String> {
    let text = braced.trim();
    let place = Place::parse(text).ok().filter(|place| {
        // `{order:v2}` may be meant; `{order.id}` and `{order:?}` cannot.
        place.spec.as_deref().is_none_or(|spec| spec == "?")
    })?;
    let is_parameter = match &place.expr.root {
        Root::Receiver => scope.receiver.is_some(),
        Root::Name(name) => scope.knows_variable(name),
        Root::Path { .. } => false,
    };
    is_parameter.then(|| {
        format!(
            "`{{{braced}}}` is literal text, because braces are a hash tag of Redis Cluster: write `<{text}>` to fill \
             in the value"
        )
    })
}

/// What to say about a root that names nothing.
fn unknown(root: &Root, place: &Place, scope: &Scope<'_>) -> Option<String> {
    let function = &scope.function;
    let name = match root {
        Root::Path { .. } => return None,
        Root::Receiver if scope.receiver.is_some() => return None,
        Root::Receiver => {
            return Some(format!(
                "`<{}>` needs a `self`, and `{function}` has none: name one of its parameters",
                place.text
            ));
        }
        Root::Name(name) if scope.knows(name) => return None,
        Root::Name(name) => name,
    };
    if scope.hidden.as_ref().is_some_and(|body| body.contains(name)) {
        return Some(format!(
            "`{name}` is bound by a pattern, which `#[async_trait]` has moved into the body of `{function}`: bind the \
             argument to a plain name, as in `path: Path<u64>`, and write `<path.0>`"
        ));
    }
    let available = scope.available();
    let nearest = names::nearest(name, available.iter().copied());
    Some(match (nearest, &available[..]) {
        (Some(nearest), [_]) => {
            format!("`{function}` has no parameter `{name}`: did you mean `<{nearest}>`?")
        }
        (Some(nearest), all) => format!(
            "`{function}` has no parameter `{name}`: did you mean `<{nearest}>`? It has {}",
            names::list(all.iter().copied())
        ),
        (None, []) => format!(
            "`{function}` has no parameter `{name}`, nor any other: a place names a parameter, `self`, or a constant \
             such as `REGION` or `config::REGION`"
        ),
        (None, all) => {
            format!("`{function}` has no parameter `{name}`: it has {}", names::list(all.iter().copied()))
        }
    })
}

/// `.literal("order:").place("order_id", format_args!("{}", order_id))`
pub(crate) fn render(template: &Template, key: &LitStr, scope: &Scope<'_>) -> TokenStream {
    let span = Span::mixed_site().located_at(key.span());
    template
        .parts
        .iter()
        .map(|part| match part {
            Part::Literal(text) => {
                let text = literal(text, span);
                quote_spanned!(span=> .literal(#text))
            }
            Part::Place(place) => {
                let name = literal(&place.text, span);
                let format = match &place.spec {
                    Some(spec) => literal(&format!("{{:{spec}}}"), span),
                    None => literal("{}", span),
                };
                let value = Renderer { key: key.span(), scope }.expr(&place.expr);
                quote_spanned!(span=> .place(#name, ::core::format_args!(#format, #value)))
            }
        })
        .collect()
}

fn literal(text: &str, span: Span) -> Literal {
    let mut literal = Literal::string(text);
    literal.set_span(span);
    literal
}

/// Turns places into expressions that stand at the key, so that the compiler complains there.
struct Renderer<'a> {
    key: Span,
    scope: &'a Scope<'a>,
}

impl Renderer<'_> {
    fn expr(&self, expr: &Expr) -> TokenStream {
        let mut tokens = match &expr.root {
            Root::Receiver => {
                let span = self.scope.receiver.unwrap_or(self.key);
                let receiver = Ident::new("self", self.key.resolved_at(span));
                quote!(#receiver)
            }
            Root::Name(name) => self.name(name),
            Root::Path { leading_colon, segments } => {
                let span = self.generated();
                let colon = leading_colon.then(|| quote_spanned!(span=> ::));
                let segments = segments.iter().map(|segment| self.ident(segment));
                quote_spanned!(span=> #colon #(#segments)::*)
            }
        };
        for step in &expr.steps {
            let span = self.generated();
            tokens.extend(match step {
                Step::Field(name) => {
                    let name = self.ident(name);
                    quote_spanned!(span=> .#name)
                }
                Step::TupleField(number) => {
                    let mut number = Literal::u32_unsuffixed(*number);
                    number.set_span(span);
                    quote_spanned!(span=> .#number)
                }
                Step::Index(arg) => {
                    let arg = self.arg(arg);
                    quote_spanned!(span=> [#arg])
                }
                Step::Call(name, args) => {
                    let name = self.ident(name);
                    let args = args.iter().map(|arg| self.arg(arg));
                    quote_spanned!(span=> .#name(#(#args),*))
                }
            });
        }
        tokens
    }

    /// A parameter keeps the hygiene that it has in the signature; the key may come from another macro than
    /// that.
    fn name(&self, name: &str) -> TokenStream {
        let known =
            self.scope.binding(name).map(|binding| &binding.ident).or_else(|| self.scope.const_generic(name));
        let ident = match known {
            Some(ident) => {
                let mut ident = ident.clone();
                ident.set_span(self.key.resolved_at(ident.span()));
                ident
            }
            None => self.ident(name),
        };
        quote!(#ident)
    }

    fn arg(&self, arg: &Arg) -> TokenStream {
        let span = self.generated();
        match arg {
            Arg::Int(text) => relocate(text.parse().unwrap_or_default(), self.key),
            Arg::Str(text) => {
                let text = literal(text, span);
                quote!(#text)
            }
            Arg::Char(c) => {
                let mut c = Literal::character(*c);
                c.set_span(span);
                quote!(#c)
            }
            Arg::Bool(true) => quote_spanned!(span=> true),
            Arg::Bool(false) => quote_spanned!(span=> false),
            Arg::Place { by_reference, expr } => {
                let and = by_reference.then(|| quote_spanned!(span=> &));
                let expr = self.expr(expr);
                quote!(#and #expr)
            }
        }
    }

    /// At the key, but ours: lints about style have no business with it.
    fn generated(&self) -> Span {
        Span::mixed_site().located_at(self.key)
    }

    /// The name of a field, a method, a constant or a module.
    fn ident(&self, name: &str) -> Ident {
        let span = self.generated();
        if is_keyword(name) { Ident::new_raw(name, span) } else { Ident::new(name, span) }
    }
}

/// Names that need their `r#` in front. `self`, `Self`, `super` and `crate` cannot have one.
fn is_keyword(name: &str) -> bool {
    const KEYWORDS: &str = " abstract as async await become box break const continue do dyn else enum extern false \
         final fn for gen if impl in let loop macro match mod move mut override priv pub ref return static struct \
         trait true try type typeof unsafe unsized use virtual where while yield ";
    KEYWORDS.contains(&format!(" {name} "))
}

#[cfg(test)]
mod tests;
