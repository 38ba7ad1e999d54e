//! `rocebud daemon`.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rocebud_ctl::SocketName;
use rocebud_daemon::Options;

use crate::args::DaemonArgs;
use crate::{Failure, sys, sysfs};

pub(crate) fn run(args: DaemonArgs) -> Result<(), Failure> {
    let status = args.status_fd.map(sys::inherited).transpose()?;
    let mut remarks = Vec::new();
    if args.auto
        && let Some(path) = std::env::var_os("ROCEBUD_DAEMON_LOG").filter(|p| !p.is_empty())
        && let Err(error) = log_to(Path::new(&path))
    {
        remarks.push(format!(
            "the daemon runs without a log: ROCEBUD_DAEMON_LOG names {}, which cannot be written \
             to ({error})",
            Path::new(&path).display()
        ));
    }
    rocebud_daemon::run(Options {
        socket: args.socket.as_deref().map(SocketName::parse),
        auto: args.auto,
        status,
        remarks,
    })?;
    // The last program of a session leaves its tree to nobody else.
    sysfs::sweep();
    Ok(())
}

/// A daemon that a program has started has nobody who reads its standard error.
fn log_to(path: &Path) -> std::io::Result<()> {
    // A FIFO that nobody reads must not stop the start.
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(flags.cast_signed())
        .open(path)?;
    Ok(rustix::stdio::dup2_stderr(file)?)
}
