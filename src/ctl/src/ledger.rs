//! What is on its way to each process of this host: the ledger.
//!
//! A datagram that finds its receiver's buffer full is lost, and a sender on the same host can
//! know better: everybody reserves here what it is about to send to a slot, and the owner of the
//! slot enters what it has read. The difference lies in the socket's buffer, or will, and the size
//! of the buffer stands beside it. What has left is entered once more, afterwards: of that alone
//! the owner can say that it was lost when its sockets are dry.
//!
//! The daemon makes one ledger per user (a sealed memfd), so nobody can reach another user's. All
//! processes of the user map it and may write nonsense: whoever waits for room does so for a
//! bounded time. A count that goes wrong (a datagram was lost on the way, a process died between
//! reserving and sending) is put right by the owner.
//!
//! Layout (native byte order): [`SLOTS`] lines of 192 bytes, by slot number. Counts wrap.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::fds::Mapping;

/// Slots that there can be: the upper 12 bits of a QPN.
const SLOTS: usize = 4096;

/// One user's ledger, mapped.
pub struct Ledger {
    map: Mapping<Layout>,
}

/// What is known of one slot. Every field has a cache line of its own, since others write it.
#[repr(C, align(64))]
pub struct Line {
    buffer_bytes: Cell,
    senders: Senders,
    read: Cell,
}

#[repr(C, align(64))]
struct Cell(AtomicU64);

/// What senders write.
#[repr(C, align(64))]
struct Senders {
    sent: AtomicU64,
    left: AtomicU64,
}

/// Attempts at a reservation that others change under our hands; then it is as good as refused.
const RESERVE_TRIES: u32 = 100;

#[repr(C, align(4096))]
pub(crate) struct Layout {
    lines: [Line; SLOTS],
}

impl Ledger {
    /// Bytes of the file.
    pub const BYTES: usize = size_of::<Layout>();

    /// Maps the file behind `fd`, which must be sealed at [`Ledger::BYTES`].
    pub fn map(fd: impl AsFd) -> std::io::Result<Self> {
        Ok(Self {
            map: Mapping::new(fd)?,
        })
    }

    /// Makes an empty ledger and its descriptor.
    pub fn create() -> std::io::Result<(Self, OwnedFd)> {
        let fd = crate::fds::sealed_memfd("rocebud-ledger", Self::BYTES)?;
        Ok((Self::map(&fd)?, fd))
    }

    /// The line of a slot; `None` for a number that is none.
    #[must_use]
    pub fn line(&self, slot: u16) -> Option<&Line> {
        self.map.get().lines.get(usize::from(slot))
    }
}

impl Line {
    /// The daemon gives the slot to a process with a receive buffer of so many bytes.
    pub fn open(&self, buffer_bytes: u32) {
        self.senders.sent.store(0, Relaxed);
        self.senders.left.store(0, Relaxed);
        self.read.0.store(0, Relaxed);
        self.buffer_bytes.0.store(u64::from(buffer_bytes), Release);
    }

    /// The slot has no owner any more.
    pub fn close(&self) {
        self.buffer_bytes.0.store(0, Release);
    }

    /// Size of the owner's receive buffer, in bytes of kernel memory; `None` if nobody of this
    /// user owns the slot.
    #[must_use]
    pub fn buffer_bytes(&self) -> Option<u64> {
        Some(self.buffer_bytes.0.load(Acquire)).filter(|bytes| *bytes != 0)
    }

    /// Bytes ever sent to the slot, or reserved to be.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.senders.sent.load(Relaxed)
    }

    /// Bytes of them that were handed to the kernel.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.senders.left.load(Relaxed)
    }

    /// Bytes that its owner has read or given up.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read.0.load(Relaxed)
    }

    /// Bytes on their way: sent or about to be, and not read.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        difference(self.sent(), self.read())
    }

    /// Bytes that are about to be sent.
    #[must_use]
    pub fn about_to_leave(&self) -> u64 {
        difference(self.sent(), self.left())
    }

    /// Reserves `bytes` to be sent if no more than `limit` are then under way. Whoever gets true
    /// either enters them as left or gives them back.
    #[must_use]
    pub fn reserve(&self, bytes: u64, limit: u64) -> bool {
        for _ in 0..RESERVE_TRIES {
            let sent = self.sent();
            if difference(sent, self.read()).saturating_add(bytes) > limit {
                return false;
            }
            let more = sent.wrapping_add(bytes);
            let done = self
                .senders
                .sent
                .compare_exchange_weak(sent, more, Relaxed, Relaxed);
            if done.is_ok() {
                return true;
            }
        }
        false
    }

    /// Bytes that were reserved are not sent after all.
    pub fn give_back(&self, bytes: u64) {
        self.senders.sent.fetch_sub(bytes, Relaxed);
    }

    /// Somebody is about to send what needs no room.
    pub fn add_sent(&self, bytes: u64) {
        self.senders.sent.fetch_add(bytes, Relaxed);
    }

    /// Bytes that were entered as sent were handed to the kernel.
    pub fn add_left(&self, bytes: u64) {
        self.senders.left.fetch_add(bytes, Relaxed);
    }

    /// The owner has read so much more. Only the owner calls this, one thread at a time. What
    /// strangers sent stands nowhere, so this never passes what was sent.
    pub fn add_read(&self, bytes: u64) {
        let bytes = bytes.min(self.under_way());
        self.set_read(self.read().wrapping_add(bytes));
    }

    /// The owner knows better.
    fn set_read(&self, bytes: u64) {
        self.read.0.store(bytes, Relaxed);
    }

    /// The owner's sockets are dry, and all that had left before `left` stood here must have come.
    pub fn write_off(&self, left: u64) {
        if difference(left, self.read()) != 0 {
            self.set_read(left);
        }
    }

    /// Strangers' bytes may have been read in the name of a reservation that was given back: the
    /// owner has read no more than was sent.
    pub fn correct_read(&self) {
        let sent = self.sent();
        if difference(self.read(), sent) != 0 {
            self.set_read(sent);
        }
    }
}

/// `a - b` of counts that wrap; 0 if `b` is ahead.
const fn difference(a: u64, b: u64) -> u64 {
    let difference = a.wrapping_sub(b);
    if difference > u64::MAX / 2 {
        0
    } else {
        difference
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("buffer_bytes", &self.buffer_bytes())
            .field("sent", &self.sent())
            .field("left", &self.left())
            .field("read", &self.read())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_see_what_is_under_way() {
        let (ours, fd) = Ledger::create().unwrap();
        let theirs = Ledger::map(&fd).unwrap();
        let (sender, owner) = (ours.line(0xabc).unwrap(), theirs.line(0xabc).unwrap());
        assert_eq!(sender.buffer_bytes(), None);
        owner.open(1000);
        assert_eq!(sender.buffer_bytes(), Some(1000));
        sender.add_sent(300);
        owner.add_read(100);
        assert_eq!(sender.under_way(), 200);
        owner.add_read(500);
        assert_eq!(sender.under_way(), 0, "strangers' bytes do not count");
        sender.add_sent(50);
        assert_eq!(sender.under_way(), 50);
        owner.write_off(owner.left());
        assert_eq!(sender.under_way(), 50, "it has not left yet");
        sender.add_left(350);
        owner.write_off(owner.left());
        assert_eq!(sender.under_way(), 0);
        owner.close();
        assert_eq!(sender.buffer_bytes(), None);
        assert!(ours.line(4096).is_none());
    }

    #[test]
    fn counts_wrap_and_nonsense_is_harmless() {
        let (ledger, _) = Ledger::create().unwrap();
        let line = ledger.line(1).unwrap();
        line.set_read(u64::MAX - 5);
        line.senders.sent.store(u64::MAX - 5, Relaxed);
        line.add_sent(10);
        line.add_read(7);
        assert_eq!(line.under_way(), 3);
        line.set_read(line.sent().wrapping_add(1 << 40));
        assert_eq!(line.under_way(), 0);
        line.correct_read();
        line.add_sent(5);
        assert_eq!(line.under_way(), 5);
    }

    #[test]
    fn reservations_of_many_never_pass_the_limit() {
        const LIMIT: u64 = 1000;
        let (ledger, _) = Ledger::create().unwrap();
        let line = ledger.line(1).unwrap();
        assert!(!line.reserve(LIMIT + 1, LIMIT));
        std::thread::scope(|scope| {
            for bytes in [300, 301, 302, 303] {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        if line.reserve(bytes, LIMIT) {
                            assert!(line.under_way() <= LIMIT);
                            line.give_back(bytes);
                        }
                    }
                });
            }
        });
        assert_eq!(line.under_way(), 0);
    }
}
