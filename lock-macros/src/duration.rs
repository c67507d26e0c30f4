//! Durations: `"30s"` is read while the macro expands, anything else is an expression of type `Duration`.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::{Expr, Lit};

use crate::tokens::peel;

/// The value of a duration option.
pub(crate) enum Time {
    /// Known now, so that it can be checked now.
    Literal(Duration, Span),
    /// Known when the function runs, and checked then.
    Expr(Box<Expr>),
}

impl Time {
    /// Reads the value of the option `name`, which must be at least `least`.
    pub(crate) fn read(name: &str, least: Duration, value: Expr) -> syn::Result<Self> {
        let Some(literal) = literal(&value) else {
            return Ok(Self::Expr(Box::new(value)));
        };
        match literal {
            Lit::Str(text) => check(name, least, &text.value())
                .map(|duration| Self::Literal(duration, text.span()))
                .map_err(|message| syn::Error::new(text.span(), message)),
            other => Err(syn::Error::new(other.span(), number(name, other))),
        }
    }

    /// The duration, when it is known now.
    pub(crate) fn known(&self) -> Option<(Duration, Span)> {
        match self {
            Self::Literal(duration, span) => Some((*duration, *span)),
            Self::Expr(_) => None,
        }
    }

    /// An expression of type `Duration`; of an expression the user's own tokens, where a mismatch is then
    /// reported.
    pub(crate) fn to_expression(&self) -> TokenStream {
        match self {
            Self::Literal(duration, span) => {
                // Only whole milliseconds pass `check`, and no more of them than fit.
                let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
                quote_spanned! {Span::mixed_site().located_at(*span)=>
                    ::core::time::Duration::from_millis(#millis)
                }
            }
            Self::Expr(value) => quote::quote!(#value),
        }
    }
}

/// The literal that `value` is, through the invisible groups that `macro_rules!` leaves and through
/// parentheses.
fn literal(value: &Expr) -> Option<&Lit> {
    match peel(value) {
        Expr::Lit(literal) => Some(&literal.lit),
        // `-5`: no sign makes a number a duration.
        Expr::Unary(unary) => literal(&unary.expr),
        _ => None,
    }
}

/// What to say about a value that is no string.
fn number(name: &str, literal: &Lit) -> String {
    let (digits, suffix) = match literal {
        Lit::Int(int) => (int.base10_digits().to_owned(), int.suffix().to_owned()),
        Lit::Float(float) => (float.base10_digits().to_owned(), float.suffix().to_owned()),
        _ => {
            return format!(
                "`{name}` is a duration: write `{name} = \"30s\"`, or an expression of type `Duration`"
            );
        }
    };
    let unit = if humantime::parse_duration(&format!("1{suffix}")).is_ok() { suffix.as_str() } else { "s" };
    let written = format!("{digits}{unit}");
    let example = if humantime::parse_duration(&written).is_ok() { written.as_str() } else { "30s" };
    format!("a duration carries its unit and stands in quotes: write `{name} = \"{example}\"`")
}

/// Reads `text` as the value of `name`.
fn check(name: &str, least: Duration, text: &str) -> Result<Duration, String> {
    const EXAMPLES: &str = "write for example \"30s\", \"500ms\" or \"1m 30s\"";
    let duration = humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::Empty => format!("`{name}` is empty: {EXAMPLES}"),
        humantime::DurationError::UnknownUnit { unit, value, .. } if unit.is_empty() => {
            format!(
                "\"{text}\" lacks its unit: write \"{value}s\" for seconds or \"{value}ms\" for milliseconds"
            )
        }
        humantime::DurationError::UnknownUnit { unit, .. } => {
            format!("`{unit}` is no unit of time: {EXAMPLES}")
        }
        humantime::DurationError::NumberOverflow => {
            format!("\"{text}\" is out of range: {EXAMPLES}")
        }
        humantime::DurationError::InvalidCharacter(_) | humantime::DurationError::NumberExpected(_) => {
            format!("\"{text}\" is no duration: {EXAMPLES}")
        }
    })?;
    if duration.is_zero() {
        let advice = if name == "wait" {
            "leave `wait` out for one attempt without waiting".to_owned()
        } else {
            format!("write for example `{name} = \"30s\"`")
        };
        return Err(format!("`{name}` must be longer than zero: {advice}"));
    }
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err(format!(
            "\"{text}\" is not a whole number of milliseconds, the unit that locks are kept in: {EXAMPLES}"
        ));
    }
    if duration < least {
        let least = humantime::format_duration(least);
        return Err(format!(
            "`{name}` must be at least {least}: write `{name} = \"{least}\"` or more, such as \"30s\""
        ));
    }
    // A server adds the time to its clock, in milliseconds and 63 bits; a century leaves room for that.
    if duration > Duration::from_secs(100 * 366 * 24 * 60 * 60) {
        return Err(format!("`{name}` must be at most a century: {EXAMPLES}"));
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(10);

    fn time(source: &str) -> syn::Result<Time> {
        Time::read("ttl", TTL, syn::parse_str(source)?)
    }

    fn refused(source: &str) -> String {
        time(source).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn literals_are_read_now() {
        for (source, millis) in [
            ("\"30s\"", 30_000),
            ("\"1m 30s\"", 90_000),
            ("\"500ms\"", 500),
            ("(\"10ms\")", 10),
            ("\"1.5s\"", 1500),
        ] {
            let known = time(source).ok().and_then(|time| time.known()).map(|(duration, _)| duration);
            assert_eq!(known, Some(Duration::from_millis(millis)), "{source}");
        }
    }

    #[test]
    fn expressions_are_left_alone() {
        for source in ["TTL", "Duration::from_secs(3)", "self.ttl", "cfg.ttl * 2"] {
            assert!(time(source).is_ok_and(|time| time.known().is_none()), "{source}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for (source, said) in [
            ("30", "write `ttl = \"30s\"`"),
            ("-30", "write `ttl = \"30s\"`"),
            ("30ms", "write `ttl = \"30ms\"`"),
            ("1.5", "write `ttl = \"1.5s\"`"),
            ("true", "write `ttl = \"30s\"`"),
            ("\"30\"", "write \"30s\" for seconds"),
            ("\"\"", "`ttl` is empty"),
            ("\"0s\"", "longer than zero"),
            ("\"9ms\"", "at least 10ms"),
            ("\"1s 500us\"", "whole number of milliseconds"),
            ("\"30 parsecs\"", "`parsecs` is no unit of time"),
            ("\"soon\"", "is no duration"),
            ("\"-5s\"", "is no duration"),
            ("\"900years\"", "at most a century"),
        ] {
            let message = refused(source);
            assert!(message.contains(said), "{source}: {message}");
        }
    }
}
