//! Bytes to operations.

use rocebud_engine::SrqMask;
use rocebud_fabric::{HostId, Verdict};
use rocebud_objects::{QpState, QpType, RateLimit, SrqAttr};

use super::net::Fault;
use super::world::{QPS_MAX, SRQ, World};
use crate::input::Input;

impl World {
    /// One operation.
    pub(super) fn operation(&mut self, input: &mut Input<'_>) {
        match input.below(32) {
            0..=6 => self.post_sends(input),
            7..=9 => self.post_receives(input),
            10..=12 => {
                let n = 1 << input.below(8);
                self.steps(n);
            }
            13..=14 => {
                let ns = input.pick(&[1_000, 100_000, 3_000_000, 100_000_000, 10_000_000_000]);
                self.pass(ns);
            }
            15..=17 => self.fault(input),
            18..=19 => self.forge(input),
            20 => self.send_again(input),
            21..=22 => self.move_qp(input),
            23 => self.odd_move(input),
            24 => self.connect_any(input),
            25 => self.destroy_any(input),
            26 => self.create_any(input),
            27 => self.shared_queue(input),
            28 => self.regions(input),
            29 => self.tune(input),
            30 => {
                let host = HostId(input.below(2));
                let ns = input.pick(&[10_000, 1_000_000, 500_000_000]);
                self.tell(|| format!("freeze h{} for {ns} ns", host.0));
                self.fabric.freeze(host, ns);
                self.frozen_until = self.frozen_until.max(self.fabric.now() + ns);
                // Timers of the peer run on.
                self.qps.iter_mut().for_each(|qp| qp.harmed = true);
            }
            _ => match input.below(5) {
                0 => self.collect(true),
                1 => self.create_extended(input),
                2 | 3 => self.limit_rate(input),
                _ => self.hold_back(input),
            },
        }
        self.after();
    }

    /// What is judged after every operation.
    pub(super) fn after(&mut self) {
        self.collect(false);
        self.watch_states();
    }

    /// Whom the faults have hit.
    pub(super) fn note_faults(&mut self) {
        let Some((harmed, disordered)) = self.faults.hit() else {
            return;
        };
        for qp in &mut self.qps {
            qp.harmed |= harmed.contains(&qp.qpn.value());
            qp.disordered |= disordered.contains(&qp.qpn.value());
        }
    }

    fn fault(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let delay_ns = u64::from(input.byte()) * 40_000;
        let verdict = match shape % 8 {
            0..=2 => Verdict::Drop,
            3 => Verdict::Duplicate { delay_ns },
            4 => Verdict::Deliver { delay_ns },
            5 => Verdict::Corrupt {
                bits: 1 + shape / 128,
            },
            6 => Verdict::Reorder {
                behind: 1 + shape / 64,
            },
            _ => Verdict::Pass,
        };
        let which = input.byte();
        let fault = Fault {
            from: [None, Some(HostId(0)), Some(HostId(1)), None][usize::from(which & 3)],
            answers: [None, Some(true), Some(false), None][usize::from(which >> 2 & 3)],
            skip: which >> 4,
            count: 1 + input.byte() % 20,
            verdict,
        };
        self.tell(|| format!("{fault:?}"));
        self.faults.add(fault);
    }

    fn create_any(&mut self, input: &mut Input<'_>) {
        if self.qps.len() >= QPS_MAX {
            return;
        }
        let host = HostId(input.below(2));
        let kind = input.pick(&[QpType::Rc, QpType::Uc, QpType::Ud]);
        self.create_qp(input, host, kind);
    }

    /// Both ends of an extended reliable connection. What passes between them is not judged by the
    /// books of the other end; what holds for any queue pair is.
    fn create_extended(&mut self, input: &mut Input<'_>) {
        let host = input.below(2);
        if self.qps.len() + 2 > QPS_MAX {
            return;
        }
        self.create_qp(input, HostId(host), QpType::XrcSend);
        let other = HostId((host + input.below(2)) % 2);
        self.create_qp(input, other, QpType::XrcRecv);
        let at = self.qps.len() - 2;
        self.connect(input, at, at + 1);
    }

    fn limit_rate(&mut self, input: &mut Input<'_>) {
        let at = self.any(input);
        let limit = RateLimit {
            rate_kbps: input.pick(&[0, 1_000_000, 1000, 50, u32::MAX]),
            max_burst_bytes: input.pick(&[0, 1, 5000, u32::MAX]),
            typical_packet_bytes: input.half(),
        };
        let (host, qpn, now) = (self.qps[at].host, self.qps[at].qpn, self.fabric.now());
        let state = self.state(at);
        let fabric = self.fabric.host_mut(host);
        let done = fabric.node.set_rate_limit(now, qpn, limit, &mut fabric.env);
        self.tell(|| format!("{qpn} {limit:?} -> {done:?}"));
        assert!(done.is_err() || state == Some(QpState::Rts), "in {state:?}");
    }

    /// The world holds a host's packets back, or says of a peer that it has not read what it got.
    fn hold_back(&mut self, input: &mut Input<'_>) {
        let host = HostId(input.below(2));
        let times = input.pick(&[1, 2, 20, 200]);
        let room = input.byte() & 3 != 0;
        self.tell(|| format!("h{}: {times} times no room {room}", host.0));
        let env = &mut self.fabric.host_mut(host).env;
        if room {
            env.refuse_room = times;
        } else {
            env.behind = times;
        }
    }

    fn shared_queue(&mut self, input: &mut Input<'_>) {
        let at = input.below(2);
        let limit = u32::from(input.byte());
        let mask = input.pick(&[
            SrqMask::LIMIT,
            SrqMask::MAX_WR,
            SrqMask::LIMIT | SrqMask::MAX_WR,
        ]);
        let attr = SrqAttr {
            max_wr: input.pick(&[64, 0, 1, 200]),
            max_sge: 0,
            srq_limit: limit,
        };
        let host = self.stations[at].host;
        let node = &mut self.fabric.host_mut(host).node;
        let before = node.query_srq(SRQ);
        match node.modify_srq(SRQ, &attr, SrqMask(mask)) {
            Ok(()) if mask & SrqMask::LIMIT != 0 => self.stations[at].limit = limit,
            Ok(()) => {}
            Err(_) => assert_eq!(
                before,
                node.query_srq(SRQ),
                "a refused call changed the queue"
            ),
        }
        assert!(node.destroy_srq(SrqIdUnknown).is_err());
    }

    /// Windows towards peers and for READs, and the engine's other settings, change under way.
    fn tune(&mut self, input: &mut Input<'_>) {
        let host = HostId(input.below(2));
        let slot = 1 + input.below(2) as u16;
        let bytes = input.pick(&[0, 1, 2000, 200_000]);
        let peer = self.fabric.host(HostId(1 - host.0)).gids()[input.below(2)];
        let node = &mut self.fabric.host_mut(host).node;
        match input.below(4) {
            0 => node.set_peer_window(peer, slot, bytes),
            1 => node.set_read_window(bytes),
            2 => node.config_mut().window_packets = bytes,
            _ => {
                let config = node.config_mut();
                config.quantum_packets = bytes;
                config.ack_every_packets = bytes;
                config.ack_request_every_packets = bytes;
                config.read_chunk_packets = bytes;
            }
        }
    }

    /// A queue pair that the input names.
    pub(super) fn any(&self, input: &mut Input<'_>) -> usize {
        input.below(self.qps.len())
    }

    /// Moves that need nothing but the state, or what belongs to it.
    fn move_qp(&mut self, input: &mut Input<'_>) {
        let at = self.any(input);
        let to = input.pick(&[
            QpState::Err,
            QpState::Reset,
            QpState::Sqd,
            QpState::Rts,
            QpState::Init,
            QpState::Rtr,
            QpState::Sqe,
        ]);
        self.go(input, at, to);
    }
}

/// A shared receive queue that never was.
#[allow(non_upper_case_globals, reason = "stands for a value")]
const SrqIdUnknown: rocebud_objects::SrqId = rocebud_objects::SrqId(77);
