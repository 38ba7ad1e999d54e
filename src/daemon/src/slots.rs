//! Slot numbers: who owns which 4096 QPNs, and for how long nobody may.
//!
//! A number is drawn at random, so that a late packet for a program of yesterday does not meet
//! one of today, and rests for [`TIME_WAIT`] after its owner is gone. The sockets behind a number
//! are another matter (see [`crate::group`]).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::devices::Now;
use crate::limits::{NUMBERS_PER_USER_MAX, SLOTS_PER_USER_MAX};

/// How long a number rests: five times what a requester with the usual timeout goes on for (67 ms,
/// eight tries, 1.8 s). README and ARCHITECTURE state it.
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

#[derive(Clone, Copy, Debug)]
struct Used {
    /// User of its process: what rests counts as his too.
    uid: u32,
    state: State,
}

/// Why there is no number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoNumber {
    /// The user has, or had a moment ago, as many as an ordinary user may.
    User,
    /// All are in use or rest.
    All,
}

/// All numbers that are not free.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    used: BTreeMap<u16, Used>,
}

impl Slots {
    /// Gives `owner`, a process of user `uid`, a free number, chosen by `chance`. An ordinary user
    /// cannot take what all others need, neither by holding nor by coming and going.
    pub(crate) fn take(
        &mut self,
        owner: Owner,
        uid: u32,
        chance: u32,
        now: Now,
    ) -> Result<u16, NoNumber> {
        self.expire(now);
        if uid != 0 {
            let theirs = || self.used.values().filter(|used| used.uid == uid);
            let held = theirs().filter(|used| matches!(used.state, State::Owned(_)));
            if held.count() >= SLOTS_PER_USER_MAX || theirs().count() >= NUMBERS_PER_USER_MAX {
                return Err(NoNumber::User);
            }
        }
        let count = u32::from(LAST - FIRST) + 1;
        let start = chance % count;
        let number = |i: u32| FIRST + u16::try_from((start + i) % count).unwrap_or(0);
        let free = (0..count)
            .map(number)
            .find(|n| !self.used.contains_key(n))
            .ok_or(NoNumber::All)?;
        let state = State::Owned(owner);
        self.used.insert(free, Used { uid, state });
        Ok(free)
    }

    /// Begins the time-wait of everything that `owner` had; returns the numbers.
    pub(crate) fn release(&mut self, owner: Owner, now: Now) -> Vec<u16> {
        let until = now + TIME_WAIT;
        let mut released = Vec::new();
        for (number, used) in &mut self.used {
            if used.state == State::Owned(owner) {
                used.state = State::TimeWait { until };
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
        match self.used.get(&number)?.state {
            State::Owned(owner) => Some(owner),
            State::TimeWait { .. } => None,
        }
    }

    /// Numbers in use or resting: owner, and what is left of the rest.
    pub(crate) fn list(&self, now: Now) -> impl Iterator<Item = (u16, Option<Owner>, Duration)> {
        let used = self
            .used
            .iter()
            .map(move |(number, used)| match used.state {
                State::Owned(owner) => (*number, Some(owner), Duration::ZERO),
                State::TimeWait { until } => (*number, None, until.saturating_sub(now)),
            });
        used.filter(|(_, owner, left)| owner.is_some() || !left.is_zero())
    }

    fn expire(&mut self, now: Now) {
        self.used
            .retain(|_, used| !matches!(used.state, State::TimeWait { until } if until <= now));
    }
}

#[cfg(test)]
mod tests;
