//! What was reported through `tracing`.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default, set_global_default};
use tracing::{Dispatch, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Scope};

use crate::feed::Feed;
use crate::{PATIENCE, lock};

/// The fields of an event or a span, as text.
pub type Fields = BTreeMap<String, String>;

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it was reported.
    pub at: Instant,
    /// How loud it is.
    pub level: Level,
    /// Which module, or which name of its own choice, reported it.
    pub target: String,
    /// Its message; empty if it has none.
    pub message: String,
    /// Its fields without the message.
    pub fields: Fields,
    /// The spans around it, the innermost last, with their fields at that moment.
    pub spans: Vec<Span>,
    /// The name of the thread that reported it.
    pub thread: String,
}

/// One span.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its name.
    pub name: String,
    /// How loud it is.
    pub level: Level,
    /// Which module, or which name of its own choice, opened it.
    pub target: String,
    /// Its fields, those recorded later too.
    pub fields: Fields,
    /// How often it was entered.
    pub entered: usize,
    /// Whether it has been closed.
    pub closed: bool,
}

impl Event {
    /// A field, or an empty string.
    #[must_use]
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// The innermost span around it.
    #[must_use]
    pub fn span(&self) -> Option<&Span> {
        self.spans.last()
    }

    // Whether the event, or a span around it, is about this key.
    fn is_about(&self, key: &str) -> bool {
        std::iter::once(&self.fields).chain(self.spans.iter().map(|span| &span.fields)).any(|f| about(f, key))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.level, self.target, self.message)?;
        for (name, value) in &self.fields {
            write!(f, " {name}={value}")?;
        }
        for span in self.spans.iter().rev() {
            write!(f, " in {}{:?}", span.name, span.fields)?;
        }
        Ok(())
    }
}

fn about(fields: &Fields, key: &str) -> bool {
    fields.get("key").is_some_and(|value| {
        value.strip_suffix(key).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with(':'))
    })
}

/// Collects events and spans.
#[derive(Clone)]
pub struct Recorder {
    captured: Arc<Captured>,
    key: Option<String>,
}

#[derive(Default)]
struct Captured {
    events: Feed<Event>,
    spans: Mutex<Vec<Span>>,
}

/// Keeps every event and span of this process worth asking about, whatever is installed where.
///
/// `tracing` remembers for each place in the code whether anyone wants it. A place that is met for the first time, on
/// a thread without a recorder, at the very moment at which another thread installs one, is remembered as unwanted
/// and never asked about again. With this called before, somebody always wants it.
pub fn keep_awake() {
    static AWAKE: OnceLock<Dispatch> = OnceLock::new();
    AWAKE.get_or_init(|| Dispatch::new(tracing_subscriber::registry()));
}

/// The recorder of the whole process, for what background threads report.
///
/// Tests that run side by side share it: see [`Recorder::for_key`]. On a thread where another recorder was
/// [installed](Recorder::install) that one hears of everything, and this one of nothing.
///
/// # Panics
///
/// If the test has set a global subscriber of its own.
#[must_use]
pub fn global() -> Recorder {
    static GLOBAL: OnceLock<Recorder> = OnceLock::new();
    keep_awake();
    GLOBAL
        .get_or_init(|| {
            let recorder = Recorder::new();
            set_global_default(recorder.subscriber())
                .expect("a test that uses events::global() must not set a global subscriber of its own");
            recorder
        })
        .clone()
}

impl Recorder {
    fn new() -> Self {
        Self { captured: Arc::default(), key: None }
    }

    /// A recorder for what this thread reports, until the guard is dropped.
    ///
    /// That is everything in a `#[tokio::test]` on its current-thread runtime; for more threads see [`global`].
    #[must_use]
    pub fn install() -> (Self, DefaultGuard) {
        keep_awake();
        let recorder = Self::new();
        let guard = set_default(recorder.subscriber());
        (recorder, guard)
    }

    /// A recorder for what runs under the given dispatch, as with `tracing::instrument::WithSubscriber`.
    #[must_use]
    pub fn detached() -> (Self, Dispatch) {
        keep_awake();
        let recorder = Self::new();
        let dispatch = Dispatch::new(recorder.subscriber());
        (recorder, dispatch)
    }

    fn subscriber(&self) -> impl Subscriber + Send + Sync + use<> {
        tracing_subscriber::registry().with(Capture(Arc::clone(&self.captured)))
    }

    /// The same recorder, that shows only what is about one key.
    ///
    /// That is an event whose field `key`, or that of a span around it, is `key`, or ends with `key` behind a `:`
    /// (so that the key's prefix may be left out).
    #[must_use]
    pub fn for_key(&self, key: &str) -> Self {
        Self { captured: Arc::clone(&self.captured), key: Some(key.into()) }
    }

    /// The events so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let mut events = self.captured.events.list();
        events.retain(|event| self.shows(event));
        events
    }

    /// The spans so far, closed or not, in the order in which they were opened.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let mut spans = lock(&self.captured.spans).clone();
        spans.retain(|span| self.key.as_ref().is_none_or(|key| about(&span.fields, key)));
        spans
    }

    /// The first event, captured already or to come, for which `wanted` holds.
    ///
    /// # Panics
    ///
    /// If none comes within [`PATIENCE`]; the message lists what came instead.
    #[track_caller]
    pub fn wait_for(&self, wanted: impl Fn(&Event) -> bool) -> impl Future<Output = Event> {
        self.wait_for_within(PATIENCE, wanted)
    }

    /// As [`wait_for`](Self::wait_for), with a deadline of its own.
    ///
    /// # Panics
    ///
    /// As [`wait_for`](Self::wait_for).
    #[track_caller]
    pub fn wait_for_within(
        &self,
        within: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> impl Future<Output = Event> {
        let caller = Location::caller();
        async move {
            let found = self.captured.events.find(within, |event| self.shows(event) && wanted(event)).await;
            found.unwrap_or_else(|| {
                let events: Vec<String> = self.events().iter().map(ToString::to_string).collect();
                panic!("{caller}: no such event within {within:?}, but {events:#?}")
            })
        }
    }

    fn shows(&self, event: &Event) -> bool {
        self.key.as_ref().is_none_or(|key| event.is_about(key))
    }
}

struct Capture(Arc<Captured>);

// Where the span of a registry is in our list.
struct Index(usize);

impl<S> Layer<S> for Capture
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let (name, level, target) = about_metadata(attributes.metadata());
        let mut fields = Fields::new();
        attributes.record(&mut Reader(&mut fields));
        let mut spans = lock(&self.0.spans);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Index(spans.len()));
            spans.push(Span { name, level, target, fields, entered: 0, closed: false });
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.change(id, &context, |span| values.record(&mut Reader(&mut span.fields)));
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.change(id, &context, |span| span.entered += 1);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.change(&id, &context, |span| span.closed = true);
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let (_, level, target) = about_metadata(event.metadata());
        let mut fields = Fields::new();
        event.record(&mut Reader(&mut fields));
        let message = fields.remove("message").unwrap_or_default();
        let spans = {
            let all = lock(&self.0.spans);
            let scope = context.event_scope(event).into_iter().flat_map(Scope::from_root);
            scope
                .filter_map(|span| span.extensions().get::<Index>().map(|index| all[index.0].clone()))
                .collect()
        };
        let thread = thread::current().name().unwrap_or_default().to_owned();
        self.0.events.push(Event { at: Instant::now(), level, target, message, fields, spans, thread });
    }
}

impl Capture {
    fn change<S>(&self, id: &Id, context: &Context<'_, S>, change: impl FnOnce(&mut Span))
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let index = context.span(id).and_then(|span| span.extensions().get::<Index>().map(|index| index.0));
        if let Some(index) = index {
            change(&mut lock(&self.0.spans)[index]);
        }
    }
}

fn about_metadata(metadata: &Metadata<'_>) -> (String, Level, String) {
    (metadata.name().into(), *metadata.level(), metadata.target().into())
}

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}"));
    }
}
