//! AETH syndromes and the two tables behind them.

/// Why a request was refused; the value of a NAK syndrome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing.
    PsnSequenceError = 0,
    /// The request breaks the rules.
    InvalidRequest = 1,
    /// Key, range or permission.
    RemoteAccessError = 2,
    /// The responder could not do it.
    RemoteOperationalError = 3,
    /// RD only.
    InvalidRdRequest = 4,
}

/// First byte of an AETH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Positive, with a credit code (0..=31, see [`credits`]).
    Ack {
        /// [`Syndrome::CREDITS_UNLIMITED`] = no count.
        credits: u8,
    },
    /// No receive posted; ask again after at least [`rnr_timer_ns`]\(timer\).
    RnrNak {
        /// Timer code, 0..=31.
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// A value that no specification defines, as received.
    Reserved(u8),
}

impl Syndrome {
    /// The credit code of receivers that count no credits.
    pub const CREDITS_UNLIMITED: u8 = 31;

    /// A plain ACK.
    pub const ACK: Self = Self::Ack {
        credits: Self::CREDITS_UNLIMITED,
    };

    /// From the wire; every value has a meaning, if only `Reserved`.
    #[inline]
    #[must_use]
    pub const fn decode(byte: u8) -> Self {
        let value = byte & 0x1f;
        match (byte >> 5, value) {
            (0, _) => Self::Ack { credits: value },
            (1, _) => Self::RnrNak { timer: value },
            (3, 0) => Self::Nak(NakCode::PsnSequenceError),
            (3, 1) => Self::Nak(NakCode::InvalidRequest),
            (3, 2) => Self::Nak(NakCode::RemoteAccessError),
            (3, 3) => Self::Nak(NakCode::RemoteOperationalError),
            (3, 4) => Self::Nak(NakCode::InvalidRdRequest),
            _ => Self::Reserved(byte),
        }
    }

    /// To the wire. Codes above 31 lose their upper bits.
    #[inline]
    #[must_use]
    pub const fn encode(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

/// Receives that a credit code stands for; `None` for 31, "not counted".
#[must_use]
pub fn credits(code: u8) -> Option<u32> {
    CREDITS.get(usize::from(code & 0x1f)).copied()
}

/// The largest code that promises no more than `receives`.
#[must_use]
pub fn credit_code(receives: u32) -> u8 {
    (CREDITS.partition_point(|&c| c <= receives) - 1) as u8
}

/// Nanoseconds that an RNR timer code stands for: the least time to wait, never a schedule.
/// Only the low five bits of `code` count.
#[must_use]
pub const fn rnr_timer_ns(code: u8) -> u64 {
    RNR_TIMER_10US[(code & 0x1f) as usize] as u64 * 10_000
}

/// The code of the shortest time that is at least `ns`; the longest (0, 655.36 ms) beyond that.
#[must_use]
pub fn rnr_timer_code(ns: u64) -> u8 {
    (1..32).find(|&code| rnr_timer_ns(code) >= ns).unwrap_or(0)
}

/// Credit codes 0..=30; code 31 means "not counted".
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// RNR timer codes in units of 10 microseconds. Code 0 is the longest.
const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

#[cfg(test)]
mod tests;
