//! Multicast groups: joined on an ordinary socket of the interface, so that IGMP and MLD, switches
//! and network cards learn of it.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

/// Hop limit of datagrams to a group, as Linux has it.
pub(super) const HOP_LIMIT: u8 = 64;

/// The queue pair number of groups.
pub(super) const QPN: u32 = 0x00ff_ffff;

/// A group that an identifier is in.
#[derive(Debug)]
pub(super) struct Membership {
    /// Leaves with it.
    _socket: OwnedFd,
    /// Events given out.
    pub(super) reported: u32,
}

impl Membership {
    /// Joins.
    pub(super) fn join(group: IpAddr, ifindex: u32) -> io::Result<Self> {
        let family = match group {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        match group {
            IpAddr::V4(group) => {
                let any = Ipv4Addr::UNSPECIFIED;
                sockopt::set_ip_add_membership_with_ifindex(&socket, &group, &any, ifindex)?;
            }
            IpAddr::V6(group) => sockopt::set_ipv6_add_membership(&socket, &group, ifindex)?,
        }
        Ok(Self {
            _socket: socket,
            reported: 0,
        })
    }
}
