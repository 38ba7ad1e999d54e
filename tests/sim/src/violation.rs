//! What a checker reports.

use core::fmt;

/// Who found it. Each checker is a module of its own and looks from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checker {
    /// Send completions: each request once, in order, with the right fields.
    Sends,
    /// Receive completions: each receive once, in order, matching what was sent.
    Receives,
    /// Memory equals the model.
    Bytes,
    /// Nothing written outside a region.
    Canaries,
    /// Atomics form one history.
    Atomics,
    /// What leaves on the wire.
    Wire,
    /// Asynchronous events.
    Events,
    /// Quiet in bounded time and steps.
    Quiet,
    /// A verbs call refused what it must take.
    Calls,
    /// The engine panicked.
    Panic,
}

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Who found it.
    pub checker: Checker,
    /// What was seen and what was expected.
    pub what: String,
}

impl Violation {
    /// A report of `checker`.
    pub fn new(checker: Checker, what: impl Into<String>) -> Self {
        Self {
            checker,
            what: what.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:?}] {}", self.checker, self.what)
    }
}

impl std::error::Error for Violation {}

/// What every check returns.
pub type Verdict<T = ()> = Result<T, Violation>;
