//! Socket addresses as bytes, and what control messages say. All native-endian, as the kernel wants
//! them, except ports and addresses.

use crate::control::take;
use crate::sys::{Arrival, NAME_MAX};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

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

impl Told {
    /// Reads the control messages.
    pub(super) fn read(arrival: &Arrival, v6: bool) -> Self {
        let unspecified: IpAddr = if v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let mut told = Self {
            segment: 0,
            traffic_class: 0,
            hop_limit: 0,
            ifindex: 0,
            dst: unspecified,
            drops: None,
        };
        arrival.each_message(|level, kind, data| told.hear(level, kind, data));
        told
    }

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
