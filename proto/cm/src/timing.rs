//! Times: codes of the wire (4.096 µs × 2^n), and what follows from them.

const MS: u64 = 1_000_000;

/// Nanoseconds of a 5-bit code.
#[must_use]
pub const fn code_ns(code: u8) -> u64 {
    4096 << (code & 31)
}

/// The `timeout` that a queue pair shall have for a path of this packet life time to a peer whose
/// acknowledgements may be late by `ack_delay` (codes both; at most 31).
#[must_use]
pub fn ack_timeout(packet_life: u8, ack_delay: u8) -> u8 {
    let there_and_back = packet_life.saturating_add(1);
    let (longer, shorter) = if there_and_back >= ack_delay {
        (there_and_back, ack_delay)
    } else {
        (ack_delay, there_and_back)
    };
    // A sum of two powers of two, rounded up where the smaller one counts.
    let sum = longer.saturating_add(u8::from(shorter.saturating_add(1) >= longer));
    sum.min(31)
}

/// The packet life time from which [`ack_timeout`] made `timeout`, as the Linux connection
/// manager takes it back.
#[must_use]
pub const fn packet_life_of(timeout: u8) -> u8 {
    timeout.saturating_sub(1)
}

/// When messages that nobody answers are sent again, and when that ends.
///
/// With the default, silence takes 7.8 s to be believed: sent after 0, 0.25, 0.75, 1.75 and
/// 3.75 s, and given up 4.1 s after the last time. (Linux: 16 times, 4 to 6 s apart; more than a
/// minute.) A peer whose application needs longer says so by an MRA when it sees the first
/// repetition, so a short beginning costs a slow application nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Nanoseconds from the first sending to the second; doubles from then on. At least 1 ms.
    pub first_resend_ns: u64,
    /// Nanoseconds that an interval never exceeds, and that the last one has.
    pub resend_ns_max: u64,
    /// How often a message is sent in all, at least 1. Where a REQ allows fewer repetitions
    /// ([`Connect::max_cm_retries`](crate::Connect::max_cm_retries)), that counts.
    pub sends: u8,
    /// The code in our MRAs: how long our applications may think about a request before the peer
    /// asks again. Short enough that a refusal that got lost is noticed, long enough that the 15
    /// repetitions of a Linux peer are two minutes.
    pub service_timeout: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            first_resend_ns: 250 * MS,
            resend_ns_max: 4096 * MS,
            sends: 5,
            service_timeout: 21,
        }
    }
}

impl Config {
    /// Nanoseconds to wait after the `sent`-th of `sends` sendings (1 = the first).
    #[must_use]
    pub fn interval_ns(&self, sent: u8, sends: u8) -> u64 {
        let doublings = u32::from(sent.saturating_sub(1)).min(32);
        let first = self.first_resend_ns.max(MS);
        let longest = self.resend_ns_max.max(first);
        if sent >= sends {
            return longest;
        }
        first.saturating_mul(1 << doublings).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_are_those_of_linux() {
        assert_eq!(ack_timeout(16, 15), 17); // an mlx5 peer
        assert_eq!(ack_timeout(18, 15), 19); // Linux 6.1 rxe, captured
        assert_eq!(ack_timeout(14, 15), 16); // equal: doubled
        assert_eq!(ack_timeout(13, 15), 16);
        assert_eq!(ack_timeout(10, 15), 15);
        assert_eq!(ack_timeout(31, 31), 31);
        assert_eq!(ack_timeout(255, 255), 31);
    }

    #[test]
    fn silence_is_believed_after_eight_seconds() {
        let config = Config::default();
        let wait = |n| config.interval_ns(n, config.sends);
        let all: u64 = (1..=config.sends).map(wait).sum();
        assert_eq!(all, 7846 * MS);
        assert_eq!(config.interval_ns(1, 1), 4096 * MS);
    }
}
