//! The control socket's name: who gets it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rocebud_ctl::{CtlError, ErrorKind, SocketName, control_socket, fds};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

/// A name held; it is given up when this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    name: SocketName,
    _lock: Option<File>,
}

/// What came of asking for a name.
#[derive(Debug)]
pub(crate) enum Claim {
    Won(Listener),
    /// Another daemon has it.
    Taken,
}

/// Binds and listens. Of any number of daemons that ask for a name, one gets it.
pub(crate) fn claim(name: &SocketName) -> Result<Claim, CtlError> {
    let lock = match name {
        SocketName::Abstract(_) => None,
        SocketName::Path(path) => match lock_path(path)? {
            Some(lock) => Some(lock),
            None => return Ok(Claim::Taken),
        },
    };
    let socket = control_socket()?;
    let named = |error| CtlError::os(&format!("listening at {name}"), error);
    match rustix::net::bind(&socket, &name.address()?) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Ok(Claim::Taken),
        Err(error) => return Err(named(error)),
    }
    if let SocketName::Path(path) = name {
        // Who may use the daemon is decided by credentials, not by the mode.
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::chmod(path, mode).map_err(named)?;
    }
    rustix::net::listen(&socket, BACKLOG).map_err(named)?;
    rustix::fs::fcntl_setfl(&socket, OFlags::NONBLOCK).map_err(named)?;
    Ok(Claim::Won(Listener {
        socket,
        name: name.clone(),
        _lock: lock,
    }))
}

/// Makes the directory and takes the lock beside the socket; with it in hand a socket file that
/// lies there is a dead daemon's. `None` if a daemon holds the lock.
fn lock_path(path: &Path) -> Result<Option<File>, CtlError> {
    let describe = |error: std::io::Error| {
        CtlError::os(
            &format!("preparing the control socket {}", path.display()),
            error,
        )
    };
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).map_err(describe)?;
    }
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(0o600);
    let file = rustix::fs::open(&lock, flags, mode).map_err(|e| describe(e.into()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(describe(error.into())),
    }
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(describe(error)),
    }
    Ok(Some(file.into()))
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let SocketName::Path(path) = &self.name {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Who runs already at `name`, for the message.
pub(crate) fn runs_already(name: &SocketName) -> CtlError {
    let who = holder(name).map_or_else(String::new, |(pid, uid)| {
        format!(" (process {pid}, user {uid})")
    });
    CtlError::new(
        ErrorKind::PortTaken,
        format!(
            "a rocebud daemon{who} listens at {name} already: use it, stop it, or give another \
             --socket in another network namespace"
        ),
    )
}

/// `None` too if the queue of `name` is full: a holder that is stopped takes nobody from it, and a connect
/// that waits for room would wait for ever.
fn holder(name: &SocketName) -> Option<(u32, u32)> {
    let socket = control_socket().ok()?;
    rustix::io::ioctl_fionbio(&socket, true).ok()?;
    rustix::net::connect(&socket, &name.address().ok()?).ok()?;
    let ids = fds::peer_ids(&socket).ok()?;
    Some((ids.pid, ids.uid))
}

/// The right to be this network namespace's daemon, whatever its socket is called: two daemons of
/// one user would share the port's group and both count its positions wrong. Waits a little for
/// one that is leaving, and asks one that nobody uses to leave.
pub(crate) fn claim_namespace(wait: Duration) -> Result<OwnedFd, CtlError> {
    let name = SocketName::Abstract(NAMESPACE_LOCK.to_owned());
    let deadline = Instant::now() + wait;
    let mut wished = false;
    loop {
        let socket = control_socket()?;
        match rustix::net::bind(&socket, &name.address()?) {
            Ok(()) => {
                // Listening lets others learn who has it, and wish for it.
                let _ = rustix::net::listen(&socket, BACKLOG);
                let _ = rustix::fs::fcntl_setfl(&socket, OFlags::NONBLOCK);
                return Ok(socket);
            }
            Err(Errno::ADDRINUSE) if Instant::now() < deadline => {
                wished = wished || wish(&name);
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::ADDRINUSE) => return Err(namespace_taken(&name)),
            Err(error) => return Err(CtlError::os("claiming the network namespace", error)),
        }
    }
}

/// Tells the holder of the namespace that another daemon would like to serve. A wish shows by the name that
/// its socket is bound to: whoever connects without one only asks who the holder is. Returns whether it
/// was told; one that is stopped may not take it.
fn wish(lock: &SocketName) -> bool {
    let name = SocketName::Abstract(format!("{WISH}{}", std::process::id()));
    let told = || -> Option<()> {
        let socket = control_socket().ok()?;
        rustix::io::ioctl_fionbio(&socket, true).ok()?;
        rustix::net::bind(&socket, &name.address().ok()?).ok()?;
        rustix::net::connect(&socket, &lock.address().ok()?).ok()
    };
    told().is_some()
}

/// For the holder of the namespace: takes who asked, a bounded number, and tells whether one of them wished
/// to be holder.
pub(crate) fn wishes(namespace: &OwnedFd) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let mut wished = false;
    for _ in 0..BACKLOG {
        let Ok((_asker, address)) = rustix::net::acceptfrom_with(namespace, flags) else {
            break;
        };
        let address = address.and_then(|address| SocketAddrUnix::try_from(address).ok());
        let name = address.as_ref().and_then(SocketAddrUnix::abstract_name);
        wished |= name.is_some_and(|name| name.starts_with(WISH.as_bytes()));
    }
    wished
}

/// Process and user of the daemon of this network namespace, for those who cannot connect to it.
#[must_use]
pub fn holder_of_namespace() -> Option<(u32, u32)> {
    holder(&SocketName::Abstract(NAMESPACE_LOCK.to_owned())).or_else(|| {
        let holder = crate::holder::find(Path::new("/proc"));
        let (pid, command) = holder.process?;
        command.starts_with("rocebud").then_some(())?;
        Some((pid, holder.uid?))
    })
}

fn namespace_taken(name: &SocketName) -> CtlError {
    let Some((pid, uid)) = holder(name) else {
        return crate::holder::port_taken();
    };
    let holder = crate::holder::Holder {
        uid: Some(uid),
        process: Some((pid, crate::holder::command(Path::new("/proc"), pid))),
        rxe_loaded: false,
    };
    CtlError::new(ErrorKind::PortTaken, crate::holder::describe(&holder))
}

const NAMESPACE_LOCK: &str = "rocebud-port-4791";
/// What the name of a socket that wishes for the lock begins with; the process follows.
const WISH: &str = "rocebud-wish-4791-";
const BACKLOG: i32 = 128;
