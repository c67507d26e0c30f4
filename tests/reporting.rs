//! What is reported: events, spans and metrics, by the names that the documentation promises.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_runtime::{LockError, LockManager, redis_lock};
use metrics_util::CompositeKey;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tests::events::Recorder;
use tracing::Level;

#[redis_lock(key = "order:<id>", ttl = "10s", manager = locks, tag = "trace-9")]
async fn work(locks: &LockManager, id: u64, seconds: u64) -> Result<(), LockError> {
    tracing::info!("in the body");
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_release_is_a_debug_event_with_all_that_is_known() {
    let (events, _installed) = Recorder::install();
    let locks = LockManager::in_memory();
    work(&locks, 7, 2).await.unwrap();

    let event = events.wait_for(|event| event.message == "lock released").await;
    assert_eq!((event.level, &*event.target), (Level::DEBUG, "lock_runtime"));
    let fields: BTreeMap<_, _> = event.fields.iter().map(|(name, value)| (&**name, &**value)).collect();
    let token = fields["token"];
    assert!(token.ends_with(":trace-9"));
    let share: f64 = fields["share"].parse().unwrap();
    assert!((0.2..0.201).contains(&share));
    assert_eq!(
        fields,
        BTreeMap::from([
            ("key", "lock:order:7"),
            ("template", "order:<id>"),
            ("function", "reporting::work"),
            ("token", token),
            ("tag", "trace-9"),
            ("ttl_ms", "10000"),
            ("held_ms", fields["held_ms"]),
            ("share", fields["share"]),
            ("outcome", "released"),
        ])
    );
    assert!((2_000..2_010).contains(&fields["held_ms"].parse::<u64>().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_span_covers_the_locked_section_and_nothing_else() {
    let (events, _installed) = Recorder::install();
    let locks = LockManager::in_memory();
    work(&locks, 7, 2).await.unwrap();

    let inside = events.wait_for(|event| event.message == "in the body").await;
    let span = inside.span().expect("the body is in a span");
    assert_eq!((&*span.name, span.level), ("redis_lock", Level::INFO));
    assert_eq!(span.fields["key"], "lock:order:7");
    assert_eq!(span.fields["template"], "order:<id>");
    assert_eq!(span.fields["function"], "reporting::work");
    assert!(span.fields["token"].ends_with(":trace-9"));
    assert!(events.spans().iter().all(|span| span.closed));
    let outside = events.wait_for(|event| event.message == "lock released").await;
    assert!(outside.span().is_none());
}

/// A release that nobody awaits is reported like any other.
#[tokio::test(start_paused = true)]
async fn a_release_in_the_background_is_reported_too() {
    #[redis_lock(key = "order:<id>", ttl = "10s", manager = locks, release = background)]
    async fn quick(locks: &LockManager, id: u64, seconds: u64) -> Result<(), LockError> {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok(())
    }
    let (events, _installed) = Recorder::install();
    let locks = LockManager::in_memory();
    quick(&locks, 1, 1).await.unwrap();
    quick(&locks, 2, 11).await.unwrap();
    let outcome =
        |key: &str| events.for_key(key).events().last().map(|event| event.field("outcome").to_owned());
    assert_eq!(outcome("order:1").as_deref(), Some("released"));
    let of_two = events.for_key("order:2").events();
    assert!(of_two.iter().any(|event| event.level == Level::WARN && event.field("outcome") == "expired"));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_uses_most_of_its_ttl_is_told_so() {
    let (events, _installed) = Recorder::install();
    let locks = LockManager::in_memory();
    let tight = |events: &Recorder| {
        events
            .events()
            .into_iter()
            .filter(|event| event.level == Level::INFO && event.target == "lock_runtime")
            .collect::<Vec<_>>()
    };
    work(&locks, 7, 7).await.unwrap();
    assert!(tight(&events).is_empty(), "70 % is no news");
    work(&locks, 8, 9).await.unwrap();
    let said = tight(&events);
    assert_eq!(said.len(), 1);
    assert!(said[0].field("share").starts_with("0.9"), "{}", said[0]);
    assert_eq!(said[0].field("key"), "lock:order:8");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_not_held_at_its_release_is_a_warning() {
    let (events, _installed) = Recorder::install();
    let locks = LockManager::in_memory();
    work(&locks, 7, 11).await.unwrap();
    let event = events.wait_for(|event| event.level == Level::WARN).await;
    assert_eq!((event.field("outcome"), event.field("key")), ("expired", "lock:order:7"));
    assert_eq!(event.field("found"), "");

    let (_, next) = tokio::join!(work(&locks, 8, 12), async {
        tokio::time::sleep(Duration::from_secs(11)).await;
        locks.lock("order:8").ttl(Duration::from_secs(60)).acquire().await.unwrap()
    });
    let event = events.wait_for(|event| event.field("outcome") == "held_by_other").await;
    assert_eq!((event.level, event.field("found")), (Level::WARN, next.token()));
}

#[tokio::test(start_paused = true)]
async fn acquisitions_are_reported_by_outcome() {
    let (events, _installed) = Recorder::install();
    let locks = LockManager::in_memory();
    let held =
        locks.lock("order:7").ttl(Duration::from_secs(60)).wait(Duration::ZERO).acquire().await.unwrap();
    let error = work(&locks, 7, 0).await.unwrap_err();
    for part in ["lock:order:7", "order:<id>", "reporting::work"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!((error.key(), error.template()), (Some("lock:order:7"), Some("order:<id>")));
    assert_eq!(error.function().as_deref(), Some("reporting::work"));
    drop(held);
    let outcomes: Vec<_> = events
        .events()
        .iter()
        .filter(|event| event.fields.contains_key("wait_ms"))
        .map(|event| (event.level, event.field("outcome").to_owned()))
        .collect();
    assert_eq!(outcomes, [(Level::DEBUG, "granted".to_owned()), (Level::DEBUG, "busy".to_owned())]);
}

/// From the counters alone the rate of overruns can be read.
#[test]
fn metrics_are_labelled_by_template_and_function_and_never_by_key() {
    tests::events::keep_awake();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let locks = LockManager::in_memory();
            for id in 0..9 {
                work(&locks, id, 1).await.unwrap();
            }
            work(&locks, 9, 11).await.unwrap();
            let (_, busy) = tokio::join!(work(&locks, 1, 1), work(&locks, 1, 1));
            assert!(busy.unwrap_err().is_busy());
        });
    });
    let mut counters = BTreeMap::new();
    let mut histograms = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let (name, labels) = name_and_labels(&key);
        assert_eq!((&*labels["template"], &*labels["function"]), ("order:<id>", "reporting::work"));
        assert_eq!(labels.keys().collect::<Vec<_>>(), ["function", "outcome", "template"]);
        match value {
            DebugValue::Counter(count) => drop(counters.insert((name, labels["outcome"].clone()), count)),
            DebugValue::Histogram(values) => {
                drop(histograms.insert(
                    (name, labels["outcome"].clone()),
                    values.iter().map(|v| v.0).collect::<Vec<_>>(),
                ));
            }
            DebugValue::Gauge(_) => panic!("no gauge {name} is promised"),
        }
    }
    let count = |name: &str, outcome: &str| counters.get(&(name.to_owned(), outcome.to_owned())).copied();
    assert_eq!(count("redis_lock_acquisitions_total", "granted"), Some(11));
    assert_eq!(count("redis_lock_acquisitions_total", "busy"), Some(1));
    assert_eq!(count("redis_lock_releases_total", "released"), Some(10));
    assert_eq!(count("redis_lock_releases_total", "expired"), Some(1), "one overrun of eleven");
    let values = |name: &str, outcome: &str| &histograms[&(name.to_owned(), outcome.to_owned())];
    assert_eq!(values("redis_lock_wait_seconds", "granted").len(), 11);
    let near = |value: f64, expected: f64| (value - expected).abs() < 0.01;
    assert!(values("redis_lock_hold_seconds", "released").iter().all(|held| near(*held, 1.0)));
    assert!(values("redis_lock_ttl_share", "released").iter().all(|share| near(*share, 0.1)));
    assert!(near(values("redis_lock_ttl_share", "expired")[0], 1.1));
}

fn name_and_labels(key: &CompositeKey) -> (String, BTreeMap<String, String>) {
    let labels = key.key().labels().map(|label| (label.key().to_owned(), label.value().to_owned()));
    (key.key().name().to_owned(), labels.collect())
}
