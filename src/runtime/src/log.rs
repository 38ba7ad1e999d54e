//! Lines for people, on standard error. `ROCEBUD_LOG` = off, error, warn (default), info, debug.

use std::fmt;
use std::sync::OnceLock;

pub use rocebud_ctl::settings::LogLevel as Level;
use rocebud_ctl::settings::log_level;

/// The level asked for. Who asked for something else is told, once.
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let asked = log_level();
        if let Some(complaint) = asked.complaint {
            say(format_args!("{complaint}"));
        }
        asked.value.unwrap_or(Level::Warn)
    })
}

/// Writes a line if its level is asked for. Never fails, whatever standard error is.
pub fn line(at: Level, what: fmt::Arguments<'_>) {
    if at <= level() {
        say(what);
    }
}

/// The error line of who may have no more descriptors, or of a system that has none; other errors are not told.
pub fn shortage(what: &str, error: &std::io::Error) {
    if let Some(why) = rocebud_ctl::no_descriptors(error) {
        line(Level::Error, format_args!("{what}: {why}"));
    }
}

fn say(what: fmt::Arguments<'_>) {
    crate::sys::say(format!("rocebud: {what}\n").as_bytes());
}
