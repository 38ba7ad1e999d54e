//! All sockets by their numbers.

use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use rocebud_objects::{Errno, Misuse};

use super::super::boundary::Outcome;
use super::datagram::Datagram;
use super::repoll::Set;
use super::socket::Socket;

/// What has a number.
#[derive(Clone)]
pub(super) enum Any {
    Stream(Arc<Socket>),
    Datagram(Arc<Datagram>),
    /// Of `repoll_create`.
    Set(Arc<Set>),
}

static SOCKETS: RwLock<Option<HashMap<c_int, Any>>> = RwLock::new(None);

const NO_SOCKET: Misuse = Misuse::new(Errno::EBADF, "no socket of rsocket() has this number");
const NO_STREAM: Misuse = Misuse::new(Errno::EOPNOTSUPP, "datagram sockets have no such call");

/// Makes a socket known by its number.
pub(super) fn insert(socket: Any) -> c_int {
    let fd = match &socket {
        Any::Stream(s) => s.fd,
        Any::Datagram(d) => d.fd,
        Any::Set(s) => s.fd(),
    };
    let mut all = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    all.get_or_insert_default().insert(fd, socket);
    fd
}

/// What has a number, if anything of ours.
pub(super) fn find(fd: c_int) -> Option<Any> {
    let all = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    all.as_ref()?.get(&fd).cloned()
}

/// The socket of a number; EBADF.
pub(super) fn get(fd: c_int) -> Outcome<Any> {
    find(fd)
        .filter(|any| !matches!(any, Any::Set(_)))
        .ok_or(NO_SOCKET)
}

/// The stream socket of a number; EBADF, EOPNOTSUPP for one of datagrams.
pub(super) fn stream(fd: c_int) -> Outcome<Arc<Socket>> {
    match get(fd)? {
        Any::Stream(socket) => Ok(socket),
        _ => Err(NO_STREAM),
    }
}

/// Forgets a number; EBADF.
pub(super) fn remove(fd: c_int) -> Outcome<Any> {
    let mut all = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    let found = all.as_mut().and_then(|all| all.remove(&fd));
    found.ok_or(NO_SOCKET)
}

/// Everything there is.
pub(super) fn all() -> Vec<Any> {
    let all = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    all.iter().flat_map(HashMap::values).cloned().collect()
}
