//! Entries that one end writes into the other's memory. They stand in the byte order of the host
//! they are written *to*, so that their reader may take them as they are.

/// Byte order of a host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteOrder {
    /// As x86 and arm64.
    Little,
    /// As s390x.
    Big,
}

impl ByteOrder {
    /// That of the host this runs on.
    pub const HOST: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

    const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    const fn put_u64(self, n: u64) -> [u8; 8] {
        match self {
            Self::Little => n.to_le_bytes(),
            Self::Big => n.to_be_bytes(),
        }
    }

    const fn put_u32(self, n: u32) -> [u8; 4] {
        match self {
            Self::Little => n.to_le_bytes(),
            Self::Big => n.to_be_bytes(),
        }
    }
}

/// Entries of the target list that a stream of ours has: one for each half of the ring.
pub const BLOCK_TARGETS: u32 = 2;

/// Bytes of an entry of the target list.
pub const TARGET_LEN: usize = 16;

/// Bytes of an entry of the iomap table, which lies directly behind the target list.
pub const IOMAP_LEN: usize = 24;

/// Where the next bytes go in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TargetEntry {
    /// Address there.
    pub address: u64,
    /// R_Key there.
    pub key: u32,
    /// Bytes left; 0: used up.
    pub length: u32,
}

impl TargetEntry {
    /// Reads an entry that was written to a host of this byte order.
    #[must_use]
    pub const fn parse(bytes: &[u8; TARGET_LEN], order: ByteOrder) -> Self {
        let [a @ .., k0, k1, k2, k3, l0, l1, l2, l3] = *bytes;
        Self {
            address: order.u64(a),
            key: order.u32([k0, k1, k2, k3]),
            length: order.u32([l0, l1, l2, l3]),
        }
    }

    /// The bytes to write to a host of this byte order.
    #[must_use]
    pub fn emit(&self, order: ByteOrder) -> [u8; TARGET_LEN] {
        let mut out = [0; TARGET_LEN];
        let bytes = order
            .put_u64(self.address)
            .into_iter()
            .chain(order.put_u32(self.key))
            .chain(order.put_u32(self.length));
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        out
    }
}

/// Memory that the peer may be written to directly, under an offset that both programs know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoEntry {
    /// Where it begins in the space of offsets.
    pub offset: u64,
    /// Address, key and length there; length 0: no entry.
    pub memory: TargetEntry,
}

impl IoEntry {
    /// Reads an entry that was written to a host of this byte order.
    #[must_use]
    pub fn parse(bytes: &[u8; IOMAP_LEN], order: ByteOrder) -> Self {
        let [o0, o1, o2, o3, o4, o5, o6, o7, memory @ ..] = *bytes;
        Self {
            offset: order.u64([o0, o1, o2, o3, o4, o5, o6, o7]),
            memory: TargetEntry::parse(&memory, order),
        }
    }

    /// The bytes to write to a host of this byte order.
    #[must_use]
    pub fn emit(&self, order: ByteOrder) -> [u8; IOMAP_LEN] {
        let mut out = [0; IOMAP_LEN];
        let bytes = order
            .put_u64(self.offset)
            .into_iter()
            .chain(self.memory.emit(order));
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        out
    }
}

#[cfg(test)]
mod tests;
