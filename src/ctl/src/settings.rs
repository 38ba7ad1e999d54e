//! What those `ROCEBUD_…` variables say that several rooms read, and what to tell of a value that
//! means nothing: it counts as not set, but never in silence.

use std::ffi::{OsStr, OsString};

/// Who wants to read how much.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "said by their names")]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

/// A variable as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting<T> {
    /// Missing where the variable is not set, is empty, or means nothing.
    pub value: Option<T>,
    /// One line for people, where it means nothing.
    pub complaint: Option<String>,
}

/// `ROCEBUD_LOG`.
#[must_use]
pub fn log_level() -> Setting<LogLevel> {
    of_environment("ROCEBUD_LOG", "off, error, warn, info or debug", level)
}

/// `ROCEBUD_RCVBUF`: bytes of a receive buffer.
#[must_use]
pub fn receive_buffer() -> Setting<u32> {
    let bytes = |text: &str| text.parse().ok();
    let expected = "a number of bytes, digits only, at most 4294967295";
    of_environment("ROCEBUD_RCVBUF", expected, bytes)
}

/// `ROCEBUD_RING`: whether small packets may come past the sockets.
#[must_use]
pub fn ring() -> Setting<bool> {
    of_environment("ROCEBUD_RING", "on or off", |text| match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    })
}

fn level(text: &str) -> Option<LogLevel> {
    Some(match text {
        "off" => LogLevel::Off,
        "error" => LogLevel::Error,
        "warn" => LogLevel::Warn,
        "info" => LogLevel::Info,
        "debug" => LogLevel::Debug,
        _ => return None,
    })
}

fn of_environment<T>(name: &str, expected: &str, parse: impl Fn(&str) -> Option<T>) -> Setting<T> {
    understand(name, std::env::var_os(name), expected, parse)
}

fn understand<T>(
    name: &str,
    given: Option<OsString>,
    expected: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Setting<T> {
    let given = given.filter(|text| !text.is_empty());
    let value = given.as_deref().and_then(OsStr::to_str).and_then(parse);
    let bad = given.filter(|_| value.is_none());
    let complaint =
        bad.map(|text| format!("{name} is {text:?}, which counts as not set: it wants {expected}"));
    Setting { value, complaint }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(given: Option<&str>) -> Setting<LogLevel> {
        understand("ROCEBUD_LOG", given.map(Into::into), "a level", level)
    }

    #[test]
    fn what_is_not_set_or_empty_is_nobodys_mistake() {
        for given in [None, Some("")] {
            let setting = log(given);
            assert_eq!((setting.value, setting.complaint), (None, None));
        }
    }

    #[test]
    fn a_value_that_means_nothing_is_named_with_what_would() {
        for given in ["bogus", "WARN", "warn ", "2"] {
            let setting = log(Some(given));
            assert_eq!(setting.value, None);
            let said = setting.complaint.unwrap_or_default();
            assert!(
                said.contains(&format!("ROCEBUD_LOG is {given:?}")),
                "{said}"
            );
            assert!(said.ends_with("it wants a level"), "{said}");
        }
    }

    #[test]
    fn every_level_has_its_word_and_they_rise() {
        let words = ["off", "error", "warn", "info", "debug"];
        let levels = words.map(|word| log(Some(word)).value);
        assert!(levels.iter().all(Option::is_some));
        assert!(levels.is_sorted());
    }
}
