//! The receiving half of a stream: a ring that the peer fills in order, cut into two halves that
//! are announced in turn; and the credits it is given back.

use alloc::collections::VecDeque;

use crate::connect::Region;
use crate::entry::TargetEntry;
use crate::ring::{Span, advance, spans};

/// How a peer broke the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Data beyond what was announced to it: the accounts of the ring are lost.
    DataBeyondAnnounced,
    /// More messages than it had credits for.
    MessagesBeyondCredits,
    /// A type of message that no peer sends: whether bytes came with it cannot be known.
    UnknownMessage,
    /// A credit limit beyond the receives it said to have; cut to those.
    CreditsBeyondReceives,
    /// A target entry before the last one was used up; ignored.
    EntryInUse,
    /// An entry of another size than an entry; ignored.
    EntrySize,
    /// An index beyond the iomap table; ignored.
    IomapIndex,
}

impl Violation {
    /// Nothing that the peer says later could be believed: the connection ends.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        matches!(
            self,
            Self::DataBeyondAnnounced | Self::MessagesBeyondCredits | Self::UnknownMessage
        )
    }
}

/// What came and is not read, and what the peer may still send.
#[derive(Debug)]
pub(crate) struct Receiver {
    ring: Region,
    ring_len: u32,
    /// Receives that are posted, and what the peer counts its credits by.
    queue_len: u16,
    /// Where the next byte to read lies.
    read_at: u32,
    /// Bytes left of each message that is not wholly read: at most `queue_len` of them.
    messages: VecDeque<u32>,
    unread: u32,
    /// Bytes that the peer may still write.
    announced: u32,
    /// Bytes that were read and not announced again.
    free: u32,
    /// Where the half to announce next begins.
    next_half: u32,
    /// The entry of the peer's target list to write next, and how many there are.
    next_entry: u32,
    entries: u32,
    /// Messages read to their end.
    seq_no: u16,
    /// A credit message is due when `seq_no` comes here.
    update_at: u16,
}

impl Receiver {
    /// `ring_len` is even.
    pub(crate) const fn new(ring: Region, ring_len: u32, queue_len: u16) -> Self {
        Self {
            ring,
            ring_len,
            queue_len,
            read_at: 0,
            messages: VecDeque::new(),
            unread: 0,
            announced: ring_len / 2,
            free: ring_len / 2,
            next_half: ring_len / 2,
            next_entry: 1,
            entries: 2,
            seq_no: 0,
            update_at: queue_len / 2,
        }
    }

    pub(crate) const fn establish(&mut self, entries: u32) {
        self.entries = entries;
    }

    pub(crate) const fn first_target(&self) -> TargetEntry {
        TargetEntry {
            address: self.ring.address,
            key: self.ring.key,
            length: self.ring_len / 2,
        }
    }

    /// `len` bytes have been written behind the last ones.
    pub(crate) fn on_data(&mut self, len: u32) -> Result<(), Violation> {
        if len > self.announced {
            return Err(Violation::DataBeyondAnnounced);
        }
        if self.messages.len() >= usize::from(self.queue_len) {
            return Err(Violation::MessagesBeyondCredits);
        }
        if len == 0 {
            self.message_read();
            return Ok(());
        }
        self.announced -= len;
        self.unread += len;
        self.messages.push_back(len);
        Ok(())
    }

    /// A message is done with: its credit goes back.
    pub(crate) const fn message_read(&mut self) {
        self.seq_no = self.seq_no.wrapping_add(1);
    }

    pub(crate) const fn unread(&self) -> u32 {
        self.unread
    }

    /// Where the next bytes to read lie, at most `wanted`.
    pub(crate) fn peek(&self, wanted: u32) -> [Span; 2] {
        spans(self.read_at, wanted.min(self.unread), self.ring_len)
    }

    /// The program has read `len` bytes; returns how many counted.
    pub(crate) fn consume(&mut self, len: u32) -> u32 {
        let len = len.min(self.unread);
        self.unread -= len;
        self.free += len;
        self.read_at = advance(self.read_at, len, self.ring_len);
        let mut rest = len;
        while rest != 0 {
            let Some(first) = self.messages.front_mut() else {
                break;
            };
            let part = rest.min(*first);
            *first -= part;
            rest -= part;
            if *first == 0 {
                self.messages.pop_front();
                self.message_read();
            }
        }
        len
    }

    const fn half_is_free(&self) -> bool {
        self.free >= self.ring_len / 2
    }

    /// Half of the credits or half of the ring can be given back.
    pub(crate) const fn credit_is_due(&self) -> bool {
        // both counts wrap; they are never half of the range apart
        self.half_is_free() || self.seq_no.wrapping_sub(self.update_at).cast_signed() >= 0
    }

    /// Gives back what there is: the new limit, and where which entry has to be written.
    pub(crate) fn give_credit(&mut self) -> (u16, Option<(u32, TargetEntry)>) {
        let limit = self.seq_no.wrapping_add(self.queue_len);
        self.update_at = self.seq_no.wrapping_add(self.queue_len / 2);
        if !self.half_is_free() {
            return (limit, None);
        }
        let half = self.ring_len / 2;
        let entry = TargetEntry {
            address: self.ring.address.wrapping_add(u64::from(self.next_half)),
            key: self.ring.key,
            length: half,
        };
        let at = self.next_entry;
        self.free -= half;
        self.announced += half;
        self.next_half = advance(self.next_half, half, self.ring_len);
        self.next_entry = if at + 1 >= self.entries { 0 } else { at + 1 };
        (limit, Some((at, entry)))
    }
}

#[cfg(test)]
mod tests;
