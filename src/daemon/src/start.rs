//! How a daemon comes to be: its name, the network namespace, the port, then the loop.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rocebud_ctl::{
    CtlError, ErrorKind, SYSTEM_SOCKET, SocketName, report_start, settings, too_few_for_a_daemon,
    user_socket_name,
};
use rustix::process::{Resource, Rlimit};

use crate::control::{self, Claim};
use crate::group::Group;
use crate::limits::PORT_WAIT;
use crate::netlink::Follower;
use crate::server::Server;
use crate::{holder, log, sys};

/// How to run.
#[derive(Debug, Default)]
pub struct Options {
    /// Where to listen. Default: [`SYSTEM_SOCKET`] for root in the foreground, else the user's
    /// abstract name.
    pub socket: Option<SocketName>,
    /// Started by a program: leave some seconds after the last client, and do not mind losing
    /// against another daemon that was started at the same time.
    pub auto: bool,
    /// Where the starter waits for word.
    pub status: Option<OwnedFd>,
    /// What the user must know of this start, as sentences: the starter and `rocebud status` tell.
    pub remarks: Vec<String>,
}

/// Runs the daemon until a signal, or (automatic) until nobody needs it.
pub fn run(options: Options) -> Result<(), CtlError> {
    let Options {
        socket,
        auto,
        status,
        mut remarks,
    } = options;
    prepare_process(auto);
    log::level();
    remarks.extend(settings::receive_buffer().complaint);
    remarks.extend(settings::ring().complaint);
    let name = socket.unwrap_or_else(|| default_name(auto));
    let started = start(&name, auto, remarks);
    if let Some(status) = status {
        let remarks = |server: &Option<Server>| match server {
            Some(server) => server.remarks.clone(),
            None => Vec::new(),
        };
        report_start(status, started.as_ref().map(remarks));
    }
    match started? {
        Some(mut server) => server.run(),
        None => Ok(()),
    }
}

fn default_name(auto: bool) -> SocketName {
    if !auto && rustix::process::geteuid().is_root() {
        SocketName::Path(SYSTEM_SOCKET.into())
    } else {
        user_socket_name()
    }
}

fn prepare_process(auto: bool) {
    sys::any_cpu();
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = rustix::process::setrlimit(Resource::Nofile, most);
    if auto {
        // Not to hold a file system busy that somebody wants to unmount.
        let _ = std::env::set_current_dir("/");
    }
}

/// Positions that the limit of open files allows, half of it left for clients.
fn positions_max() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile)
        .current
        .unwrap_or(u64::MAX);
    usize::try_from(limit / 4).unwrap_or(usize::MAX).max(2)
}

/// Takes the name, the namespace and the port. `None`: another daemon serves already, which is
/// fine for an automatic one.
fn start(
    name: &SocketName,
    auto: bool,
    mut remarks: Vec<String>,
) -> Result<Option<Server>, CtlError> {
    too_few_for_a_daemon()?;
    let listener = match control::claim(name)? {
        Claim::Won(listener) => listener,
        Claim::Taken if auto => return Ok(None),
        Claim::Taken => return Err(control::runs_already(name)),
    };
    let namespace = control::claim_namespace(PORT_WAIT)?;
    let group = take_port()?;
    remarks.extend(settings::receive_buffer_is_less(group.rcvbuf_bytes()));
    if !group.has_ipv6() {
        log::info("IPv6 is not available here: IPv4 only");
    }
    let (follower, everything) =
        Follower::start().map_err(|e| CtlError::os("asking the kernel for interfaces", e))?;
    let mut server = Server::new(listener, namespace, group, follower, name.clone(), auto)
        .map_err(|e| CtlError::os("setting up the daemon", e))?;
    server.picture = server.picture.replaced(&everything);
    server.refresh();
    for remark in &remarks {
        log::warn(remark);
    }
    server.remarks = remarks;
    log::info(&format!(
        "serves {} device(s) at {name}",
        server.devices.list().len()
    ));
    Ok(Some(server))
}

/// Takes UDP port 4791; waits a little for a daemon that is leaving.
fn take_port() -> Result<Group, CtlError> {
    let deadline = Instant::now() + PORT_WAIT;
    loop {
        match Group::take_port(positions_max()) {
            Ok(group) => return Ok(group),
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                if Instant::now() >= deadline {
                    return Err(holder::port_taken());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(CtlError::new(
                    ErrorKind::Denied,
                    format!(
                        "opening UDP port 4791 is not permitted here ({error}): allow sockets in \
                         this sandbox, or use a daemon outside of it through ROCEBUD_SOCKET"
                    ),
                ));
            }
            Err(error) => return Err(CtlError::os("opening UDP port 4791", error)),
        }
    }
}
