//! Makers of sockets. The daemon calls them; the sockets travel to the processes that use them.

use super::addr::write_name;
use super::ring::Ring;
use crate::bpf::Insn;
use crate::sys;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// First of the UDP source ports that RoCE senders use; the last is 65,535.
pub const SEND_PORT_MIN: u16 = 0xC000;

/// Receive buffer asked for, in bytes. A root daemon gets it whatever `net.core.rmem_max` says,
/// since a UDP socket has no other way to hold back a sender.
const RECEIVE_BUFFER_BYTES: i32 = 128 << 20;
/// Send buffer asked for: some full batches, so that the window, not the buffer, is the limit.
const SEND_BUFFER_BYTES: i32 = 4 << 20;
/// Receive buffer of a send socket; nothing is ever read there (the kernel rounds up).
const NO_BUFFER_BYTES: i32 = 1;

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
    /// Beside the receive sockets.
    pub rings: Rings,
}

/// Rings beside the receive sockets of a slot, where there are any.
#[derive(Clone, Debug, Default)]
pub struct Rings {
    /// Beside that for IPv4.
    pub v4: Option<Ring>,
    /// Beside that for IPv6.
    pub v6: Option<Ring>,
}

/// State of a receive socket's queue, as the kernel tells it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QueueState {
    /// Bytes of kernel memory that waiting datagrams take.
    pub used_bytes: u32,
    /// Bytes of kernel memory that they may take.
    pub max_bytes: u32,
    /// Datagrams dropped since the socket was made. Wraps.
    pub drops: u32,
}

/// A receive socket bound to the wildcard address and `port`, with every option that the link
/// needs. With `reuseport` it joins (or begins) the port's reuseport group, at its end.
///
/// Errors: `EADDRINUSE` when another user or a plain socket holds the port; `EAFNOSUPPORT` or
/// `EADDRNOTAVAIL` where the system has no IPv6.
pub fn receive_socket(v6: bool, port: u16, reuseport: bool) -> io::Result<OwnedFd> {
    let fd = sys::udp_socket(v6)?;
    let set = |level, name, value| set_int(fd.as_fd(), level, name, value);
    for &(level, name, value) in if v6 { RECEIVE_V6 } else { RECEIVE_V4 } {
        set(level, name, value)?;
    }
    set(libc::SOL_UDP, libc::UDP_GRO, 1)?;
    set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    set(libc::SOL_SOCKET, libc::SO_REUSEPORT, i32::from(reuseport))?;
    set_buffer(
        fd.as_fd(),
        libc::SO_RCVBUFFORCE,
        libc::SO_RCVBUF,
        RECEIVE_BUFFER_BYTES,
    )?;
    bind_wildcard(fd.as_fd(), v6, port)?;
    Ok(fd)
}

/// A send socket bound to the wildcard address and `port`.
///
/// It is never connected: only then does a packet with DF carry the IPv4 identification 0, which
/// the ICRC counts on. It receives nothing.
///
/// Errors: `EADDRINUSE`; `EAFNOSUPPORT` or `EADDRNOTAVAIL` where the system has no IPv6.
pub fn send_socket(v6: bool, port: u16) -> io::Result<OwnedFd> {
    let fd = sys::udp_socket(v6)?;
    for &(level, name, value) in if v6 { SEND_V6 } else { SEND_V4 } {
        set_int(fd.as_fd(), level, name, value)?;
    }
    set_buffer(
        fd.as_fd(),
        libc::SO_SNDBUFFORCE,
        libc::SO_SNDBUF,
        SEND_BUFFER_BYTES,
    )?;
    set_int(
        fd.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_RCVBUF,
        NO_BUFFER_BYTES,
    )?;
    // What a stranger sends here must not even be queued: the filter keeps zero bytes of it.
    sys::attach_program(fd.as_fd(), libc::SO_ATTACH_FILTER, &[Insn::ret(0)])?;
    bind_wildcard(fd.as_fd(), v6, port)?;
    Ok(fd)
}

/// A send socket on the first free port from `first` on, within 0xC000–0xFFFF (wraps around).
/// Returns the port with it. Errors: `EADDRINUSE` when all 16,384 are taken, else as
/// [`send_socket`].
pub fn free_send_socket(v6: bool, first: u16) -> io::Result<(u16, OwnedFd)> {
    let mut port = first | SEND_PORT_MIN;
    loop {
        match send_socket(v6, port) {
            Ok(fd) => return Ok((port, fd)),
            Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => {}
            Err(e) => return Err(e),
        }
        port = port.wrapping_add(1) | SEND_PORT_MIN;
        if port == first | SEND_PORT_MIN {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
    }
}

/// Size of the receive buffer, in bytes of kernel memory (headers and slack count too).
pub fn receive_buffer_bytes(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut value = [0u32];
    sys::get_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut value)?;
    Ok(value[0])
}

/// Gives a receive socket another buffer than the largest one may have; `bytes` of kernel memory.
pub fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    // The kernel doubles what it is asked for, for its bookkeeping.
    let half = i32::try_from(bytes / 2).unwrap_or(i32::MAX);
    set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, half)
}

/// Gives a socket of any kind a send buffer of `bytes`, or the largest that it may have.
pub fn set_send_buffer(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes)
}

/// How full the receive queue is and what it lost. One system call.
pub fn queue_state(fd: BorrowedFd<'_>) -> io::Result<QueueState> {
    // Words of SO_MEMINFO: rmem_alloc, rcvbuf, wmem_alloc, sndbuf, fwd_alloc, wmem_queued, optmem,
    // backlog, drops. Kernels before 4.11 do not know it, those before 4.8 lack the last.
    let mut words = [0u32; 9];
    sys::get_option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut words)?;
    Ok(QueueState {
        used_bytes: words[0],
        max_bytes: words[1],
        drops: words[8],
    })
}

/// Port that a socket is bound to.
pub fn bound_port(fd: BorrowedFd<'_>) -> io::Result<u16> {
    sys::bound_name(fd).map(|name| u16::from_be_bytes([name[2], name[3]]))
}

/// Joins or leaves a multicast group on one interface (0 = the kernel chooses).
pub(super) fn multicast(
    fd: BorrowedFd<'_>,
    group: IpAddr,
    ifindex: u32,
    join: bool,
) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            let name = if join {
                libc::IP_ADD_MEMBERSHIP
            } else {
                libc::IP_DROP_MEMBERSHIP
            };
            // struct ip_mreqn: group, local address, interface.
            let mut request = [0u8; 12];
            request[..4].copy_from_slice(&group.octets());
            request[8..].copy_from_slice(&ifindex.to_ne_bytes());
            sys::set_option(fd, libc::SOL_IP, name, &request)
        }
        IpAddr::V6(group) => {
            let name = if join {
                libc::IPV6_ADD_MEMBERSHIP
            } else {
                libc::IPV6_DROP_MEMBERSHIP
            };
            let mut request = [0u8; 20];
            request[..16].copy_from_slice(&group.octets());
            request[16..].copy_from_slice(&ifindex.to_ne_bytes());
            sys::set_option(fd, libc::SOL_IPV6, name, &request)
        }
    }
}

fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    sys::set_option(fd, level, name, &value.to_ne_bytes())
}

/// Sets a buffer size past the system's limit if we may, else up to it.
fn set_buffer(fd: BorrowedFd<'_>, force: i32, ask: i32, bytes: i32) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| set_int(fd, libc::SOL_SOCKET, ask, bytes))
}

fn bind_wildcard(fd: BorrowedFd<'_>, v6: bool, port: u16) -> io::Result<()> {
    let ip: IpAddr = if v6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    let mut name = [0u8; sys::NAME_MAX];
    let len = write_name(ip, port, 0, &mut name);
    sys::bind(fd, &name[..len])
}

/// Level, name and value of an option.
type Setting = (i32, i32, i32);

const RECEIVE_V4: &[Setting] = &[
    (libc::SOL_IP, libc::IP_PKTINFO, 1),
    (libc::SOL_IP, libc::IP_RECVTOS, 1),
    (libc::SOL_IP, libc::IP_RECVTTL, 1),
    // Every member of the group would get a copy of any group joined by anyone.
    (libc::SOL_IP, IP_MULTICAST_ALL, 0),
];

const RECEIVE_V6: &[Setting] = &[
    (libc::SOL_IPV6, libc::IPV6_V6ONLY, 1),
    (libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, 1),
    (libc::SOL_IPV6, libc::IPV6_RECVTCLASS, 1),
    (libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT, 1),
    (libc::SOL_IPV6, IPV6_MULTICAST_ALL, 0),
    // RoCE over IPv6 normally has no UDP checksum; the ICRC covers the frame.
    (libc::SOL_UDP, UDP_NO_CHECK6_RX, 1),
];

// PROBE sets DF as DO does, but does not believe (forgeable) "too big" messages.
const SEND_V4: &[Setting] = &[(libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)];

const SEND_V6: &[Setting] = &[
    (libc::SOL_IPV6, libc::IPV6_V6ONLY, 1),
    (
        libc::SOL_IPV6,
        libc::IPV6_MTU_DISCOVER,
        libc::IPV6_PMTUDISC_PROBE,
    ),
];

// Names that the libc crate lacks for some targets; values of Linux on every architecture.
const IP_MULTICAST_ALL: i32 = 49;
const IPV6_MULTICAST_ALL: i32 = 29;
const UDP_NO_CHECK6_RX: i32 = 102;
