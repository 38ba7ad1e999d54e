//! Datagram sockets: a UDP socket of the kernel and a UD queue pair behind one name.
//!
//! The first datagram to a destination goes by UDP with a header that tells our QPN. The receiver
//! answers the same way with its own, and from then on UD carries the data. [`Destinations`] is
//! what one end knows of others.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

mod destinations;

pub use destinations::{Destinations, Heard, Way};

/// Q_Key of every datagram socket's queue pair.
pub const QKEY: u32 = 0x0123_4567;

/// Bytes of a receive, for UD header and data; the GRH lies elsewhere.
pub const BUFFER_LEN: usize = 2048;

/// Bytes of the GRH before every UD message.
pub const GRH_LEN: usize = 40;

const TAG: u32 = 0x5555_5555;
const OP_DATA: u8 = 0;
const OP_CTRL: u8 = 7;

/// What a UDP datagram is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// User data follow; answer with your QPN.
    Data,
    /// The answer.
    Control,
}

/// In front of user data in UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpHeader {
    /// What for.
    pub op: Op,
    /// The sender's UD queue pair, 24 bits.
    pub qpn: u32,
    /// The sender's address. Its family is that of both sockets.
    pub address: IpAddr,
}

/// In front of user data in UD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdHeader {
    /// The sender's UDP port.
    pub port: u16,
    /// The sender's address.
    pub address: IpAddr,
    /// IPv6 flow information, network order as in a socket address; 0 over IPv4.
    pub flow: u32,
}

/// A header as bytes: at most 28.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderBytes {
    bytes: [u8; 28],
    len: usize,
}

impl HeaderBytes {
    fn new(parts: &[&[u8]]) -> Self {
        let mut out = Self {
            bytes: [0; 28],
            len: 0,
        };
        let all = parts.iter().copied().flatten();
        for (to, from) in out.bytes.iter_mut().zip(all) {
            *to = *from;
            out.len += 1;
        }
        out
    }
}

impl AsRef<[u8]> for HeaderBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Length of a UDP header for addresses of a family.
#[must_use]
pub const fn udp_header_len(v6: bool) -> usize {
    if v6 { 28 } else { 16 }
}

/// Length of a UD header for addresses of a family.
#[must_use]
pub const fn ud_header_len(v6: bool) -> usize {
    if v6 { 24 } else { 8 }
}

/// Bytes of user data that one datagram carries at most: what the receiver's buffer takes behind
/// the UD header, and what the path carries in one packet.
#[must_use]
pub fn payload_max(v6: bool, path_mtu: usize) -> usize {
    BUFFER_LEN.min(path_mtu).saturating_sub(ud_header_len(v6))
}

const fn family(address: IpAddr) -> u8 {
    if address.is_ipv6() { 6 } else { 4 }
}

/// The address that `bytes` are, whole, for a socket of a family.
fn address(bytes: &[u8], v6: bool) -> Option<IpAddr> {
    if v6 {
        let b: [u8; 16] = bytes.try_into().ok()?;
        return Some(Ipv6Addr::from(b).into());
    }
    let b: [u8; 4] = bytes.try_into().ok()?;
    Some(Ipv4Addr::from(b).into())
}

impl UdpHeader {
    /// Reads the header that a socket of a family has received, and what follows it. `None`: not
    /// from an rsocket, or of the other family; ignored.
    #[must_use]
    pub fn parse(bytes: &[u8], v6: bool) -> Option<(Self, &[u8])> {
        let (header, payload) = bytes.split_at_checked(udp_header_len(v6))?;
        let (fixed, name) = header.split_first_chunk::<12>()?;
        let [t0, t1, t2, t3, version, op, len, _, q0, q1, q2, q3] = *fixed;
        let right = u32::from_be_bytes([t0, t1, t2, t3]) == TAG
            && version == if v6 { 6 } else { 4 }
            && usize::from(len) == header.len();
        if !right {
            return None;
        }
        let op = match op {
            OP_DATA => Op::Data,
            OP_CTRL => Op::Control,
            _ => return None,
        };
        let header = Self {
            op,
            // upstream's document has the number in the high bits, its code in the low ones
            qpn: u32::from_be_bytes([q0, q1, q2, q3]) & 0xff_ffff,
            address: address(name, v6)?,
        };
        Some((header, payload))
    }

    /// The bytes to send.
    #[must_use]
    pub fn emit(&self) -> HeaderBytes {
        let v6 = self.address.is_ipv6();
        let op = match self.op {
            Op::Data => OP_DATA,
            Op::Control => OP_CTRL,
        };
        let head = [family(self.address), op, udp_header_len(v6) as u8, 0];
        let qpn = (self.qpn & 0xff_ffff).to_be_bytes();
        match self.address {
            IpAddr::V4(a) => HeaderBytes::new(&[&TAG.to_be_bytes(), &head, &qpn, &a.octets()]),
            IpAddr::V6(a) => HeaderBytes::new(&[&TAG.to_be_bytes(), &head, &qpn, &a.octets()]),
        }
    }
}

impl UdHeader {
    /// Reads the header of a UD message (behind the GRH) that a socket of a family has received,
    /// and what follows it. `None`: dropped.
    #[must_use]
    pub fn parse(bytes: &[u8], v6: bool) -> Option<(Self, &[u8])> {
        let (header, payload) = bytes.split_at_checked(ud_header_len(v6))?;
        let (&[version, len, p0, p1], rest) = header.split_first_chunk::<4>()?;
        if version != if v6 { 6 } else { 4 } || usize::from(len) != header.len() {
            return None;
        }
        let (flow, name) = if v6 {
            let (flow, name) = rest.split_first_chunk::<4>()?;
            (u32::from_be_bytes(*flow), name)
        } else {
            (0, rest)
        };
        let header = Self {
            port: u16::from_be_bytes([p0, p1]),
            address: address(name, v6)?,
            flow,
        };
        Some((header, payload))
    }

    /// The bytes to send.
    #[must_use]
    pub fn emit(&self) -> HeaderBytes {
        let v6 = self.address.is_ipv6();
        let head = [family(self.address), ud_header_len(v6) as u8];
        let port = self.port.to_be_bytes();
        match self.address {
            IpAddr::V4(a) => HeaderBytes::new(&[&head, &port, &a.octets()]),
            IpAddr::V6(a) => {
                HeaderBytes::new(&[&head, &port, &self.flow.to_be_bytes(), &a.octets()])
            }
        }
    }

    /// The header that says who `from` is.
    #[must_use]
    pub const fn of(from: SocketAddr) -> Self {
        Self {
            port: from.port(),
            address: from.ip(),
            flow: match from {
                SocketAddr::V4(_) => 0,
                SocketAddr::V6(a) => a.flowinfo(),
            },
        }
    }

    /// The sender's name; over IPv6 a link-local one belongs to interface `scope`.
    #[must_use]
    pub fn name(&self, scope: u32) -> SocketAddr {
        match self.address {
            IpAddr::V4(a) => SocketAddr::new(a.into(), self.port),
            IpAddr::V6(a) => core::net::SocketAddrV6::new(a, self.port, self.flow, scope).into(),
        }
    }
}

#[cfg(test)]
mod tests;
