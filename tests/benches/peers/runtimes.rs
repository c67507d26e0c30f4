//! The two kinds of tokio runtime on which everything is measured.

use tokio::runtime::Builder;

/// A kind of runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    CurrentThread,
    TwoWorkers,
}

impl Flavour {
    pub(crate) const BOTH: [Self; 2] = [Self::CurrentThread, Self::TwoWorkers];

    /// How it is called in the tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CurrentThread => "current-thread",
            Self::TwoWorkers => "2 workers",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|flavour| flavour.name() == name)
    }

    /// Awaits `work` on a new runtime of this kind, which ends with it.
    ///
    /// On the one with workers it runs on one of them: the thread that called is none, and wakes by other means.
    pub(crate) fn run<F>(self, work: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let built = match self {
            Self::CurrentThread => Builder::new_current_thread().enable_all().build(),
            Self::TwoWorkers => Builder::new_multi_thread().worker_threads(2).enable_all().build(),
        };
        let runtime = built.expect("a runtime is built");
        match self {
            Self::CurrentThread => runtime.block_on(work),
            Self::TwoWorkers => runtime
                .block_on(runtime.spawn(work))
                .unwrap_or_else(|error| panic!("a measurement failed: {error}")),
        }
    }
}
