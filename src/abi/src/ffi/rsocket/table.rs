//! All sockets by their numbers.

use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use rocebud_objects::{Errno, Misuse};

use super::super::boundary::Outcome;
use super::socket::Socket;

static SOCKETS: RwLock<Option<HashMap<c_int, Arc<Socket>>>> = RwLock::new(None);

const NO_SOCKET: Misuse = Misuse::new(Errno::EBADF, "no socket of rsocket() has this number");

/// Makes a socket known by its number.
pub(super) fn insert(socket: Arc<Socket>) -> c_int {
    let fd = socket.fd;
    let mut all = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    all.get_or_insert_default().insert(fd, socket);
    fd
}

/// The socket of a number, if it is one.
pub(super) fn find(fd: c_int) -> Option<Arc<Socket>> {
    let all = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    all.as_ref()?.get(&fd).cloned()
}

/// The socket of a number; EBADF.
pub(super) fn get(fd: c_int) -> Outcome<Arc<Socket>> {
    find(fd).ok_or(NO_SOCKET)
}

/// Forgets a number; EBADF.
pub(super) fn remove(fd: c_int) -> Outcome<Arc<Socket>> {
    let mut all = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    let found = all.as_mut().and_then(|all| all.remove(&fd));
    found.ok_or(NO_SOCKET)
}

/// Every socket there is.
pub(super) fn all() -> Vec<Arc<Socket>> {
    let all = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    all.iter().flat_map(HashMap::values).cloned().collect()
}
