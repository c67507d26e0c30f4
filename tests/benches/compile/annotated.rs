//! The three kinds of functions that are compared, and calls of them that nest.

use std::fmt::Write as _;
use std::path::Path;

use crate::cargo::{Package, member};

/// What stands above a function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Plain,
    Instrument,
    RedisLock,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Plain, Self::Instrument, Self::RedisLock];

    /// The name of its crate.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Instrument => "instrument",
            Self::RedisLock => "redis_lock",
        }
    }

    /// How it is called in a table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Instrument => "`instrument`",
            Self::RedisLock => "`redis_lock`",
        }
    }

    pub(crate) fn attribute(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Instrument => "#[tracing::instrument(skip_all)]",
            Self::RedisLock => r#"#[lock_runtime::redis_lock(key = "o:<id>", ttl = "30s")]"#,
        }
    }
}

/// A crate whose functions may carry any of the attributes. All have the same dependencies, so that one differs from
/// another in its attributes alone, and so that they share what was built of them.
pub(crate) fn package(root: &Path, name: &str) -> Package {
    let dependencies = format!(
        r#"{}
tokio = {{ version = "1", default-features = false, features = ["rt"] }}
tracing = {{ version = "0.1", default-features = false, features = ["attributes", "std"] }}"#,
        member("lock-runtime")
    );
    Package::new(root, name, &dependencies)
}

/// As many functions that call each other. The innermost is `level_1`, which awaits something that is no lock.
pub(crate) fn nest(kind: Kind, depth: usize) -> String {
    let mut source = String::new();
    for level in 1..=depth {
        let body = match level {
            1 => "tokio::task::yield_now().await; Ok(id)".to_owned(),
            _ => format!("level_{}(id).await", level - 1),
        };
        let _ = writeln!(
            source,
            "{}\nasync fn level_{level}(id: u64) -> Result<u64, lock_runtime::LockError> {{ {body} }}",
            kind.attribute()
        );
    }
    source
}
