//! What may wait for the program's next call.
//!
//! An ACK that rides with the program's own next message costs nothing, and small posts in a row
//! leave together. Both are bets that the program calls again at once. If it does not, the progress
//! thread finds what was left; where that goes on, the next bets are off, for longer each time in a row.

/// Bounds of what is off for [`Later`].
const OFF_MIN: u32 = 16;
const OFF_MAX: u32 = 4096;

/// What a program gets at least before a bet on it counts as lost.
const FAIR_NS: u64 = 30_000;

/// Whether to bet. A single loss may be the scheduler's doing; after two in a row `MIN` are off, twice as
/// many after each further one, and never more than `MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Bet<const MIN: u32, const MAX: u32> {
    off: u32,
    next: u32,
}

impl<const MIN: u32, const MAX: u32> Bet<MIN, MAX> {
    /// Asked once for each bet that could be made.
    #[inline]
    pub(crate) fn is_on(&mut self) -> bool {
        let on = self.off == 0;
        self.off = self.off.saturating_sub(1);
        on
    }

    /// It was won.
    #[inline]
    pub(crate) fn won(&mut self) {
        self.next = 0;
    }

    /// It was lost.
    pub(crate) fn lost(&mut self) {
        self.off = self.next.min(MAX);
        self.next = (self.next * 2).clamp(MIN, MAX);
    }
}

/// Something was left for the next call. Guarded by the engine's lock.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Later {
    bet: Bet<OFF_MIN, OFF_MAX>,
    /// Since when something is left.
    left_ns: Option<u64>,
}

impl Later {
    /// May something be left? If so, it is.
    #[inline]
    pub(crate) fn leave(&mut self, now_ns: u64) -> bool {
        if self.bet.is_on() && self.left_ns.is_none() {
            self.left_ns = Some(now_ns);
        }
        self.left_ns.is_some()
    }

    /// Something is left for the next call.
    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        self.left_ns.is_some()
    }

    /// The program called.
    #[inline]
    pub(crate) fn called(&mut self) {
        if self.left_ns.take().is_some() {
            self.bet.won();
        }
    }

    /// The thread came before the program did.
    pub(crate) fn found(&mut self, now_ns: u64) {
        if let Some(left_ns) = self.left_ns.take()
            && now_ns.saturating_sub(left_ns) > FAIR_NS
        {
            self.bet.lost();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: u64 = FAIR_NS + 1;

    #[test]
    fn lost_bets_grow_rare_and_a_won_one_makes_up_for_them() {
        let mut later = Later::default();
        for off in [0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            assert!(later.leave(0));
            later.found(LATE);
            assert_eq!((0..10_000).position(|_| later.leave(0)), Some(off));
        }
        later.called();
        for off in [0, 16, 32] {
            assert!(later.leave(0));
            later.found(LATE);
            assert_eq!((0..10_000).position(|_| later.leave(0)), Some(off));
        }
    }

    #[test]
    fn only_what_was_left_for_long_enough_is_judged() {
        let mut later = Later::default();
        later.found(LATE);
        assert!(later.leave(0));
        later.found(FAIR_NS);
        assert!(later.leave(0));
    }
}
