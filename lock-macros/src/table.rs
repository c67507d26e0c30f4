//! The table of options: their names, and how each is written.

use crate::names;

/// One option, for messages.
struct Known {
    name: &'static str,
    /// How it is written.
    usage: &'static str,
}

const fn known(name: &'static str, usage: &'static str) -> Known {
    Known { name, usage }
}

/// Every option, in the order of the documentation.
const OPTIONS: [Known; 17] = [
    known("key", "key = \"order:<order_id>\""),
    known("for", "for line in &order.lines"),
    known("ttl", "ttl = \"30s\""),
    known("wait", "wait = \"5s\""),
    known("renew", "renew"),
    known("max_hold", "max_hold = \"10m\""),
    known("on_lost", "on_lost = cancel"),
    known("hold_at_least", "hold_at_least = \"5s\""),
    known("hold_after_ok", "hold_after_ok = \"10s\""),
    known("release", "release = background"),
    known("shared", "shared"),
    known("permits", "permits = 3"),
    known("fenced", "fenced"),
    known("guard", "guard = lock"),
    known("tag", "tag = trace_id"),
    known("manager", "manager = self.locks"),
    known("or_else", "or_else = |error| Reply::from(error)"),
];

/// Stands beside the table because its name is no identifier that a nearest-name search should offer for
/// `key`.
const CRATE: Known = known("crate", "crate = ::my_app::lock_runtime");

/// What other libraries call the same things.
const ELSEWHERE: [(&str, &str); 16] = [
    ("name", "key"),
    ("resource", "key"),
    ("expire", "ttl"),
    ("expiry", "ttl"),
    ("lease", "ttl"),
    ("px", "ttl"),
    ("timeout", "wait"),
    ("retry", "wait"),
    ("blocking", "wait"),
    ("extend", "renew"),
    ("watchdog", "renew"),
    ("on_error", "or_else"),
    ("on_busy", "or_else"),
    ("fallback", "or_else"),
    ("token", "guard"),
    ("semaphore", "permits"),
];

/// How an option is written, for messages.
pub(crate) fn usage(name: &str) -> &'static str {
    find(name).map_or("", |known| known.usage)
}

fn find(name: &str) -> Option<&'static Known> {
    const ALL: &[Known] = &OPTIONS;
    if name == CRATE.name { Some(&CRATE) } else { ALL.iter().find(|known| known.name == name) }
}

/// The option that was probably meant by a name that is none.
pub(crate) fn meant(name: &str) -> Option<&'static str> {
    let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == name).map(|(_, ours)| *ours);
    elsewhere.or_else(|| names::nearest(name, OPTIONS.iter().map(|known| known.name)))
}

/// What to say about a name that is no option.
pub(crate) fn unknown(name: &str, meant: Option<&'static str>) -> String {
    if let Some(meant) = meant {
        return format!(
            "`redis_lock` has no option `{name}`: did you mean `{meant}`, as in `{}`?",
            usage(meant)
        );
    }
    let all = OPTIONS.iter().map(|known| known.name).chain([CRATE.name]);
    format!("`redis_lock` has no option `{name}`: it has {}", names::list(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_option_is_told_the_nearest() {
        let said = |name| unknown(name, meant(name));
        assert!(said("tll").contains("did you mean `ttl`, as in `ttl = \"30s\"`?"));
        assert!(said("expire").contains("did you mean `ttl`"));
        assert!(said("orelse").contains("did you mean `or_else`"));
        let all = said("colour");
        assert!(OPTIONS.iter().all(|known| all.contains(known.name)), "{all}");
    }
}
