//! Flow steering: which raw packets go to whom.
//!
//! A rule is a list of conditions on a packet's headers, each a value under a mask; a packet that
//! meets all of them is the rule's. Numbers are compared in host order here; the C ABI has them in
//! the order of the wire.

use alloc::vec::Vec;

/// A flow rule of this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FlowId(pub u32);

/// What kind of rule; values of `enum ibv_flow_attr_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
pub enum FlowKind {
    /// Packets that meet the conditions.
    #[default]
    Normal = 0,
    /// Every packet that no rule of kind `Normal` takes.
    AllDefault = 1,
    /// Every multicast packet that no rule of kind `Normal` takes.
    McDefault = 2,
    /// A copy of every packet, in and out.
    Sniffer = 3,
}

/// A value of which only the bits of the mask count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Masked<T> {
    /// Bits outside of the mask are ignored.
    pub value: T,
    /// 0 = any value.
    pub mask: T,
}

macro_rules! masked_number {
    ($($ty:ty)*) => {$(
        impl Masked<$ty> {
            /// The value fits.
            #[must_use]
            pub const fn fits(self, value: $ty) -> bool {
                (value ^ self.value) & self.mask == 0
            }

            /// Every value fits.
            #[must_use]
            pub const fn is_any(self) -> bool {
                self.mask == 0
            }
        }
    )*};
}
masked_number!(u8 u16 u32);

impl<const N: usize> Masked<[u8; N]> {
    /// The value fits.
    #[must_use]
    pub fn fits(&self, value: [u8; N]) -> bool {
        let bytes = value.iter().zip(&self.value).zip(&self.mask);
        bytes.fold(0, |different, ((a, b), mask)| different | (a ^ b) & mask) == 0
    }
}

/// One condition; `struct ibv_flow_spec_*`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub enum FlowSpec {
    Eth {
        dst_mac: Masked<[u8; 6]>,
        src_mac: Masked<[u8; 6]>,
        /// Behind VLAN tags.
        ether_type: Masked<u16>,
        /// With a mask: only packets with a tag.
        vlan_tag: Masked<u16>,
    },
    Ipv4 {
        src: Masked<[u8; 4]>,
        dst: Masked<[u8; 4]>,
        proto: Masked<u8>,
        tos: Masked<u8>,
        ttl: Masked<u8>,
        /// 2 = don't fragment, 4 = more fragments.
        flags: Masked<u8>,
    },
    Ipv6 {
        src: Masked<[u8; 16]>,
        dst: Masked<[u8; 16]>,
        flow_label: Masked<u32>,
        next_hdr: Masked<u8>,
        traffic_class: Masked<u8>,
        hop_limit: Masked<u8>,
    },
    Tcp {
        src_port: Masked<u16>,
        dst_port: Masked<u16>,
    },
    Udp {
        src_port: Masked<u16>,
        dst_port: Masked<u16>,
    },
}

/// A rule; `struct ibv_flow_attr` with its specs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowAttr {
    /// Its kind. Only `Normal` has conditions.
    pub kind: FlowKind,
    /// The lowest that has a rule for a packet decides.
    pub priority: u16,
    /// Packets are also shown to rules of higher numbers.
    pub dont_trap: bool,
    /// Conditions, all of which must be met.
    pub specs: Vec<FlowSpec>,
    /// What completions of its packets show as their flow tag.
    pub tag: u32,
    /// Packets go to nobody.
    pub drop: bool,
}

impl FlowAttr {
    /// A packet meets every condition.
    #[must_use]
    pub fn fits(&self, headers: &Headers) -> bool {
        self.specs.iter().all(|spec| spec.fits(headers))
    }
}

impl FlowSpec {
    fn fits(&self, headers: &Headers) -> bool {
        match self {
            Self::Eth {
                dst_mac,
                src_mac,
                ether_type,
                vlan_tag,
            } => {
                dst_mac.fits(headers.dst_mac)
                    && src_mac.fits(headers.src_mac)
                    && ether_type.fits(headers.ether_type)
                    && (vlan_tag.is_any() || headers.vlan_tag.is_some_and(|tag| vlan_tag.fits(tag)))
            }
            Self::Ipv4 {
                src,
                dst,
                proto,
                tos,
                ttl,
                flags,
            } => match headers.network {
                Network::V4 {
                    src: from,
                    dst: to,
                    flags: now,
                } => {
                    src.fits(from)
                        && dst.fits(to)
                        && proto.fits(headers.protocol)
                        && tos.fits(headers.traffic_class)
                        && ttl.fits(headers.hop_limit)
                        && flags.fits(now)
                }
                _ => false,
            },
            Self::Ipv6 {
                src,
                dst,
                flow_label,
                next_hdr,
                traffic_class,
                hop_limit,
            } => match headers.network {
                Network::V6 {
                    src: from,
                    dst: to,
                    flow_label: now,
                } => {
                    src.fits(from)
                        && dst.fits(to)
                        && flow_label.fits(now)
                        && next_hdr.fits(headers.protocol)
                        && traffic_class.fits(headers.traffic_class)
                        && hop_limit.fits(headers.hop_limit)
                }
                _ => false,
            },
            Self::Tcp { src_port, dst_port } => headers.ports_fit(TCP, *src_port, *dst_port),
            Self::Udp { src_port, dst_port } => headers.ports_fit(UDP, *src_port, *dst_port),
        }
    }
}

/// IP protocol numbers.
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

const ETHER_TYPE_IPV4: u16 = 0x0800;
const ETHER_TYPE_IPV6: u16 = 0x86dd;
const ETHER_TYPE_VLAN: u16 = 0x8100;
const ETHER_TYPE_SERVICE_VLAN: u16 = 0x88a8;

/// Bytes of an Ethernet header without tags, and of a tag.
pub const ETHER_HEADER_BYTES: usize = 14;
/// Bytes of a VLAN tag.
pub const VLAN_BYTES: usize = 4;

/// The headers of a frame, as far as rules and hashes look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    /// Destination.
    pub dst_mac: [u8; 6],
    /// Source.
    pub src_mac: [u8; 6],
    /// The outer tag, if there is one.
    pub vlan_tag: Option<u16>,
    /// Behind tags.
    pub ether_type: u16,
    /// Addresses.
    pub network: Network,
    /// Of IP: protocol, or next header.
    pub protocol: u8,
    /// Of IP: traffic class.
    pub traffic_class: u8,
    /// Of IP: time to live.
    pub hop_limit: u8,
    /// TCP or UDP ports, source and destination; none in fragments.
    pub ports: Option<(u16, u16)>,
}

/// Addresses of the network header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "said by their names")]
pub enum Network {
    #[default]
    Other,
    V4 {
        src: [u8; 4],
        dst: [u8; 4],
        flags: u8,
    },
    V6 {
        src: [u8; 16],
        dst: [u8; 16],
        flow_label: u32,
    },
}

impl Headers {
    /// Reads a frame. `None`: it has no Ethernet header.
    #[must_use]
    pub fn read(frame: &[u8]) -> Option<Self> {
        let mut headers = Self {
            dst_mac: bytes(frame, 0)?,
            src_mac: bytes(frame, 6)?,
            ether_type: number(frame, 12)?,
            ..Self::default()
        };
        let mut at = ETHER_HEADER_BYTES;
        while matches!(
            headers.ether_type,
            ETHER_TYPE_VLAN | ETHER_TYPE_SERVICE_VLAN
        ) {
            let Some((tag, inner)) = number(frame, at).zip(number(frame, at + 2)) else {
                break;
            };
            headers.vlan_tag = headers.vlan_tag.or(Some(tag));
            headers.ether_type = inner;
            at += VLAN_BYTES;
        }
        let network = frame.get(at..).unwrap_or_default();
        // What is too short for its header has none.
        let _ = match headers.ether_type {
            ETHER_TYPE_IPV4 => headers.read_v4(network),
            ETHER_TYPE_IPV6 => headers.read_v6(network),
            _ => None,
        };
        Some(headers)
    }

    fn read_v4(&mut self, packet: &[u8]) -> Option<()> {
        let first = *packet.first()?;
        let fragment = number(packet, 6)?;
        let (src, dst) = (bytes(packet, 12)?, bytes(packet, 16)?);
        if first >> 4 != 4 {
            return None;
        }
        self.traffic_class = *packet.get(1)?;
        self.hop_limit = *packet.get(8)?;
        self.protocol = *packet.get(9)?;
        // Bit 14 is "don't fragment", bit 13 "more fragments".
        let flags =
            (u8::from(fragment & 0x4000 != 0) << 1) | (u8::from(fragment & 0x2000 != 0) << 2);
        self.network = Network::V4 { src, dst, flags };
        if fragment & 0x1fff == 0 {
            self.read_ports(packet, usize::from(first & 0xf) * 4);
        }
        Some(())
    }

    fn read_v6(&mut self, packet: &[u8]) -> Option<()> {
        let word = u32::from_be_bytes(bytes(packet, 0)?);
        let (src, dst) = (bytes(packet, 8)?, bytes(packet, 24)?);
        if word >> 28 != 6 {
            return None;
        }
        self.traffic_class = u8::try_from(word >> 20 & 0xff).unwrap_or(0);
        self.protocol = *packet.get(6)?;
        self.hop_limit = *packet.get(7)?;
        self.network = Network::V6 {
            src,
            dst,
            flow_label: word & 0x000f_ffff,
        };
        self.read_ports(packet, 40);
        Some(())
    }

    fn read_ports(&mut self, packet: &[u8], at: usize) {
        if matches!(self.protocol, TCP | UDP) {
            self.ports = number(packet, at).zip(number(packet, at + 2));
        }
    }

    fn ports_fit(&self, protocol: u8, src: Masked<u16>, dst: Masked<u16>) -> bool {
        let fit = |(from, to)| src.fits(from) && dst.fits(to);
        self.protocol == protocol && self.ports.is_some_and(fit)
    }

    /// To a group, or to all.
    #[must_use]
    pub const fn is_multicast(&self) -> bool {
        self.dst_mac[0] & 1 != 0
    }
}

fn bytes<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at + N)?.try_into().ok()
}

fn number(data: &[u8], at: usize) -> Option<u16> {
    bytes(data, at).map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests;
