//! What the attribute expands to: acquire, run the body, release, and how each ends.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;
use tracing::Span;

use crate::error::{LockError, LockName, Succeeded};
use crate::events;
use crate::key::{Key, Keys};
use crate::lease::{Lease, bounded};
use crate::manager::LockManager;
use crate::reentry::{self, Joinable, Level};
use crate::renew::RenewPolicy;
use crate::site::Site;
use crate::store::Mode;
use crate::terms::Terms;
use crate::wait;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One call of an annotated function. In the expansion it is declared before the body, so that a call that is
/// dropped or panics drops its body first and releases afterwards.
///
/// One pointer wide: it lives in the future of every annotated function, once for each level of nesting.
pub struct Call(Box<State>);

struct State {
    site: &'static Site,
    terms: Terms,
    phase: Phase,
}

enum Phase {
    /// Options are still being set.
    Setup {
        keys: Keys,
        ttl: Duration,
        tag: Option<String>,
        manager: Option<LockManager>,
    },
    /// All is known that has to be; nothing has been sent.
    Ready(Arc<Lease>),
    /// The body that makes this call holds the lock already.
    Inside(Joinable, Duration),
    /// It can never be acquired.
    Refused(LockError),
    Acquiring(Boxed<Result<Level, LockError>>),
    Holding(Held),
    Releasing(Boxed<()>),
    Over,
}

struct Held {
    level: Arc<Level>,
    lease: Arc<Lease>,
    span: Span,
    /// Watches over the lease, from the body's first wait on.
    lost: Option<Boxed<()>>,
}

impl Call {
    /// A call of the function at `site`, with the key that its template rendered to.
    #[must_use]
    pub fn new(site: &'static Site, key: Key, ttl: Duration) -> Self {
        Self::of_several(site, key.into(), ttl)
    }

    /// The same with the option `for`.
    #[must_use]
    pub fn of_several(site: &'static Site, keys: Keys, ttl: Duration) -> Self {
        let phase = Phase::Setup { keys, ttl, tag: None, manager: None };
        Self(Box::new(State { site, terms: Terms::default(), phase }))
    }

    /// The option `wait`.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.0.terms.wait = wait;
        self
    }

    /// The option `renew`.
    #[must_use]
    pub fn renew(mut self) -> Self {
        self.0.terms.renew.get_or_insert_default();
        self
    }

    /// The option `max_hold`.
    #[must_use]
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.0.terms.renew = Some(RenewPolicy { max_hold: Some(bounded(most)) });
        self
    }

    /// The option `shared`.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.0.terms.mode = Mode::Shared;
        self
    }

    /// The option `permits`.
    #[must_use]
    pub fn permits(mut self, most: u32) -> Self {
        self.0.terms.mode = Mode::Permits(most);
        self
    }

    /// The option `fenced`.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.0.terms.fenced = true;
        self
    }

    /// The option `hold_at_least`.
    #[must_use]
    pub fn hold_at_least(mut self, least: Duration) -> Self {
        self.0.terms.hold_at_least = Some(least);
        self
    }

    /// The option `hold_after_ok`; what the body returns says whether it succeeded.
    #[must_use]
    pub fn hold_after_ok(mut self, longer: Duration) -> Self {
        self.0.terms.hold_after_ok = Some(bounded(longer));
        self
    }

    /// The option `tag`.
    #[must_use]
    pub fn tag(mut self, value: fmt::Arguments<'_>) -> Self {
        if let Phase::Setup { tag, .. } = &mut self.0.phase {
            *tag = Some(value.to_string());
        }
        self
    }

    /// The option `manager`: a manager, or what borrows as one.
    #[must_use]
    pub fn manager<M: Borrow<LockManager> + ?Sized>(mut self, named: &M) -> Self {
        if let Phase::Setup { manager, .. } = &mut self.0.phase {
            *manager = Some(named.borrow().clone());
        }
        self
    }

    /// What the option `guard` binds.
    #[must_use]
    pub fn lease(&mut self) -> Arc<Lease> {
        self.0.prepare();
        let known = match &self.0.phase {
            Phase::Ready(lease) => Some(lease),
            Phase::Inside(joinable, _) => Some(joinable.lease()),
            _ => None,
        };
        // Without one the body is never polled, and never sees this.
        known.cloned().unwrap_or_else(|| Arc::new(Lease::of_nothing(*self.0.site)))
    }

    /// Acquires, runs the body, and awaits the release.
    pub fn run<'a, B, D: Drive<B>>(&'a mut self, body: Pin<&'a mut B>, _: D) -> Run<'a, B, D::Output, D> {
        Run { call: self, body, output: None, succeeded: |_| false, with: PhantomData }
    }

    /// Acquires and runs the body; the release is on its way when this is ready.
    pub fn run_background<'a, B, D: Drive<B>>(
        &'a mut self,
        body: Pin<&'a mut B>,
        _: D,
    ) -> RunBackground<'a, B, D::Output, D> {
        RunBackground { call: self, body, succeeded: |_| false, with: PhantomData }
    }

    /// As [`run`](Self::run), with the option `hold_after_ok`.
    pub fn run_judged<'a, B, D>(&'a mut self, body: Pin<&'a mut B>, _: D) -> Run<'a, B, D::Output, D>
    where
        D: Drive<B, Output: Succeeded>,
    {
        Run { call: self, body, output: None, succeeded: D::Output::succeeded, with: PhantomData }
    }

    /// As [`run_background`](Self::run_background), with the option `hold_after_ok`.
    pub fn run_background_judged<'a, B, D>(
        &'a mut self,
        body: Pin<&'a mut B>,
        _: D,
    ) -> RunBackground<'a, B, D::Output, D>
    where
        D: Drive<B, Output: Succeeded>,
    {
        RunBackground { call: self, body, succeeded: D::Output::succeeded, with: PhantomData }
    }

    /// Fixes, when the body has returned, whether its keys stay.
    fn judge(&self, succeeded: bool, level: &Level) {
        if let Some(longer) = self.0.terms.hold_after_ok
            && succeeded
        {
            level.lease().hold_until(Instant::now() + longer);
        }
    }

    /// Brings the call to the end of its body, whose locals and parameters go while it is still under the lock.
    ///
    /// Not generic, as little here is: what is, is compiled once for each annotated function.
    fn poll_body(
        &mut self,
        body: &mut dyn Body,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Arc<Level>, LockError>> {
        let (state, cancels) = (&mut *self.0, body.is_cancelled_when_lost());
        loop {
            match &mut state.phase {
                Phase::Setup { .. } => state.prepare(),
                Phase::Ready(_) | Phase::Inside(..) => state.ask(),
                Phase::Acquiring(acquisition) => {
                    state.phase = match ready!(acquisition.as_mut().poll(cx)) {
                        Ok(level) => Phase::holding(level),
                        Err(error) => Phase::Refused(error),
                    };
                }
                Phase::Holding(held) if cancels && held.lease.is_lost() => {
                    held.span.in_scope(|| body.cancel());
                    let error = held.lease.lost_error();
                    if held.lease.mark_lost() {
                        events::lost(&held.lease, "deadline", "its local deadline has passed");
                    }
                    // Drops the level, and leaves the release to the background: the caller has waited enough.
                    state.phase = Phase::Refused(error);
                }
                Phase::Holding(held) => match held.poll(body, cx) {
                    Poll::Ready(()) => {
                        if let Phase::Holding(held) = std::mem::replace(&mut state.phase, Phase::Over) {
                            return Poll::Ready(Ok(held.level));
                        }
                    }
                    Poll::Pending if !cancels => return Poll::Pending,
                    // Then around again, and the body is not polled.
                    Poll::Pending => ready!(held.poll_lost(cx)),
                },
                Phase::Refused(_) => {
                    body.cancel();
                    if let Phase::Refused(error) = std::mem::replace(&mut state.phase, Phase::Over) {
                        return Poll::Ready(Err(error));
                    }
                }
                // Ready once already: an `async fn` is not polled again after that.
                Phase::Releasing(_) | Phase::Over => return Poll::Pending,
            }
        }
    }

    /// Begins the release of a call whose body has ended.
    fn release(&mut self, level: Arc<Level>) {
        self.0.phase = Phase::Releasing(Box::pin(async move {
            // Only the poll that has just ended had the level beside us.
            let Some(level) = Arc::into_inner(level) else { return };
            if let Some(guard) = level.into_guard().await {
                guard.release().await;
            }
        }));
    }

    fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Phase::Releasing(release) = &mut self.0.phase {
            ready!(release.as_mut().poll(cx));
            self.0.phase = Phase::Over;
            return Poll::Ready(());
        }
        // Ready once already.
        Poll::Pending
    }

    fn release_unawaited(level: Arc<Level>) {
        if let Some(guard) = Arc::into_inner(level).and_then(Level::try_into_guard) {
            guard.release_unawaited();
        }
    }
}

/// A body, whatever its type.
trait Body {
    fn is_cancelled_when_lost(&self) -> bool;

    /// Polls it, and keeps what it returns.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Drops it, if it can be dropped before the call ends.
    fn cancel(&mut self);
}

struct Driven<'a, B, D: Drive<B>> {
    body: Pin<&'a mut B>,
    output: &'a mut Option<D::Output>,
}

impl<B, D: Drive<B>> Body for Driven<'_, B, D> {
    fn is_cancelled_when_lost(&self) -> bool {
        D::CANCELS
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        D::poll(self.body.as_mut(), cx).map(|output| *self.output = Some(output))
    }

    fn cancel(&mut self) {
        D::cancel(self.body.as_mut());
    }
}

impl State {
    /// From the options to what is asked for.
    fn prepare(&mut self) {
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        self.phase = match phase {
            Phase::Setup { keys, ttl, tag, manager } => {
                if let Some(manager) = manager.or_else(LockManager::current) {
                    let lease = manager.lease(*self.site, keys, ttl, tag.as_deref(), &self.terms);
                    lease.map_or_else(Phase::Refused, |lease| Phase::of(lease, ttl))
                } else {
                    let key = keys.finish("").map_or_else(|(key, _)| key, |keys| keys[0].to_string());
                    Phase::Refused(LockError::NotConfigured { lock: LockName::new(key, *self.site).into() })
                }
            }
            phase => phase,
        };
    }

    fn ask(&mut self) {
        let (phase, terms) = (std::mem::replace(&mut self.phase, Phase::Over), self.terms);
        self.phase =
            match phase {
                Phase::Ready(lease) => Phase::Acquiring(Box::pin(async move {
                    wait::acquire(lease, terms).await.map(Level::outermost)
                })),
                Phase::Inside(joinable, ttl) => Phase::Acquiring(Box::pin(join(joinable, ttl, terms))),
                phase => phase,
            };
    }
}

impl Phase {
    /// Whether the body that makes this call holds the lock already decides how it is had.
    fn of(lease: Arc<Lease>, ttl: Duration) -> Self {
        let shares_a_key = |held: &Lease| held.manager().is(lease.manager()) && held.overlaps(&lease);
        if let Some(joinable) = reentry::find(|held| shares_a_key(held) && held.covers(&lease)) {
            Self::Inside(joinable, ttl)
        } else if reentry::find(shares_a_key).is_some() {
            Self::Refused(LockError::Reentrant { lock: lease.name().into() })
        } else {
            Self::Ready(lease)
        }
    }

    fn holding(level: Level) -> Self {
        let lease = Arc::clone(level.lease());
        let span = events::section(&lease);
        Self::Holding(Held { level: Arc::new(level), lease, span, lost: None })
    }
}

impl Held {
    fn poll(&self, body: &mut dyn Body, cx: &mut Context<'_>) -> Poll<()> {
        self.span.in_scope(|| reentry::within(&self.level, || body.poll(cx)))
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let lost = self.lost.get_or_insert_with(|| {
            let lease = Arc::clone(&self.lease);
            Box::pin(async move { lease.lost().await })
        });
        let ended = lost.as_mut().poll(cx);
        if ended.is_ready() {
            self.lost = None;
        }
        ended
    }
}

/// Joins a lease that the calling body holds. No command, unless the lease is shorter than this call asks for.
async fn join(joinable: Joinable, ttl: Duration, terms: Terms) -> Result<Level, LockError> {
    let lease = Arc::clone(joinable.lease());
    let mut level =
        joinable.join().await.ok_or_else(|| LockError::Reentrant { lock: lease.name().into() })?;
    let joined = Instant::now();
    if lease.remaining() < ttl {
        lease.extend(ttl).await?;
    }
    // Only now that the body will run.
    if let Some(least) = terms.hold_at_least {
        lease.hold_until(joined + least);
    }
    if let Some(policy) = terms.renew
        && let Some(renewal) = lease.renew(policy)
    {
        level.renew_with(renewal);
    }
    Ok(level)
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("site", self.0.site).finish_non_exhaustive()
    }
}

/// How a body is run.
pub trait Drive<B> {
    /// What the body returns.
    type Output;

    /// Whether it is dropped when its lease is lost.
    const CANCELS: bool;

    /// Polls it. When it has ended, nothing is left of it.
    fn poll(body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<Self::Output>;

    /// Drops it, if it can be dropped before the call ends.
    fn cancel(body: Pin<&mut B>);
}

/// `on_lost = continue`: to its end, whatever becomes of the lease.
#[derive(Debug)]
pub struct ToItsEnd;

/// `on_lost = cancel`: as long as the lease is believed.
#[derive(Debug)]
pub struct WhileHeld;

// An async block that has ended has dropped all that it had.
impl<F: Future> Drive<F> for ToItsEnd {
    type Output = F::Output;

    const CANCELS: bool = false;

    fn poll(body: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        body.poll(cx)
    }

    fn cancel(_: Pin<&mut F>) {}
}

impl<F: Future> Drive<Option<F>> for WhileHeld {
    type Output = F::Output;

    const CANCELS: bool = true;

    fn poll(body: Pin<&mut Option<F>>, cx: &mut Context<'_>) -> Poll<F::Output> {
        body.as_pin_mut().map_or(Poll::Pending, |running| running.poll(cx))
    }

    fn cancel(mut body: Pin<&mut Option<F>>) {
        body.set(None);
    }
}

/// `release = wait`: keeps the body's output while the release is awaited, so it is `Send` if the output is.
#[must_use = "futures do nothing unless polled"]
pub struct Run<'a, B, T, D> {
    call: &'a mut Call,
    body: Pin<&'a mut B>,
    output: Option<T>,
    /// Whether what the body returned counts as success.
    succeeded: fn(&T) -> bool,
    with: PhantomData<fn(D)>,
}

// The output is never pinned: it is moved in and out.
impl<B, T, D> Unpin for Run<'_, B, T, D> {}

impl<B, D: Drive<B>> Future for Run<'_, B, D::Output, D> {
    type Output = Result<D::Output, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.output.is_none() {
            let mut body = Driven::<B, D> { body: this.body.as_mut(), output: &mut this.output };
            let level = ready!(this.call.poll_body(&mut body, cx))?;
            this.call.judge(this.output.as_ref().is_some_and(this.succeeded), &level);
            this.call.release(level);
        }
        ready!(this.call.poll_release(cx));
        this.output.take().map_or(Poll::Pending, |output| Poll::Ready(Ok(output)))
    }
}

/// `release = background`: nothing is kept past the body's end, so it is `Send` exactly when the body is.
#[must_use = "futures do nothing unless polled"]
pub struct RunBackground<'a, B, T, D> {
    call: &'a mut Call,
    body: Pin<&'a mut B>,
    succeeded: fn(&T) -> bool,
    with: PhantomData<fn(D)>,
}

impl<B, D: Drive<B>> Future for RunBackground<'_, B, D::Output, D> {
    type Output = Result<D::Output, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut output = None;
        let mut body = Driven::<B, D> { body: this.body.as_mut(), output: &mut output };
        let level = ready!(this.call.poll_body(&mut body, cx))?;
        this.call.judge(output.as_ref().is_some_and(this.succeeded), &level);
        Call::release_unawaited(level);
        output.map_or(Poll::Pending, |output| Poll::Ready(Ok(output)))
    }
}

/// Gives the closure of `or_else` its argument's type before its body is looked at.
pub fn or_else<T>(answer: impl FnOnce(LockError) -> T, error: LockError) -> T {
    answer(error)
}
