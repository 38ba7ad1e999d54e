//! Time as a number that comes in from outside.

use core::ops::{Add, Sub};

/// A point in time: nanoseconds since an epoch that the caller chose. Never runs backwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Instant(pub u64);

impl Instant {
    /// Nanoseconds since `earlier`; 0 if it is later.
    #[must_use]
    pub const fn ns_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Instant {
    type Output = Self;
    /// Adds nanoseconds, saturating.
    fn add(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl Sub for Instant {
    type Output = u64;
    fn sub(self, other: Self) -> u64 {
        self.ns_since(other)
    }
}
