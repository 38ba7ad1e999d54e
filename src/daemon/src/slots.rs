//! Slot numbers: who owns which 4096 QPNs, and for how long nobody may.
//!
//! A number is drawn at random, so that a late packet for a program of yesterday does not meet
//! one of today, and rests for [`TIME_WAIT`] after its owner is gone. The sockets behind a number
//! are another matter (see [`crate::group`]).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::devices::Now;

/// How long a number rests: well above the time for which a packet or a retransmission of the
/// default timeouts (67 ms × 7) can linger.
pub(crate) const TIME_WAIT: Duration = Duration::from_secs(10);

/// The first number; 0 is the daemon's.
const FIRST: u16 = 1;
/// The last number; 0xfff would hold the multicast QPN 0xffffff.
const LAST: u16 = 0xffe;

/// A client's key.
pub(crate) type Owner = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Owned(Owner),
    TimeWait { until: Now },
}

/// All numbers that are not free.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    used: BTreeMap<u16, State>,
}

impl Slots {
    /// Gives `owner` a free number, chosen by `chance`. `None` when all are in use or resting.
    pub(crate) fn take(&mut self, owner: Owner, chance: u32, now: Now) -> Option<u16> {
        self.expire(now);
        let count = u32::from(LAST - FIRST) + 1;
        let start = chance % count;
        let number = |i: u32| FIRST + u16::try_from((start + i) % count).unwrap_or(0);
        let free = (0..count)
            .map(number)
            .find(|n| !self.used.contains_key(n))?;
        self.used.insert(free, State::Owned(owner));
        Some(free)
    }

    /// Begins the time-wait of everything that `owner` had; returns the numbers.
    pub(crate) fn release(&mut self, owner: Owner, now: Now) -> Vec<u16> {
        let until = now + TIME_WAIT;
        let mut released = Vec::new();
        for (number, state) in &mut self.used {
            if *state == State::Owned(owner) {
                *state = State::TimeWait { until };
                released.push(*number);
            }
        }
        released
    }

    /// Takes back a number that was given but could not be used; it does not rest.
    pub(crate) fn undo(&mut self, number: u16) {
        self.used.remove(&number);
    }

    /// Owner of a number.
    pub(crate) fn owner(&self, number: u16) -> Option<Owner> {
        match self.used.get(&number) {
            Some(State::Owned(owner)) => Some(*owner),
            _ => None,
        }
    }

    /// Numbers in use or resting: owner, and what is left of the rest.
    pub(crate) fn list(&self, now: Now) -> impl Iterator<Item = (u16, Option<Owner>, Duration)> {
        let used = self.used.iter().map(move |(number, state)| match state {
            State::Owned(owner) => (*number, Some(*owner), Duration::ZERO),
            State::TimeWait { until } => (*number, None, until.saturating_sub(now)),
        });
        used.filter(|(_, owner, left)| owner.is_some() || !left.is_zero())
    }

    fn expire(&mut self, now: Now) {
        self.used
            .retain(|_, state| !matches!(state, State::TimeWait { until } if *until <= now));
    }
}

#[cfg(test)]
mod tests;
