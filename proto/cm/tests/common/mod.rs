//! What the tests share.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod golden;
pub(crate) mod world;

use rocebud_cm::{Config, Ends, Manager, Path};
use rocebud_wire::Gid;

/// A generator for tests (xorshift*).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn roll(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    /// True so many times in 1000.
    pub(crate) fn permille(&mut self, n: u32) -> bool {
        self.roll() % 1000 < n
    }
}

pub(crate) const ALICE: Gid = Gid::from_v4([10, 98, 0, 12]);
pub(crate) const BOB: Gid = Gid::from_v4([10, 98, 0, 11]);

/// From the first to the second.
pub(crate) fn ends(local: Gid, remote: Gid) -> Ends {
    Ends {
        port: 1,
        local,
        remote,
    }
}

pub(crate) fn path(local: Gid, remote: Gid) -> Path {
    Path {
        ends: ends(local, remote),
        hop_limit: 64,
        ..Path::default()
    }
}

/// What comes in at the other end.
pub(crate) fn mirrored(ends: Ends) -> Ends {
    Ends {
        port: ends.port,
        local: ends.remote,
        remote: ends.local,
    }
}

pub(crate) fn manager(seed: u64) -> Manager {
    let mut dice = Dice::new(seed);
    Manager::new(Config::default(), Box::new(move || dice.roll()))
}
