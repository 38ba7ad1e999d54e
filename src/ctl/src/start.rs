//! Finding the daemon of this network namespace, or starting one.

use std::fmt;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod listed;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::channel::wait_readable;
use crate::client::silent;
use crate::error::{CtlError, ErrorKind, too_few_for_a_daemon};
use crate::limits::{BUSY_WAIT, GREETING_WAIT, START_WAIT, STRANGER_WAIT};
use crate::messages::{self, Role};
use crate::{Client, fds, spawn};

/// Where a system's daemon listens.
pub const SYSTEM_SOCKET: &str = "/run/rocebud/control";

/// Name of a control socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SocketName {
    /// In the file system.
    Path(PathBuf),
    /// Abstract: lives in the network namespace, needs no directory. Written `@name`.
    Abstract(String),
}

impl SocketName {
    /// From what a user writes.
    #[must_use]
    pub fn parse(text: &std::ffi::OsStr) -> Self {
        match text.to_str().and_then(|t| t.strip_prefix('@')) {
            Some(name) => Self::Abstract(name.to_owned()),
            None => Self::Path(text.into()),
        }
    }

    /// As a socket address.
    pub fn address(&self) -> Result<SocketAddrUnix, CtlError> {
        let address = match self {
            Self::Path(path) => SocketAddrUnix::new(path.as_path()),
            // The kernel would choose a name, which nobody could know.
            Self::Abstract(name) if name.is_empty() => Err(Errno::INVAL),
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        };
        address.map_err(|error| {
            CtlError::new(
                ErrorKind::Os,
                match error {
                    Errno::NAMETOOLONG => format!("socket name {self}: at most 107 bytes fit"),
                    _ => format!("{self} is no socket name: give a path, or @NAME"),
                },
            )
        })
    }

    /// Says from where a relative path was looked for; each program has a directory of its own.
    fn seen_from(&self) -> String {
        match (self, std::env::current_dir()) {
            (Self::Path(path), Ok(here)) if path.is_relative() => {
                format!(" (seen from {})", here.display())
            }
            _ => String::new(),
        }
    }

    /// The system's.
    pub(crate) fn is_system(&self) -> bool {
        *self == Self::Path(SYSTEM_SOCKET.into())
    }

    /// Whether somebody with `uid` may be our daemon there: root, ourselves, or whoever owns the
    /// socket file (only an administrator can have put one into /run, and a name in
    /// ROCEBUD_SOCKET was the user's choice).
    fn trusts(&self, uid: u32) -> bool {
        let owner = match self {
            Self::Path(path) => rustix::fs::stat(path).ok().map(|stat| stat.st_uid),
            Self::Abstract(_) => None,
        };
        uid == 0 || uid == rustix::process::geteuid().as_raw() || owner == Some(uid)
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Abstract(name) => write!(f, "@{name}"),
        }
    }
}

/// The per-user daemon's name: one per user and network namespace.
///
/// In a user namespace the user is named as its parent namespace knows him, so that a program
/// inside (`unshare -Ur`) finds the daemon outside.
#[must_use]
pub fn user_socket_name() -> SocketName {
    let inside = rustix::process::geteuid().as_raw();
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    SocketName::Abstract(format!("rocebud-{}", outer_id(&map, inside)))
}

fn outer_id(map: &str, inside: u32) -> u32 {
    let outer = map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let (first, outer, count) = (
            numbers.next()?.ok()?,
            numbers.next()?.ok()?,
            numbers.next()?.ok()?,
        );
        let offset = inside.checked_sub(first)?;
        (offset < count).then(|| outer.wrapping_add(offset))
    });
    outer.unwrap_or(inside)
}

impl Client {
    /// Connects to the daemon of this network namespace: `$ROCEBUD_SOCKET` if set, else the
    /// system's ([`SYSTEM_SOCKET`]) if it serves this namespace, else the user's own, which is
    /// started when it does not run. Takes at most about [`START_WAIT`].
    pub fn connect_or_start() -> Result<Self, CtlError> {
        if let Some(client) = Self::connect_running(Role::Library)? {
            return Ok(client);
        }
        let name = user_socket_name();
        let deadline = Instant::now() + START_WAIT;
        let mut pause = Duration::from_millis(2);
        let mut remarks = Vec::new();
        loop {
            remarks.extend(start_daemon(deadline)?);
            // The daemon that we found running may be on its way out; then the next one is ours.
            match Self::connect(&name, Role::Library) {
                Ok(client) => return Ok(client.started_with(remarks)),
                Err(Unreachable::Absent | Unreachable::Closed) => {}
                Err(Unreachable::Refused(error) | Unreachable::Silent(error)) => {
                    return Err(error);
                }
            }
            if Instant::now() >= deadline {
                return Err(CtlError::new(
                    ErrorKind::NoDaemon,
                    format!(
                        "a rocebud daemon was started but cannot be reached at {name}: run \
                         `rocebud daemon` in the foreground to see why"
                    ),
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Connects to a daemon that runs already, by the same rule; `None` if there is none.
    pub fn connect_running(role: Role) -> Result<Option<Self>, CtlError> {
        if let Some(given) = fds::secure_env(c"ROCEBUD_SOCKET") {
            let name = SocketName::parse(&given);
            name.address().map_err(|error| CtlError {
                message: format!("ROCEBUD_SOCKET: {}", error.message),
                ..error
            })?;
            return match Self::connect(&name, role) {
                Ok(client) => Ok(Some(client)),
                Err(Unreachable::Refused(error) | Unreachable::Silent(error)) => Err(error),
                Err(Unreachable::Absent | Unreachable::Closed) => Err(CtlError::new(
                    ErrorKind::NoDaemon,
                    format!(
                        "no rocebud daemon answers at {name}{}, which ROCEBUD_SOCKET names: start \
                         `rocebud daemon --socket {name}` or unset ROCEBUD_SOCKET",
                        name.seen_from()
                    ),
                )),
            };
        }
        if let Some(client) = Self::connect_system(Path::new(SYSTEM_SOCKET), role)? {
            return Ok(Some(client));
        }
        match Self::connect(&user_socket_name(), role) {
            Ok(client) => Ok(Some(client)),
            Err(Unreachable::Refused(error) | Unreachable::Silent(error)) => Err(error),
            Err(Unreachable::Absent | Unreachable::Closed) => Ok(None),
        }
    }

    /// Connects to the system's daemon; `None` if there is none or if it serves another network
    /// namespace. One of another namespace must not be waited for, however busy it is.
    fn connect_system(path: &Path, role: Role) -> Result<Option<Self>, CtlError> {
        let name = SocketName::Path(path.into());
        let here = listed::listens_here(path);
        let patience = if here { PATIENCE } else { [STRANGER_WAIT; 2] };
        match Self::connect_within(&name, role, patience) {
            Ok(client) if serves_us(client.netns())? => Ok(Some(client)),
            Err(Unreachable::Silent(error)) if here => Err(error),
            Err(Unreachable::Refused(error)) => Err(error),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Connects to the daemon at `name`. Takes at most [`GREETING_WAIT`], or [`BUSY_WAIT`] where that is
    /// busy.
    pub fn connect(name: &SocketName, role: Role) -> Result<Self, Unreachable> {
        Self::connect_within(name, role, PATIENCE)
    }

    fn connect_within(
        name: &SocketName,
        role: Role,
        patience: [Duration; 2],
    ) -> Result<Self, Unreachable> {
        let [deadline, last] = patience.map(|wait| Instant::now() + wait);
        let socket = control_socket().map_err(Unreachable::Refused)?;
        let address = name.address().map_err(Unreachable::Refused)?;
        match connect_until(&socket, &address, deadline) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => {
                return Err(Unreachable::Absent);
            }
            Err(Errno::AGAIN) => return Err(silent(name, None)),
            // Who may not even knock is not meant to.
            Err(Errno::ACCESS) if name.is_system() => return Err(Unreachable::Absent),
            Err(error) => {
                let error = CtlError::os(&format!("connecting to the daemon at {name}"), error);
                return Err(Unreachable::Refused(error));
            }
        }
        let peer = fds::peer_ids(&socket).map_err(|error| {
            Unreachable::Refused(CtlError::os("asking who the daemon is", error))
        })?;
        if !name.trusts(peer.uid) {
            return Err(Unreachable::Refused(CtlError::new(
                ErrorKind::Denied,
                format!(
                    "the socket {name} is held by process {} of user {}, who is neither root nor \
                     you: stop it, or name your daemon's socket in ROCEBUD_SOCKET",
                    peer.pid, peer.uid
                ),
            )));
        }
        Self::greet(socket, role, name, deadline, last)
    }
}

/// How long a daemon of ours may be silent, and how long if it is busy.
const PATIENCE: [Duration; 2] = [GREETING_WAIT, BUSY_WAIT];

/// Connects; `EAGAIN` when the listener's queue stays full until `deadline`, since nobody accepts.
fn connect_until(
    socket: &OwnedFd,
    address: &SocketAddrUnix,
    deadline: Instant,
) -> Result<(), Errno> {
    rustix::io::ioctl_fionbio(socket, true)?;
    let mut pause = Duration::from_millis(1);
    loop {
        match rustix::net::connect(socket, address) {
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(pause),
            Err(Errno::INTR) => {}
            done => return done,
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// A daemon of the namespace `netns` is ours, as far as can be known.
///
/// Errors: there is no descriptor to ask with.
pub(crate) fn serves_us(netns: u64) -> Result<bool, CtlError> {
    let asking = "asking for this program's network namespace";
    let ours = fds::netns_id().map_err(|error| CtlError::os(asking, error))?;
    Ok(netns == ours || netns == 0 || ours == 0)
}

/// Why there is no client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// Nobody listens.
    Absent,
    /// It closed on us, as one that is leaving does: try again.
    Closed,
    /// It can be reached but not used.
    Refused(CtlError),
    /// Somebody listens but does not accept or greet: stopped, stuck, or no daemon.
    Silent(CtlError),
}

/// A fresh socket of the kind that control uses.
pub fn control_socket() -> Result<OwnedFd, CtlError> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| CtlError::os("making a unix socket", error))
}

/// Starts a daemon and waits for its word, which may have remarks with it. `Ok` also when another
/// starter was faster.
fn start_daemon(deadline: Instant) -> Result<Vec<String>, CtlError> {
    let program = spawn::find_program()?;
    too_few_for_a_daemon()?;
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| CtlError::os("making a pipe", error))?;
    spawn::spawn_daemon(&program, &write)
        .map_err(|error| CtlError::os(&starting(&program), error))?;
    drop(write);
    understand(&read_until(read, deadline), &program)
}

/// What a started daemon's word means.
fn understand(word: &[u8], program: &Path) -> Result<Vec<String>, CtlError> {
    match word.split_first() {
        Some((b'o', rest)) => Ok(messages::decode(rest).unwrap_or_default()),
        Some((b'e', rest)) => Err(messages::decode(rest)?),
        Some((b'x', rest)) => {
            let errno = rest.first_chunk().map_or(0, |b| i32::from_le_bytes(*b));
            let error = std::io::Error::from_raw_os_error(errno);
            Err(CtlError::os(&starting(program), error))
        }
        _ => Err(CtlError::new(
            ErrorKind::NoDaemon,
            format!(
                "{} was started as a daemon but said nothing: run `{0} daemon` in the foreground \
                 to see why",
                program.display()
            ),
        )),
    }
}

fn starting(program: &Path) -> String {
    match fds::secure_env(c"ROCEBUD_DAEMON") {
        Some(_) => format!("starting {}, which ROCEBUD_DAEMON names", program.display()),
        None => format!("starting {}", program.display()),
    }
}

/// Everything from the pipe until it closes or the time is up.
fn read_until(pipe: OwnedFd, deadline: Instant) -> Vec<u8> {
    let mut pipe = std::fs::File::from(pipe);
    let mut word = Vec::new();
    let mut chunk = [0; 4096];
    while word.len() < MESSAGE_MAX && wait_readable(pipe.as_fd(), deadline) {
        match pipe.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => word.extend_from_slice(&chunk[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    word
}

/// For the daemon: tells its starter how the start went and what is to be known of it, through the
/// descriptor that the starter gave with `--status-fd`. Nobody reading is fine.
pub fn report_start(status: OwnedFd, outcome: Result<Vec<String>, &CtlError>) {
    let word = match outcome {
        Ok(remarks) => {
            let mut word = b"o".to_vec();
            word.extend(messages::encode(&remarks).unwrap_or_default());
            word
        }
        Err(error) => {
            let mut word = b"e".to_vec();
            word.extend(messages::encode(error).unwrap_or_default());
            word
        }
    };
    let _ = std::fs::File::from(status).write_all(&word);
}

const MESSAGE_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests;
