//! Running unmodified programs against each other, in namespaces made for the purpose.
//!
//! * [`runner`]: cases, skips that are counted and named, the closing line.
//! * [`netns`]: a host with only loopback, or two hosts on a wire (veth), removed on drop.
//! * [`program`]: a program with a time limit whose output is kept; two of them as a duo.
//! * [`tree`]: where the build is, the C programs of `tests/peer/c`, what the machine has.
//! * [`status`]: counters, from `rocebud status --json`.
//! * [`matrix`]: every program × option × address × place, from `tests/peer/matrix`.
//! * [`device`]: what `ibv_devinfo -v` says of a device.
//!
//! Nothing here knows the implementation: programs are started as `rocebud run -- PROGRAM`, and read
//! by their output and exit status.

pub mod device;
pub mod matrix;
pub mod netns;
pub mod program;
pub mod runner;
pub mod status;
pub mod tree;

/// What a case answers: nothing, or why it failed.
pub type Outcome = Result<(), Failure>;

/// Why a case did not pass.
#[derive(Debug)]
pub enum Failure {
    /// It ran and something was wrong.
    Wrong(String),
    /// The machine lacks something; the text names it.
    Skip(String),
}

impl<E: std::fmt::Display> From<E> for Failure {
    fn from(e: E) -> Self {
        Self::Wrong(e.to_string())
    }
}

impl Failure {
    /// The same, with more to read behind it.
    #[must_use]
    pub fn and(self, more: &str) -> Self {
        match self {
            Self::Wrong(why) => Self::Wrong(format!("{why}\n{more}")),
            Self::Skip(what) => Self::Skip(what),
        }
    }
}

/// A failure with a text.
pub fn wrong<T>(text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Wrong(text.into()))
}

/// Fails with `text()` unless `holds`.
///
/// # Errors
/// [`Failure::Wrong`] when it does not hold.
pub fn ensure(holds: bool, text: impl FnOnce() -> String) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err(Failure::Wrong(text()))
    }
}
