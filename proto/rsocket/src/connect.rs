//! Private data of REQ and REP: what each end tells the other before the first message.

use crate::entry::{BLOCK_TARGETS, ByteOrder, TargetEntry};

/// Bytes of the block; in a REQ it follows the header of the RDMA IP CM service, in a REP it
/// stands at offset 0.
pub const CONNECT_LEN: usize = 40;

/// The only version there is.
const VERSION: u8 = 1;
/// The sender's entries are big-endian.
const FLAG_BIG_ENDIAN: u8 = 1;
/// Byte 7 means something.
const FLAG_IOMAP: u8 = 2;

/// Memory by address and key, of a known length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Region {
    /// Where it begins, in its owner's address space.
    pub address: u64,
    /// Its R_Key.
    pub key: u32,
}

/// One end's offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectData {
    /// Byte order of entries written to the sender of this block.
    pub order: ByteOrder,
    /// Receives that the sender of this block has posted.
    pub credits: u16,
    /// Entries of its iomap table, which lies behind its target list; 0: none.
    pub iomap_entries: u16,
    /// Its target list, followed by its iomap table.
    pub block: Region,
    /// Entries of its target list: 2, at least.
    pub targets: u32,
    /// The first target: half of its receive ring.
    pub data: TargetEntry,
}

/// Why an offer cannot be taken. The passive end rejects (reason 28), the active end reports
/// ENOTSUP to its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unacceptable {
    /// Shorter than [`CONNECT_LEN`]: the peer speaks no rsockets.
    Short {
        /// Bytes that came.
        had: usize,
    },
    /// Another version, or a plain program of rdma_cm.
    Version(u8),
    /// A target list of this many entries: both halves of a ring need one each.
    Targets(u32),
    /// No receives: nothing could ever be sent.
    NoCredits,
}

impl ConnectData {
    /// Reads an offer. What follows the block (private data are padded) is ignored.
    ///
    /// # Errors
    /// Why it is none that one can work with.
    pub fn parse(bytes: &[u8]) -> Result<Self, Unacceptable> {
        let Some(block) = bytes.first_chunk::<CONNECT_LEN>() else {
            return Err(Unacceptable::Short { had: bytes.len() });
        };
        let [version, flags, c0, c1, _, _, _, scaled, rest @ ..] = *block;
        if version != VERSION {
            return Err(Unacceptable::Version(version));
        }
        let sgl = Words::read(&rest);
        let data = rest.last_chunk::<16>().map_or(Words::NONE, Words::new);
        if sgl.length < BLOCK_TARGETS {
            return Err(Unacceptable::Targets(sgl.length));
        }
        let credits = u16::from_be_bytes([c0, c1]);
        if credits == 0 {
            return Err(Unacceptable::NoCredits);
        }
        let with_iomap = flags & FLAG_IOMAP != 0;
        Ok(Self {
            order: match flags & FLAG_BIG_ENDIAN {
                0 => ByteOrder::Little,
                _ => ByteOrder::Big,
            },
            credits,
            iomap_entries: if with_iomap { from_scale(scaled) } else { 0 },
            block: Region {
                address: sgl.address,
                key: sgl.key,
            },
            targets: sgl.length,
            data: TargetEntry {
                address: data.address,
                key: data.key,
                length: data.length,
            },
        })
    }

    /// The bytes to send.
    #[must_use]
    pub fn emit(&self) -> [u8; CONNECT_LEN] {
        let big = match self.order {
            ByteOrder::Little => 0,
            ByteOrder::Big => FLAG_BIG_ENDIAN,
        };
        let mut out = [0; CONNECT_LEN];
        let [c0, c1] = self.credits.to_be_bytes();
        let head = [
            VERSION,
            FLAG_IOMAP | big,
            c0,
            c1,
            0,
            0,
            0,
            to_scale(self.iomap_entries),
        ];
        let sgl = Words {
            address: self.block.address,
            key: self.block.key,
            length: self.targets,
        };
        let data = Words {
            address: self.data.address,
            key: self.data.key,
            length: self.data.length,
        };
        let bytes = head.into_iter().chain(sgl.bytes()).chain(data.bytes());
        for (to, from) in out.iter_mut().zip(bytes) {
            *to = from;
        }
        out
    }
}

/// Address, key, length: big-endian here, whatever the hosts are.
struct Words {
    address: u64,
    key: u32,
    length: u32,
}

impl Words {
    const NONE: Self = Self {
        address: 0,
        key: 0,
        length: 0,
    };

    fn read(bytes: &[u8]) -> Self {
        bytes.first_chunk::<16>().map_or(Self::NONE, Self::new)
    }

    fn new(bytes: &[u8; 16]) -> Self {
        let [a @ .., k0, k1, k2, k3, l0, l1, l2, l3] = *bytes;
        Self {
            address: u64::from_be_bytes(a),
            key: u32::from_be_bytes([k0, k1, k2, k3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        self.address
            .to_be_bytes()
            .into_iter()
            .chain(self.key.to_be_bytes())
            .chain(self.length.to_be_bytes())
    }
}

/// A count in eight bits: up to 128 itself, else in steps of 256, rounded down.
const fn to_scale(entries: u16) -> u8 {
    if entries <= 128 {
        return entries as u8;
    }
    let steps = entries >> 8;
    if steps > 127 { 255 } else { 128 | steps as u8 }
}

const fn from_scale(scaled: u8) -> u16 {
    if scaled <= 128 {
        return scaled as u16;
    }
    ((scaled & 0x7f) as u16) << 8
}

/// What a peer will read when told `entries`: some counts cannot be said and are rounded down.
#[must_use]
pub(crate) const fn said_iomap_entries(entries: u16) -> u16 {
    from_scale(to_scale(entries))
}

#[cfg(test)]
mod tests;
