//! Lines for whoever runs the daemon, on stderr. `ROCEBUD_LOG=off|error|warn|info|debug` says how
//! many; info unless set.

use std::io::Write;
use std::sync::OnceLock;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Off,
    Warn,
    Info,
    Debug,
}

pub(crate) fn warn(text: &str) {
    line(Level::Warn, text);
}

pub(crate) fn info(text: &str) {
    line(Level::Info, text);
}

pub(crate) fn debug(text: &str) {
    line(Level::Debug, text);
}

fn line(level: Level, text: &str) {
    static MOST: OnceLock<Level> = OnceLock::new();
    let most = MOST.get_or_init(|| match std::env::var("ROCEBUD_LOG").as_deref() {
        Ok("off" | "error") => Level::Off,
        Ok("warn") => Level::Warn,
        Ok("debug") => Level::Debug,
        _ => Level::Info,
    });
    if level <= *most {
        // Nobody to tell is no reason to fail.
        let _ = writeln!(std::io::stderr(), "rocebud daemon: {text}");
    }
}
