//! What can go wrong before a cell can be judged.

/// One line: what is missing or who does not answer, and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error(pub String);

/// Shorthand of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Fails with a text.
pub fn fail<T>(text: impl Into<String>) -> Result<T> {
    Err(Error(text.into()))
}

/// Says what was being done when the system refused.
pub trait Doing<T> {
    /// `what` in words that fit before a colon.
    ///
    /// # Errors
    /// The same, with the words.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::fmt::Display> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error(format!("{}: {e}", what())))
    }
}
