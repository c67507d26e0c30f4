//! Errors: what they say, what they convert into, and what they cost.

use std::error::Error;
use std::time::Duration;

use lock_runtime::{
    FromLockError, KeyFault, LockError, LockManager, OptionFault, StoreErrorKind, redis_lock,
    set_global_manager,
};
use tests::process::Process;
use tests::{PATIENCE, free_port};

const TTL: Duration = Duration::from_secs(60);

/// A manager whose lock `order:7` someone else holds.
async fn busy() -> LockManager {
    let locks = LockManager::in_memory();
    let guard = locks.lock("order:7").ttl(TTL).acquire().await.unwrap();
    // For the rest of the test: there is no destructor to release it.
    std::mem::forget(guard);
    locks
}

#[test]
fn an_error_is_small_and_can_go_anywhere() {
    fn goes_anywhere<T: Error + Send + Sync + 'static>() {}
    goes_anywhere::<LockError>();
    assert!(size_of::<LockError>() <= 24, "{} bytes", size_of::<LockError>());
    // To return it costs no more than to have it.
    assert_eq!(size_of::<Result<(), LockError>>(), size_of::<LockError>());
}

mod conversions {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum AppError {
        #[error(transparent)]
        Lock(#[from] LockError),
        #[error("no number: {0}")]
        Parse(#[from] std::num::ParseIntError),
    }

    // The return types that code bases have; each body has an error of its own to convert as well.
    macro_rules! returning {
        ($($name:ident, $by_hand:ident: $ty:ty;)+) => {
            $(
                #[redis_lock(key = "order:<id>", ttl = "30s", manager = locks)]
                async fn $name(locks: &LockManager, id: u64, text: &str) -> $ty {
                    Ok(text.parse::<u64>()?)
                }

                async fn $by_hand(locks: &LockManager, id: u64) -> $ty {
                    let guard = locks.lock(format!("order:{id}")).ttl(TTL).acquire().await?;
                    guard.extend(TTL).await?;
                    Ok(id)
                }
            )+
        };
    }

    returning! {
        anyhow_result, anyhow_by_hand: anyhow::Result<u64>;
        boxed, boxed_by_hand: Result<u64, Box<dyn Error + Send + Sync>>;
        boxed_local, boxed_local_by_hand: Result<u64, Box<dyn Error>>;
        enumeration, enumeration_by_hand: Result<u64, AppError>;
    }

    /// Runs the four ways in which a call may end.
    macro_rules! ends {
        ($name:ident, $by_hand:ident, |$error:ident| $is_busy:expr) => {{
            let locks = busy().await;
            assert_eq!($name(&locks, 8, "12").await.unwrap(), 12);
            assert_eq!($by_hand(&locks, 8).await.unwrap(), 8);
            let own = $name(&locks, 8, "twelve").await.unwrap_err().to_string();
            assert!(own.ends_with("invalid digit found in string"), "{own}");
            for $error in [$name(&locks, 7, "12").await.unwrap_err(), $by_hand(&locks, 7).await.unwrap_err()]
            {
                assert!($is_busy, "{:?}", $error);
                assert!($error.to_string().starts_with("lock \"lock:order:7\" (template "), "{}", $error);
            }
        }};
    }

    fn is_busy(error: Option<&LockError>) -> bool {
        error.is_some_and(LockError::is_busy)
    }

    #[tokio::test]
    async fn into_anyhow() {
        ends!(anyhow_result, anyhow_by_hand, |error| is_busy(error.downcast_ref()));
    }

    #[tokio::test]
    async fn into_a_boxed_error() {
        ends!(boxed, boxed_by_hand, |error| is_busy(error.downcast_ref()));
        ends!(boxed_local, boxed_local_by_hand, |error| is_busy(error.downcast_ref()));
    }

    #[tokio::test]
    async fn into_an_enum() {
        ends!(
            enumeration,
            enumeration_by_hand,
            |error| matches!(&error, AppError::Lock(lock) if lock.is_busy())
        );
    }

    /// The value of a type that is no `Result`, and that is the caller's own.
    #[derive(Debug, PartialEq)]
    enum Reply<T> {
        Done(T),
        Busy(String),
        Failed(String),
    }

    impl<T> FromLockError for Reply<T> {
        fn from_lock_error(error: LockError) -> Self {
            match error.key() {
                Some(key) if error.is_busy() => Self::Busy(key.to_owned()),
                _ => Self::Failed(error.to_string()),
            }
        }
    }

    #[tokio::test]
    async fn into_a_type_that_says_how() {
        #[redis_lock(key = "order:<id>", ttl = ttl, manager = locks)]
        async fn pay(locks: &LockManager, id: u64, ttl: Duration) -> Reply<u64> {
            if id == 9 {
                return Reply::Failed("there is no order 9".to_owned());
            }
            Reply::Done(id)
        }
        let locks = busy().await;
        assert_eq!(pay(&locks, 8, TTL).await, Reply::Done(8));
        assert_eq!(pay(&locks, 9, TTL).await, Reply::Failed("there is no order 9".to_owned()));
        assert_eq!(pay(&locks, 7, TTL).await, Reply::Busy("lock:order:7".to_owned()));
        let Reply::Failed(message) = pay(&locks, 8, Duration::ZERO).await else {
            panic!("no lease of no time")
        };
        assert!(message.contains("`ttl` must be at least 10 ms"), "{message}");
    }
}

mod messages {
    use super::*;

    #[redis_lock(key = "order:<id>", ttl = ttl)]
    async fn pay(id: &str, ttl: Duration) -> Result<(), LockError> {
        Ok(())
    }

    /// How every message about the lock of [`pay`] begins.
    const PAY: &str = "lock \"lock:order:7\" (template \"order:<id>\", function errors::messages::pay) ";

    /// What an error about the lock of [`pay`] says behind the lock's names, which it must all have.
    #[track_caller]
    fn of_pay(error: &LockError) -> String {
        assert_eq!(error.key(), Some("lock:order:7"));
        assert_eq!(error.template(), Some("order:<id>"));
        assert_eq!(error.function().as_deref(), Some("errors::messages::pay"));
        let message = error.to_string();
        let rest =
            message.strip_prefix(PAY).unwrap_or_else(|| panic!("{message:?} does not begin with {PAY:?}"));
        rest.to_owned()
    }

    /// A number of milliseconds, which may be any, taken out of a message.
    fn without_time(message: &str) -> String {
        message.replace(|c: char| c.is_ascii_digit(), "")
    }

    #[tokio::test]
    async fn busy_says_how_long_it_waited() {
        let locks = busy().await;
        let error = locks.scope(pay("7", TTL)).await.unwrap_err();
        assert!(error.is_busy() && !error.is_unavailable());
        let LockError::Busy { waited, .. } = &error else { panic!("{error}") };
        let waited = format!("is held by someone else (waited {} ms)", waited.as_millis());
        assert_eq!(of_pay(&error), waited);
    }

    #[tokio::test]
    async fn unavailable_says_what_the_store_answered() {
        let locks = LockManager::in_memory();
        locks.shutdown(PATIENCE).await.unwrap();
        let error = locks.scope(pay("7", TTL)).await.unwrap_err();
        assert!(error.is_unavailable() && !error.is_busy());
        let told = "this manager has been shut down and gives no more locks";
        assert_eq!(of_pay(&error), format!("could not be asked for: {told}"));
        let LockError::Unavailable { cause, .. } = &error else { panic!("{error}") };
        assert_eq!((cause.kind(), &*cause.to_string()), (StoreErrorKind::ShutDown, told));
    }

    #[tokio::test(start_paused = true)]
    async fn lost_says_after_how_long() {
        #[redis_lock(key = "order:<id>", ttl = "30s", guard = lock)]
        async fn slow(id: u64) -> Result<(), LockError> {
            tokio::time::sleep(Duration::from_secs(40)).await;
            lock.extend(TTL).await
        }
        let error = LockManager::in_memory().scope(slow(7)).await.unwrap_err();
        let LockError::Lost { held, .. } = &error else { panic!("{error}") };
        assert!(**held >= Duration::from_secs(40));
        assert_eq!(
            without_time(&error.to_string()),
            "lock \"lock:order:\" (template \"order:<id>\", function errors::messages::slow) was lost after  ms"
        );
        assert_eq!((error.key(), error.template()), (Some("lock:order:7"), Some("order:<id>")));
    }

    #[tokio::test]
    async fn invalid_key_says_what_is_wrong_with_it() {
        let error = LockManager::in_memory().scope(pay("", TTL)).await.unwrap_err();
        let LockError::InvalidKey { fault, .. } = &error else { panic!("{error}") };
        assert_eq!(**fault, KeyFault::EmptyPlace("id"));
        assert_eq!(error.key(), Some("lock:order:"));
        assert_eq!(
            error.to_string(),
            "lock \"lock:order:\" (template \"order:<id>\", function errors::messages::pay) has no valid key: \
             <id> rendered to an empty string"
        );
    }

    #[tokio::test]
    async fn invalid_option_says_which_and_what_it_must_be() {
        let locks = LockManager::in_memory();
        let years = |n: u64| Duration::from_secs(n * 365 * 86_400);
        for (ttl, expected, told) in [
            (Duration::from_micros(9_999), OptionFault::TtlTooShort, "`ttl` must be at least 10 ms"),
            (years(10) + Duration::from_nanos(1), OptionFault::TtlTooLong, "`ttl` must be at most 10 years"),
            (Duration::MAX, OptionFault::TtlTooLong, "`ttl` must be at most 10 years"),
        ] {
            let error = locks.scope(pay("7", ttl)).await.unwrap_err();
            let LockError::InvalidOption { fault, .. } = &error else { panic!("{error}") };
            assert_eq!(*fault, expected);
            assert_eq!(of_pay(&error), format!("was asked for with an invalid option: {told}"));
        }
        locks.scope(pay("7", Duration::from_millis(10))).await.unwrap();
        locks.scope(pay("7", years(10))).await.unwrap();
    }

    /// A body that has lost its lease cannot let another one in on it.
    #[tokio::test(start_paused = true)]
    async fn reentrant_is_not_busy() {
        #[redis_lock(key = "order:<id>", ttl = "30s")]
        async fn outer(id: u64) -> Result<(), LockError> {
            tokio::time::sleep(Duration::from_secs(40)).await;
            pay("7", TTL).await
        }
        let error = LockManager::in_memory().scope(outer(7)).await.unwrap_err();
        assert!(matches!(error, LockError::Reentrant { .. }), "{error}");
        assert!(!error.is_busy() && !error.is_unavailable());
        assert_eq!(of_pay(&error), "is held by this very call already and cannot be joined");
    }

    /// The prefix is the manager's, and there is none.
    #[tokio::test]
    async fn not_configured_shows_the_line_to_write() {
        let error = pay("7", TTL).await.unwrap_err();
        assert!(matches!(error, LockError::NotConfigured { .. }), "{error}");
        assert_eq!(error.key(), Some("order:7"));
        assert_eq!(
            error.to_string(),
            "lock \"order:7\" (template \"order:<id>\", function errors::messages::pay) was asked for, but no lock \
             manager is installed: call `lock_runtime::set_global_manager(lock_runtime::LockManager::connect(\
             \"redis://…\").await?)?` once at start-up, or name one with `manager = …`"
        );
    }

    /// Both are about no lock in particular.
    #[tokio::test]
    async fn set_up_errors_name_no_lock() {
        let url = format!("redis://svc:hunter2@127.0.0.1:{}", free_port());
        let error = LockManager::connect(&url).await.unwrap_err();
        let LockError::Connect { cause, .. } = &error else { panic!("{error}") };
        assert_eq!(cause.kind(), StoreErrorKind::Connection);
        let message = error.to_string();
        let address = url.split_once('@').expect("a URL with a password").1;
        assert!(message.starts_with(&format!("the lock store cannot be used: {address}: ")), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
        assert_eq!((error.key(), error.template(), error.function()), (None, None, None));

        let error = LockManager::connect("http://127.0.0.1").await.unwrap_err();
        let LockError::Connect { cause, .. } = &error else { panic!("{error}") };
        assert_eq!(cause.kind(), StoreErrorKind::Configuration);
        assert!(error.to_string().contains("write redis://host:6379"), "{error}");
    }

    #[tokio::test]
    async fn by_hand_the_place_in_the_source_is_named() {
        let locks = busy().await;
        let place = |line: u32| format!("{}:{line}", file!());

        let (call, line) = (locks.lock("order:7").ttl(TTL).acquire(), line!());
        let error = call.await.unwrap_err();
        assert_eq!(error.key(), Some("lock:order:7"));
        assert_eq!(error.template(), Some("(by hand)"));
        assert_eq!(error.function(), Some(place(line)));
        let names =
            format!("lock \"lock:order:7\" (template \"(by hand)\", function {}) is held", place(line));
        assert!(error.to_string().starts_with(&names), "{error}");

        let (call, line) = (locks.lock("order:8").acquire(), line!());
        let error = call.await.unwrap_err();
        assert!(matches!(error, LockError::InvalidOption { fault: OptionFault::TtlMissing, .. }), "{error}");
        assert_eq!(error.function(), Some(place(line)));
        assert!(
            error.to_string().contains("write `.ttl(Duration::from_secs(30))` before `.acquire()`"),
            "{error}"
        );

        for (key, expected, told) in [
            (String::new(), KeyFault::Empty, "the key is empty"),
            ("n".repeat(1025), KeyFault::TooLong, "the key is longer than 1024 bytes"),
        ] {
            let error = locks.lock(key).ttl(TTL).acquire().await.unwrap_err();
            let LockError::InvalidKey { fault, .. } = &error else { panic!("{error}") };
            assert_eq!(**fault, expected);
            assert!(error.to_string().ends_with(told), "{error}");
        }
    }

    const CHILD: &str = "ERRORS_CHILD";

    /// The child's part of the next test, because one process has one global manager; nothing to do in the parent.
    #[test]
    fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let install = || set_global_manager(LockManager::in_memory());
        install().unwrap();
        let error = install().unwrap_err();
        assert!(matches!(error, LockError::AlreadyConfigured), "{error}");
        assert_eq!((error.key(), error.template(), error.function()), (None, None, None));
        println!("told: {error}");
    }

    #[tokio::test]
    async fn already_configured_names_no_lock() {
        let child = Process::of_this_test("messages::child", &[(CHILD, "1")]);
        let told = child.wait_for_line("told: ").await;
        assert!(told.ends_with("told: a global lock manager is installed already"), "{told}");
        assert!(child.wait(PATIENCE).await.success());
    }
}
