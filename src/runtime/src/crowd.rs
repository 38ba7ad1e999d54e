//! Polling on a core that others want.
//!
//! Two programs that spin on one core wait for the scheduler at every hop, so a poll in vain yields
//! while somebody else wants the core. Yielding alone keeps the two there for ever though another
//! core idles: to the scheduler they look like one busy core. So now and then the poll sleeps on
//! the sockets instead. The packet that it waits for wakes it, on an idle core if there is one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Polls in vain from one test to the next. Alone on a core a test is a system call for nothing.
const TEST_EVERY: u32 = 32;

/// A yield that takes longer than this ran somebody else.
const SWITCH_NS: u64 = 1_200;

/// Yields from one sleep to the next: a sleep costs several of them. Doubled by each sleep that
/// changed nothing.
const YIELDS_MIN: u32 = 64;
const YIELDS_MAX: u32 = 4096;

/// The longest sleep.
pub(crate) const SLEEP_NS: u64 = 50_000;

/// A program that comes back later than this does other work between polls, and must not be held
/// up in it.
const SPINS_NS: u64 = 20_000;

/// What to do at a poll in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// Nothing: return to the program.
    Spin,
    /// Yield, and tell [`Crowd::yielded`] how long that took.
    Yield,
    /// Sleep on the sockets for [`SLEEP_NS`] at most, and tell [`Crowd::slept`].
    Sleep,
}

/// What is known about the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Phase {
    /// Nobody else wants it.
    Alone,
    /// A yield ran somebody; that may have been a thread that passed by.
    Suspected,
    /// Somebody wants it: sleep.
    Sleepy,
    /// Slept; did it help?
    Slept,
    /// It did not: yield for a while.
    Crowded,
}

/// Where a yield leads: the phase before, and the phases after one that ran somebody and one that
/// did not. Out of `Crowded` only the last yield of many leads back to a sleep.
const MOVES: [(Phase, Phase, Phase); 5] = [
    (Phase::Alone, Phase::Suspected, Phase::Alone),
    (Phase::Suspected, Phase::Sleepy, Phase::Alone),
    (Phase::Sleepy, Phase::Sleepy, Phase::Alone),
    (Phase::Slept, Phase::Crowded, Phase::Alone),
    (Phase::Crowded, Phase::Sleepy, Phase::Alone),
];

/// Shared by all polling threads of the process; a count lost to another thread costs nothing, so
/// plain loads and stores do.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    last_ns: AtomicU64,
    /// As a number, [`Phase::Alone`] at first.
    phase: AtomicU32,
    polls: AtomicU32,
    yields_left: AtomicU32,
    yields_next: AtomicU32,
}

impl Crowd {
    /// A poll in vain.
    #[inline]
    pub(crate) fn manner(&self, now_ns: u64) -> Manner {
        let spins = now_ns.saturating_sub(self.last_ns.load(Relaxed)) < SPINS_NS;
        self.last_ns.store(now_ns, Relaxed);
        if !spins {
            return Manner::Spin;
        }
        let polls = self.polls.load(Relaxed).wrapping_add(1);
        self.polls.store(polls, Relaxed);
        match self.phase.load(Relaxed) {
            ALONE if !polls.is_multiple_of(TEST_EVERY) => Manner::Spin,
            SLEEPY => Manner::Sleep,
            _ => Manner::Yield,
        }
    }

    /// A yield gave the core away for so long.
    pub(crate) fn yielded(&self, away_ns: u64, now_ns: u64) {
        self.last_ns.store(now_ns, Relaxed);
        let phase = self.phase.load(Relaxed);
        let Some(&(before, ran, alone)) = MOVES.get(phase as usize) else {
            return;
        };
        if away_ns <= SWITCH_NS {
            return self.enter(alone);
        }
        let left = self.yields_left.load(Relaxed).saturating_sub(1);
        self.yields_left.store(left, Relaxed);
        if before != Phase::Crowded || left == 0 {
            self.enter(ran);
        }
    }

    /// A sleep ended.
    pub(crate) fn slept(&self, now_ns: u64) {
        self.last_ns.store(now_ns, Relaxed);
        self.enter(Phase::Slept);
    }

    fn enter(&self, phase: Phase) {
        match phase {
            Phase::Crowded => {
                let yields = self.yields_next.load(Relaxed).clamp(YIELDS_MIN, YIELDS_MAX);
                self.yields_left.store(yields, Relaxed);
                self.yields_next.store(yields * 2, Relaxed);
            }
            Phase::Alone => self.yields_next.store(0, Relaxed),
            _ => {}
        }
        self.phase.store(phase as u32, Relaxed);
    }
}

const ALONE: u32 = Phase::Alone as u32;
const SLEEPY: u32 = Phase::Sleepy as u32;

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls in vain up to one that does not spin.
    fn next(crowd: &Crowd, now: &mut u64) -> (u32, Manner) {
        for polls in 1..1000 {
            *now += 400;
            match crowd.manner(*now) {
                Manner::Spin => {}
                manner => return (polls, manner),
            }
        }
        panic!("spins for ever");
    }

    fn crowded() -> (Crowd, u64) {
        let (crowd, mut now) = (Crowd::default(), 1_000_000);
        crowd.manner(now);
        assert_eq!(next(&crowd, &mut now).1, Manner::Yield);
        crowd.yielded(5_000, now);
        assert_eq!(next(&crowd, &mut now), (1, Manner::Yield));
        (crowd, now)
    }

    #[test]
    fn the_table_is_in_order() {
        for (at, (before, _, _)) in MOVES.iter().enumerate() {
            assert_eq!(*before as usize, at);
        }
    }

    #[test]
    fn alone_on_a_core_it_spins_and_tests_now_and_then() {
        let (crowd, mut now) = (Crowd::default(), 1_000_000);
        assert_eq!(crowd.manner(now), Manner::Spin);
        for _ in 0..10 {
            assert_eq!(next(&crowd, &mut now), (TEST_EVERY, Manner::Yield));
            crowd.yielded(300, now);
        }
    }

    #[test]
    fn a_passer_by_makes_no_crowd() {
        let (crowd, mut now) = crowded();
        crowd.yielded(300, now);
        let (polls, manner) = next(&crowd, &mut now);
        assert!(polls > 1 && manner == Manner::Yield);
    }

    #[test]
    fn a_crowd_is_yielded_to_and_slept_for_ever_more_rarely() {
        let (crowd, mut now) = crowded();
        crowd.yielded(5_000, now);
        for yields in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            assert_eq!(next(&crowd, &mut now), (1, Manner::Sleep));
            crowd.slept(now);
            for _ in 0..=yields {
                assert_eq!(next(&crowd, &mut now), (1, Manner::Yield));
                crowd.yielded(5_000, now);
            }
        }
    }

    #[test]
    fn a_sleep_that_moved_it_to_an_idle_core_ends_the_crowd() {
        let (crowd, mut now) = crowded();
        crowd.yielded(5_000, now);
        assert_eq!(next(&crowd, &mut now), (1, Manner::Sleep));
        crowd.slept(now);
        assert_eq!(next(&crowd, &mut now), (1, Manner::Yield));
        crowd.yielded(300, now);
        assert!(next(&crowd, &mut now).0 > 1);
    }

    #[test]
    fn other_work_between_polls_is_not_held_up() {
        let (crowd, mut now) = crowded();
        crowd.yielded(5_000, now);
        now += SPINS_NS;
        assert_eq!(crowd.manner(now), Manner::Spin);
    }
}
