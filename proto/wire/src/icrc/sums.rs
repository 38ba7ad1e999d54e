//! ICRCs of short packets whose headers come again and again.
//!
//! Half of the work for a short packet is what stands before its BTH, and to lay both end to end. A CRC
//! is linear: what the headers add, and the variant byte of the BTH that counts as ones, depends on
//! nothing but themselves and the packet's length. So it is remembered for the last few of them, and the
//! packet is summed where it lies.

use core::net::IpAddr;

use crc32fast::Hasher;

use super::{
    BTH_VARIANT, CRC_OF_LRH, Id, RecoveredId, V4, V6, v4, v4_pseudo, v6, v6_pseudo, verify_v4_by,
    verify_v6_by,
};
use crate::BTH_LEN;

/// Lengths remembered at a time.
const PLACES: usize = 8;
/// Longest packets (BTH to pad) that are worth it.
const SHORT_MAX: usize = 512;

/// The headers that were summed last, for each of a few lengths. [`Sums::v4`] and [`Sums::v6`] give what
/// [`v4`](super::v4) and [`v6`](super::v6) do.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    places: [Option<Place>; PLACES],
}

#[derive(Clone, Debug)]
struct Place {
    headers: Headers,
    ib_len: usize,
    /// Made when the headers come for the second time: many never do.
    sum: Option<Sum>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Headers {
    V4(V4),
    V6(V6),
}

/// What headers add to a packet of one length.
#[derive(Clone, Copy, Debug)]
struct Sum {
    /// The CRC up to the BTH.
    before: u32,
    /// The difference that a variant byte of ones makes to one of zeros.
    variant: u32,
}

impl Sums {
    /// ICRC of a packet over IPv4; `ib` is BTH to pad.
    #[inline]
    pub fn v4(&mut self, hdr: &V4, ib: &[u8]) -> u32 {
        let known = self.known(Headers::V4(*hdr), ib);
        known.map_or_else(|| v4(hdr, ib), |sum| sum.over(ib))
    }

    /// ICRC of a packet over IPv6; `ib` is BTH to pad.
    #[inline]
    pub fn v6(&mut self, hdr: &V6, ib: &[u8]) -> u32 {
        let known = self.known(Headers::V6(*hdr), ib);
        known.map_or_else(|| v6(hdr, ib), |sum| sum.over(ib))
    }

    /// As [`verify_udp`](super::verify_udp).
    #[inline]
    #[must_use]
    pub fn verify_udp(
        &mut self,
        (src, dst): (IpAddr, IpAddr),
        sport: u16,
        guess: u16,
        frame: &[u8],
    ) -> Option<RecoveredId> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = V4 {
                    src: src.octets(),
                    dst: dst.octets(),
                    sport,
                    ..Default::default()
                };
                let max = u16::MAX;
                let id = Id::Unknown { guess, max };
                verify_v4_by(&header, id, frame, |hdr, ib| self.v4(hdr, ib))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = V6 {
                    src: src.octets(),
                    dst: dst.octets(),
                    sport,
                    ..Default::default()
                };
                let none = RecoveredId {
                    id: 0,
                    flags_frag: 0,
                };
                verify_v6_by(&header, frame, |hdr, ib| self.v6(hdr, ib)).then_some(none)
            }
            _ => None,
        }
    }

    #[inline]
    fn known(&mut self, headers: Headers, ib: &[u8]) -> Option<Sum> {
        // A switch may have marked it: rare, and the ordinary way is right for it.
        if ib.get(BTH_VARIANT) != Some(&0) || ib.len() < BTH_LEN || ib.len() > SHORT_MAX {
            return None;
        }
        let place = self.places.get_mut(ib.len() / 4 % PLACES)?;
        match place {
            Some(place) if place.headers == headers && place.ib_len == ib.len() => {
                let sum = place.sum.get_or_insert_with(|| Sum::of(headers, ib.len()));
                Some(*sum)
            }
            _ => {
                *place = Some(Place {
                    headers,
                    ib_len: ib.len(),
                    sum: None,
                });
                None
            }
        }
    }
}

impl Sum {
    #[cold]
    fn of(headers: Headers, ib_len: usize) -> Self {
        let before = match headers {
            Headers::V4(hdr) => sum(CRC_OF_LRH, &v4_pseudo(&hdr, ib_len)),
            Headers::V6(hdr) => sum(CRC_OF_LRH, &v6_pseudo(&hdr, ib_len)),
        };
        let mut zeros = [0; SHORT_MAX];
        let zeros = zeros.get_mut(..ib_len).unwrap_or_default();
        let without = sum(before, zeros);
        if let Some(byte) = zeros.get_mut(BTH_VARIANT) {
            *byte = 0xff;
        }
        Self {
            before,
            variant: sum(before, zeros) ^ without,
        }
    }

    /// Of a packet whose variant byte is 0.
    #[inline]
    fn over(self, ib: &[u8]) -> u32 {
        sum(self.before, ib) ^ self.variant
    }
}

#[inline]
fn sum(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}
