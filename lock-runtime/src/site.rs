//! Where a lock is asked for: the static part of every event, metric and error.

use std::fmt;
use std::panic::Location;

/// A call site: the template of its key, and the function.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    template: &'static str,
    function: Function,
}

impl Site {
    /// The site of an annotated function.
    #[must_use]
    pub const fn new(template: &'static str, function: &'static str) -> Self {
        Self { template, function: Function::Path(function) }
    }

    /// The site of an acquisition by hand. Its key is no template, and would be too many label values for metrics.
    pub(crate) const fn by_hand(caller: &'static Location<'static>) -> Self {
        Self { template: "(by hand)", function: Function::Caller(caller) }
    }

    pub(crate) const fn template(&self) -> &'static str {
        self.template
    }

    pub(crate) const fn function(&self) -> Function {
        self.function
    }
}

/// The function that asks for a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Function {
    /// The path of an annotated function.
    Path(&'static str),
    /// Where `manager.lock(..)` was written.
    Caller(&'static Location<'static>),
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => f.write_str(path),
            Self::Caller(at) => write!(f, "{}:{}", at.file(), at.line()),
        }
    }
}
