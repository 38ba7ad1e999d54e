//! Whole frames: Ethernet, VLAN, IPv4, IPv6, UDP and GRH around a packet, for tools, tests and
//! links that see them; and the 40-byte area in front of a received datagram.

use core::fmt;

use crate::bytes::{Reader, Writer, internet_checksum};
use crate::{Gid, ICRC_LEN, UDP_PORT, icrc};

/// Ethernet types.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// RoCE v1: a GRH follows.
    pub const ROCE_V1: u16 = 0x8915;
    /// 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// 802.1ad tag.
    pub const SERVICE_VLAN: u16 = 0x88a8;
}

/// Next header of a GRH: a BTH follows.
pub const NEXT_HEADER_BTH: u8 = 0x1b;
/// Next header of UDP.
pub const NEXT_HEADER_UDP: u8 = 17;

/// Why a frame is not RoCE, or not a valid one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FrameError {
    /// The bytes end inside a header, or before the length that a header gives.
    Short {
        /// Bytes needed at least.
        needed: usize,
        /// Bytes there.
        had: usize,
    },
    /// Another protocol.
    NotRoce,
    /// IP version field against the Ethernet type.
    IpVersion(u8),
    /// IPv4 options; RoCE has none.
    IpOptions,
    /// A fragment.
    Fragment,
    /// IPv4 header checksum.
    Ipv4Checksum,
    /// UDP length against IP length.
    Lengths {
        /// Bytes that the IP header leaves for UDP.
        ip: usize,
        /// Length in the UDP header.
        udp: usize,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { needed, had } => {
                write!(f, "malformed: {had} bytes where {needed} are needed")
            }
            Self::NotRoce => f.write_str("not RoCE"),
            Self::IpVersion(v) => write!(f, "malformed: IP version {v}"),
            Self::IpOptions => f.write_str("malformed: IPv4 options"),
            Self::Fragment => f.write_str("malformed: a fragment"),
            Self::Ipv4Checksum => f.write_str("malformed: IPv4 header checksum"),
            Self::Lengths { ip, udp } => {
                write!(f, "malformed: UDP length {udp} in {ip} bytes of IP")
            }
        }
    }
}

impl core::error::Error for FrameError {}

/// A VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Vlan {
    /// Tag protocol: [`ethertype::VLAN`] or [`ethertype::SERVICE_VLAN`].
    pub tpid: u16,
    /// Priority (3 bits), drop eligible (1), VLAN id (12).
    pub tci: u16,
}

/// Ethernet header with up to two tags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ethernet {
    /// Destination MAC.
    pub dst: [u8; 6],
    /// Source MAC.
    pub src: [u8; 6],
    /// Outer tag first.
    pub vlans: [Option<Vlan>; 2],
}

/// IPv4 header without options. Length, protocol and checksum are computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ipv4 {
    /// DSCP and ECN.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset.
    pub flags_frag: u16,
    /// Time to live.
    pub ttl: u8,
    /// Source.
    pub src: [u8; 4],
    /// Destination.
    pub dst: [u8; 4],
}

/// IPv6 header, or a GRH. Length and next header are computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ipv6 {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub src: [u8; 16],
    /// Destination.
    pub dst: [u8; 16],
}

/// UDP header. The length is computed; the checksum travels as given (0 is normal in RoCE).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Udp {
    /// Source port.
    pub sport: u16,
    /// Checksum as on the wire; the ICRC masks it.
    pub checksum: u16,
}

/// The network layer of a RoCE frame; v2 has UDP to port 4791 in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Net {
    /// RoCE v2 over IPv4.
    V4(Ipv4, Udp),
    /// RoCE v2 over IPv6.
    V6(Ipv6, Udp),
    /// RoCE v1.
    Grh(Ipv6),
}

/// Everything in front of the BTH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outer {
    /// `None` when the frame starts at the IP header.
    pub ethernet: Option<Ethernet>,
    /// IP and UDP, or GRH.
    pub net: Net,
}

/// A frame taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Headers in front of the BTH.
    pub outer: Outer,
    /// BTH to ICRC, for [`Packet::parse`](crate::Packet::parse).
    pub ib: &'a [u8],
    /// Bytes after the IP length (Ethernet padding); not part of the packet.
    pub trailer: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads a frame from its Ethernet header (without FCS).
    ///
    /// # Errors
    /// [`FrameError::NotRoce`] for other traffic; the rest for frames that no RoCE sender makes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        need(bytes, 14)?;
        let mut r = Reader(bytes);
        let mut ethernet = Ethernet {
            dst: r.take(),
            src: r.take(),
            vlans: [None; 2],
        };
        let mut kind = r.u16();
        for slot in &mut ethernet.vlans {
            if kind == ethertype::VLAN || kind == ethertype::SERVICE_VLAN {
                need(r.0, 4)?;
                *slot = Some(Vlan {
                    tpid: kind,
                    tci: r.u16(),
                });
                kind = r.u16();
            }
        }
        let mut frame = match kind {
            ethertype::IPV4 => parse_v4(r.0),
            ethertype::IPV6 => parse_v6(r.0, NEXT_HEADER_UDP),
            ethertype::ROCE_V1 => parse_v6(r.0, NEXT_HEADER_BTH),
            _ => Err(FrameError::NotRoce),
        }?;
        frame.outer.ethernet = Some(ethernet);
        Ok(frame)
    }

    /// Reads a RoCE v2 packet from its IP header; the version nibble tells the family.
    ///
    /// # Errors
    /// As [`Frame::parse`].
    pub fn parse_ip(bytes: &'a [u8]) -> Result<Self, FrameError> {
        match bytes.first().map_or(0, |b| b >> 4) {
            4 => parse_v4(bytes),
            6 => parse_v6(bytes, NEXT_HEADER_UDP),
            v => Err(FrameError::IpVersion(v)),
        }
    }

    /// The ICRC in the frame is right.
    #[must_use]
    pub fn icrc_ok(&self) -> bool {
        self.ib.last_chunk::<ICRC_LEN>().is_some_and(|wire| {
            u32::from_le_bytes(*wire) == self.outer.icrc(icrc::covered(self.ib))
        })
    }

    /// Writes the frame; returns its length, `None` if `buf` is too short.
    pub fn emit(&self, buf: &mut [u8]) -> Option<usize> {
        let len = self.outer.emit(self.ib, buf)?;
        let end = len + self.trailer.len();
        buf.get_mut(len..end)?.copy_from_slice(self.trailer);
        Some(end)
    }
}

impl Outer {
    /// ICRC of a packet (`ib` is BTH to pad) behind these headers.
    #[must_use]
    pub fn icrc(&self, ib: &[u8]) -> u32 {
        match &self.net {
            Net::V4(ip, udp) => icrc::v4(&ip.icrc_view(udp), ib),
            Net::V6(ip, udp) => icrc::v6(&ip.icrc_view(udp), ib),
            Net::Grh(grh) => icrc::grh(&grh.encode(NEXT_HEADER_BTH, ib.len() + ICRC_LEN), ib),
        }
    }

    /// Computes and writes the ICRC of `frame` (BTH to ICRC).
    pub fn seal(&self, frame: &mut [u8]) {
        icrc::seal(self.icrc(icrc::covered(frame)), frame);
    }

    /// Bytes in front of the BTH.
    #[must_use]
    pub fn header_len(&self) -> usize {
        let ethernet = self
            .ethernet
            .map_or(0, |e| 14 + 4 * e.vlans.iter().flatten().count());
        ethernet
            + match self.net {
                Net::V4(..) => 28,
                Net::V6(..) => 48,
                Net::Grh(_) => 40,
            }
    }

    /// Writes these headers and `ib` (BTH to ICRC); returns the length, `None` if `buf` is too
    /// short or `ib` longer than an IP packet.
    pub fn emit(&self, ib: &[u8], buf: &mut [u8]) -> Option<usize> {
        let len = self.header_len() + ib.len();
        if ib.len() > 65_507 {
            return None;
        }
        let mut w = Writer::new(buf.get_mut(..len)?);
        if let Some(ethernet) = &self.ethernet {
            ethernet.encode(self.net.ethertype(), &mut w);
        }
        match &self.net {
            Net::V4(ip, udp) => {
                w.put(&ip.encode(8 + ib.len()));
                w.put(&udp.encode(ib.len()));
            }
            Net::V6(ip, udp) => {
                w.put(&ip.encode(NEXT_HEADER_UDP, 8 + ib.len()));
                w.put(&udp.encode(ib.len()));
            }
            Net::Grh(grh) => w.put(&grh.encode(NEXT_HEADER_BTH, ib.len())),
        }
        w.put(ib);
        Some(w.written())
    }

    /// The UDP checksum over these headers and `ib` (BTH to ICRC), never 0; `None` in RoCE v1.
    #[must_use]
    pub fn udp_checksum(&self, ib: &[u8]) -> Option<u16> {
        let length = ((8 + ib.len()) as u32).to_be_bytes();
        let proto = [0, NEXT_HEADER_UDP];
        let sum = match &self.net {
            Net::V4(ip, udp) => {
                let udp = Udp {
                    checksum: 0,
                    ..*udp
                }
                .encode(ib.len());
                internet_checksum(&[&ip.src, &ip.dst, &proto, &length, &udp, ib])
            }
            Net::V6(ip, udp) => {
                let udp = Udp {
                    checksum: 0,
                    ..*udp
                }
                .encode(ib.len());
                internet_checksum(&[&ip.src, &ip.dst, &proto, &length, &udp, ib])
            }
            Net::Grh(_) => return None,
        };
        Some(if sum == 0 { 0xffff } else { sum })
    }
}

impl Net {
    /// The Ethernet type in front of it.
    #[must_use]
    pub const fn ethertype(&self) -> u16 {
        match self {
            Self::V4(..) => ethertype::IPV4,
            Self::V6(..) => ethertype::IPV6,
            Self::Grh(_) => ethertype::ROCE_V1,
        }
    }

    /// Source GID.
    #[must_use]
    pub const fn sgid(&self) -> Gid {
        match self {
            Self::V4(ip, _) => Gid::from_v4(ip.src),
            Self::V6(ip, _) | Self::Grh(ip) => Gid(ip.src),
        }
    }

    /// Destination GID.
    #[must_use]
    pub const fn dgid(&self) -> Gid {
        match self {
            Self::V4(ip, _) => Gid::from_v4(ip.dst),
            Self::V6(ip, _) | Self::Grh(ip) => Gid(ip.dst),
        }
    }
}

/// The area in front of a datagram received over IPv4: 20 zero bytes, then the IPv4 header with a
/// right checksum. `udp_payload_len` is BTH to ICRC.
#[must_use]
pub fn grh_area_v4(ip: &Ipv4, udp_payload_len: usize) -> [u8; 40] {
    let mut area = [0; 40];
    area[20..].copy_from_slice(&ip.encode(8 + udp_payload_len));
    area
}

/// The area in front of a datagram received over IPv6: the IPv6 header.
#[must_use]
pub fn grh_area_v6(ip: &Ipv6, udp_payload_len: usize) -> [u8; 40] {
    ip.encode(NEXT_HEADER_UDP, 8 + udp_payload_len)
}

/// The area in front of a datagram received by RoCE v1: the GRH. `ib_len` is BTH to ICRC.
#[must_use]
pub fn grh_area_v1(grh: &Ipv6, ib_len: usize) -> [u8; 40] {
    grh.encode(NEXT_HEADER_BTH, ib_len)
}

impl Ethernet {
    fn encode(&self, kind: u16, w: &mut Writer<'_>) {
        w.put(&self.dst);
        w.put(&self.src);
        for tag in self.vlans.iter().flatten() {
            w.put(&tag.tpid.to_be_bytes());
            w.put(&tag.tci.to_be_bytes());
        }
        w.put(&kind.to_be_bytes());
    }
}

impl Ipv4 {
    /// The 20 bytes, with checksum; `payload_len` counts from the UDP header on.
    #[must_use]
    pub fn encode(&self, payload_len: usize) -> [u8; 20] {
        let [t0, t1] = ((20 + payload_len) as u16).to_be_bytes();
        let [i0, i1] = self.id.to_be_bytes();
        let [f0, f1] = self.flags_frag.to_be_bytes();
        let (s, d) = (self.src, self.dst);
        let mut out = [
            0x45,
            self.tos,
            t0,
            t1,
            i0,
            i1,
            f0,
            f1,
            self.ttl,
            NEXT_HEADER_UDP,
            0,
            0,
            s[0],
            s[1],
            s[2],
            s[3],
            d[0],
            d[1],
            d[2],
            d[3],
        ];
        let [c0, c1] = internet_checksum(&[&out]).to_be_bytes();
        out[10] = c0;
        out[11] = c1;
        out
    }

    /// What the ICRC covers of this and of `udp`.
    #[must_use]
    pub const fn icrc_view(&self, udp: &Udp) -> icrc::V4 {
        icrc::V4 {
            src: self.src,
            dst: self.dst,
            id: self.id,
            flags_frag: self.flags_frag,
            sport: udp.sport,
            dport: UDP_PORT,
        }
    }
}

impl Ipv6 {
    /// The 40 bytes; `payload_len` counts what follows.
    #[must_use]
    pub fn encode(&self, next_header: u8, payload_len: usize) -> [u8; 40] {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        let mut out = [0; 40];
        let mut w = Writer::new(&mut out);
        w.put(&first.to_be_bytes());
        w.put(&(payload_len as u16).to_be_bytes());
        w.put(&[next_header, self.hop_limit]);
        w.put(&self.src);
        w.put(&self.dst);
        out
    }

    /// What the ICRC covers of this and of `udp`.
    #[must_use]
    pub const fn icrc_view(&self, udp: &Udp) -> icrc::V6 {
        icrc::V6 {
            src: self.src,
            dst: self.dst,
            sport: udp.sport,
            dport: UDP_PORT,
        }
    }
}

impl Udp {
    fn encode(&self, payload_len: usize) -> [u8; 8] {
        let [s0, s1] = self.sport.to_be_bytes();
        let [d0, d1] = UDP_PORT.to_be_bytes();
        let [l0, l1] = ((8 + payload_len) as u16).to_be_bytes();
        let [c0, c1] = self.checksum.to_be_bytes();
        [s0, s1, d0, d1, l0, l1, c0, c1]
    }
}

fn parse_v4(bytes: &[u8]) -> Result<Frame<'_>, FrameError> {
    need(bytes, 20)?;
    let mut r = Reader(bytes);
    let [version_ihl, tos] = r.take();
    let total = usize::from(r.u16());
    let (id, flags_frag) = (r.u16(), r.u16());
    let [ttl, protocol] = r.take();
    r.u16();
    let (src, dst) = (r.take(), r.take());
    if version_ihl >> 4 != 4 {
        return Err(FrameError::IpVersion(version_ihl >> 4));
    }
    if protocol != NEXT_HEADER_UDP {
        return Err(FrameError::NotRoce);
    }
    if version_ihl & 0xf != 5 {
        return Err(FrameError::IpOptions);
    }
    // More fragments, or an offset.
    if flags_frag & 0x3fff != 0 {
        return Err(FrameError::Fragment);
    }
    if internet_checksum(&[bytes.get(..20).unwrap_or(&[])]) != 0 {
        return Err(FrameError::Ipv4Checksum);
    }
    let ip = Ipv4 {
        tos,
        id,
        flags_frag,
        ttl,
        src,
        dst,
    };
    let (inner, trailer) = cut(r.0, total.saturating_sub(20))?;
    let (udp, ib) = parse_udp(inner)?;
    Ok(Frame {
        outer: Outer {
            ethernet: None,
            net: Net::V4(ip, udp),
        },
        ib,
        trailer,
    })
}

fn parse_v6(bytes: &[u8], expected: u8) -> Result<Frame<'_>, FrameError> {
    need(bytes, 40)?;
    let mut r = Reader(bytes);
    let first = r.u32();
    let length = usize::from(r.u16());
    let [next_header, hop_limit] = r.take();
    let ip = Ipv6 {
        traffic_class: (first >> 20) as u8,
        flow_label: first & 0xf_ffff,
        hop_limit,
        src: r.take(),
        dst: r.take(),
    };
    if first >> 28 != 6 {
        return Err(FrameError::IpVersion((first >> 28) as u8));
    }
    if next_header != expected {
        return Err(FrameError::NotRoce);
    }
    let (inner, trailer) = cut(r.0, length)?;
    let (net, ib) = if expected == NEXT_HEADER_UDP {
        let (udp, ib) = parse_udp(inner)?;
        (Net::V6(ip, udp), ib)
    } else {
        (Net::Grh(ip), inner)
    };
    Ok(Frame {
        outer: Outer {
            ethernet: None,
            net,
        },
        ib,
        trailer,
    })
}

fn parse_udp(bytes: &[u8]) -> Result<(Udp, &[u8]), FrameError> {
    need(bytes, 8)?;
    let mut r = Reader(bytes);
    let (sport, dport, length) = (r.u16(), r.u16(), usize::from(r.u16()));
    let checksum = r.u16();
    if dport != UDP_PORT {
        return Err(FrameError::NotRoce);
    }
    if length != bytes.len() {
        return Err(FrameError::Lengths {
            ip: bytes.len(),
            udp: length,
        });
    }
    Ok((Udp { sport, checksum }, r.0))
}

const fn need(bytes: &[u8], needed: usize) -> Result<(), FrameError> {
    if bytes.len() < needed {
        return Err(FrameError::Short {
            needed,
            had: bytes.len(),
        });
    }
    Ok(())
}

fn cut(bytes: &[u8], len: usize) -> Result<(&[u8], &[u8]), FrameError> {
    bytes.split_at_checked(len).ok_or(FrameError::Short {
        needed: len,
        had: bytes.len(),
    })
}

#[cfg(test)]
mod tests;
