//! What is remembered of READs and atomics, so that a repeated request gets the same answer.

use alloc::collections::VecDeque;

use rocebud_wire::{Psn, RKey};

/// How a remembered request is answered again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    /// Read anew, within the original range.
    Read { va: u64, rkey: RKey, len: u32 },
    /// The value before; never executed twice.
    Atomic { orig: u64 },
    /// ATOMIC WRITE and FLUSH: an empty READ response.
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remembered {
    pub(crate) psn: Psn,
    pub(crate) packets: u32,
    pub(crate) msn: u32,
    pub(crate) memory: Memory,
}

/// The last `max_dest_rd_atomic` of them, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    list: VecDeque<Remembered>,
}

impl Replay {
    pub(crate) fn remember(&mut self, entry: Remembered, depth: u8) {
        while self.list.len() >= usize::from(depth.max(1)) {
            self.list.pop_front();
        }
        self.list.push_back(entry);
    }

    /// The request that owns `psn`.
    pub(crate) fn find(&self, psn: Psn) -> Option<Remembered> {
        self.list
            .iter()
            .rev()
            .find(|r| {
                let offset = psn.diff(r.psn);
                offset >= 0 && offset.cast_unsigned() < r.packets
            })
            .copied()
    }

    /// First PSN of the oldest remembered request that came after `psn`.
    pub(crate) fn first_after(&self, psn: Psn) -> Option<Psn> {
        self.list
            .iter()
            .map(|r| r.psn)
            .find(|first| first.after(psn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_requests_are_found_across_the_wrap_and_older_ones_forgotten() {
        let mut replay = Replay::default();
        for i in 0..5_u32 {
            let psn = Psn::new(0xff_fffa).add(i * 3);
            let memory = Memory::Atomic { orig: u64::from(i) };
            replay.remember(
                Remembered {
                    psn,
                    packets: 2,
                    msn: i,
                    memory,
                },
                4,
            );
        }
        assert_eq!(
            replay.find(Psn::new(0xff_fffa)),
            None,
            "the fifth pushed it out"
        );
        assert_eq!(
            replay.find(Psn::new(0xff_ffff)),
            None,
            "between two requests"
        );
        assert_eq!(replay.find(Psn::new(1)).unwrap().msn, 2);
        assert_eq!(replay.first_after(Psn::new(0xff_fffe)), Some(Psn::new(0)));
        assert_eq!(replay.first_after(Psn::new(7)), None);
    }
}
