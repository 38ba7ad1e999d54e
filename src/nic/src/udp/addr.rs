//! Socket addresses and control messages as bytes, both ways. All native-endian, as the kernel
//! wants them, except ports and addresses.

use super::sys::{Arrival, CONTROL_MAX, Envelope, NAME_MAX};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of `struct cmsghdr` (length word, level, type).
const CMSG_HEADER: usize = size_of::<usize>() + 8;

/// `sockaddr_in` / `sockaddr_in6` of an address; returns its length.
pub(super) fn write_name(ip: IpAddr, port: u16, scope: u32, name: &mut [u8; NAME_MAX]) -> usize {
    name[2..4].copy_from_slice(&port.to_be_bytes());
    match ip {
        IpAddr::V4(ip) => {
            name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            name[4..8].copy_from_slice(&ip.octets());
            name[8..16].fill(0);
            16
        }
        IpAddr::V6(ip) => {
            name[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            name[4..8].fill(0);
            name[8..24].copy_from_slice(&ip.octets());
            name[24..28].copy_from_slice(&scope.to_ne_bytes());
            28
        }
    }
}

/// The address in a `sockaddr_in` or `sockaddr_in6`.
pub(super) fn read_name(v6: bool, name: &[u8; NAME_MAX]) -> SocketAddr {
    let port = u16::from_be_bytes([name[2], name[3]]);
    if v6 {
        let ip = Ipv6Addr::from(take::<16>(name, 8));
        let scope = u32::from_ne_bytes(take(name, 24));
        SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope))
    } else {
        SocketAddr::from((take::<4>(name, 4), port))
    }
}

impl Envelope {
    /// An envelope with neither address nor control messages.
    pub(super) const fn empty() -> Self {
        Self {
            control: [0; CONTROL_MAX],
            name: [0; NAME_MAX],
            name_len: 0,
            control_len: 0,
        }
    }

    /// Adds a control message. The few that we send fit; one that did not would be left out.
    pub(super) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let (start, len) = (self.control_len, CMSG_HEADER + data.len());
        let end = start + len.next_multiple_of(size_of::<usize>());
        let Some(room) = self.control.get_mut(start..end) else {
            return;
        };
        let (word, rest) = room.split_at_mut(size_of::<usize>());
        word.copy_from_slice(&len.to_ne_bytes());
        rest[..4].copy_from_slice(&level.to_ne_bytes());
        rest[4..8].copy_from_slice(&kind.to_ne_bytes());
        rest[8..8 + data.len()].copy_from_slice(data);
        self.control_len = end;
    }
}

/// What the control messages of an arrival say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    /// Segment size when the kernel merged several datagrams, else 0.
    pub(super) segment: usize,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) ifindex: u32,
    pub(super) dst: IpAddr,
    /// Datagrams dropped at the socket since it was made, if any.
    pub(super) drops: Option<u32>,
}

impl Arrival {
    /// An arrival to be filled in.
    pub(super) const fn empty() -> Self {
        Self {
            control: [0; CONTROL_MAX],
            name: [0; NAME_MAX],
            control_len: 0,
            len: 0,
            flags: 0,
        }
    }

    /// Reads the control messages.
    pub(super) fn told(&self, v6: bool) -> Told {
        let unspecified: IpAddr = if v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let mut told = Told {
            segment: 0,
            traffic_class: 0,
            hop_limit: 0,
            ifindex: 0,
            dst: unspecified,
            drops: None,
        };
        let mut rest = self.control.get(..self.control_len).unwrap_or(&[]);
        while rest.len() >= CMSG_HEADER {
            let len = usize::from_ne_bytes(take(rest, 0));
            let Some(data) = rest.get(CMSG_HEADER..len) else {
                break;
            };
            let level = i32::from_ne_bytes(take(rest, CMSG_HEADER - 8));
            let kind = i32::from_ne_bytes(take(rest, CMSG_HEADER - 4));
            told.hear(level, kind, data);
            rest = rest
                .get(len.next_multiple_of(size_of::<usize>())..)
                .unwrap_or(&[]);
        }
        told
    }
}

impl Told {
    fn hear(&mut self, level: i32, kind: i32, data: &[u8]) {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                self.segment = usize::try_from(i32::from_ne_bytes(take(data, 0))).unwrap_or(0);
            }
            (libc::SOL_IP, libc::IP_PKTINFO) => {
                self.ifindex = u32::from_ne_bytes(take(data, 0));
                self.dst = take::<4>(data, 8).into();
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                self.dst = take::<16>(data, 0).into();
                self.ifindex = u32::from_ne_bytes(take(data, 16));
            }
            // One byte for IPv4, an int for IPv6; the value never exceeds a byte.
            (libc::SOL_IP, libc::IP_TOS) => self.traffic_class = take::<1>(data, 0)[0],
            (libc::SOL_IP, libc::IP_TTL) => self.hop_limit = int_as_byte(data),
            (libc::SOL_IPV6, libc::IPV6_TCLASS) => self.traffic_class = int_as_byte(data),
            (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => self.hop_limit = int_as_byte(data),
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                self.drops = Some(u32::from_ne_bytes(take(data, 0)));
            }
            _ => {}
        }
    }
}

fn int_as_byte(data: &[u8]) -> u8 {
    (i32::from_ne_bytes(take(data, 0)) & 0xff) as u8
}

/// `N` bytes at `at`; zeros where the kernel gave fewer.
fn take<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    data.get(at..at + N)
        .and_then(|bytes| bytes.try_into().ok())
        .unwrap_or([0; N])
}
