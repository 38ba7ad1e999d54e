//! The RDMA IP CM service: service ids made of a port space and a port, addresses in front of
//! the private data of REQ and SIDR_REQ.

use core::net::IpAddr;

use rocebud_wire::Gid;

use crate::bits::{Field, at};

/// Bytes of the header in front of the application's private data.
pub const HEADER_LEN: usize = 36;

/// Port spaces: the numbers of `rdma_port_space`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand.
    IpoIb = 0x0002,
    /// Connections: reliable, and those that say so by the name.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Any queue pair, service ids of the application.
    Ib = 0x013f,
}

impl PortSpace {
    /// From `rdma_port_space`.
    #[must_use]
    pub const fn from_abi(value: u32) -> Option<Self> {
        Some(match value {
            0x0002 => Self::IpoIb,
            0x0106 => Self::Tcp,
            0x0111 => Self::Udp,
            0x013f => Self::Ib,
            _ => return None,
        })
    }
}

/// The service id of a port.
#[must_use]
pub const fn service_id(space: PortSpace, port: u16) -> u64 {
    (space as u64) << 16 | port as u64
}

/// The service id is one of the IP service: its requests carry [`IpCm`].
#[must_use]
pub const fn is_ip_service(service_id: u64) -> bool {
    service_id & 0xffff_ffff_ff00_0000 == 0x0000_0000_0100_0000
        || service_id >> 16 == PortSpace::IpoIb as u64
}

/// The port in a service id of the IP service.
#[must_use]
pub const fn port_of(service_id: u64) -> u16 {
    (service_id & 0xffff) as u16
}

/// The addresses that a requester names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpCm {
    /// The requester's port; the other one is in the service id.
    pub src_port: u16,
    /// The requester's address.
    pub src: IpAddr,
    /// The address that it asked for.
    pub dst: IpAddr,
}

/// Why a header is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpError {
    /// Version other than 0.
    Version,
    /// Neither 4 nor 6.
    IpVersion,
}

impl IpCm {
    /// Reads the header at the front of `data`; bytes that are missing count as 0.
    ///
    /// # Errors
    /// See [`IpError`].
    pub fn parse(data: &[u8]) -> Result<Self, IpError> {
        let raw = <[u8; HEADER_LEN]>::read(data, &[at(0, 0, 8)]);
        if u8::read(&raw, &[at(0, 0, 8)]) != 0 {
            return Err(IpError::Version);
        }
        let [src, dst] = [4, 20].map(|byte| Gid::read(&raw, &[at(byte, 0, 128)]));
        let address: fn(Gid) -> IpAddr = match u8::read(&raw, &[at(1, 0, 4)]) {
            4 => |gid| IpAddr::V4(<[u8; 4]>::read(&gid.0, &[at(12, 0, 32)]).into()),
            6 => |gid| IpAddr::V6(gid.0.into()),
            _ => return Err(IpError::IpVersion),
        };
        Ok(Self {
            src_port: u16::read(&raw, &[at(2, 0, 16)]),
            src: address(src),
            dst: address(dst),
        })
    }

    /// The header. Both addresses must be of one family, else it says IPv6 and maps the other.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut raw = [0; HEADER_LEN];
        let both_v4 = self.src.is_ipv4() && self.dst.is_ipv4();
        let version: u8 = if both_v4 { 4 } else { 6 };
        version.write(&mut raw, &[at(1, 0, 4)]);
        self.src_port.write(&mut raw, &[at(2, 0, 16)]);
        for (byte, ip) in [(4, self.src), (20, self.dst)] {
            match ip {
                IpAddr::V4(v4) if both_v4 => v4.octets().write(&mut raw, &[at(byte + 12, 0, 32)]),
                ip => Gid::from_ip(ip).write(&mut raw, &[at(byte, 0, 128)]),
            }
        }
        raw
    }

    /// The two addresses as GIDs: source, destination.
    #[must_use]
    pub fn gids(&self) -> (Gid, Gid) {
        (Gid::from_ip(self.src), Gid::from_ip(self.dst))
    }
}
