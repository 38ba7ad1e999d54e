//! Rules of the wire: which frame, and what becomes of it.

use super::End;

/// What becomes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// It never arrives.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// The next RoCE frame of its direction overtakes it (or 20 ms pass).
    Reorder,
    /// A bit of it is flipped; its ICRC no longer fits.
    Corrupt,
    /// Its ECN field says "congestion experienced".
    Mark,
}

/// A rule. It strikes RoCE packets only.
#[derive(Clone, Debug)]
pub struct Rule {
    from: End,
    opcode: Option<u8>,
    which: Which,
    fault: Fault,
    matched: u64,
    struck: u64,
}

/// Which of the packets that match.
#[derive(Clone, Copy, Debug)]
enum Which {
    /// The n-th, from 1, and no other.
    Nth(u64),
    /// Each with this chance of 1,000,000, from a seed.
    Chance(u64, u64),
}

impl Rule {
    /// The n-th packet (from 1) of this opcode, or of any, that `from` sends.
    pub fn nth(from: End, opcode: Option<u8>, n: u64, fault: Fault) -> Self {
        Self::new(from, opcode, Which::Nth(n), fault)
    }

    /// Every packet with a chance of `per_million`; the same seed strikes the same packets.
    pub fn chance(from: End, per_million: u64, seed: u64, fault: Fault) -> Self {
        Self::new(from, None, Which::Chance(per_million, seed | 1), fault)
    }

    fn new(from: End, opcode: Option<u8>, which: Which, fault: Fault) -> Self {
        Self {
            from,
            opcode,
            which,
            fault,
            matched: 0,
            struck: 0,
        }
    }

    /// How often it has struck.
    pub fn struck(&self) -> u64 {
        self.struck
    }

    pub(super) fn strike(&mut self, from: End, frame: &[u8]) -> Option<Fault> {
        let opcode = bth(frame).and_then(|at| frame.get(at))?;
        if from != self.from || self.opcode.is_some_and(|want| want != *opcode) {
            return None;
        }
        self.matched += 1;
        let hit = match &mut self.which {
            Which::Nth(n) => self.matched == *n,
            Which::Chance(per_million, state) => {
                // xorshift64: cheap, and the same everywhere
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                (*state >> 20) % 1_000_000 < *per_million
            }
        };
        hit.then(|| {
            self.struck += 1;
            self.fault
        })
    }
}

/// Where the BTH of a RoCE v2 frame begins.
fn bth(frame: &[u8]) -> Option<usize> {
    let ethertype = frame.get(12..14)?;
    let udp = match ethertype {
        [0x08, 0x00] if frame.get(14) == Some(&0x45) && frame.get(23) == Some(&17) => 34,
        [0x86, 0xdd] if frame.get(20) == Some(&17) => 54,
        _ => return None,
    };
    let port = frame.get(udp + 2..udp + 4)?;
    (port == rocebud_wire::UDP_PORT.to_be_bytes()).then_some(udp + 8)
}

/// Is it RoCE v2?
pub fn is_roce(frame: &[u8]) -> bool {
    bth(frame).is_some()
}

/// With a bit flipped behind the BTH, where only the ICRC sees it.
pub(super) fn corrupted(frame: &[u8]) -> Vec<u8> {
    let mut out = frame.to_vec();
    let at = bth(frame).map_or(0, |at| at + (frame.len() - at) / 2);
    if let Some(byte) = out.get_mut(at.max(46)) {
        *byte ^= 0x10;
    }
    out
}

/// With ECN "congestion experienced". The ICRC does not cover it; the IPv4 header checksum does.
pub(super) fn marked(frame: &[u8]) -> Vec<u8> {
    let mut out = frame.to_vec();
    match out.get(12..14) {
        Some([0x08, 0x00]) => {
            let Some(header) = out.get_mut(14..34) else {
                return out;
            };
            header[1] |= 3;
            header[10..12].fill(0);
            let mut sum: u32 = 0;
            for pair in header.chunks(2) {
                sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
            }
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            let sum = !u16::try_from(sum).unwrap_or_default();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Some([0x86, 0xdd]) => {
            if let Some(byte) = out.get_mut(15) {
                *byte |= 0x30;
            }
        }
        _ => {}
    }
    out
}
