//! Bytes of rtnetlink to values. Integers are in host order, addresses in network order. Nothing
//! here trusts a length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const GETLINK: u16 = 18;
pub(crate) const GETADDR: u16 = 22;

/// A message worth knowing. Others are left out by the iterator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    Link(Link),
    LinkGone {
        ifindex: u32,
    },
    Address(Address),
    AddressGone {
        ifindex: u32,
        ip: IpAddr,
    },
    /// End of a dump.
    Done,
    /// The table changed during the dump.
    Interrupted,
    /// A request was refused; positive errno.
    Failed(i32),
}

/// An interface in full.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Link {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    /// ARP type: 1 Ethernet, 772 loopback, 65534 none.
    pub(crate) arp_type: u16,
    pub(crate) flags: u32,
    pub(crate) mtu: u32,
    /// A MAC address; other hardware addresses are of no use here.
    pub(crate) mac: Option<[u8; 6]>,
    /// One end of a veth pair.
    pub(crate) is_veth: bool,
}

impl Link {
    pub(crate) const ARP_ETHERNET: u16 = 1;
    pub(crate) const ARP_LOOPBACK: u16 = 772;

    /// Administratively up.
    pub(crate) const fn is_up(&self) -> bool {
        self.flags & 0x1 != 0
    }

    /// Has neighbours whose link addresses must be known.
    pub(crate) const fn resolves_neighbours(&self) -> bool {
        const NOARP: u32 = 0x80;
        const LOOPBACK: u32 = 0x8;
        self.flags & (NOARP | LOOPBACK) == 0
    }

    /// Has a carrier.
    pub(crate) const fn has_carrier(&self) -> bool {
        self.flags & 0x1_0000 != 0
    }

    /// Operational in the eyes of the kernel's own protocols; comes a little after the carrier.
    pub(crate) const fn is_running(&self) -> bool {
        self.flags & 0x40 != 0
    }

    pub(crate) const fn is_loopback(&self) -> bool {
        self.arp_type == Self::ARP_LOOPBACK
    }
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) ifindex: u32,
    pub(crate) ip: IpAddr,
    pub(crate) flags: u32,
}

impl Address {
    /// Duplicate detection is under way.
    pub(crate) const fn is_tentative(&self) -> bool {
        const TENTATIVE: u32 = 0x40;
        const OPTIMISTIC: u32 = 0x04;
        self.flags & TENTATIVE != 0 && self.flags & OPTIMISTIC == 0
    }

    /// Somebody else has it.
    pub(crate) const fn is_duplicate(&self) -> bool {
        self.flags & 0x08 != 0
    }
}

/// A request for a whole table, of all address families.
pub(crate) fn dump_request(kind: u16) -> [u8; 20] {
    const REQUEST_DUMP: u16 = 0x1 | 0x300;
    let mut b = [0; 20];
    b[0..4].copy_from_slice(&20_u32.to_ne_bytes());
    b[4..6].copy_from_slice(&kind.to_ne_bytes());
    b[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    b[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    // The family header's first byte is the family (0 = all). GETLINK gets along with this
    // shortest form (struct rtgenmsg), as GETADDR does.
    b
}

/// The messages of one datagram.
#[derive(Debug)]
pub(crate) struct Messages<'a> {
    rest: &'a [u8],
    interrupted: bool,
}

impl<'a> Messages<'a> {
    pub(crate) const fn new(datagram: &'a [u8]) -> Self {
        Self {
            rest: datagram,
            interrupted: false,
        }
    }
}

impl Iterator for Messages<'_> {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        const DUMP_INTR: u16 = 0x10;
        loop {
            let len = u32_at(self.rest, 0)? as usize;
            let kind = u16_at(self.rest, 4)?;
            let flags = u16_at(self.rest, 6)?;
            // Said once per datagram, before the message that carried it.
            if flags & DUMP_INTR != 0 && !self.interrupted {
                self.interrupted = true;
                return Some(Message::Interrupted);
            }
            let body = self.rest.get(HEADER..len)?;
            self.rest = self.rest.get(padded(len)..).unwrap_or_default();
            if let Some(message) = parse(kind, body) {
                return Some(message);
            }
        }
    }
}

fn parse(kind: u16, body: &[u8]) -> Option<Message> {
    match kind {
        2 => match i32::from_ne_bytes(*body.first_chunk()?) {
            0 => None,
            code => Some(Message::Failed(code.saturating_neg())),
        },
        3 => Some(Message::Done),
        16 => parse_link(body).map(Message::Link),
        17 => {
            // A bridge says DELLINK (family 7) when a port leaves it; the interface stays.
            let ifindex = u32_at(body, 4)?;
            (*body.first()? == 0).then_some(Message::LinkGone { ifindex })
        }
        20 => parse_address(body).map(Message::Address),
        21 => {
            let Address { ifindex, ip, .. } = parse_address(body)?;
            Some(Message::AddressGone { ifindex, ip })
        }
        _ => None,
    }
}

fn parse_link(body: &[u8]) -> Option<Link> {
    const ADDRESS: u16 = 1;
    const IFNAME: u16 = 3;
    const MTU: u16 = 4;
    const LINKINFO: u16 = 18;
    if *body.first()? != 0 {
        return None;
    }
    let mut link = Link {
        arp_type: u16_at(body, 2)?,
        ifindex: u32_at(body, 4)?,
        flags: u32_at(body, 8)?,
        ..Link::default()
    };
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            ADDRESS if link.arp_type == Link::ARP_ETHERNET => {
                link.mac = value.try_into().ok().filter(|mac| *mac != [0; 6]);
            }
            IFNAME => link.name = text(value),
            MTU => link.mtu = u32_at(value, 0)?,
            LINKINFO => link.is_veth = kind_of(value).is_some_and(|kind| text(kind) == "veth"),
            _ => {}
        }
    }
    (link.ifindex != 0 && !link.name.is_empty()).then_some(link)
}

/// The driver's name for its kind of interface, in what is nested in IFLA_LINKINFO.
fn kind_of(info: &[u8]) -> Option<&[u8]> {
    const KIND: u16 = 1;
    let mut all = attributes(info);
    all.find_map(|(kind, value)| (kind == KIND).then_some(value))
}

fn parse_address(body: &[u8]) -> Option<Address> {
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    const FLAGS: u16 = 8;
    let family = *body.first()?;
    let mut flags = u32::from(*body.get(2)?);
    let ifindex = u32_at(body, 4)?;
    let mut address = None;
    let mut local = None;
    for (kind, value) in attributes(body.get(8..)?) {
        match kind {
            // On a point-to-point interface this is the peer's; LOCAL is ours then.
            ADDRESS => address = ip(family, value),
            LOCAL => local = ip(family, value),
            FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    let ip = local.or(address)?;
    Some(Address { ifindex, ip, flags })
}

pub(super) fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        2 => Some(Ipv4Addr::from(*value.first_chunk::<4>()?).into()),
        10 => Some(Ipv6Addr::from(*value.first_chunk::<16>()?).into()),
        _ => None,
    }
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

/// Type and value of each attribute; stops at the first that does not fit.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const KIND_MASK: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & KIND_MASK;
        let value = rest.get(4..len)?;
        rest = rest.get(padded(len)..).unwrap_or_default();
        Some((kind, value))
    })
}

const HEADER: usize = 16;

const fn padded(len: usize) -> usize {
    len.saturating_add(3) & !3
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests;
