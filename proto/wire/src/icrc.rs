//! The invariant CRC: everything that must not change between two queue pairs.
//!
//! CRC-32 of Ethernet over eight bytes of ones, the IP header, the UDP header and the packet from
//! BTH to pad, with the fields that routers and switches change replaced by ones. It travels
//! least significant byte first.
//!
//! Over IPv4 it covers the identification, which a UDP socket neither sets nor shows. A CRC is
//! linear, so the difference between the value received and the one computed for a guess is a
//! function of the difference of the two identifications alone: multiplied back over the bytes
//! after the field it *is* that difference, and has zeros everywhere else. [`verify_v4`] does
//! this; about 15 bits of check are left, more where the caller bounds the identification.

use core::net::IpAddr;

use crc32fast::Hasher;

use crate::{BTH_LEN, ICRC_LEN, UDP_PORT};

mod sums;

pub use sums::Sums;

/// IPv4 flags and fragment offset with only "don't fragment" set.
pub const DF: u16 = 0x4000;

/// What the ICRC covers of an IPv4 and UDP header. Type of service, time to live and checksums
/// are masked; the lengths follow from the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct V4 {
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset, [`DF`] or 0.
    pub flags_frag: u16,
    /// UDP source port.
    pub sport: u16,
    /// UDP destination port.
    pub dport: u16,
}

impl Default for V4 {
    /// No addresses, identification 0, "don't fragment", the RoCE port.
    fn default() -> Self {
        Self {
            src: [0; 4],
            dst: [0; 4],
            id: 0,
            flags_frag: DF,
            sport: 0,
            dport: UDP_PORT,
        }
    }
}

/// What the ICRC covers of an IPv6 and UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct V6 {
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// UDP source port.
    pub sport: u16,
    /// UDP destination port.
    pub dport: u16,
}

impl Default for V6 {
    fn default() -> Self {
        Self {
            src: [0; 16],
            dst: [0; 16],
            sport: 0,
            dport: UDP_PORT,
        }
    }
}

/// What the receiver knows of the IPv4 identification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Id {
    /// Seen in the header: all 32 bits of the ICRC check.
    Known {
        /// Identification.
        id: u16,
        /// Flags and fragment offset.
        flags_frag: u16,
    },
    /// Hidden by a socket.
    Unknown {
        /// Tried first (with [`DF`]); right for a peer that counts the segments of a batch.
        guess: u16,
        /// Higher ones are refused; `u16::MAX` = any.
        max: u16,
    },
}

/// The identification and flags that explain an ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RecoveredId {
    /// Identification.
    pub id: u16,
    /// [`DF`] or 0 (whatever was given when it was known).
    pub flags_frag: u16,
}

/// The part of `frame` (BTH to ICRC) that the ICRC covers: all but its last four bytes.
#[must_use]
pub fn covered(frame: &[u8]) -> &[u8] {
    frame
        .len()
        .checked_sub(ICRC_LEN)
        .and_then(|n| frame.get(..n))
        .unwrap_or(&[])
}

/// ICRC of a packet over IPv4; `ib` is BTH to pad, at most 65,503 bytes.
#[inline]
#[must_use]
pub fn v4(hdr: &V4, ib: &[u8]) -> u32 {
    whole(&v4_pseudo(hdr, ib.len()), ib)
}

/// ICRC of a packet over IPv6; `ib` is BTH to pad.
#[inline]
#[must_use]
pub fn v6(hdr: &V6, ib: &[u8]) -> u32 {
    whole(&v6_pseudo(hdr, ib.len()), ib)
}

/// ICRC of a RoCE v1 packet; `ib` is BTH to pad.
#[must_use]
pub fn grh(grh: &[u8; 40], ib: &[u8]) -> u32 {
    whole(&masked_v6(*grh), ib)
}

/// Writes the ICRC into the last four bytes of `frame`. Does nothing to shorter slices.
#[inline]
pub fn seal(icrc: u32, frame: &mut [u8]) {
    if let Some(last) = frame.last_chunk_mut::<ICRC_LEN>() {
        *last = icrc.to_le_bytes();
    }
}

/// Checks a packet over IPv4 (`frame` is BTH to ICRC); `hdr.id` and `hdr.flags_frag` are not
/// looked at. An unknown identification is recovered: the guess first, then any up to `max`,
/// with "don't fragment" or without flags.
///
/// `None`: the ICRC is wrong (or the identification is beyond `max`).
#[inline]
#[must_use]
pub fn verify_v4(hdr: &V4, id: Id, frame: &[u8]) -> Option<RecoveredId> {
    verify_v4_by(hdr, id, frame, v4)
}

/// The same, with another way to the sum.
#[inline]
fn verify_v4_by(
    hdr: &V4,
    id: Id,
    frame: &[u8],
    v4: impl FnOnce(&V4, &[u8]) -> u32,
) -> Option<RecoveredId> {
    let (ib, wire) = split(frame)?;
    let first = match id {
        Id::Known { id, flags_frag } => RecoveredId { id, flags_frag },
        Id::Unknown { guess, .. } => RecoveredId {
            id: guess,
            flags_frag: DF,
        },
    };
    let guessed = V4 {
        id: first.id,
        flags_frag: first.flags_frag,
        ..*hdr
    };
    let difference = v4(&guessed, ib) ^ wire;
    match id {
        Id::Known { .. } => (difference == 0).then_some(first),
        Id::Unknown { max, .. } if difference == 0 => (first.id <= max).then_some(first),
        Id::Unknown { max, .. } => explain(first, difference, ib.len()).filter(|r| r.id <= max),
    }
}

/// Checks a packet over IPv6; `frame` is BTH to ICRC.
#[inline]
#[must_use]
pub fn verify_v6(hdr: &V6, frame: &[u8]) -> bool {
    verify_v6_by(hdr, frame, v6)
}

/// The same, with another way to the sum.
#[inline]
fn verify_v6_by(hdr: &V6, frame: &[u8], v6: impl FnOnce(&V6, &[u8]) -> u32) -> bool {
    split(frame).is_some_and(|(ib, wire)| v6(hdr, ib) == wire)
}

/// Checks a packet that a UDP socket gave: its addresses, the sender's port, and a guess at the IPv4
/// identification, which the socket hides. Gives what explains the ICRC (zeros for IPv6). `None`: it is
/// wrong, or the addresses are of two families.
#[must_use]
pub fn verify_udp(
    ends: (IpAddr, IpAddr),
    sport: u16,
    guess: u16,
    frame: &[u8],
) -> Option<RecoveredId> {
    Sums::default().verify_udp(ends, sport, guess, frame)
}

/// Checks a RoCE v1 packet; `frame` is BTH to ICRC.
#[must_use]
pub fn verify_grh(header: &[u8; 40], frame: &[u8]) -> bool {
    split(frame).is_some_and(|(ib, wire)| grh(header, ib) == wire)
}

/// An ICRC in the making, for callers that copy and sum in one pass.
#[derive(Clone, Debug)]
pub struct Digest(Hasher);

impl Digest {
    /// Starts with IPv4, UDP and BTH; `ib_len` is the length from BTH to pad.
    #[must_use]
    pub fn v4(hdr: &V4, ib_len: usize, bth: &[u8; BTH_LEN]) -> Self {
        Self::start(&v4_pseudo(hdr, ib_len), bth)
    }

    /// Starts with IPv6, UDP and BTH; `ib_len` is the length from BTH to pad.
    #[must_use]
    pub fn v6(hdr: &V6, ib_len: usize, bth: &[u8; BTH_LEN]) -> Self {
        Self::start(&v6_pseudo(hdr, ib_len), bth)
    }

    /// Goes on with the bytes after the BTH, in order, up to and including the pad.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The ICRC.
    #[must_use]
    pub fn finish(self) -> u32 {
        self.0.finalize()
    }

    #[inline]
    fn start(pseudo: &[u8], bth: &[u8; BTH_LEN]) -> Self {
        let mut hasher = Hasher::new_with_initial(CRC_OF_LRH);
        hasher.update(pseudo);
        let mut bth = *bth;
        bth[BTH_VARIANT] = 0xff;
        hasher.update(&bth);
        Self(hasher)
    }
}

#[inline]
fn whole(pseudo: &[u8], ib: &[u8]) -> u32 {
    if ib.len() >= BTH_LEN && ib.len() <= JOINED_MAX {
        return joined(pseudo, ib);
    }
    if let Some((bth, rest)) = ib.split_first_chunk::<BTH_LEN>() {
        let mut digest = Digest::start(pseudo, bth);
        digest.update(rest);
        return digest.finish();
    }
    // A runt: no packet, but tools that test receivers want to seal it all the same.
    let mut hasher = Hasher::new_with_initial(CRC_OF_LRH);
    hasher.update(pseudo);
    for (at, &byte) in ib.iter().enumerate() {
        hasher.update(&[if at == BTH_VARIANT { 0xff } else { byte }]);
    }
    hasher.finalize()
}

/// Of a short packet: what begins and ends a sum costs more than to lay its pieces end to end first.
#[inline]
fn joined(pseudo: &[u8], ib: &[u8]) -> u32 {
    let mut all = [0; PSEUDO_MAX + JOINED_MAX];
    let len = pseudo.len() + ib.len();
    if let Some((head, rest)) = all.split_at_mut_checked(pseudo.len())
        && let Some(body) = rest.get_mut(..ib.len())
    {
        head.copy_from_slice(pseudo);
        body.copy_from_slice(ib);
    }
    if let Some(variant) = all.get_mut(pseudo.len() + BTH_VARIANT) {
        *variant = 0xff;
    }
    let mut hasher = Hasher::new_with_initial(CRC_OF_LRH);
    hasher.update(all.get(..len).unwrap_or_default());
    hasher.finalize()
}

/// `frame` as covered bytes and the ICRC on the wire.
#[inline]
fn split(frame: &[u8]) -> Option<(&[u8], u32)> {
    let (ib, icrc) = frame.split_last_chunk::<ICRC_LEN>()?;
    (ib.len() >= BTH_LEN && ib.len() <= IB_MAX).then(|| (ib, u32::from_le_bytes(*icrc)))
}

/// IPv4 and UDP header with the variant fields as ones.
#[inline]
fn v4_pseudo(h: &V4, ib_len: usize) -> [u8; 28] {
    let udp = (ib_len + 8 + ICRC_LEN) as u16;
    let [t0, t1] = (udp.wrapping_add(20)).to_be_bytes();
    let [u0, u1] = udp.to_be_bytes();
    let [i0, i1] = h.id.to_be_bytes();
    let [f0, f1] = h.flags_frag.to_be_bytes();
    let [s0, s1] = h.sport.to_be_bytes();
    let [d0, d1] = h.dport.to_be_bytes();
    let (s, d) = (h.src, h.dst);
    [
        0x45, 0xff, t0, t1, i0, i1, f0, f1, 0xff, 17, 0xff, 0xff, s[0], s[1], s[2], s[3], d[0],
        d[1], d[2], d[3], s0, s1, d0, d1, u0, u1, 0xff, 0xff,
    ]
}

/// IPv6 and UDP header with the variant fields as ones.
#[inline]
fn v6_pseudo(h: &V6, ib_len: usize) -> [u8; 48] {
    let udp = ((ib_len + 8 + ICRC_LEN) as u16).to_be_bytes();
    let mut out = [0xff; 48];
    out[0] = 0x6f;
    out[4..6].copy_from_slice(&udp);
    out[6] = 17;
    out[8..24].copy_from_slice(&h.src);
    out[24..40].copy_from_slice(&h.dst);
    out[40..42].copy_from_slice(&h.sport.to_be_bytes());
    out[42..44].copy_from_slice(&h.dport.to_be_bytes());
    out[44..46].copy_from_slice(&udp);
    out
}

/// A GRH with traffic class, flow label and hop limit as ones.
const fn masked_v6(mut grh: [u8; 40]) -> [u8; 40] {
    grh[0] |= 0x0f;
    grh[1] = 0xff;
    grh[2] = 0xff;
    grh[3] = 0xff;
    grh[7] = 0xff;
    grh
}

/// Explains a wrong ICRC by another identification than `tried`, if one does.
#[cold]
fn explain(tried: RecoveredId, difference: u32, ib_len: usize) -> Option<RecoveredId> {
    let [i0, i1, f0, f1] = unshift(difference, BYTES_FROM_ID + ib_len).to_le_bytes();
    let flags_frag = tried.flags_frag ^ u16::from_be_bytes([f0, f1]);
    (flags_frag == DF || flags_frag == 0).then(|| RecoveredId {
        id: tried.id ^ u16::from_be_bytes([i0, i1]),
        flags_frag,
    })
}

/// Takes a CRC register back over `bytes` zero bytes (at most 65,535).
fn unshift(register: u32, bytes: usize) -> u32 {
    let low = UNSHIFT_1[bytes & 0xff];
    let high = UNSHIFT_256[bytes >> 8 & 0xff];
    multiply(register, multiply(low, high))
}

/// Product of two polynomials modulo the CRC's; bit 31 is the coefficient of x^0.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        product ^= b & (a >> (31 - bit) & 1).wrapping_neg();
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        bit += 1;
    }
    product
}

/// `x^(-8 i)` for i in 0..256, given `x^-8`; with `x^-2048` the same in steps of 256 bytes.
const fn powers(step: u32) -> [u32; 256] {
    let mut table = [ONE; 256];
    let mut i = 1;
    while i < 256 {
        table[i] = multiply(table[i - 1], step);
        i += 1;
    }
    table
}

/// `x^-8`: eight times the inverse of "shift right, fold in the polynomial".
const fn inverse_of_byte() -> u32 {
    let mut value = ONE;
    let mut bit = 0;
    while bit < 8 {
        value = if value >> 31 == 1 {
            (value ^ POLYNOMIAL) << 1 | 1
        } else {
            value << 1
        };
        bit += 1;
    }
    value
}

/// CRC-32 of Ethernet, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial 1.
const ONE: u32 = 1 << 31;
static UNSHIFT_1: [u32; 256] = powers(inverse_of_byte());
static UNSHIFT_256: [u32; 256] =
    powers(multiply(powers(inverse_of_byte())[255], inverse_of_byte()));

/// CRC-32 of eight bytes of ones, which stand for InfiniBand's local route header.
const CRC_OF_LRH: u32 = 0x2144_df1c;
/// The byte of the BTH with FECN and BECN.
const BTH_VARIANT: usize = 4;
/// IPv6 and UDP header.
const PSEUDO_MAX: usize = 48;
/// Packets up to this are summed in one go.
const JOINED_MAX: usize = 128;
/// Bytes from the identification to the BTH: 16 of IPv4, 8 of UDP.
const BYTES_FROM_ID: usize = 16 + 8;
/// The longest packet without ICRC that a UDP datagram over IPv4 holds.
const IB_MAX: usize = 65_507 - ICRC_LEN;

#[cfg(test)]
mod tests;
