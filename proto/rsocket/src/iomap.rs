//! Zero-copy: each end keeps a table of memory that the other offers, and writes there directly.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use rocebud_objects::{Errno, Misuse};

use crate::connect::Region;
use crate::entry::{IoEntry, TargetEntry};

/// As `riomap`'s offset: the memory's own address is its offset.
pub const OFFSET_IS_ADDRESS: i64 = -1;

/// errno(3)
const ENOBUFS: Errno = Errno(105);

const NO_TABLE: Misuse = Misuse::new(
    ENOBUFS,
    "riomap: the peer has no room for another mapping; it sets RDMA_IOMAPSIZE before it connects",
);
const BAD_RANGE: Misuse = Misuse::invalid(
    "riomap: length 0, or an offset below -1, or a range that runs over the end of the offsets",
);
const NO_SUCH_MAP: Misuse = Misuse::invalid("riounmap: no mapping has this offset and this length");

/// Bytes of the peer's memory that a direct write goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectWrite {
    /// Where, there.
    pub address: u64,
    /// R_Key there.
    pub key: u32,
    /// Bytes up to the end of the mapping, at most what was asked for.
    pub len: u32,
}

/// What the peer offers us: our own table, which it fills.
#[derive(Debug)]
pub(crate) struct Offered(Vec<IoEntry>);

impl Offered {
    pub(crate) fn new(entries: u16) -> Self {
        Self(vec![IoEntry::default(); usize::from(entries)])
    }

    /// The peer has written an entry. `false`: there is no such index.
    pub(crate) fn put(&mut self, index: u32, entry: IoEntry) -> bool {
        let place = usize::try_from(index).ok().and_then(|i| self.0.get_mut(i));
        match place {
            Some(place) => {
                *place = entry;
                true
            }
            None => false,
        }
    }

    pub(crate) fn has(&self, index: u32) -> bool {
        usize::try_from(index).is_ok_and(|i| i < self.0.len())
    }

    /// Where the bytes from `offset` on lie, at most `wanted` of them. An entry whose addresses
    /// would wrap is none.
    pub(crate) fn find(&self, offset: u64, wanted: u32) -> Option<DirectWrite> {
        self.0.iter().find_map(|entry| {
            let into = offset.checked_sub(entry.offset)?;
            let left = u64::from(entry.memory.length).checked_sub(into)?;
            let len = u64::from(wanted).min(left);
            if len == 0 {
                return None;
            }
            let address = entry.memory.address.checked_add(into)?;
            address.checked_add(len - 1)?;
            Some(DirectWrite {
                address,
                key: entry.memory.key,
                len: u32::try_from(len).ok()?,
            })
        })
    }
}

/// What we offer the peer: its table, which we fill.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    size: u16,
    /// Indices that were used and are free again, and the first that never was.
    free: BTreeSet<u16>,
    next: u16,
    used: BTreeMap<u16, IoEntry>,
    /// Entries that the peer has not been told.
    unsent: VecDeque<u16>,
}

impl Offers {
    pub(crate) const fn establish(&mut self, size: u16) {
        self.size = size;
    }

    /// Takes the lowest free index; the offset by which both ends will know the memory.
    pub(crate) fn map(&mut self, memory: Region, len: u32, offset: i64) -> Result<u64, Misuse> {
        let start = match offset {
            OFFSET_IS_ADDRESS => memory.address,
            n => u64::try_from(n).map_err(|_| BAD_RANGE)?,
        };
        if len == 0 || start.checked_add(u64::from(len)).is_none() {
            return Err(BAD_RANGE);
        }
        let index = match self.free.pop_first() {
            Some(index) => index,
            None if self.next < self.size => {
                self.next += 1;
                self.next - 1
            }
            None => return Err(NO_TABLE),
        };
        let entry = IoEntry {
            offset: start,
            memory: TargetEntry {
                address: memory.address,
                key: memory.key,
                length: len,
            },
        };
        self.used.insert(index, entry);
        self.unsent.push_back(index);
        Ok(start)
    }

    /// Gives the index back. The peer is not told, as upstream does not: the programs agree.
    pub(crate) fn unmap(&mut self, offset: u64, len: u32) -> Result<Region, Misuse> {
        let found = self
            .used
            .iter()
            .find(|(_, e)| e.offset == offset && e.memory.length == len);
        let Some((&index, &entry)) = found else {
            return Err(NO_SUCH_MAP);
        };
        self.used.remove(&index);
        self.unsent.retain(|i| *i != index);
        self.free.insert(index);
        Ok(Region {
            address: entry.memory.address,
            key: entry.memory.key,
        })
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next entry that the peer has to be told.
    pub(crate) fn take_unsent(&mut self) -> Option<(u16, IoEntry)> {
        let index = self.unsent.pop_front()?;
        Some((index, self.used.get(&index).copied()?))
    }
}

#[cfg(test)]
mod tests;
