//! Starting a daemon from inside somebody else's program.
//!
//! The program may have many threads, its own children and its own SIGCHLD handler; none of that
//! may notice. `sys.rs` holds the part that runs between clone and exec.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

mod sys;

use crate::error::{CtlError, ErrorKind};
use crate::fds;

/// The descriptor on which a started daemon reports.
pub(crate) const STATUS_FD: i32 = 3;

/// Finds the program: `$ROCEBUD_DAEMON`, else `../bin/rocebud` seen from the library, else beside
/// it, else the same seen from the executable.
pub(crate) fn find_program() -> Result<PathBuf, CtlError> {
    if let Some(given) = fds::secure_env(c"ROCEBUD_DAEMON") {
        let path = PathBuf::from(given);
        return if path.is_file() {
            Ok(std::path::absolute(&path).unwrap_or(path))
        } else {
            Err(CtlError::new(
                ErrorKind::NoDaemon,
                format!("ROCEBUD_DAEMON names {}, which is no file", path.display()),
            ))
        };
    }
    let candidates = candidates();
    candidates.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let looked = candidates.iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
        CtlError::new(
            ErrorKind::NoDaemon,
            format!(
                "no rocebud daemon runs in this network namespace and its program was not found \
                 (looked for {}): run `rocebud daemon` or set ROCEBUD_DAEMON",
                looked.join(", ")
            ),
        )
    })
}

fn candidates() -> Vec<PathBuf> {
    let real = |path: PathBuf| std::fs::canonicalize(&path).ok();
    let library = fds::own_object().and_then(real);
    let program = std::env::current_exe().ok();
    let mut found = Vec::new();
    for object in [library, program].into_iter().flatten() {
        let Some(dir) = object.parent() else { continue };
        if let Some(prefix) = dir.parent() {
            found.push(prefix.join("bin/rocebud"));
        }
        found.push(dir.join("rocebud"));
    }
    found.dedup();
    found
}

/// Starts `program daemon --auto`, detached from this process in every way. Returns when it has
/// been exec'd or could not be; the daemon then reports on the other end of `status`.
pub(crate) fn spawn_daemon(program: &Path, status: &OwnedFd) -> io::Result<()> {
    let path = c_string(program.as_os_str())?;
    let fd = STATUS_FD.to_string();
    let args = ["rocebud", "daemon", "--auto", "--status-fd", &fd];
    let args = args
        .iter()
        .map(|a| c_string(OsStr::new(a)))
        .collect::<io::Result<Vec<_>>>()?;
    let env = kept_environment()
        .iter()
        .map(|e| c_string(e))
        .collect::<io::Result<Vec<_>>>()?;
    sys::spawn_detached(&path, &args, &env, status)
}

/// The daemon sees our own variables and a path, and nothing that loads code into it.
fn kept_environment() -> Vec<OsString> {
    let keep = |name: &OsStr| {
        let own = name.as_bytes().starts_with(b"ROCEBUD_") && name != "ROCEBUD_SYSFS";
        // A program with rights that its user lacks writes to no file of that user's choice.
        let own = own
            && (name != "ROCEBUD_DAEMON_LOG" || fds::secure_env(c"ROCEBUD_DAEMON_LOG").is_some());
        // The runtime directory holds trees of `rocebud run` that are left to the daemon to remove.
        own || name == "PATH" || name == "RUST_BACKTRACE" || name == "XDG_RUNTIME_DIR"
    };
    let pair = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        name
    };
    std::env::vars_os()
        .filter(|(name, _)| keep(name))
        .map(pair)
        .collect()
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
