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

/// The smallest receive buffer, in bytes of kernel memory: in less, packets of the largest path MTU,
/// whose memory Linux counts generously, get through one by one or never.
pub const RECEIVE_BUFFER_MIN: u32 = 16 << 10;
/// The largest that Linux makes, in bytes: twice the most that it may be asked for.
pub const RECEIVE_BUFFER_MAX: u32 = 0x7fff_fffe;

/// `ROCEBUD_RCVBUF`: bytes of a receive buffer, [`RECEIVE_BUFFER_MIN`] to [`RECEIVE_BUFFER_MAX`].
#[must_use]
pub fn receive_buffer() -> Setting<u32> {
    of_environment(RCVBUF, &receive_buffer_expected(), receive_buffer_of)
}

const RCVBUF: &str = "ROCEBUD_RCVBUF";

fn receive_buffer_expected() -> String {
    format!("a number of bytes from {RECEIVE_BUFFER_MIN} to {RECEIVE_BUFFER_MAX}, digits only")
}

fn receive_buffer_of(text: &str) -> Option<u32> {
    let bytes = text.parse().ok()?;
    (RECEIVE_BUFFER_MIN..=RECEIVE_BUFFER_MAX)
        .contains(&bytes)
        .then_some(bytes)
}

/// What to tell where `ROCEBUD_RCVBUF` asks for more than the `has` bytes that its user may have.
#[must_use]
pub fn receive_buffer_is_less(has: u32) -> Option<String> {
    let wanted = receive_buffer().value?;
    // An odd number becomes the even one below it.
    (has < wanted - 1).then(|| {
        format!(
            "{RCVBUF} is \"{wanted}\", and receive buffers have {has} bytes, the most that this user \
             may have (sysctl net.core.rmem_max)"
        )
    })
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
    fn a_receive_buffer_is_at_least_what_works_and_at_most_what_linux_makes() {
        for (given, bytes) in [
            ("16384", Some(16384)),
            ("16383", None),
            ("1", None),
            ("0", None),
            ("2147483646", Some(2_147_483_646)),
            ("2147483647", None),
            ("4294967296", None),
            ("-16384", None),
            ("64M", None),
        ] {
            let given = Some(given.into());
            let expected = receive_buffer_expected();
            let setting = understand(RCVBUF, given, &expected, receive_buffer_of);
            assert_eq!(setting.value, bytes);
            assert_eq!(setting.complaint.is_some(), bytes.is_none());
        }
    }

    #[test]
    fn what_is_no_text_means_nothing() {
        use std::os::unix::ffi::OsStringExt as _;
        let given = OsString::from_vec(vec![b'w', 0xff]);
        let setting = understand("ROCEBUD_LOG", Some(given), "a level", level);
        assert_eq!(setting.value, None);
        assert!(
            setting
                .complaint
                .is_some_and(|said| said.contains("\"w\\xFF\""))
        );
    }

    #[test]
    fn every_level_has_its_word_and_they_rise() {
        let words = ["off", "error", "warn", "info", "debug"];
        let levels = words.map(|word| log(Some(word)).value);
        assert!(levels.iter().all(Option::is_some));
        assert!(levels.is_sorted());
    }
}
