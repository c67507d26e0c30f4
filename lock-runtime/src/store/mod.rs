//! The one seam between the lock and what keeps it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::few::Few;
use crate::renew::RenewPolicy;

pub(crate) mod memory;
pub(crate) mod redis;

/// What an acquisition claims: its keys, all or none of them, under one token, for one ttl, in one mode.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// Sorted, without duplicates, never empty.
    pub(crate) keys: Few<Arc<str>>,
    pub(crate) token: Arc<str>,
    pub(crate) ttl: Duration,
    pub(crate) mode: Mode,
    /// The expiry of the counter of fencing tokens, if one is wanted.
    pub(crate) fence: Option<Duration>,
}

/// How many may hold a key at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mode {
    #[default]
    Exclusive,
    /// With any number of others that are not exclusive.
    Shared,
    /// With others that are not exclusive, this many in all.
    Permits(u32),
}

impl Claim {
    /// Whether it is the plain lock that every client of the field knows: one string key.
    pub(crate) fn is_plain(&self) -> bool {
        self.mode == Mode::Exclusive && self.keys.len() == 1
    }
}

/// The store's answer to an attempt.
pub(crate) enum Attempt {
    /// With the fencing token; 0 if none was asked for.
    Granted(u64),
    /// Someone else holds one of the keys: which, by its place in the claim.
    Held(usize, Watch),
}

/// When it is worth asking for a held key again.
#[derive(Default)]
pub(crate) struct Watch {
    /// The key's remaining time, if it is known.
    pub(crate) expires_in: Option<Duration>,
    /// Ready when the key has changed, or it can no longer be told; none where the store does not tell.
    pub(crate) changed: Option<Changed>,
}

pub(crate) type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The store's answer to a holder who looks after its key.
pub(crate) struct Look {
    /// Whether the key still carries the claim's token.
    pub(crate) held: bool,
    /// As of [`Watch`].
    pub(crate) changed: Option<Changed>,
}

/// The store's answer to a release.
#[derive(Debug, Clone)]
pub(crate) enum Released {
    /// Every key carried the token and is gone, or is kept as long as was asked.
    Done,
    /// There was no key, or no share in it.
    Expired,
    /// That cannot be told, because a request had to be sent twice: the key is gone, or someone else's, and an earlier
    /// sending may have deleted it; or it was there, and may have been set by a request that arrived late. With what was
    /// found in its place.
    Unclear(Option<String>),
    /// No answer before the key's time was over.
    Unanswered(StoreError),
    /// The key carried something else, which was left as it is: another token, or `None` if it is no string.
    HeldByOther(Option<String>),
}

pub(crate) type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

impl Released {
    /// What the answer to a second sending means, when the first may have been carried out and got no answer.
    pub(crate) fn after_resending(self) -> Self {
        match self {
            // Whoever holds it now may have come after the first.
            Self::HeldByOther(other) => Self::Unclear(other),
            Self::Expired => Self::Unclear(None),
            found => found,
        }
    }
}

/// What became of a release that nobody awaits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unwatched {
    /// Every key carried the token and is gone, or is kept as long as was asked.
    Done,
    /// Answered at its first sending: a key was not the claim's.
    Lost,
    /// Not answered, and perhaps carried out.
    Unanswered,
    /// Not sent.
    Unsent,
}

/// Who is told of that.
pub(crate) type Told = Box<dyn FnOnce(Unwatched) + Send>;

pub(crate) type Answers<'a> = Pin<Box<dyn Future<Output = Vec<Result<bool, StoreError>>> + Send + 'a>>;

/// Something that keeps locks. Every method touches a key only while it carries the claim's token.
pub(crate) trait Store: Send + Sync + 'static {
    /// One attempt. Before the request can reach the server, `flight` is told what carries it, so that whoever
    /// gives up on the answer can have it cleaned up.
    fn acquire<'a>(&'a self, claim: &'a Claim, flight: &'a Flight) -> StoreFuture<'a, Attempt>;

    /// The same, for one that will wait if the key is held: tells when to ask again.
    fn acquire_or_watch<'a>(&'a self, claim: &'a Claim, flight: &'a Flight) -> StoreFuture<'a, Attempt>;

    /// Looks whether the key is still the claim's, and tells of its next change.
    fn look<'a>(&'a self, claim: &'a Claim) -> StoreFuture<'a, Look>;

    /// Whether the store renews this claim by itself from now on, as long as it is not released; none ends that.
    fn renews_itself(&self, _claim: &Claim, _policy: Option<RenewPolicy>) -> bool {
        false
    }

    /// Lets each key live for its claim's ttl from now, unless it lives longer already: in one exchange, within this
    /// time. The answers are in the order of the claims, each false if the key is not the claim's.
    fn extend_all<'a>(&'a self, claims: &'a [&'a Claim], within: Duration) -> Answers<'a>;

    /// Lets the key live for `ttl` from now unless it lives longer already. False if it is not the claim's.
    fn extend<'a>(&'a self, claim: &'a Claim, ttl: Duration) -> StoreFuture<'a, bool>;

    /// Deletes each key that is the claim's, or lets it live for `keep` from now.
    fn release<'a>(&'a self, claim: &'a Claim, keep: Duration) -> StoreFuture<'a, Released>;

    /// The same at once, for a store that needs no input or output for it.
    fn release_now(&self, _claim: &Claim, _keep: Duration) -> Option<Released> {
        None
    }

    /// The same for one that nobody awaits. It is on its way when this returns, or `told` has been told that it was not
    /// sent; `told` is dropped where its answer can no longer come.
    fn release_unwatched(&self, _claim: &Claim, _keep: Duration, told: Told) {
        told(Unwatched::Unsent);
    }

    /// Deletes the keys as above, sent behind an earlier request on what carries that one, so that the store sees it later. An error
    /// if that is no longer possible.
    fn release_behind<'a>(
        &'a self,
        claim: &'a Claim,
        carrier: Arc<dyn Any + Send + Sync>,
    ) -> StoreFuture<'a, Released>;
}

/// The requests of one acquisition whose answers have not been seen. Only the store that sent one can look inside
/// what carries it.
#[derive(Default)]
pub(crate) struct Flight(Mutex<InFlight>);

#[derive(Default)]
struct InFlight {
    carrier: Option<Arc<dyn Any + Send + Sync>>,
    /// An earlier request was given up, and may arrive at any time.
    strayed: bool,
}

impl Flight {
    /// A request may be with the server from now on.
    pub(crate) fn departs(&self, carrier: Arc<dyn Any + Send + Sync>) {
        let mut state = self.state();
        state.strayed |= state.carrier.is_some();
        state.carrier = Some(carrier);
    }

    /// The answer to the latest request is known.
    pub(crate) fn lands(&self) {
        self.state().carrier = None;
    }

    /// Whether a request may still be carried out, or has been without our knowledge.
    pub(crate) fn is_open(&self) -> bool {
        let state = self.state();
        state.strayed || state.carrier.is_some()
    }

    pub(crate) fn has_strayed(&self) -> bool {
        self.state().strayed
    }

    pub(crate) fn into_carrier(self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).carrier
    }

    fn state(&self) -> MutexGuard<'_, InFlight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a store, or the way to it, answered instead of an answer.
#[derive(Debug, Clone)]
pub struct StoreError(Box<Fault>);

#[derive(Debug, Clone)]
struct Fault {
    kind: StoreErrorKind,
    text: String,
}

/// The kinds of [`StoreError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No answer within the response timeout.
    Timeout,
    /// The connection could not be made, or was lost before the answer.
    Connection,
    /// The server answered with an error: `READONLY`, `NOAUTH`, `OOM`, `LOADING`, …
    Refused,
    /// The server answered something that no lock command answers.
    Nonsense,
    /// The lease was granted, but the answer came after its end.
    TooLate,
    /// The URL, or an environment variable that should hold it, cannot be used.
    Configuration,
    /// The call was made outside a tokio runtime.
    NoRuntime,
    /// The manager has been shut down.
    ShutDown,
    /// The operating system gave no random bytes for a token.
    NoRandomness,
}

impl StoreError {
    pub(crate) fn new(kind: StoreErrorKind, text: impl Into<String>) -> Self {
        Self(Box::new(Fault { kind, text: text.into() }))
    }

    /// Says where it happened.
    pub(crate) fn at(mut self, place: impl fmt::Display) -> Self {
        self.0.text = format!("{place}: {}", self.0.text);
        self
    }

    /// What kind of failure it was.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.0.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl std::error::Error for StoreError {}

/// The runtime that the caller is on. Tokio's timers and sockets panic outside one, so it is asked for first.
pub(crate) fn needs_runtime() -> Result<Handle, StoreError> {
    Handle::try_current()
        .map_err(|_| StoreError::new(StoreErrorKind::NoRuntime, "the call was made outside a tokio runtime"))
}
