//! Errors that a person reads: one line, cause and remedy.

use std::fmt;

use rocebud_objects::Errno;
use serde::{Deserialize, Serialize};

use crate::limits::DAEMON_FILES_MIN;

/// What went wrong, for callers that act on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ErrorKind {
    /// No daemon answers and none could be started.
    NoDaemon,
    /// The daemon went away while we used it.
    Gone,
    /// UDP port 4791 is held by someone else.
    PortTaken,
    /// The daemon refuses this user or process.
    Denied,
    /// Library and daemon are of different versions.
    Version,
    /// A limit of the daemon is reached (slots, clients).
    Limit,
    /// The peer said something that does not follow the protocol.
    Malformed,
    /// The operating system refused.
    Os,
    /// This process or the system has no descriptor left.
    Descriptors,
}

/// Why the daemon could not be used: a kind for programs and a line for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CtlError {
    /// What went wrong.
    pub kind: ErrorKind,
    /// One line that names the cause and the remedy.
    pub message: String,
}

impl CtlError {
    /// An error of `kind` that reads `message`. Line breaks are taken out.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.contains(['\n', '\r']) {
            message = message.replace(['\n', '\r'], " ");
        }
        Self { kind, message }
    }

    /// An error of the operating system while doing `what`.
    pub fn os(what: &str, error: impl Into<std::io::Error>) -> Self {
        let error: std::io::Error = error.into();
        match no_descriptors(&error) {
            Some(why) => Self::new(ErrorKind::Descriptors, format!("{what}: {why}")),
            None => Self::new(ErrorKind::Os, format!("{what}: {error}")),
        }
    }

    /// The daemon's socket closed.
    pub fn gone() -> Self {
        Self::new(
            ErrorKind::Gone,
            "the rocebud daemon went away: start the program again (its devices are dead in this \
             process)",
        )
    }

    /// The errno that a verbs call gives for this.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self.kind {
            ErrorKind::NoDaemon => Errno::ENODEV,
            ErrorKind::Gone | ErrorKind::Malformed | ErrorKind::Os => Errno::EIO,
            ErrorKind::PortTaken => Errno::EADDRINUSE,
            ErrorKind::Denied => Errno::EACCES,
            ErrorKind::Version => Errno::EPROTONOSUPPORT,
            ErrorKind::Limit => Errno::ENOMEM,
            ErrorKind::Descriptors => Errno::EMFILE,
        }
    }
}

impl fmt::Display for CtlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CtlError {}

/// Whose limit of open files an error is about, and what to do; `None` for errors of another kind.
#[must_use]
pub fn no_descriptors(error: &std::io::Error) -> Option<String> {
    match error.raw_os_error().map(Errno) {
        Some(Errno::EMFILE) => Some(too_many_files()),
        Some(Errno::ENFILE) => Some(
            "the system has as many open files as it may (sysctl fs.file-max): end some programs, or raise it"
                .to_owned(),
        ),
        _ => None,
    }
}

/// For a process that has as many descriptors as it may.
pub(crate) fn too_many_files() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or_else(|| "not known".to_owned(), |limit| limit.to_string());
    format!(
        "this program's limit of open files is {limit}, and that many are open: beside its own, a program \
         needs about 20 for its first queue pair and 11 for each further 4096; raise the limit (`ulimit -n`)"
    )
}

/// A daemon cannot do with the limit that it inherits.
pub fn too_few_for_a_daemon() -> Result<(), CtlError> {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limits.maximum {
        Some(limit) if limit < DAEMON_FILES_MIN => Err(CtlError::new(
            ErrorKind::Descriptors,
            format!(
                "a rocebud daemon that starts here has this program's hard limit of open files, {limit}, and \
                 needs {DAEMON_FILES_MIN} at least: raise it (`ulimit -Hn`), or run `rocebud daemon` first \
                 where it is higher"
            ),
        )),
        _ => Ok(()),
    }
}
