//! Polling on a core that others want.
//!
//! Two programs that spin on one core while the other core idles stay there for ever if they yield
//! to each other: to the scheduler they look like one busy core. So a yield is only the test
//! whether anybody else wants the core. If somebody does, a poll in vain sleeps on the sockets for
//! a moment: the packet that it waits for wakes it, on a core that is idle if there is one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Polls in vain from one test to the next. Alone on a core a test is a system call for nothing.
const TEST_EVERY: u32 = 32;

/// A yield that takes longer than this ran somebody else.
const SWITCH_NS: u64 = 1_200;

/// Polls in vain that sleep after a test found a crowd; doubled by each further test that does.
const SLEEPS_MIN: u32 = 8;
const SLEEPS_MAX: u32 = 256;

/// Bounds of one sleep. Longer each time that nothing came, since each costs a timer.
const SLEEP_MIN_NS: u64 = 50_000;
const SLEEP_MAX_NS: u64 = 400_000;

/// A program that comes back later than this does other work between polls, and must not be held
/// up in it.
const SPINS_NS: u64 = 20_000;

/// What to do at a poll in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// Nothing: return to the program.
    Spin,
    /// Yield, and tell [`Crowd::tested`] how long that took.
    Test,
    /// Sleep on the sockets for [`Crowd::sleep_ns`] at most, and tell [`Crowd::slept`].
    Sleep,
}

/// What is known about the core. Shared by all polling threads; a count lost to another thread
/// costs nothing, so plain loads and stores do.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    last_ns: AtomicU64,
    polls: AtomicU32,
    /// The last test ran somebody: the next poll tests again. Once may be a thread that passed by.
    suspected: AtomicU32,
    sleeps_left: AtomicU32,
    sleeps_next: AtomicU32,
    /// Sleeps in a row in which nothing came.
    idle: AtomicU32,
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
        if self.sleeps_left.load(Relaxed) != 0 {
            return Manner::Sleep;
        }
        let polls = self.polls.load(Relaxed).wrapping_add(1);
        self.polls.store(polls, Relaxed);
        if polls.is_multiple_of(TEST_EVERY) || self.suspected.load(Relaxed) != 0 {
            return Manner::Test;
        }
        Manner::Spin
    }

    /// A test gave the core away for so long.
    pub(crate) fn tested(&self, away_ns: u64, now_ns: u64) {
        self.last_ns.store(now_ns, Relaxed);
        if away_ns <= SWITCH_NS {
            self.suspected.store(0, Relaxed);
            self.sleeps_next.store(0, Relaxed);
        } else if self.suspected.load(Relaxed) == 0 {
            self.suspected.store(1, Relaxed);
        } else {
            let sleeps = self.sleeps_next.load(Relaxed).clamp(SLEEPS_MIN, SLEEPS_MAX);
            self.sleeps_left.store(sleeps, Relaxed);
            self.sleeps_next.store(sleeps * 2, Relaxed);
        }
    }

    /// How long the next sleep may be.
    pub(crate) fn sleep_ns(&self) -> u64 {
        let longer = SLEEP_MIN_NS << self.idle.load(Relaxed);
        longer.min(SLEEP_MAX_NS)
    }

    /// A sleep ended; `came` = there is something to do. After the last one the next poll tests.
    pub(crate) fn slept(&self, came: bool, now_ns: u64) {
        self.last_ns.store(now_ns, Relaxed);
        let left = self.sleeps_left.load(Relaxed).saturating_sub(1);
        self.sleeps_left.store(left, Relaxed);
        if left == 0 {
            self.suspected.store(1, Relaxed);
        }
        let idle = if came { 0 } else { self.idle.load(Relaxed) + 1 };
        self.idle.store(idle.min(8), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A world: answers each manner until it is `want`; gives the polls that took.
    fn polls_until(crowd: &Crowd, want: Manner, away_ns: u64, now: &mut u64) -> u32 {
        for polls in 1..1000 {
            *now += 400;
            let manner = crowd.manner(*now);
            if manner == want {
                return polls;
            }
            match manner {
                Manner::Spin => {}
                Manner::Test => {
                    *now += away_ns;
                    crowd.tested(away_ns, *now);
                }
                Manner::Sleep => {
                    *now += 10_000;
                    crowd.slept(true, *now);
                }
            }
        }
        panic!("never {want:?}");
    }

    #[test]
    fn alone_on_a_core_it_spins_and_tests_now_and_then() {
        let (crowd, mut now) = (Crowd::default(), 1_000_000);
        assert_eq!(crowd.manner(now), Manner::Spin);
        for _ in 0..10 {
            let polls = polls_until(&crowd, Manner::Test, 300, &mut now);
            assert_eq!(polls, TEST_EVERY);
            crowd.tested(300, now);
        }
    }

    #[test]
    fn a_passer_by_makes_no_crowd() {
        let (crowd, mut now) = (Crowd::default(), 1_000_000);
        crowd.manner(now);
        polls_until(&crowd, Manner::Test, 0, &mut now);
        crowd.tested(5_000, now);
        assert_eq!(polls_until(&crowd, Manner::Test, 0, &mut now), 1);
        crowd.tested(300, now);
        assert_eq!(
            polls_until(&crowd, Manner::Test, 0, &mut now),
            TEST_EVERY - 1
        );
    }

    #[test]
    fn a_crowd_is_slept_through_and_tested_for_after_ever_more_sleeps() {
        let (crowd, mut now) = (Crowd::default(), 1_000_000);
        crowd.manner(now);
        polls_until(&crowd, Manner::Sleep, 5_000, &mut now);
        for sleeps in [8, 16, 32, 64, 128, 256, 256] {
            for _ in 0..sleeps {
                assert_eq!(crowd.manner(now), Manner::Sleep);
                crowd.slept(true, now);
            }
            assert_eq!(crowd.manner(now), Manner::Test);
            crowd.tested(5_000, now);
        }
    }

    #[test]
    fn sleeps_in_vain_grow_up_to_a_bound_and_other_work_is_not_held_up() {
        let (crowd, mut now) = (Crowd::default(), 1_000_000);
        crowd.manner(now);
        polls_until(&crowd, Manner::Sleep, 5_000, &mut now);
        let mut lengths = Vec::new();
        for _ in 0..5 {
            crowd.slept(false, now);
            lengths.push(crowd.sleep_ns() / 1000);
        }
        assert_eq!(lengths, [100, 200, 400, 400, 400]);
        now += SPINS_NS;
        assert_eq!(crowd.manner(now), Manner::Spin);
    }
}
