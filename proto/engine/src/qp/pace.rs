//! The rate limit of a queue pair's requests: a bucket of bytes that fills with time.
//!
//! Kept as one point in time, at which everything sent so far would have left at exactly the rate.
//! A packet may leave while that point is no further ahead than a burst takes. Answers (READ
//! responses, ACKs) are the peer's traffic and are not held back.

use rocebud_objects::{Instant, RateLimit};

use crate::limits::{FRAME_BYTES_MAX, PACE_BURST_NS};

/// How far a sender is ahead of its rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pace {
    /// 0 = no limit.
    rate_kbps: u32,
    burst_bytes: u64,
    /// When what was sent would be through.
    through: Instant,
}

impl Pace {
    /// A sender that has sent nothing.
    #[must_use]
    pub fn new(limit: RateLimit) -> Self {
        let within_burst = u64::from(limit.rate_kbps) * PACE_BURST_NS / 8_000_000;
        let burst_bytes = match limit.max_burst_bytes {
            0 => within_burst,
            bytes => u64::from(bytes),
        };
        Self {
            rate_kbps: limit.rate_kbps,
            burst_bytes: burst_bytes.max(FRAME_BYTES_MAX as u64),
            through: Instant::default(),
        }
    }

    /// Packets are held back at all.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.rate_kbps != 0
    }

    /// When the next packet may leave, if not now.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Option<Instant> {
        if !self.is_on() {
            return None;
        }
        let at = Instant(
            self.through
                .0
                .saturating_sub(self.takes_ns(self.burst_bytes)),
        );
        (at > now).then_some(at)
    }

    /// A packet leaves.
    pub fn take(&mut self, now: Instant, bytes: u64) {
        if self.is_on() {
            self.through = self.through.max(now) + self.takes_ns(bytes);
        }
    }

    /// Nanoseconds that bytes take at the rate.
    fn takes_ns(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(8_000_000) / u64::from(self.rate_kbps.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes per second of a limited sender over `ns`, with packets of 1000 bytes.
    fn rate(limit: RateLimit, ns: u64, late_ns: u64) -> u64 {
        let mut pace = Pace::new(limit);
        let (mut now, mut sent) = (Instant(77), 0);
        let end = now + ns;
        while now < end {
            match pace.wait(now) {
                Some(at) => now = at + late_ns,
                None => {
                    pace.take(now, 1000);
                    sent += 1000;
                }
            }
        }
        sent * 1_000_000_000 / ns
    }

    const fn limit(rate_kbps: u32, max_burst_bytes: u32) -> RateLimit {
        RateLimit {
            rate_kbps,
            max_burst_bytes,
            typical_packet_bytes: 0,
        }
    }

    #[test]
    fn the_rate_is_kept_whatever_the_burst_and_a_late_timer() {
        for (kbps, burst, late_ns) in [
            (8_000, 0, 0),
            (8_000, 50_000, 100_000),
            (80_000, 0, 200_000),
            (1_000_000, 0, 50_000),
        ] {
            let bytes = rate(limit(kbps, burst), 2_000_000_000, late_ns);
            let wanted = u64::from(kbps) * 125;
            assert!(
                bytes >= wanted * 98 / 100 && bytes <= wanted * 104 / 100,
                "{kbps} kbit/s: {bytes} of {wanted} bytes/s"
            );
        }
    }

    #[test]
    fn what_is_not_used_does_not_add_up() {
        let mut pace = Pace::new(limit(8_000, 10_000));
        let late = Instant(1 << 40);
        let mut sent = 0;
        while pace.wait(late).is_none() {
            pace.take(late, 1000);
            sent += 1000;
        }
        assert_eq!(sent, 11_000, "a burst, and the packet that ends it");
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut pace = Pace::default();
        pace.take(Instant(5), u64::MAX);
        assert_eq!(pace.wait(Instant(5)), None);
        assert!(!Pace::new(limit(0, 9)).is_on());
    }
}
