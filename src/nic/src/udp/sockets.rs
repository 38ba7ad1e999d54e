//! Makers of sockets.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The sockets of one slot.
#[derive(Debug)]
pub struct SlotSockets {
    /// Receives IPv4, bound to port 4791 in the reuseport group.
    pub recv_v4: OwnedFd,
    /// Receives IPv6; missing where the system has none.
    pub recv_v6: Option<OwnedFd>,
    /// Send IPv4, with the port each is bound to.
    pub send_v4: Vec<(u16, OwnedFd)>,
    /// Send IPv6, with the port each is bound to.
    pub send_v6: Vec<(u16, OwnedFd)>,
}

/// A receive socket bound to the wildcard address and `port`, with every option that the link
/// needs. With `reuseport` it joins (or begins) the port's reuseport group, at its end.
///
/// Errors: `EADDRINUSE` when another user or a plain socket holds the port; `EAFNOSUPPORT` where
/// the system has no IPv6.
pub fn receive_socket(_v6: bool, _port: u16, _reuseport: bool) -> io::Result<OwnedFd> {
    todo!()
}

/// A send socket bound to the wildcard address and `port`.
pub fn send_socket(_v6: bool, _port: u16) -> io::Result<OwnedFd> {
    todo!()
}

/// A send socket on the first free port from `first` on, within 0xC000–0xFFFF (wraps around).
pub fn free_send_socket(_v6: bool, _first: u16) -> io::Result<(u16, OwnedFd)> {
    todo!()
}

/// Size of the receive buffer, in bytes of kernel memory (headers and slack count too).
pub fn receive_buffer_bytes(_fd: BorrowedFd<'_>) -> io::Result<u32> {
    todo!()
}
