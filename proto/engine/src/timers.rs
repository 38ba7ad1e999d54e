//! One deadline per queue pair, in a heap with lazy deletion.
//!
//! Deadlines move forward with every ACK. The heap is touched only when a deadline becomes
//! *earlier* than the queue pair's entry; otherwise the entry fires, sees that the deadline has
//! moved, and is put back. A deadline made earlier leaves its old entry behind; when such stale
//! entries are more than the others, all of them are swept out.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use rocebud_objects::Instant;

use crate::ready::Index;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    deadline: Option<Instant>,
    /// The entry in the heap that counts; others of this queue pair are stale.
    entry: Option<Instant>,
}

/// Stale entries that are never worth a sweep.
const SPARE: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Index)>>,
    slots: Vec<Slot>,
}

impl Timers {
    /// Sets or clears the deadline of a queue pair.
    pub(crate) fn set(&mut self, index: Index, deadline: Option<Instant>) {
        let at = index as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, Slot::default());
        }
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        slot.deadline = deadline;
        let Some(deadline) = deadline else { return };
        if slot.entry.is_none_or(|entry| deadline < entry) {
            slot.entry = Some(deadline);
            self.heap.push(Reverse((deadline, index)));
            if self.heap.len() > 2 * self.slots.len() + SPARE {
                let slots = &self.slots;
                let counts =
                    |at, index| slots.get(index as usize).map(|s| s.entry) == Some(Some(at));
                self.heap.retain(|&Reverse((at, index))| counts(at, index));
            }
        }
    }

    /// A queue pair whose deadline has come; it is cleared.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<Index> {
        while let Some(&Reverse((at, index))) = self.heap.peek() {
            let Some(slot) = self.slots.get_mut(index as usize) else {
                self.heap.pop();
                continue;
            };
            if slot.entry == Some(at) && at > now {
                return None;
            }
            self.heap.pop();
            if slot.entry != Some(at) {
                continue;
            }
            slot.entry = None;
            match slot.deadline {
                Some(deadline) if deadline <= now => {
                    slot.deadline = None;
                    return Some(index);
                }
                Some(deadline) => {
                    slot.entry = Some(deadline);
                    self.heap.push(Reverse((deadline, index)));
                }
                None => {}
            }
        }
        None
    }

    /// A queue pair has a deadline.
    pub(crate) fn is_set(&self, index: Index) -> bool {
        let slot = self.slots.get(index as usize);
        slot.is_some_and(|slot| slot.deadline.is_some())
    }

    /// No deadline is earlier than this. May be earlier than the first real one.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|&Reverse((at, _))| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moved_does_not_fire_early() {
        let mut timers = Timers::default();
        timers.set(0, Some(Instant(10)));
        timers.set(0, Some(Instant(20)));
        assert_eq!(timers.pop_expired(Instant(10)), None);
        assert_eq!(timers.pop_expired(Instant(19)), None);
        assert_eq!(timers.pop_expired(Instant(20)), Some(0));
        assert_eq!(timers.pop_expired(Instant(1000)), None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_deadline_made_earlier_fires_once() {
        let mut timers = Timers::default();
        timers.set(7, Some(Instant(50)));
        timers.set(7, Some(Instant(5)));
        assert_eq!(timers.next(), Some(Instant(5)));
        assert_eq!(timers.pop_expired(Instant(60)), Some(7));
        assert_eq!(timers.pop_expired(Instant(60)), None);
    }

    #[test]
    fn a_cleared_deadline_never_fires() {
        let mut timers = Timers::default();
        timers.set(1, Some(Instant(5)));
        timers.set(1, None);
        timers.set(2, Some(Instant(6)));
        assert_eq!(timers.pop_expired(Instant(60)), Some(2));
        assert_eq!(timers.pop_expired(Instant(60)), None);
    }

    #[test]
    fn short_waits_between_long_ones_leave_no_pile_behind() {
        let (mut timers, mut now) = (Timers::default(), Instant(0));
        for _ in 0..10_000 {
            timers.set(3, Some(now + 1_000_000_000_000)); // a long ACK timeout …
            timers.set(3, Some(now + 10)); // … cut short by an RNR NAK
            now = now + 10;
            assert_eq!(timers.pop_expired(now), Some(3));
            assert_eq!(timers.pop_expired(now), None);
        }
        assert!(timers.heap.len() < 100, "{}", timers.heap.len());
    }
}
