//! Lines for whoever runs the daemon, on stderr. `ROCEBUD_LOG=off|error|warn|info|debug` says how
//! many; info unless set.

use std::io::Write;
use std::sync::OnceLock;

use rocebud_ctl::settings::{LogLevel, log_level};

pub(crate) fn warn(text: &str) {
    line(LogLevel::Warn, text);
}

pub(crate) fn info(text: &str) {
    line(LogLevel::Info, text);
}

pub(crate) fn debug(text: &str) {
    line(LogLevel::Debug, text);
}

/// The level asked for. Who asked for something else is told, once.
pub(crate) fn level() -> LogLevel {
    static LEVEL: OnceLock<LogLevel> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let asked = log_level();
        if let Some(complaint) = asked.complaint {
            say(&complaint);
        }
        asked.value.unwrap_or(LogLevel::Info)
    })
}

fn line(at: LogLevel, text: &str) {
    if at <= level() {
        say(text);
    }
}

fn say(text: &str) {
    // Nobody to tell is no reason to fail.
    let _ = writeln!(std::io::stderr(), "rocebud daemon: {text}");
}
