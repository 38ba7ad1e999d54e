//! `rocebud daemon`.

use rocebud_ctl::SocketName;
use rocebud_daemon::Options;

use crate::args::DaemonArgs;
use crate::{Failure, sys, sysfs};

pub(crate) fn run(args: DaemonArgs) -> Result<(), Failure> {
    let status = args.status_fd.map(sys::inherited).transpose()?;
    rocebud_daemon::run(Options {
        socket: args.socket.as_deref().map(SocketName::parse),
        auto: args.auto,
        status,
    })?;
    // The last program of a session leaves its tree to nobody else.
    sysfs::sweep();
    Ok(())
}
