//! Who holds UDP port 4791, for the message that names him.

use std::fmt::Write as _;
use std::path::Path;

use rocebud_ctl::{CtlError, ErrorKind};
use rocebud_nic::udp::ROCE_PORT;

/// What the system tells about the holder of the port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Holder {
    pub(crate) uid: Option<u32>,
    pub(crate) process: Option<(u32, String)>,
    pub(crate) rxe_loaded: bool,
}

/// The error for "address in use".
pub(crate) fn port_taken() -> CtlError {
    let root = Path::new("/proc");
    CtlError::new(ErrorKind::PortTaken, describe(&find(root)))
}

/// One line: who, and what to do.
pub(crate) fn describe(holder: &Holder) -> String {
    let remedy = |pid: u32, command: &str| {
        if command.starts_with("rocebud") {
            format!(
                "stop it with `kill {pid}`, then run `rocebud daemon` as root to serve all users"
            )
        } else {
            "stop it, or use another network namespace (`unshare -Urn`)".to_owned()
        }
    };
    match holder {
        Holder {
            process: Some((pid, command)),
            uid,
            ..
        } => {
            let mut text = format!("UDP port {ROCE_PORT} is held by process {pid} (");
            if let Some(uid) = uid {
                let _ = write!(text, "user {}, ", user(*uid));
            }
            let _ = write!(text, "command {command}): {}", remedy(*pid, command));
            text
        }
        Holder {
            rxe_loaded: true, ..
        } => format!(
            "kernel rdma_rxe holds UDP port {ROCE_PORT}: `rmmod rdma_rxe`, use the kernel's \
             devices, or use another network namespace (`unshare -Urn`)"
        ),
        Holder { uid: Some(uid), .. } => format!(
            "UDP port {ROCE_PORT} is held by a process of user {} that user {} cannot look at: stop \
             it (root sees it with `ss -ulnp sport = {ROCE_PORT}`), then run `rocebud daemon` as \
             root to serve all users",
            user(*uid),
            user(rustix::process::geteuid().as_raw())
        ),
        Holder { uid: None, .. } => format!(
            "UDP port {ROCE_PORT} is in use in this network namespace and the holder does not show: \
             see `ss -ulnp sport = {ROCE_PORT}` as root"
        ),
    }
}

/// Looks for the holder in `proc` (normally /proc).
pub(crate) fn find(proc: &Path) -> Holder {
    let mut sockets = Vec::new();
    for table in ["net/udp", "net/udp6"] {
        let text = std::fs::read_to_string(proc.join(table)).unwrap_or_default();
        sockets.extend(sockets_on_port(&text));
    }
    let inodes: Vec<u64> = sockets.iter().map(|s| s.inode).collect();
    let process = owner_of(proc, &inodes).or_else(|| daemon_of(sockets.first()?.uid));
    Holder {
        uid: sockets.first().map(|s| s.uid),
        process,
        rxe_loaded: Path::new("/sys/module/rdma_rxe").exists(),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Socket {
    uid: u32,
    inode: u64,
}

/// Rows of /proc/net/udp{,6} whose local port is ours.
fn sockets_on_port(table: &str) -> Vec<Socket> {
    let row = |line: &str| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, port) = columns.get(1)?.rsplit_once(':')?;
        let ours = u16::from_str_radix(port, 16).ok()? == ROCE_PORT;
        ours.then_some(())?;
        Some(Socket {
            uid: columns.get(7)?.parse().ok()?,
            inode: columns.get(9)?.parse().ok()?,
        })
    };
    table.lines().filter_map(row).collect()
}

/// The process that has one of the sockets open, if we may see it.
fn owner_of(proc: &Path, inodes: &[u64]) -> Option<(u32, String)> {
    let wanted: Vec<String> = inodes.iter().map(|i| format!("socket:[{i}]")).collect();
    for entry in std::fs::read_dir(proc).ok()?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(fds) = std::fs::read_dir(entry.path().join("fd")) else {
            continue;
        };
        let mut links = fds
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok());
        if links.any(|link| wanted.iter().any(|w| link.as_os_str() == w.as_str())) {
            return Some((pid, command(proc, pid)));
        }
    }
    None
}

/// A user's daemon that we may not look into still answers at its name, and the kernel says who
/// listens there.
fn daemon_of(uid: u32) -> Option<(u32, String)> {
    let name = rocebud_ctl::SocketName::Abstract(format!("rocebud-{uid}"));
    let socket = rocebud_ctl::control_socket().ok()?;
    // Nobody may be accepting: a connect that waits for room in a full queue would wait for ever.
    rustix::io::ioctl_fionbio(&socket, true).ok()?;
    rustix::net::connect(&socket, &name.address().ok()?).ok()?;
    let pid = rocebud_ctl::fds::peer_ids(&socket).ok()?.pid;
    (pid != 0).then(|| (pid, command(Path::new("/proc"), pid)))
}

/// What a process calls itself. Anybody may choose that: characters that would steer a terminal, or begin a
/// line, become question marks, as with `ps`.
pub(crate) fn command(proc: &Path, pid: u32) -> String {
    let comm = std::fs::read(proc.join(pid.to_string()).join("comm")).unwrap_or_default();
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    if comm.is_empty() {
        return "?".to_owned();
    }
    let chars = String::from_utf8_lossy(comm);
    let chars = chars.chars().map(|c| if c.is_control() { '?' } else { c });
    chars.collect()
}

/// Number and, where the system has one, name.
fn user(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.map_or_else(|| uid.to_string(), |name| format!("{uid} ({name})"))
}

#[cfg(test)]
mod tests;
