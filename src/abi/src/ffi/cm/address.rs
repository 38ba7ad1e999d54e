//! Socket addresses, in and out.

use core::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::cm::CmAddr;

use super::super::boundary::{NULL, Outcome};
use super::types::{PS_IPOIB, sockaddr_storage};

const FAMILY: Misuse = Misuse::new(Errno::EINVAL, "only IPv4 and IPv6 addresses");

/// Addresses of InfiniBand ports. Where the kernel refuses them for its RoCE devices, so do we, with its
/// errnos ([`refuse_ib`]). It takes their wildcard to bind to, which covers every device and all families
/// ([`IbAny`]). It takes any address whose P_Key fits, too; no RoCE port has one, so these are refused.
pub(super) const AF_IB: i32 = 27;
const NO_IB: Misuse = Misuse::new(
    Errno::ENODEV,
    "AF_IB addresses are for InfiniBand ports: give the IP address",
);

const MIXED: Misuse = Misuse::new(
    Errno::EINVAL,
    "source and destination are addresses of two families",
);
const NO_IB_PORTS: Misuse = Misuse::new(
    Errno(libc::EPROTONOSUPPORT),
    "an AF_IB address of another port space; RDMA_PS_IPOIB has none",
);

/// An AF_IB address; whether it is the wildcard.
fn ib(address: *const u8) -> Option<bool> {
    /// `sib_addr` of `struct sockaddr_ib`
    const AT: usize = 8;
    if address.is_null() || family(address) != AF_IB {
        return None;
    }
    // SAFETY: the caller's address of this family, in which the GID is there.
    let gid = unsafe { address.wrapping_add(AT).cast::<[u8; 16]>().read_unaligned() };
    Some(gid == [0; 16])
}

fn family(address: *const u8) -> i32 {
    // SAFETY: every socket address begins with its family; not NULL, as the callers have looked.
    i32::from(unsafe { address.cast::<u16>().read_unaligned() })
}

/// What the kernel says of AF_IB addresses besides ENODEV, before it looks for a device. `destination` is
/// NULL where only an address to bind to is given.
pub(super) fn refuse_ib(ps: c_int, source: *const u8, destination: *const u8) -> Outcome<()> {
    let ends = (ib(source), ib(destination));
    let wildcard = match ends {
        (None, None) => return Ok(()),
        (None, Some(_)) if !source.is_null() => return Err(MIXED),
        (None, Some(_)) => true, // bound to the wildcard of the destination's family
        (Some(wildcard), _) => wildcard,
    };
    match (ps, wildcard, ends.1) {
        (PS_IPOIB, true, _) => Err(NO_IB_PORTS),
        (_, true, None) if !destination.is_null() => Err(MIXED),
        _ => Ok(()),
    }
}

/// The AF_IB wildcard: a port, in the words of a service ID (IBTA A11).
#[derive(Clone, Copy, Debug)]
pub(super) struct IbAny {
    bytes: [u8; size_of::<sockaddr_ib>()],
    pub(super) port: u16,
}

/// Where `struct sockaddr_ib` has the service ID and its mask.
const SID: core::ops::Range<usize> = 24..32;
const MASK: core::ops::Range<usize> = 32..40;
#[allow(non_camel_case_types, reason = "the name in ib.h")]
type sockaddr_ib = [u8; 48];

impl IbAny {
    /// An address to bind to, if it is the wildcard. EPROTONOSUPPORT: a service ID of another port space.
    pub(super) fn read(ps: c_int, address: *const u8) -> Outcome<Option<Self>> {
        /// The bits of a service ID that name the port space.
        const SPACE: u64 = !0xffff;
        if ib(address) != Some(true) {
            return Ok(None);
        }
        // SAFETY: the caller's address of this family.
        let bytes = unsafe { address.cast::<sockaddr_ib>().read_unaligned() };
        let word = |at: core::ops::Range<usize>| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes.get(at).unwrap_or(&[0; 8]));
            u64::from_be_bytes(word)
        };
        let (sid, mask) = (word(SID), word(MASK));
        let space = u64::try_from(ps).unwrap_or(0) << 16;
        if (sid ^ space) & mask & SPACE != 0 {
            return Err(NO_IB_PORTS);
        }
        let port = (sid & mask & !SPACE) as u16;
        Ok(Some(Self { bytes, port }))
    }

    /// As the kernel shows it, with the port that it got.
    pub(super) fn storage(&self, ps: c_int, port: u16) -> sockaddr_storage {
        let sid = (u64::try_from(ps).unwrap_or(0) << 16) | u64::from(port);
        let mut out = sockaddr_storage([0; 128]);
        let b = &mut out.0;
        b[..self.bytes.len()].copy_from_slice(&self.bytes);
        b[SID].copy_from_slice(&sid.to_be_bytes());
        b[MASK].copy_from_slice(&u64::MAX.to_be_bytes());
        out
    }
}

/// Bytes of an address of this family; 0 for families that RoCE has no use for.
pub(super) fn length_of(family: i32) -> usize {
    match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => 0,
    }
}

/// Copies as much of a socket address as its family has.
pub(super) fn read(address: *const u8) -> Outcome<sockaddr_storage> {
    if address.is_null() {
        return Err(NULL);
    }
    let family = family(address);
    let length = length_of(family);
    if family == AF_IB {
        return Err(NO_IB);
    }
    if length == 0 {
        return Err(FAMILY);
    }
    let mut copy = sockaddr_storage([0; 128]);
    let to = copy.0.as_mut_ptr();
    // SAFETY: an address of this family has this length, which is below 128 bytes.
    unsafe { to.copy_from_nonoverlapping(address, length) };
    Ok(copy)
}

/// As [`read`], in the words of the layers below.
pub(super) fn parse(address: *const u8) -> Outcome<CmAddr> {
    read(address).map(|address| of(&address))
}

/// The address in a storage of one of our families.
pub(super) fn of(address: &sockaddr_storage) -> CmAddr {
    let b = &address.0;
    let family = u16::from_ne_bytes([b[0], b[1]]);
    let port = u16::from_be_bytes([b[2], b[3]]);
    if i32::from(family) == libc::AF_INET {
        let ip = IpAddr::V4(Ipv4Addr::new(b[4], b[5], b[6], b[7]));
        return CmAddr { ip, port, scope: 0 };
    }
    let mut v6 = [0; 16];
    v6.copy_from_slice(&b[8..24]);
    let ip = IpAddr::V6(Ipv6Addr::from(v6));
    let scope = u32::from_ne_bytes([b[24], b[25], b[26], b[27]]);
    CmAddr { ip, port, scope }
}

/// As C has it.
pub(super) fn storage(address: &CmAddr) -> sockaddr_storage {
    let mut out = sockaddr_storage([0; 128]);
    let b = &mut out.0;
    b[2..4].copy_from_slice(&address.port.to_be_bytes());
    match address.ip {
        IpAddr::V4(ip) => {
            b[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            b[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            b[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            b[8..24].copy_from_slice(&ip.octets());
            b[24..28].copy_from_slice(&address.scope.to_ne_bytes());
        }
    }
    out
}

/// Port in network order, as C wants it; 0 where there is no address.
pub(super) fn c_port(address: &sockaddr_storage) -> u16 {
    let b = &address.0;
    match i32::from(u16::from_ne_bytes([b[0], b[1]])) {
        libc::AF_INET | libc::AF_INET6 => u16::from_ne_bytes([b[2], b[3]]),
        AF_IB => u16::from_ne_bytes([b[30], b[31]]),
        _ => 0,
    }
}
