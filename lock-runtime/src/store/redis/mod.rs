//! Locks in one Redis (or compatible) server: plain string keys, as every other client of the field writes them.

mod connection;
mod lane;
mod request;
mod script;
mod tracking;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, RedisError, Value};
use tokio::time::{Instant, timeout};

pub(crate) use connection::{Connections, Given};
use connection::{Link, Source};
use lane::Trouble;
use request::{By, Request};

use super::{
    Answers, Attempt, Changed, Claim, Flight, Look, Mode, Released, Store, StoreError, StoreErrorKind,
    StoreFuture, Told, Unwatched, Watch, needs_runtime,
};

pub(crate) struct RedisStore {
    source: Source,
    response_timeout: Duration,
}

impl RedisStore {
    pub(crate) fn new(source: impl Into<Source>, response_timeout: Duration) -> Self {
        Self { source: source.into(), response_timeout }
    }

    /// Makes the first connection, so that a wrong URL or a dead server shows at start-up.
    pub(crate) async fn probe(&self, within: Duration) -> Result<(), StoreError> {
        needs_runtime()?;
        self.source.link(Instant::now() + within).await.map(drop)
    }

    /// Sends a request, and if its connection ended before the answer, once more over a new one: once, since a command
    /// on a connection that ended while it was idle is the ordinary case, and a second failure is news. A script goes by
    /// its hash first, and by its text if the server does not know it.
    ///
    /// All of it within the response timeout. A connection that did not answer in time is not used again. With
    /// `watched`, the answer comes with what tells of the next change of any of those keys.
    async fn ask(
        &self,
        request: Request<'_>,
        flight: &Flight,
        watched: &[Arc<str>],
    ) -> Result<Answer, Failure> {
        let (mut request, mut by, mut resent) = (request, By::Hash, false);
        let runtime = needs_runtime()?;
        let give_up = Instant::now() + self.response_timeout;
        // Whether all of the time is left.
        let mut fresh = true;
        loop {
            let link = if let Some(link) = self.source.ready(&runtime) {
                link
            } else {
                fresh = false;
                self.source.link(give_up).await?
            };
            let changed = if watched.is_empty() { None } else { link.watch(watched, give_up).await };
            flight.departs(link.carrier());
            match link.send(request.command(by), give_up, std::mem::take(&mut fresh)).await {
                Ok(value) => {
                    flight.lands();
                    return Ok(Answer { value, resent, changed });
                }
                Err(Trouble::Silent) => {
                    link.retire();
                    return Err(Failure::Store(silent(self.response_timeout)));
                }
                Err(Trouble::Failed(error)) if error.code() == Some("NOSCRIPT") && by == By::Hash => {
                    flight.lands();
                    by = By::Text;
                }
                // An error reply: the server did not do it, unless a script had begun to.
                Err(Trouble::Failed(error)) if error.code().is_some() => {
                    if !is_from_within_a_script(&error) {
                        flight.lands();
                    }
                    return Err(Failure::Reply(error));
                }
                Err(Trouble::Failed(error)) => {
                    link.retire();
                    let kind = if error.is_io_error() {
                        StoreErrorKind::Connection
                    } else {
                        StoreErrorKind::Nonsense
                    };
                    if resent || kind == StoreErrorKind::Nonsense || !self.source.reconnects() {
                        return Err(Failure::Store(StoreError::new(kind, error.to_string())));
                    }
                    (request, by, resent) = (request.again(), By::Text, true);
                }
            }
        }
    }

    /// One pipeline of extensions.
    async fn extend_pipeline(
        &self,
        claims: &[&Claim],
        by: By,
        give_up: Instant,
    ) -> Result<Vec<Value>, StoreError> {
        let mut pipeline = Pipeline::with_capacity(claims.len());
        for claim in claims {
            pipeline.add_command(Request::extend(claim, claim.ttl).command(by));
        }
        let link = self.source.link(give_up).await?;
        link.send_all(&pipeline, claims.len()).await.map_err(|error| {
            link.retire();
            StoreError::new(StoreErrorKind::Connection, error.to_string())
        })
    }

    /// What stands at a key that is not the claim's.
    async fn found(&self, claim: &Claim, index: usize) -> Result<Released, Failure> {
        // Of a share nothing is left but that it is gone; others may well be there by right.
        if claim.mode != Mode::Exclusive || index >= claim.keys.len() {
            return Ok(Released::Expired);
        }
        match self.ask(Request::get(claim, index), &Flight::default(), &[]).await {
            Ok(Answer { value: Value::Nil, .. }) => Ok(Released::Expired),
            Ok(Answer { value: Value::BulkString(bytes), .. }) => {
                Ok(Released::HeldByOther(Some(String::from_utf8_lossy(&bytes).into_owned())))
            }
            Ok(Answer { value, .. }) => Err(Failure::Store(nonsense(&value))),
            Err(Failure::Reply(error)) if is_wrong_type(&error) => Ok(Released::HeldByOther(None)),
            Err(failure) => Err(failure),
        }
    }

    async fn release_claim(&self, claim: &Claim, keep: Duration) -> Result<Released, Failure> {
        let (lost, resent) = match self.ask(Request::release(claim, keep), &Flight::default(), &[]).await {
            Ok(Answer { value, resent, .. }) => (not_released(&value)?, resent),
            // Something else than a string stands there: not ours.
            Err(Failure::Reply(error)) if is_wrong_type(&error) => return Ok(Released::HeldByOther(None)),
            Err(failure) => return Err(failure),
        };
        let Some(lost) = lost else { return Ok(Released::Done) };
        // Boxed: seldom, and what it needs would be part of every release.
        match Box::pin(self.found(claim, lost)).await {
            Ok(found) if resent => Ok(found.after_resending()),
            found => found,
        }
    }
}

impl Store for RedisStore {
    fn acquire<'a>(&'a self, claim: &'a Claim, flight: &'a Flight) -> StoreFuture<'a, Attempt> {
        let plain = claim.is_plain() && claim.fence.is_none();
        let request = if plain { Request::set(claim) } else { Request::acquire(claim) };
        Box::pin(async move { attempt(self.ask(request, flight, &[]).await?) })
    }

    fn acquire_or_watch<'a>(&'a self, claim: &'a Claim, flight: &'a Flight) -> StoreFuture<'a, Attempt> {
        Box::pin(async move { attempt(self.ask(Request::acquire(claim), flight, &claim.keys).await?) })
    }

    fn look<'a>(&'a self, claim: &'a Claim) -> StoreFuture<'a, Look> {
        Box::pin(async move {
            match self.ask(Request::look(claim), &Flight::default(), &claim.keys).await {
                Ok(Answer { value: Value::BulkString(token), changed, .. }) => {
                    Ok(Look { held: token == claim.token.as_bytes(), changed })
                }
                Ok(Answer { value: Value::Nil, changed, .. }) => Ok(Look { held: false, changed }),
                Ok(Answer { value, changed, .. }) => Ok(Look { held: extended(value)?, changed }),
                Err(Failure::Reply(error)) if is_wrong_type(&error) => {
                    Ok(Look { held: false, changed: None })
                }
                Err(failure) => Err(failure.into()),
            }
        })
    }

    fn extend_all<'a>(&'a self, claims: &'a [&'a Claim], within: Duration) -> Answers<'a> {
        Box::pin(async move {
            let give_up = Instant::now() + within;
            let exchange = async {
                let answers = self.extend_pipeline(claims, By::Hash, give_up).await?;
                // Extensions may be sent twice.
                if answers
                    .iter()
                    .any(|answer| matches!(answer, Value::ServerError(e) if e.code() == "NOSCRIPT"))
                {
                    return self.extend_pipeline(claims, By::Text, give_up).await;
                }
                Ok(answers)
            };
            let answers = timeout(within, exchange).await.unwrap_or_else(|_| {
                self.source.retire_current();
                Err(silent(within))
            });
            match answers {
                Ok(answers) => answers.into_iter().map(extended).collect(),
                Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
            }
        })
    }

    fn extend<'a>(&'a self, claim: &'a Claim, ttl: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            extended(self.ask(Request::extend(claim, ttl), &Flight::default(), &[]).await?.value)
        })
    }

    fn release<'a>(&'a self, claim: &'a Claim, keep: Duration) -> StoreFuture<'a, Released> {
        Box::pin(async move { self.release_claim(claim, keep).await.map_err(StoreError::from) })
    }

    fn release_unwatched(&self, claim: &Claim, keep: Duration, told: Told) {
        let link = needs_runtime().ok().and_then(|runtime| self.source.ready(&runtime));
        match link {
            Some(link) => link.send_unwatched(Request::release(claim, keep).command(By::Hash), told),
            None => told(Unwatched::Unsent),
        }
    }

    fn release_behind<'a>(
        &'a self,
        claim: &'a Claim,
        carrier: Arc<dyn Any + Send + Sync>,
    ) -> StoreFuture<'a, Released> {
        Box::pin(async move {
            let Some(link) = Link::of_carrier(carrier) else {
                return Err(StoreError::new(
                    StoreErrorKind::Connection,
                    "the connection is no longer in use",
                ));
            };
            // By its text: there is no second try on this connection if the server has forgotten the hash.
            let release = Request::release(claim, Duration::ZERO).command(By::Text);
            // The request it follows has waited already. The sooner a silent connection is found out, the sooner the next
            // call can use another.
            let patience = self.response_timeout / 2;
            match link.send_behind(release, Instant::now() + patience).await {
                Ok(value) => match not_released(&value)? {
                    None => Ok(Released::Done),
                    Some(_) => Ok(Released::Expired),
                },
                Err(Trouble::Failed(error)) => Err(Failure::Reply(error).into()),
                Err(Trouble::Silent) => {
                    link.retire();
                    Err(silent(patience))
                }
            }
        })
    }
}

/// An answer of the server.
struct Answer {
    value: Value,
    /// An earlier sending of the same command got no answer, and may have been carried out too.
    resent: bool,
    /// Ready at the next change of the key that was asked to be watched.
    changed: Option<Changed>,
}

/// What a plain `SET`, and [`script::Family::acquire`], answer.
fn attempt(answer: Answer) -> Result<Attempt, StoreError> {
    let numbers = match &answer.value {
        Value::Okay => return Ok(Attempt::Granted(0)),
        Value::Nil => return Ok(Attempt::Held(0, Watch::default())),
        Value::Array(pair) => match pair[..] {
            [Value::Int(index), Value::Int(number)] => {
                usize::try_from(index).ok().map(|index| (index, number))
            }
            _ => None,
        },
        _ => None,
    };
    match numbers {
        Some((0, fence)) => Ok(Attempt::Granted(u64::try_from(fence).unwrap_or(0))),
        // Negative: the key has no expiry.
        Some((index, left)) => {
            let expires_in = u64::try_from(left).ok().map(Duration::from_millis);
            Ok(Attempt::Held(index - 1, Watch { expires_in, changed: answer.changed }))
        }
        None => Err(nonsense(&answer.value)),
    }
}

/// What a release that nobody awaits comes to. Another error reply than that the script is not known may be that of a
/// proxy that gave up on it.
fn unwatched(answer: Result<Value, Trouble>) -> Unwatched {
    match answer.and_then(|value| value.extract_error().map_err(Trouble::Failed)) {
        Ok(value) => match not_released(&value) {
            Ok(None) => Unwatched::Done,
            Ok(Some(_)) => Unwatched::Lost,
            Err(_) => Unwatched::Unanswered,
        },
        // Something else than a string stands there.
        Err(Trouble::Failed(error)) if is_wrong_type(&error) => Unwatched::Lost,
        Err(Trouble::Failed(error)) if error.code() == Some("NOSCRIPT") => Unwatched::Unsent,
        Err(_) => Unwatched::Unanswered,
    }
}

/// What [`script::RELEASE`] and [`script::Family::release`] answer: the place of the first key that was not the
/// token's.
fn not_released(answer: &Value) -> Result<Option<usize>, StoreError> {
    match answer {
        Value::Int(1) => Ok(None),
        Value::Int(0) => Ok(Some(0)),
        Value::Array(others) => match others.first() {
            None => Ok(None),
            Some(Value::Int(index)) => Ok(usize::try_from(index - 1).ok()),
            Some(_) => Err(nonsense(answer)),
        },
        _ => Err(nonsense(answer)),
    }
}

/// What [`script::Family::extend`] and [`script::Family::look`] answer.
fn extended(answer: Value) -> Result<bool, StoreError> {
    match answer {
        Value::Int(held) => Ok(held == 1),
        Value::ServerError(error) => {
            let error = RedisError::from(error);
            if is_wrong_type(&error) { Ok(false) } else { Err(refused(&error)) }
        }
        value => Err(nonsense(&value)),
    }
}

/// Whether a command inside a script failed: what the script did before stays done.
fn is_from_within_a_script(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("script: ") || detail.contains("user_script"))
}

/// Whether the key holds something else than a string: someone else's. Redis before 7 wraps what a script meets.
fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE") || error.detail().is_some_and(|detail| detail.contains("WRONGTYPE"))
}

enum Failure {
    /// The server answered with an error.
    Reply(RedisError),
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Reply(error) => refused(&error),
            Failure::Store(error) => error,
        }
    }
}

/// An error reply in the server's own words: its code first, as operators search for it.
fn refused(error: &RedisError) -> StoreError {
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => error.to_string(),
    };
    StoreError::new(StoreErrorKind::Refused, text)
}

fn silent(waited: Duration) -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, format!("no answer within {} ms", millis(waited)))
}

fn nonsense(value: &Value) -> StoreError {
    StoreError::new(StoreErrorKind::Nonsense, format!("unexpected answer: {value:?}"))
}

/// Redis counts in whole milliseconds. Rounded up: the key must never end before the lease is believed to.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
