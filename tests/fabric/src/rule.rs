//! What may happen to a frame: ordered rules, each with a verdict.

use rocebud_objects::Instant;
use rocebud_wire::Packet;

use crate::frame::Frame;
use crate::net::HostId;
use crate::rng::Rng;

/// A frame at the moment it leaves its host.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// When.
    pub now: Instant,
    /// Sender.
    pub from: HostId,
    /// The host that owns the destination address.
    pub to: HostId,
    /// Addresses and bytes.
    pub frame: &'a Frame,
    /// The same bytes, parsed.
    pub packet: &'a Packet<'a>,
}

/// The fate of a frame. Delays are nanoseconds on top of the link's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No opinion: the next rule decides, and after the last the frame arrives.
    Pass,
    /// Arrives, so much later.
    Deliver {
        /// Added delay.
        delay_ns: u64,
    },
    /// Never arrives.
    Drop,
    /// Arrives, and once more so much later.
    Duplicate {
        /// Delay of the copy.
        delay_ns: u64,
    },
    /// Arrives with this many bits flipped.
    Corrupt {
        /// Bits.
        bits: u8,
    },
    /// Arrives after this many later frames of the same direction, or after a millisecond.
    Reorder {
        /// Frames that overtake it.
        behind: u8,
    },
}

/// A rule sees every frame once, in order of sending. The first verdict other than
/// [`Verdict::Pass`] counts and later rules do not see the frame.
pub trait Rule {
    /// Decides on a frame. `rng` is the fabric's own stream for faults.
    fn judge(&mut self, sight: &Sight<'_>, rng: &mut Rng) -> Verdict;
}

impl<F: FnMut(&Sight<'_>, &mut Rng) -> Verdict> Rule for F {
    fn judge(&mut self, sight: &Sight<'_>, rng: &mut Rng) -> Verdict {
        self(sight, rng)
    }
}

/// Gives `verdict` to every `n`th frame that `which` picks, the first being number `n`.
pub fn every_nth(n: u64, verdict: Verdict, mut which: impl FnMut(&Sight<'_>) -> bool) -> impl Rule {
    let mut seen = 0;
    move |sight: &Sight<'_>, _: &mut Rng| {
        if !which(sight) {
            return Verdict::Pass;
        }
        seen += 1;
        if seen % n == 0 {
            verdict
        } else {
            Verdict::Pass
        }
    }
}

/// Gives `verdict` to the frames that `which` picks whose ordinals (from 1) are in `ordinals`.
pub fn the_nth(
    ordinals: &'static [u64],
    verdict: Verdict,
    mut which: impl FnMut(&Sight<'_>) -> bool,
) -> impl Rule {
    let mut seen = 0;
    move |sight: &Sight<'_>, _: &mut Rng| {
        if !which(sight) {
            return Verdict::Pass;
        }
        seen += 1;
        if ordinals.contains(&seen) {
            verdict
        } else {
            Verdict::Pass
        }
    }
}
