//! Lines for people, on standard error. `ROCEBUD_LOG` = off, error, warn (default), info, debug.

use std::fmt;
use std::sync::OnceLock;

/// How important a line is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "said by their names")]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

/// The level asked for.
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("ROCEBUD_LOG").as_deref() {
        Ok("off") => Level::Off,
        Ok("error") => Level::Error,
        Ok("info") => Level::Info,
        Ok("debug") => Level::Debug,
        _ => Level::Warn,
    })
}

/// Writes a line if its level is asked for. Never fails, whatever standard error is.
pub fn line(at: Level, what: fmt::Arguments<'_>) {
    if at <= level() {
        crate::sys::say(format!("rocebud: {what}\n").as_bytes());
    }
}
