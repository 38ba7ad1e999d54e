//! Who may touch which memory: scopes, faults, and the one range check.

use rocebud_wire::Qpn;

use crate::PdId;

/// Why local memory could not be used. All become `LOC_PROT_ERR` (or the peer's
/// remote-operational NAK when it was a receive buffer).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalFault {
    /// No such key.
    Key,
    /// The key belongs to another protection domain.
    Pd,
    /// The range leaves the region.
    Bounds,
    /// The region may not be written.
    Access,
    /// The page is not there or not accessible.
    Page,
}

/// Why remote access was refused. The wire shows one answer for all (NAK remote access error),
/// except `Page`, which is the responder's own trouble (NAK remote operational error).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteFault {
    /// No such key.
    Key,
    /// The key belongs to another protection domain or queue pair.
    Pd,
    /// The range leaves the region.
    Bounds,
    /// The region does not grant this access.
    Access,
    /// The page is not there or not accessible.
    Page,
}

/// Whose keys may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope {
    /// Protection domain of the queue pair (or of its SRQ).
    pub pd: PdId,
    /// The queue pair, for windows bound to one.
    pub qpn: Qpn,
}

/// How far into `start..start + size` the `len` bytes at `va` begin; `None` if they leave it.
/// The numbers come from the peer, so nothing here can wrap.
#[must_use]
#[inline]
pub const fn offset_within(start: u64, size: u64, va: u64, len: u64) -> Option<u64> {
    match va.checked_sub(start) {
        Some(offset) if offset <= size && len <= size - offset => Some(offset),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pair_of_address_and_length_leaves_the_range() {
        let at = |va, len| offset_within(0x5000, 0x1000, va, len);
        assert_eq!(at(0x5000, 0x1000), Some(0));
        assert_eq!(at(0x6000, 0), Some(0x1000));
        for (va, len) in [
            (u64::MAX - 1023, 1024),
            (0x4fff, 2),
            (0x5fff, 2),
            (0x5000, 0x1001),
            (1 << 63, 1 << 31),
            (0x5001, u64::MAX),
            (0x6001, 0),
        ] {
            assert_eq!(at(va, len), None, "{va:#x} {len:#x}");
        }
        assert_eq!(offset_within(0, u64::MAX, u64::MAX, 1), None);
        assert_eq!(offset_within(0, u64::MAX, 7, u64::MAX - 7), Some(7));
    }
}
