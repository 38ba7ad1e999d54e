//! Sizes that an end chooses.

use crate::connect::said_iomap_entries;
use crate::entry::{BLOCK_TARGETS, ByteOrder, IOMAP_LEN, TARGET_LEN};
use crate::limits::{
    BUFFER_DEFAULT, BUFFER_MAX, BUFFER_MIN, INLINE_DEFAULT, IOMAP_MAX, QUEUE_DEFAULT, QUEUE_MAX,
    QUEUE_MIN,
};

/// Sizes of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Entries of the send queue, 16 to 65534.
    pub send_queue: u16,
    /// Entries of the receive queue, 16 to 65534.
    pub receive_queue: u16,
    /// Bytes of the send ring, 4 KiB to 256 MiB.
    pub send_ring: u32,
    /// Bytes of the receive ring, even, 4 KiB to 256 MiB.
    pub receive_ring: u32,
    /// Entries of the iomap table, 0 to 32512; above 128 in steps of 256.
    pub iomap_entries: u16,
    /// Messages up to this length go from the caller's memory inside the work request.
    pub inline: u16,
    /// Byte order of entries that are written to us.
    pub order: ByteOrder,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            send_queue: QUEUE_DEFAULT,
            receive_queue: QUEUE_DEFAULT,
            send_ring: BUFFER_DEFAULT,
            receive_ring: BUFFER_DEFAULT,
            iomap_entries: 0,
            inline: INLINE_DEFAULT,
            order: ByteOrder::HOST,
        }
    }
}

impl Config {
    /// Each size moved into its range.
    #[must_use]
    pub fn clamped(self) -> Self {
        Self {
            send_queue: self.send_queue.clamp(QUEUE_MIN, QUEUE_MAX),
            receive_queue: self.receive_queue.clamp(QUEUE_MIN, QUEUE_MAX),
            send_ring: self.send_ring.clamp(BUFFER_MIN, BUFFER_MAX),
            receive_ring: self.receive_ring.clamp(BUFFER_MIN, BUFFER_MAX) & !1,
            iomap_entries: said_iomap_entries(self.iomap_entries.min(IOMAP_MAX)),
            ..self
        }
    }

    /// Bytes of the block that the peer writes: target list and iomap table.
    #[must_use]
    pub const fn block_len(&self) -> usize {
        BLOCK_TARGETS as usize * TARGET_LEN + self.iomap_entries as usize * IOMAP_LEN
    }
}
