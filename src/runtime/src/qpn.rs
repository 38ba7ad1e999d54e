//! Queue pair numbers: random within the slots of the process, and not used again soon.
//!
//! A stale packet of an earlier connection must not find a new queue pair under its number, and a
//! stranger must not guess one.

use std::collections::VecDeque;

use rocebud_wire::Qpn;

use crate::random;

/// Numbers in a slot.
const NUMBERS: usize = 4096;

/// Numbers that rest before a further slot is asked for rather than using the oldest again.
const RESTING_MAX: usize = 2048;

/// How long a number rests if nothing presses.
const REST_NS: u64 = 60_000_000_000;

/// The numbers of all slots of the process.
#[derive(Debug, Default)]
pub(crate) struct QpnPool {
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    number: u16,
    used: Box<[bool]>,
    free: usize,
    /// Freed numbers and when; still marked used.
    resting: VecDeque<(u16, u64)>,
}

impl QpnPool {
    pub(crate) fn add_slot(&mut self, number: u16) {
        self.slots.push(Slot {
            number,
            used: vec![false; NUMBERS].into_boxed_slice(),
            free: NUMBERS,
            resting: VecDeque::new(),
        });
    }

    /// Frames for this number arrive at our sockets.
    #[inline]
    pub(crate) fn owns(&self, qpn: Qpn) -> bool {
        self.slots.iter().any(|s| s.number == qpn.slot())
    }

    /// A fresh number; `None` if all are in use or rest, so that another slot is worth asking for.
    pub(crate) fn allocate(&mut self, now_ns: u64) -> Option<Qpn> {
        for slot in &mut self.slots {
            slot.wake(now_ns);
        }
        self.slots.iter_mut().find_map(Slot::draw)
    }

    /// A number that should rest longer, when no further slot is to be had.
    pub(crate) fn allocate_rested(&mut self) -> Option<Qpn> {
        let slot = self
            .slots
            .iter_mut()
            .filter(|s| !s.resting.is_empty())
            .min_by_key(|s| s.resting.front().map(|r| r.1))?;
        slot.release_oldest();
        slot.draw()
    }

    pub(crate) fn free(&mut self, qpn: Qpn, now_ns: u64) {
        if let Some(slot) = self.slots.iter_mut().find(|s| s.number == qpn.slot()) {
            slot.resting.push_back((low(qpn), now_ns));
        }
    }
}

impl Slot {
    fn wake(&mut self, now_ns: u64) {
        while let Some(&(_, since)) = self.resting.front() {
            let rested = now_ns.saturating_sub(since) > REST_NS;
            if !rested && self.resting.len() <= RESTING_MAX {
                break;
            }
            self.release_oldest();
        }
    }

    fn release_oldest(&mut self) {
        if let Some((low, _)) = self.resting.pop_front() {
            self.used[usize::from(low)] = false;
            self.free += 1;
        }
    }

    fn draw(&mut self) -> Option<Qpn> {
        if self.free == 0 {
            return None;
        }
        let start = random::u32() as usize % NUMBERS;
        // A few draws first: a scan alone would hand out neighbours.
        let drawn = (0..16)
            .map(|_| random::u32() as usize % NUMBERS)
            .chain((0..NUMBERS).map(|i| (start + i) % NUMBERS))
            .find(|at| !self.used[*at])?;
        self.used[drawn] = true;
        self.free -= 1;
        let drawn = u32::try_from(drawn).ok()?;
        Some(Qpn::new(u32::from(self.number) << 12 | drawn))
    }
}

fn low(qpn: Qpn) -> u16 {
    (qpn.value() & 0xfff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_given_once_and_they_are_scattered() {
        let mut pool = QpnPool::default();
        pool.add_slot(5);
        let all: Vec<u32> = (0..NUMBERS)
            .map(|_| pool.allocate(0).unwrap().value())
            .collect();
        assert!(pool.allocate(0).is_none());
        let neighbours = all.windows(2).filter(|w| w[1] == w[0] + 1).count();
        assert!(neighbours < NUMBERS / 4, "{neighbours}");
        let mut sorted = all;
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), NUMBERS);
        assert!(sorted.iter().all(|n| n >> 12 == 5));
    }

    #[test]
    fn a_freed_number_rests() {
        let mut pool = QpnPool::default();
        pool.add_slot(5);
        let all: Vec<Qpn> = (0..NUMBERS).map(|_| pool.allocate(0).unwrap()).collect();
        pool.free(all[0], 0);
        assert!(pool.allocate(REST_NS).is_none());
        assert_eq!(pool.allocate(REST_NS + 1), Some(all[0]));
        pool.free(all[1], 0);
        assert_eq!(pool.allocate(0), None);
        assert_eq!(pool.allocate_rested(), Some(all[1]));
    }
}
