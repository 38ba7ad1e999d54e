//! `rocebud daemon`.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rocebud_ctl::SocketName;
use rocebud_daemon::Options;

use crate::args::DaemonArgs;
use crate::{Failure, sys, sysfs};

pub(crate) fn run(args: DaemonArgs) -> Result<(), Failure> {
    let status = args.status_fd.map(sys::inherited).transpose()?;
    if args.auto
        && let Some(path) = std::env::var_os("ROCEBUD_DAEMON_LOG").filter(|p| !p.is_empty())
    {
        log_to(Path::new(&path));
    }
    rocebud_daemon::run(Options {
        socket: args.socket.as_deref().map(SocketName::parse),
        auto: args.auto,
        status,
    })?;
    // The last program of a session leaves its tree to nobody else.
    sysfs::sweep();
    Ok(())
}

/// A daemon that a program has started has nobody who reads its standard error. Where the file
/// cannot be had it runs without.
fn log_to(path: &Path) {
    // A FIFO that nobody reads must not stop the start.
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(flags.cast_signed())
        .open(path);
    let _ = file.map(rustix::stdio::dup2_stderr);
}
