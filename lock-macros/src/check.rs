//! Which options go together.

use proc_macro2::Span;

use crate::duration::Time;
use crate::errors::Errors;
use crate::names;
use crate::options::{Options, Slot};
use crate::table;

/// Checks the options against each other.
pub(crate) fn check(options: &Options, errors: &mut Errors) {
    required(options, errors);
    contradictions(options, errors);
    lengths(options, errors);
}

fn required(options: &Options, errors: &mut Errors) {
    let required = [("key", options.key.is_given()), ("ttl", options.ttl.is_given())];
    // One that is misspelt has been reported, and is not missing.
    let missing = required.into_iter().filter(|(name, is_given)| !is_given && !options.meant.contains(name));
    let missing: Vec<&str> = missing.map(|(name, _)| name).collect();
    if !missing.is_empty() {
        let usages: Vec<&str> = missing.iter().map(|name| table::usage(name)).collect();
        let names = names::list(missing);
        errors.at(Span::call_site(), format!("`redis_lock` needs {names}: write `{}`", usages.join(", ")));
    }
}

fn contradictions(options: &Options, errors: &mut Errors) {
    if let (Some(max_hold), false) = (options.max_hold.name(), options.renew.is_given()) {
        errors.at(
            max_hold.span(),
            "`max_hold` ends renewal, and this lock does not renew: add `renew`, or leave `max_hold` out",
        );
    }
    if let Some(second) = options.shared.later(&options.permits) {
        errors.at(
            second.span(),
            "`shared` and `permits` contradict each other: `shared` lets any number of readers in, `permits = N` at \
             most N holders; keep one of them",
        );
    }
    if let Some(second) = options.hold_at_least.later(&options.hold_after_ok) {
        errors.at(
            second.span(),
            "`hold_at_least` and `hold_after_ok` contradict each other: the one holds the key however the body ended, \
             the other only after `Ok`; keep one of them",
        );
    }
    if let Some(fenced) = options.fenced.name() {
        fencing(options, fenced, errors);
    }
}

fn fencing(options: &Options, fenced: &syn::Ident, errors: &mut Errors) {
    let others = [
        (options.each.is_given(), "for PAT in EXPR", "takes several keys at once"),
        (options.shared.is_given(), "shared", "lets several readers in"),
        (options.permits.is_given(), "permits", "lets several holders in"),
    ];
    for (_, other, why) in others.into_iter().filter(|(given, _, _)| *given) {
        errors.at(
            fenced.span(),
            format!(
                "`fenced` orders the holders of one exclusive lock, and `{other}` {why}: keep one of them"
            ),
        );
    }
    if !options.guard.is_given() {
        errors.at(
            fenced.span(),
            "`fenced` without `guard` gives the body no way to read its fencing token: \
             add `guard = lock` and hand `lock.fence()` to what the lock protects",
        );
    }
}

/// Compares what is known at compile time.
fn lengths(options: &Options, errors: &mut Errors) {
    let known = |slot: &Slot<Time>| slot.value().and_then(Time::known);
    let Some((ttl, _)) = known(&options.ttl) else { return };
    if let Some((hold, span)) = known(&options.hold_at_least)
        && hold > ttl
    {
        errors.at(
            span,
            "`hold_at_least` is longer than `ttl`, and no key outlives its ttl: \
             lengthen `ttl`, or shorten `hold_at_least`",
        );
    }
    if let Some((max_hold, span)) = known(&options.max_hold)
        && max_hold <= ttl
    {
        errors.at(
            span,
            "`max_hold` is not longer than `ttl`, so that nothing would ever be renewed: \
             lengthen `max_hold`, or leave `renew` and `max_hold` out",
        );
    }
}

#[cfg(test)]
mod tests;
