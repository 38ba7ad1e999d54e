//! Socket addresses, in and out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::cm::CmAddr;

use super::super::boundary::{NULL, Outcome};
use super::types::sockaddr_storage;

const FAMILY: Misuse = Misuse::new(Errno::EINVAL, "only IPv4 and IPv6 addresses");

/// Addresses of InfiniBand ports, which no RoCE device has: the kernel's answer, too.
const AF_IB: i32 = 27;
const NO_IB: Misuse = Misuse::new(
    Errno::ENODEV,
    "AF_IB addresses are for InfiniBand ports: give the IP address",
);

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
    // SAFETY: every socket address begins with its family.
    let family = unsafe { address.cast::<u16>().read_unaligned() };
    let length = length_of(i32::from(family));
    if i32::from(family) == AF_IB {
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
        _ => 0,
    }
}
