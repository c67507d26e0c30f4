//! Requests: the command of each operation on a claim, made anew for each sending.

use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;

use super::super::{Claim, Mode};
use super::millis;
use super::script::{Family, RELEASE, Script};

/// What is asked of the server about one claim.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    claim: &'a Claim,
    operation: Operation,
}

#[derive(Clone, Copy)]
enum Operation {
    Set,
    Acquire,
    /// The keys are kept until then, if they are kept.
    Release(Option<Instant>),
    Extend(Duration),
    Look,
    Get(usize),
}

/// How a script is named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// `EVALSHA`: a server that does not know the script answers NOSCRIPT.
    Hash,
    /// `EVAL`: runs it, and lets the server know it.
    Text,
}

impl<'a> Request<'a> {
    /// The plain attempt, for a claim that is plain and wants no fencing token.
    pub(super) fn set(claim: &'a Claim) -> Self {
        Self { claim, operation: Operation::Set }
    }

    /// The attempt that works for every claim, and may be sent twice.
    pub(super) fn acquire(claim: &'a Claim) -> Self {
        Self { claim, operation: Operation::Acquire }
    }

    /// Each sending counts what is left of the time that the keys are kept: one that is sent again does not lengthen it.
    pub(super) fn release(claim: &'a Claim, keep: Duration) -> Self {
        let kept_until = (!keep.is_zero()).then(|| Instant::now() + keep);
        Self { claim, operation: Operation::Release(kept_until) }
    }

    pub(super) fn extend(claim: &'a Claim, ttl: Duration) -> Self {
        Self { claim, operation: Operation::Extend(ttl) }
    }

    /// Whether the claim's keys are its own still.
    pub(super) fn look(claim: &'a Claim) -> Self {
        let operation = if claim.is_plain() { Operation::Get(0) } else { Operation::Look };
        Self { claim, operation }
    }

    /// What stands at one of the claim's keys.
    pub(super) fn get(claim: &'a Claim, index: usize) -> Self {
        Self { claim, operation: Operation::Get(index) }
    }

    /// The same for a second sending, when the first may have been carried out.
    pub(super) fn again(self) -> Self {
        match self.operation {
            // It would be refused by its own token.
            Operation::Set => Self::acquire(self.claim),
            _ => self,
        }
    }

    pub(super) fn command(&self, by: By) -> Cmd {
        let claim = self.claim;
        let family = Family::of(claim);
        let (script, numbers) = match self.operation {
            Operation::Set => {
                let mut set = sized("SET", 6, claim.keys[0].len() + claim.token.len());
                set.arg(&*claim.keys[0]).arg(&*claim.token).arg("NX").arg("PX").arg(millis(claim.ttl));
                return set;
            }
            Operation::Get(index) => {
                let mut get = redis::cmd("GET");
                get.arg(&*claim.keys[index]);
                return get;
            }
            Operation::Acquire => {
                let limit = match claim.mode {
                    Mode::Exclusive => claim.keys.len() as u64,
                    Mode::Shared => 0,
                    Mode::Permits(most) => u64::from(most),
                };
                (&family.acquire, [Some(millis(claim.ttl)), Some(limit), claim.fence.map(millis)])
            }
            Operation::Release(kept_until) => {
                let left = |until: Instant| until.saturating_duration_since(Instant::now());
                let keep = kept_until.map_or(Duration::ZERO, left);
                if claim.is_plain() && keep.is_zero() {
                    (&RELEASE, [None; 3])
                } else {
                    (&family.release, [Some(millis(keep)), None, None])
                }
            }
            Operation::Extend(ttl) => (&family.extend, [Some(millis(ttl)), None, None]),
            Operation::Look => (&family.look, [None; 3]),
        };
        let fence = claim.fence.filter(|_| matches!(self.operation, Operation::Acquire));
        self.invoke(script, by, numbers, fence.map(|_| fence_key(&claim.keys[0])))
    }

    /// KEYS: those of the claim, and the fence's if it is wanted. ARGV: the token and these numbers.
    fn invoke(&self, script: &Script, by: By, numbers: [Option<u64>; 3], fence: Option<String>) -> Cmd {
        let claim = self.claim;
        let (verb, name) = match by {
            By::Hash => ("EVALSHA", script.hash()),
            By::Text => ("EVAL", script.text()),
        };
        let keys =
            claim.keys.iter().map(|key| key.len()).sum::<usize>() + fence.as_ref().map_or(0, String::len);
        let mut cmd = sized(verb, claim.keys.len() + 8, name.len() + keys + claim.token.len());
        cmd.arg(name).arg(claim.keys.len() + usize::from(fence.is_some()));
        for key in &claim.keys {
            cmd.arg(&**key);
        }
        cmd.arg(fence).arg(&*claim.token);
        for number in numbers.into_iter().flatten() {
            cmd.arg(number);
        }
        cmd
    }
}

/// A command that is built without moving, from this many parts with this much text.
fn sized(verb: &str, parts: usize, text: usize) -> Cmd {
    // And room for the verb and a few numbers.
    let mut cmd = Cmd::with_capacity(parts, text + 64);
    cmd.arg(verb);
    cmd
}

/// Where a lock's fencing tokens are counted: beside it in the same slot of a cluster, under a prefix of its own.
fn fence_key(key: &str) -> String {
    let has_tag = key.split_once('{').and_then(|(_, tag)| tag.find('}')).is_some_and(|length| length > 0);
    if has_tag { format!("fence:{key}") } else { format!("fence:{{{key}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_in_its_locks_slot() {
        assert_eq!(fence_key("lock:order:123"), "fence:{lock:order:123}");
        assert_eq!(fence_key("lock:{order:123}:x"), "fence:lock:{order:123}:x");
    }
}
