//! The kernel's UDP socket of a datagram socket. Its descriptor is the socket's number.
//!
//! It is opened by the system call itself: a library in front of libc takes calls of `socket` for
//! the program's.

use core::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rocebud_objects::Misuse;

use super::super::super::boundary::{Outcome, last_errno};

/// Room for an address of either family.
type Name = [u8; 28];

/// Room for what the kernel says about a datagram besides: one `in_pktinfo` or `in6_pktinfo`.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// See the module.
pub(super) struct Udp {
    fd: OwnedFd,
    v6: bool,
}

/// A datagram that was received.
pub(super) struct Came {
    pub(super) len: usize,
    pub(super) from: SocketAddr,
    /// The address of ours that it was sent to, if it was one (and no group's).
    pub(super) to: Option<IpAddr>,
}

fn check(code: c_int, why: &'static str) -> Outcome<()> {
    if code < 0 {
        return Err(Misuse::new(last_errno(), why));
    }
    Ok(())
}

impl Udp {
    /// A new one. It waits, as calls on it say otherwise themselves.
    pub(super) fn open(v6: bool) -> Outcome<Self> {
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_socket, family, kind, 0) };
        let fd = c_int::try_from(fd).unwrap_or(-1);
        check(fd, "no UDP socket for the socket")?;
        // SAFETY: opened just now.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let this = Self { fd, v6 };
        let (level, name) = match v6 {
            true => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            false => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        };
        this.set_option((level, name), &1_i32.to_ne_bytes())?;
        Ok(this)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(super) fn set_option(&self, (level, name): (c_int, c_int), value: &[u8]) -> Outcome<()> {
        let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
        let from = value.as_ptr().cast();
        // SAFETY: as many bytes as said.
        let code = unsafe { libc::setsockopt(self.fd(), level, name, from, length) };
        check(code, "rsetsockopt: the kernel's UDP socket refused it")
    }

    /// The value of an option of the kernel's, as much of it as there is room for.
    pub(super) fn option(&self, (level, name): (c_int, c_int)) -> Outcome<Vec<u8>> {
        let mut value = [0_u8; 64];
        let mut length: libc::socklen_t = 64;
        let to = value.as_mut_ptr().cast();
        // SAFETY: room for as many bytes as said.
        let code = unsafe { libc::getsockopt(self.fd(), level, name, to, &raw mut length) };
        check(code, "rgetsockopt: the kernel's UDP socket refused it")?;
        Ok(value.get(..length as usize).unwrap_or_default().to_vec())
    }

    pub(super) fn bind(&self, to: SocketAddr) -> Outcome<()> {
        let (name, length) = emit(to);
        // SAFETY: an address of the length said.
        let code = unsafe { libc::bind(self.fd(), name.as_ptr().cast(), length) };
        check(code, "rbind: not an address to be had")
    }

    pub(super) fn connect(&self, to: SocketAddr) -> Outcome<()> {
        let (name, length) = emit(to);
        // SAFETY: an address of the length said.
        let code = unsafe { libc::connect(self.fd(), name.as_ptr().cast(), length) };
        check(code, "rconnect: no way to this address")
    }

    /// Its own name.
    pub(super) fn name(&self) -> Outcome<SocketAddr> {
        let mut name: Name = [0; 28];
        let mut length: libc::socklen_t = 28;
        // SAFETY: room for an address of either family.
        let code =
            unsafe { libc::getsockname(self.fd(), name.as_mut_ptr().cast(), &raw mut length) };
        check(code, "the UDP socket has no name")?;
        parse(&name).ok_or(FAMILY)
    }

    /// The address from which the kernel would send to `to`.
    pub(super) fn source_for(&self, to: SocketAddr) -> Outcome<SocketAddr> {
        let probe = Self::open(self.v6)?;
        probe.connect(to)?;
        probe.name()
    }

    /// Takes a datagram. `None`: there is none, or only an error that is told once.
    pub(super) fn receive(&self, into: &mut [u8]) -> Option<Came> {
        let mut name: Name = [0; 28];
        let mut control = Control([0; 64]);
        let mut piece = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        // SAFETY: a message is plain words; each is set that is not to be 0.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = 28;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>();
        // SAFETY: everything that the message names lives through the call.
        let n = unsafe { libc::recvmsg(self.fd(), &raw mut message, libc::MSG_DONTWAIT) };
        Some(Came {
            len: usize::try_from(n).ok()?,
            from: parse(&name)?,
            to: arrived_at(&control, message.msg_controllen),
        })
    }

    /// Sends a datagram from an address of ours.
    pub(super) fn send(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        data: &[u8],
        flags: c_int,
    ) -> Outcome<()> {
        let (mut name, length) = emit(to);
        let (mut control, control_length) = leaving_from(from);
        let mut piece = libc::iovec {
            iov_base: data.as_ptr().cast_mut().cast(),
            iov_len: data.len(),
        };
        // SAFETY: as above.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = length;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast::<c_void>();
        message.msg_controllen = control_length;
        let flags = flags | libc::MSG_NOSIGNAL;
        // SAFETY: everything that the message names lives through the call.
        let n = unsafe { libc::sendmsg(self.fd(), &raw const message, flags) };
        check(c_int::try_from(n).unwrap_or(0), "the datagram was not sent")
    }
}

const FAMILY: Misuse = Misuse::invalid("an address of neither IPv4 nor IPv6");

/// As `struct sockaddr_in` or `sockaddr_in6`, and how long it is.
pub(in super::super) fn emit(address: SocketAddr) -> (Name, u32) {
    let mut out = [0; 28];
    let mut length = 0;
    let mut put = |bytes: &[u8]| {
        for byte in bytes {
            if let Some(to) = out.get_mut(length) {
                *to = *byte;
                length += 1;
            }
        }
    };
    let port = address.port().to_be_bytes();
    match address {
        SocketAddr::V4(a) => {
            put(&(libc::AF_INET as u16).to_ne_bytes());
            put(&port);
            put(&a.ip().octets());
            put(&[0; 8]);
        }
        SocketAddr::V6(a) => {
            put(&(libc::AF_INET6 as u16).to_ne_bytes());
            put(&port);
            put(&a.flowinfo().to_ne_bytes());
            put(&a.ip().octets());
            put(&a.scope_id().to_ne_bytes());
        }
    }
    (out, u32::try_from(length).unwrap_or(0))
}

/// The address in a `struct sockaddr_in` or `sockaddr_in6`.
pub(super) fn parse(name: &Name) -> Option<SocketAddr> {
    let (head, rest) = name.split_first_chunk::<4>()?;
    let [f0, f1, p0, p1] = *head;
    let port = u16::from_be_bytes([p0, p1]);
    match i32::from(u16::from_ne_bytes([f0, f1])) {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(*rest.first_chunk::<4>()?);
            Some(SocketAddr::new(ip.into(), port))
        }
        libc::AF_INET6 => {
            let (flow, rest) = rest.split_first_chunk::<4>()?;
            let (ip, scope) = rest.split_first_chunk::<16>()?;
            let scope = u32::from_ne_bytes(*scope.first_chunk()?);
            let (ip, flow) = (Ipv6Addr::from(*ip), u32::from_ne_bytes(*flow));
            Some(SocketAddrV6::new(ip, port, flow, scope).into())
        }
        _ => None,
    }
}

/// A control message: its length, level and type, then its data at byte 16.
fn control_message(level: c_int, kind: c_int, data: &[u8]) -> (Control, usize) {
    let mut control = Control([0; 64]);
    let length = 16 + data.len();
    let parts = [
        &length.to_ne_bytes()[..],
        &level.to_ne_bytes(),
        &kind.to_ne_bytes(),
        data,
    ];
    let bytes = parts.into_iter().flatten();
    for (to, from) in control.0.iter_mut().zip(bytes) {
        *to = *from;
    }
    (control, length.next_multiple_of(8))
}

/// Tells the kernel from which address to send.
fn leaving_from(from: SocketAddr) -> (Control, usize) {
    match from {
        SocketAddr::V4(a) => {
            // interface 0: any; the address; none
            let [a, b, c, d] = a.ip().octets();
            let data = [0, 0, 0, 0, a, b, c, d, 0, 0, 0, 0];
            control_message(libc::IPPROTO_IP, libc::IP_PKTINFO, &data)
        }
        SocketAddr::V6(a) => {
            let mut data = a.ip().octets().to_vec();
            data.extend(a.scope_id().to_ne_bytes());
            control_message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data)
        }
    }
}

/// Which address of ours a datagram was sent to.
fn arrived_at(control: &Control, length: usize) -> Option<IpAddr> {
    let bytes = control.0.get(..length)?;
    let (header, data) = bytes.split_first_chunk::<16>()?;
    let [_, _, _, _, _, _, _, _, level @ .., _, _, _, _] = *header;
    let [.., k0, k1, k2, k3] = *header;
    let kind = i32::from_ne_bytes([k0, k1, k2, k3]);
    match (i32::from_ne_bytes(level), kind) {
        // interface, address of ours, destination
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            let ours: [u8; 4] = data.get(4..8)?.try_into().ok()?;
            Some(Ipv4Addr::from(ours).into())
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            let to = Ipv6Addr::from(*data.first_chunk::<16>()?);
            (!to.is_multicast()).then_some(to.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
