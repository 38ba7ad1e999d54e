//! The end: faults are over, and everything has to end.

use rocebud_fabric::{HostId, Step};
use rocebud_objects::{AttrMask, QpState, QpType};

use super::lifecycle::to_state;
use super::post::GRH_BYTES;
use super::world::{PD, SRQ, World, XRC_SRQ};

/// Rounds of refilling receive queues: each takes some hundred steps.
const ROUNDS_MAX: u32 = 600;
const STEPS_PER_ROUND: u64 = 1_000;

impl World {
    pub(super) fn finale(&mut self) {
        self.tell(|| "finale".to_owned());
        self.faults.clear();
        self.collect(true);
        self.settle();
        self.after();
        self.check_memory();
        self.check_progress();
        self.break_all();
        self.destroy_everything();
        self.check_memory();
    }

    /// Runs, with receives for everybody, until nothing is left to happen.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(
                round < ROUNDS_MAX,
                "no end after {:?}: {:?}",
                self.fabric.now(),
                self.fabric.stats()
            );
            self.resume_drained();
            self.refill();
            for _ in 0..STEPS_PER_ROUND {
                if self.step() == Step::Idle {
                    self.collect(true);
                    if !self.resume_drained() {
                        return;
                    }
                }
            }
            self.collect(true);
        }
    }

    /// Send queues that have drained go on.
    fn resume_drained(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.qps.len() {
            if self.qps[at].alive && self.state(at) == Some(QpState::Sqd) {
                let done = self.modify(at, &to_state(QpState::Rts), AttrMask::STATE, None);
                any |= done.is_ok();
            }
        }
        any
    }

    fn refill(&mut self) {
        for at in 0..self.qps.len() {
            let state = self.state(at);
            if !matches!(
                state,
                Some(QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
            ) {
                continue;
            }
            let extended = self.qps[at].kind == QpType::XrcRecv;
            let posted = if extended {
                self.stations[self.qps[at].host.0].extended.len()
            } else if self.qps[at].shared {
                self.stations[self.qps[at].host.0].shared.len()
            } else {
                self.qps[at].receives.len()
            };
            let wanted = match extended {
                true => 4,
                false => (self.qps[at].cap.max_recv_wr as usize).min(4),
            };
            // A completion queue that overran told nobody which shared receives it had lost, one for each
            // queue pair that it took down: in the books they wait for ever.
            let host = self.qps[at].host;
            let taken_down = self.qps.iter().filter(|qp| qp.host == host && qp.overrun);
            let wanted = match extended || self.qps[at].shared {
                true => wanted + taken_down.count(),
                false => wanted,
            };
            for _ in posted..wanted {
                let span = self.room(host, 6000 + u64::from(GRH_BYTES), 1);
                let memory = &mut self.fabric.host_mut(host).env.memory;
                let access = rocebud_objects::Access::LOCAL_WRITE;
                let key = memory.register(PD, span, span.addr, access);
                self.hand_receive(at, vec![span], key, false);
            }
        }
    }

    /// Nothing is left to happen, so whatever could be done is done.
    fn check_progress(&mut self) {
        for at in 0..self.qps.len() {
            let state = self.state(at);
            let qp = &self.qps[at];
            if state != Some(QpState::Rts) || qp.overrun {
                continue;
            }
            // Without a timeout a lost frame is waited for for ever.
            let patient = qp.kind.is_reliable() && qp.timeout == 0;
            let peer = self.honest_peer(at).and_then(|peer| self.state(peer));
            let answers = matches!(peer, Some(QpState::Rtr | QpState::Rts));
            let excused = patient && (qp.harmed || qp.trouble || !answers);
            let stuck = qp.sends.iter().find(|s| s.signaled);
            assert!(
                excused || stuck.is_none(),
                "{}: stuck: {stuck:?} of {}",
                qp.qpn,
                qp.sends.len()
            );
            let node = &self.fabric.host(qp.host).node;
            assert!(excused || node.qp_idle(qp.qpn), "{}: not idle", qp.qpn);
            if let (Some(peer), QpType::Rc) = (self.honest_peer(at), qp.kind) {
                let lost = qp.inbox.len();
                let done = self.state(peer) == Some(QpState::Rts) && !self.all_troubled;
                let fine = excused || qp.trouble || self.qps[peer].timeout == 0;
                assert!(lost == 0 || !done || fine, "{lost} messages were lost");
            }
        }
    }

    fn break_all(&mut self) {
        for at in 0..self.qps.len() {
            let alive = self.qps[at].alive;
            if alive && self.state(at) != Some(QpState::Reset) {
                self.modify(at, &to_state(QpState::Err), AttrMask::STATE, None)
                    .expect("ERR is always possible");
            }
        }
        self.collect(true);
        self.watch_states();
    }

    fn destroy_everything(&mut self) {
        for at in 0..self.qps.len() {
            if !self.qps[at].alive {
                continue;
            }
            let (host, qpn) = (self.qps[at].host, self.qps[at].qpn);
            if self.qps[at].groups != 0 {
                let node = &mut self.fabric.host_mut(host).node;
                node.detach_mcast(qpn, super::lifecycle::group())
                    .expect("attached");
                self.qps[at].groups = 0;
            }
            self.destroy(at);
        }
        self.steps(10_000);
        self.collect(true);
        for host in [HostId(0), HostId(1)] {
            let node = &mut self.fabric.host_mut(host).node;
            assert_eq!(node.charged(), (0, 0), "a window stays charged for ever");
            assert!(node.quiescent());
            node.destroy_srq(SRQ).expect("nobody uses it");
            node.destroy_srq(XRC_SRQ).expect("nobody uses it");
        }
    }
}
