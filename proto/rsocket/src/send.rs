//! The sending half of a stream: credits, the target entries that the peer fills, the send ring,
//! the entries of the send queue.

use crate::entry::TargetEntry;
use crate::limits::{CONTROL_MAX, MESSAGE_MAX, SEND_LOW_WATER};
use crate::ring::{Span, advance, spans};

/// Where data go next, and where they wait until they are acknowledged.
#[derive(Debug)]
pub(crate) struct Sender {
    /// Messages that take a credit, sent so far.
    seq_no: u16,
    /// May send while the count of messages differs from this: order says nothing, it wraps.
    limit: u16,
    /// Receives that the peer has.
    credits: u16,
    targets: [TargetEntry; 2],
    /// The entry in use.
    index: usize,
    /// The entry that the peer writes next.
    next_entry: usize,
    ring_len: u32,
    /// Where the next byte goes in the ring.
    head: u32,
    /// Bytes of the ring that wait for their completion.
    used: u32,
    /// Entries of the send queue that data may use.
    data_slots: u16,
    /// Control messages unfinished.
    controls: u16,
    data_slots_all: u16,
}

/// A DATA message, or direct bytes, to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    /// Bytes of the caller's that go with it. 0: something else had to go first; plan again.
    pub taken: u32,
    /// What to post.
    pub write: crate::stream::Write,
}

/// Bytes that were reserved: where in the send ring, and for where.
pub(crate) struct Reserved {
    pub(crate) len: u32,
    pub(crate) spans: [Span; 2],
}

/// A piece of the peer's ring.
pub(crate) struct Target {
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) len: u32,
}

impl Sender {
    pub(crate) fn new(ring_len: u32, queue_len: u16) -> Self {
        let data_slots = queue_len.saturating_sub(CONTROL_MAX);
        Self {
            seq_no: 0,
            limit: 0,
            credits: 0,
            targets: [TargetEntry::default(); 2],
            index: 0,
            next_entry: 1,
            ring_len,
            head: 0,
            used: 0,
            data_slots,
            controls: 0,
            data_slots_all: data_slots,
        }
    }

    /// What the peer offers at the start.
    pub(crate) fn establish(&mut self, credits: u16, first: TargetEntry) {
        self.credits = credits;
        self.limit = credits;
        self.targets = [first, TargetEntry::default()];
    }

    /// Credit, an entry, room in the ring and in the queue: all of it, or a sender waits.
    pub(crate) fn can_send(&self) -> bool {
        self.has_credit() && self.free() >= SEND_LOW_WATER && self.target().length != 0
    }

    /// A message that takes a credit and no room may go.
    pub(crate) const fn has_credit(&self) -> bool {
        self.data_slots != 0 && self.seq_no != self.limit
    }

    const fn free(&self) -> u32 {
        self.ring_len.saturating_sub(self.used)
    }

    fn target(&self) -> TargetEntry {
        self.targets.get(self.index).copied().unwrap_or_default()
    }

    /// How much of `wanted` one message can carry now.
    pub(crate) fn message_len(&self, wanted: u32) -> u32 {
        self.message_room(wanted).min(self.target().length)
    }

    /// The same without a target entry to bound it.
    pub(crate) fn message_room(&self, wanted: u32) -> u32 {
        wanted.min(MESSAGE_MAX).min(self.free())
    }

    /// Takes `len` bytes of the current target entry, and a credit.
    pub(crate) fn take_target(&mut self, len: u32) -> Target {
        self.take_credit();
        let Some(entry) = self.targets.get_mut(self.index) else {
            return Target {
                address: 0,
                key: 0,
                len: 0,
            };
        };
        let taken = Target {
            address: entry.address,
            key: entry.key,
            len: len.min(entry.length),
        };
        // the peer chose the address: one that wraps is the peer's own misfortune
        entry.address = entry.address.wrapping_add(u64::from(taken.len));
        entry.length -= taken.len;
        if entry.length == 0 {
            self.index = 1 - self.index;
        }
        taken
    }

    pub(crate) fn take_credit(&mut self) {
        self.seq_no = self.seq_no.wrapping_add(1);
    }

    /// Keeps `len` bytes of the ring; at most what is free.
    pub(crate) fn reserve(&mut self, len: u32) -> Reserved {
        let len = len.min(self.free());
        let places = spans(self.head, len, self.ring_len);
        self.head = advance(self.head, len, self.ring_len);
        self.used += len;
        Reserved { len, spans: places }
    }

    /// Takes an entry of the send queue for data.
    pub(crate) const fn take_slot(&mut self) {
        self.data_slots = self.data_slots.saturating_sub(1);
    }

    /// A message of data has completed: its entry of the queue and its bytes of the ring, which
    /// complete in the order they were posted, are free.
    pub(crate) fn data_done(&mut self, ring_bytes: u32) {
        self.data_slots = self.data_slots.saturating_add(1).min(self.data_slots_all);
        self.used = self.used.saturating_sub(ring_bytes);
    }

    pub(crate) const fn can_control(&self) -> bool {
        self.controls < CONTROL_MAX
    }

    pub(crate) const fn take_control(&mut self) {
        self.controls += 1;
    }

    pub(crate) const fn control_done(&mut self) {
        self.controls = self.controls.saturating_sub(1);
    }

    /// Nothing is on its way.
    pub(crate) const fn is_idle(&self) -> bool {
        self.controls == 0 && self.data_slots == self.data_slots_all
    }

    /// Requests on their way.
    pub(crate) const fn in_flight(&self) -> u32 {
        self.controls as u32 + (self.data_slots_all - self.data_slots) as u32
    }

    /// A new limit. `false`: more than the peer ever said to have receives for, so it is cut to
    /// that; otherwise the peer itself would answer RNR until its program comes round.
    pub(crate) fn on_credit(&mut self, limit: u16) -> bool {
        let honest = limit.wrapping_sub(self.seq_no) <= self.credits;
        self.limit = if honest {
            limit
        } else {
            self.seq_no.wrapping_add(self.credits)
        };
        honest
    }

    /// Which entry a message that wrote one has written.
    pub(crate) const fn next_entry(&self) -> usize {
        self.next_entry
    }

    /// The entry that the peer has written. `false`: the one before it has not been used up, so
    /// bytes would be lost to the peer's reader; it stays.
    pub(crate) fn on_entry(&mut self, entry: TargetEntry) -> bool {
        let Some(place) = self.targets.get_mut(self.next_entry) else {
            return false;
        };
        self.next_entry = 1 - self.next_entry;
        if place.length != 0 {
            return false;
        }
        *place = entry;
        true
    }
}

#[cfg(test)]
mod tests;
