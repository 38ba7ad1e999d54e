//! The random fault rule of the simulator.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rocebud_wire::{Gid, Qpn};

use crate::rng::{Ratio, Rng};
use crate::rule::{Rule, Sight, Verdict};

/// How likely each fault is, per frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultPlan {
    /// Frame lost.
    pub drop: Ratio,
    /// Frame arrives twice.
    pub duplicate: Ratio,
    /// Frame arrives with flipped bits.
    pub corrupt: Ratio,
    /// Frame is overtaken by a few later ones.
    pub reorder: Ratio,
    /// Frame is late by up to `delay_ns_max`.
    pub delay: Ratio,
    /// Longest added delay, nanoseconds.
    pub delay_ns_max: u64,
    /// The network is unreliable but fair: it harms the same packet of a queue pair at most so
    /// often. Without this bound `retry_cnt` can be used up by chance alone, and an engine that
    /// gives up too early could not be told from one that is right.
    pub harm_max: u32,
}

impl FaultPlan {
    /// A network without faults.
    pub const QUIET: Self = Self {
        drop: Ratio::ZERO,
        duplicate: Ratio::ZERO,
        corrupt: Ratio::ZERO,
        reorder: Ratio::ZERO,
        delay: Ratio::ZERO,
        delay_ns_max: 0,
        harm_max: 2,
    };

    /// Loss alone, `n` in a hundred.
    #[must_use]
    pub const fn loss_percent(n: u32) -> Self {
        Self {
            drop: Ratio::percent(n),
            ..Self::QUIET
        }
    }

    /// No fault can occur.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.drop.num | self.duplicate.num | self.corrupt.num | self.reorder.num | self.delay.num
            == 0
    }

    /// Frames can arrive twice or out of order.
    #[must_use]
    pub const fn disorders(&self) -> bool {
        self.duplicate.num | self.reorder.num | self.delay.num != 0
    }
}

/// A packet that a queue pair may send again and again: direction, queue pair, PSN.
type Victim = (Gid, Gid, Qpn, u32, bool);

/// Draws a verdict for each frame from a [`FaultPlan`].
#[derive(Debug)]
pub struct Chaos {
    plan: FaultPlan,
    on: Rc<Cell<bool>>,
    harm: BTreeMap<Victim, u32>,
}

impl Chaos {
    /// A rule, and the switch that stops it.
    #[must_use]
    pub fn new(plan: FaultPlan) -> (Self, Rc<Cell<bool>>) {
        let on = Rc::new(Cell::new(true));
        let rule = Self {
            plan,
            on: Rc::clone(&on),
            harm: BTreeMap::new(),
        };
        (rule, on)
    }

    fn draw(&self, rng: &mut Rng) -> Verdict {
        let plan = &self.plan;
        if rng.chance(plan.drop) {
            return Verdict::Drop;
        }
        if rng.chance(plan.corrupt) {
            let bits = rng.range_u32(1, 4) as u8;
            return Verdict::Corrupt { bits };
        }
        if rng.chance(plan.duplicate) {
            let delay_ns = rng.below(plan.delay_ns_max + 1);
            return Verdict::Duplicate { delay_ns };
        }
        if rng.chance(plan.reorder) {
            let behind = rng.range_u32(1, 8) as u8;
            return Verdict::Reorder { behind };
        }
        if rng.chance(plan.delay) {
            let delay_ns = rng.below(plan.delay_ns_max + 1);
            return Verdict::Deliver { delay_ns };
        }
        Verdict::Pass
    }
}

impl Rule for Chaos {
    fn judge(&mut self, sight: &Sight<'_>, rng: &mut Rng) -> Verdict {
        if !self.on.get() {
            return Verdict::Pass;
        }
        let verdict = self.draw(rng);
        if matches!(verdict, Verdict::Pass | Verdict::Duplicate { .. }) {
            return verdict;
        }
        let bth = &sight.packet.bth;
        let (src, dst) = (sight.frame.src, sight.frame.dst);
        let answer = bth
            .opcode
            .info()
            .is_some_and(|info| info.operation.is_response());
        let victim = (src, dst, bth.dest_qp, bth.psn.value(), answer);
        let harm = self.harm.entry(victim).or_insert(0);
        if *harm == self.plan.harm_max {
            return Verdict::Pass;
        }
        *harm += 1;
        verdict
    }
}
