//! Numbers that travel in headers, each in a type of its own.
//!
//! 24-bit wrap lives in [`Psn`] alone; nothing else does arithmetic on sequence numbers.

use core::fmt;

/// Packet sequence number: 24 bits, compared modulo 2^24 with half-range ordering.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// All 24 bits.
    pub const MASK: u32 = 0x00ff_ffff;

    /// Takes the low 24 bits of `value`, as the Linux core does with PSN attributes.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The 24-bit value.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `n` places after this one.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & Self::MASK)
    }

    /// The number `n` places before this one.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n) & Self::MASK)
    }

    /// Signed distance from `base` to `self`, in -2^23 ..= 2^23-1.
    #[must_use]
    pub const fn diff(self, base: Self) -> i32 {
        (self.0.wrapping_sub(base.0) << 8).cast_signed() >> 8
    }

    /// `self` comes before `other` in the half-range order.
    #[must_use]
    pub const fn before(self, other: Self) -> bool {
        self.diff(other) < 0
    }

    /// `self` comes after `other` in the half-range order.
    #[must_use]
    pub const fn after(self, other: Self) -> bool {
        self.diff(other) > 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "psn {:#08x}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Queue pair number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// Subnet management interface; unused in RoCE.
    pub const SMI: Self = Self(0);
    /// General services interface, where connection management arrives.
    pub const GSI: Self = Self(1);
    /// Destination of multicast datagrams.
    pub const MULTICAST: Self = Self(0x00ff_ffff);

    /// Takes the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The 24-bit value.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The slot (receive socket) that serves this number: its upper 12 bits.
    #[must_use]
    pub const fn slot(self) -> u16 {
        (self.0 >> 12) as u16
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp {:#x}", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

plain! {
    /// Key of a region for local access.
    LKey(u32)
}
plain! {
    /// Key of a region or window for access by the peer.
    RKey(u32)
}
plain! {
    /// Queue key of datagram queue pairs.
    QKey(u32)
}
plain! {
    /// Partition key; bit 15 set = full member.
    PKey(u16)
}

impl PKey {
    /// The default partition, full member: the only one in a RoCE table.
    pub const DEFAULT: Self = Self(0xffff);

    /// Two keys match: same 15-bit partition, not 0, and at least one full member.
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        let base = self.0 & 0x7fff;
        base != 0 && base == other.0 & 0x7fff && (self.0 | other.0) & 0x8000 != 0
    }
}

/// Payload bytes per packet, as verbs enumerate them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes.
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    M4096 = 5,
}

impl Mtu {
    /// All values, ascending.
    pub const ALL: [Self; 5] = [
        Self::M256,
        Self::M512,
        Self::M1024,
        Self::M2048,
        Self::M4096,
    ];

    /// Headers that Linux leaves room for when it derives the port MTU from the interface MTU.
    pub const HEADER_ROOM: u32 = 80;

    /// Payload bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// From the verbs enumeration (1..=5).
    #[must_use]
    pub const fn from_verbs(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::M256,
            2 => Self::M512,
            3 => Self::M1024,
            4 => Self::M2048,
            5 => Self::M4096,
            _ => return None,
        })
    }

    /// The largest value that fits an interface MTU less [`Mtu::HEADER_ROOM`].
    #[must_use]
    pub fn fitting_netdev(netdev_mtu: u32) -> Option<Self> {
        let room = netdev_mtu.saturating_sub(Self::HEADER_ROOM);
        Self::ALL.into_iter().rev().find(|m| m.bytes() <= room)
    }
}

/// Global identifier: an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The empty table entry.
    pub const ZERO: Self = Self([0; 16]);

    /// ::ffff:a.b.c.d
    #[must_use]
    pub const fn from_v4(a: [u8; 4]) -> Self {
        Self([
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3],
        ])
    }

    /// The IPv4 address inside, if this is a mapped one.
    #[must_use]
    pub fn v4(self) -> Option<[u8; 4]> {
        let (head, tail) = self.0.split_at(12);
        (head == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
            .then(|| [tail[0], tail[1], tail[2], tail[3]])
    }

    /// As an IP address of the family it stands for.
    #[must_use]
    pub fn ip(self) -> core::net::IpAddr {
        match self.v4() {
            Some(a) => core::net::IpAddr::V4(a.into()),
            None => core::net::IpAddr::V6(self.0.into()),
        }
    }

    /// From an IP address.
    #[must_use]
    pub fn from_ip(ip: core::net::IpAddr) -> Self {
        match ip {
            core::net::IpAddr::V4(a) => Self::from_v4(a.octets()),
            core::net::IpAddr::V6(a) => Self(a.octets()),
        }
    }

    /// fe80::/64
    #[must_use]
    pub fn is_link_local(self) -> bool {
        self.0[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0]
    }

    /// Starts 0xff, or is a mapped IPv4 multicast address.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xff || self.v4().is_some_and(|a| a[0] & 0xf0 == 0xe0)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::net::Ipv6Addr::from(self.0).fmt(f)
    }
}
