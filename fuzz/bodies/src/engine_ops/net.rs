//! Faults that the program asks for, frame by frame, and the eye on the wire.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use rocebud_fabric::{Frame, HostId, Rng, Rule, Sight, Tap, Verdict};
use rocebud_objects::QpType;
use rocebud_sim::check::wire::WireChecker;
use rocebud_wire::{Mtu, Psn, Qpn};

/// What is to happen to frames that are still to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// Of this host only.
    pub(super) from: Option<HostId>,
    /// Answers only, or requests only.
    pub(super) answers: Option<bool>,
    /// Frames that pass before.
    pub(super) skip: u8,
    /// Frames that it befalls.
    pub(super) count: u8,
    pub(super) verdict: Verdict,
}

#[derive(Debug, Default)]
struct Plan {
    list: VecDeque<Fault>,
    harmed: BTreeSet<u32>,
    disordered: BTreeSet<u32>,
}

/// The plan of faults, shared with the rule on the network.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults(Rc<RefCell<Plan>>);

/// Faults that may wait at a time.
const FAULTS_MAX: usize = 16;

impl Faults {
    pub(super) fn rule(&self) -> impl Rule + use<> {
        let plan = Rc::clone(&self.0);
        move |sight: &Sight<'_>, _: &mut Rng| plan.borrow_mut().judge(sight)
    }

    pub(super) fn add(&self, fault: Fault) {
        let mut plan = self.0.borrow_mut();
        if plan.list.len() < FAULTS_MAX {
            plan.list.push_back(fault);
        }
    }

    pub(super) fn clear(&self) {
        self.0.borrow_mut().list.clear();
    }

    /// Queue pairs that a fault has hit since this was asked: harmed, and disordered.
    pub(super) fn hit(&self) -> Option<(BTreeSet<u32>, BTreeSet<u32>)> {
        let mut plan = self.0.borrow_mut();
        if plan.disordered.is_empty() {
            return None;
        }
        let harmed = std::mem::take(&mut plan.harmed);
        Some((harmed, std::mem::take(&mut plan.disordered)))
    }
}

impl Plan {
    fn judge(&mut self, sight: &Sight<'_>) -> Verdict {
        let answer = sight.packet.info.operation.is_response();
        let fits = |f: &Fault| {
            f.from.is_none_or(|from| from == sight.from) && f.answers.is_none_or(|a| a == answer)
        };
        let Some(at) = self.list.iter().position(fits) else {
            return Verdict::Pass;
        };
        let fault = &mut self.list[at];
        if fault.skip > 0 {
            fault.skip -= 1;
            return Verdict::Pass;
        }
        let verdict = fault.verdict;
        fault.count = fault.count.saturating_sub(1);
        if fault.count == 0 {
            self.list.remove(at);
        }
        let both = [sight.frame.src_qp.value(), sight.packet.bth.dest_qp.value()];
        self.disordered.extend(both);
        if !matches!(verdict, Verdict::Pass | Verdict::Duplicate { .. }) {
            self.harmed.extend(both);
        }
        verdict
    }
}

/// A frame that was sent, and in which lives of whom.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) to: HostId,
    pub(super) frame: Frame,
    pub(super) src: (u32, u32),
    pub(super) dst: (u32, u32),
}

/// Frames that are remembered for being sent again.
const RECORDED_MAX: usize = 48;

/// Looks at every frame that leaves.
#[derive(Debug, Default)]
pub(super) struct Watch {
    wire: WireChecker,
    pub(super) recorded: VecDeque<Recorded>,
    /// Queue pairs by number: their life, and whether they may say anything.
    lives: BTreeMap<u32, (u32, bool)>,
    failure: Option<String>,
}

impl Watch {
    /// A queue pair and its peer may be believed from now on.
    pub(super) fn trust(&mut self, qpn: Qpn, peer: Qpn, kind: QpType, mtu: Mtu, psn: Psn) {
        self.wire.connect(qpn, peer, kind, mtu, psn);
    }

    /// It may not be believed any more.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.wire.disconnect(qpn);
    }

    /// A queue pair's life, and whether it may send.
    pub(super) fn know(&mut self, qpn: Qpn, life: u32, may_send: bool) {
        self.lives.insert(qpn.value(), (life, may_send));
    }

    pub(super) fn verdict(&mut self) {
        if let Some(failure) = self.failure.take() {
            panic!("{failure}");
        }
        if let Err(violation) = self.wire.verdict() {
            panic!("{violation}");
        }
    }
}

impl Tap for Watch {
    fn sent(&mut self, sight: &Sight<'_>, fate: Verdict) {
        let (src, dst) = (sight.frame.src_qp, sight.packet.bth.dest_qp);
        let life = |q: Qpn| self.lives.get(&q.value()).map_or(0, |l| l.0);
        let recorded = Recorded {
            to: sight.to,
            frame: sight.frame.clone(),
            src: (src.value(), life(src)),
            dst: (dst.value(), life(dst)),
        };
        if self.recorded.len() == RECORDED_MAX {
            self.recorded.pop_front();
        }
        self.recorded.push_back(recorded);
        if !self.lives.get(&src.value()).is_some_and(|l| l.1) {
            let what = format!(
                "{src} sends in a state in which it may not: {:?}",
                sight.packet
            );
            self.failure.get_or_insert(what);
        }
        if self.wire.next_psn(src).is_some() {
            self.wire.sent(sight, fate);
        }
    }
}
