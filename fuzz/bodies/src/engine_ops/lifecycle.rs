//! Queue pairs come, move and go.

use std::collections::VecDeque;

use rocebud_engine::state::find_move;
use rocebud_fabric::HostId;
use rocebud_objects::{
    Access, AttrMask, CqId, MigState, Misuse, Path, QpAttr, QpCap, QpInit, QpState, QpType,
};
use rocebud_sim::check::bytes::TargetModel;
use rocebud_sim::setup::{self, ALL_REMOTE, Link, Side};
use rocebud_wire::{Gid, Mtu, Psn, QKey, Qpn};

use super::books::{Qp, WORDS};
use super::world::{CQS, DOMAIN, PD, SRQ, TARGET_BYTES, World, XRC_CQ};
use crate::input::Input;

/// The queue key of every datagram queue pair.
pub(super) const QKEY: QKey = QKey(0x1234);

/// Attributes that do not disturb what two queue pairs agreed on.
const HARMLESS: AttrMask = AttrMask::STATE
    .union(AttrMask::CUR_STATE)
    .union(AttrMask::EN_SQD_ASYNC_NOTIFY)
    .union(AttrMask::PATH_MIG_STATE)
    .union(AttrMask::MIN_RNR_TIMER)
    .union(AttrMask::PKEY_INDEX)
    .union(AttrMask::PORT);

impl World {
    pub(super) fn create_qp(&mut self, input: &mut Input<'_>, host: HostId, kind: QpType) {
        let station = &mut self.stations[host.0];
        let qpn = Qpn::new(station.next_qpn);
        station.next_qpn += 1;
        let shape = input.byte();
        let shared = matches!(kind, QpType::Rc | QpType::Ud) && shape & 3 == 3;
        // The queue that overruns is rare: what it takes down is not judged closely.
        let cq = |n: u8| CqId(if n == 15 { CQS - 1 } else { u32::from(n & 1) });
        let cqs = [cq(shape >> 4), cq(input.byte() & 15)];
        let cap = QpCap {
            max_send_wr: input.pick(&[16, 1, 4]),
            max_recv_wr: input.pick(&[16, 1, 4]),
            max_send_sge: 3,
            max_recv_sge: 3,
            max_inline_data: input.pick(&[64, 0, 512]),
        };
        let init = as_its_type(QpInit {
            qp_type: kind,
            pd: PD,
            send_cq: cqs[0],
            recv_cq: cqs[1],
            srq: shared.then_some(SRQ),
            xrcd: None,
            cap,
            sq_sig_all: shape & 4 != 0,
        });
        let node = &mut self.fabric.host_mut(host).node;
        node.create_qp(qpn, init).expect("a fresh number");
        assert!(node.create_qp(qpn, init).is_err(), "the number is taken");
        let mut qp = self.books_of(host, qpn, &init);
        qp.overrun = qp.uses_tiny() && self.stations[host.0].overran;
        self.watch.know(qpn, qp.life, false);
        self.tell(|| format!("create {qpn} {kind:?} at h{} {init:?}", host.0));
        self.qps.push(qp);
    }

    fn books_of(&mut self, host: HostId, qpn: Qpn, init: &QpInit) -> Qp {
        let access = ALL_REMOTE | Access::LOCAL_WRITE | Access::MW_BIND;
        let target = self.fresh(host, TARGET_BYTES, 8, u64::from(qpn.value()));
        let words = self.fresh(host, 8 * WORDS as u64, 8, !u64::from(qpn.value()));
        let bytes = self.peek(host, target).to_vec();
        let memory = &mut self.fabric.host_mut(host).env.memory;
        let target_key = memory.register(PD, target, target.addr, access);
        let words_key = memory.register(PD, words, words.addr, access);
        self.stations[host.0].keys.extend([target_key, words_key]);
        Qp {
            host,
            qpn,
            kind: init.qp_type,
            cqs: if init.qp_type == QpType::XrcRecv {
                [XRC_CQ; 2]
            } else {
                [init.send_cq, init.recv_cq]
            },
            shared: init.srq.is_some(),
            cap: init.cap,
            sig_all: init.sq_sig_all,
            alive: true,
            life: 0,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            seq: 0,
            failed: false,
            receive_failed: false,
            doomed: false,
            peer: None,
            honest: false,
            trouble: false,
            harmed: false,
            disordered: false,
            small_receives: false,
            overrun: false,
            path: Path::default(),
            pmtu: 256,
            access: Access::empty(),
            rnr_retry: 0,
            timeout: 0,
            max_rd_atomic: 0,
            first_psn: Psn::new(0),
            inbox: VecDeque::new(),
            target: TargetModel::new(target, &bytes),
            target_key,
            window: None,
            words,
            words_key,
            values: None,
            draining: false,
            last_wqe: 0,
            established: 0,
            groups: 0,
        }
    }

    pub(super) fn connect_any(&mut self, input: &mut Input<'_>) {
        let (a, b) = (self.any(input), self.any(input));
        if self.qps[a].kind == QpType::Ud {
            return self.join_or_leave(input, a);
        }
        self.connect(input, a, b);
    }

    /// Two queue pairs to RTS towards each other, whatever they were before.
    pub(super) fn connect(&mut self, input: &mut Input<'_>, a: usize, b: usize) {
        let kind = self.qps[a].kind;
        let fit = matches!(
            (kind, self.qps[b].kind),
            (QpType::XrcSend, QpType::XrcRecv)
                | (QpType::XrcRecv, QpType::XrcSend)
                | (QpType::Rc, QpType::Rc)
                | (QpType::Uc, QpType::Uc)
        );
        let extended = matches!(kind, QpType::XrcSend | QpType::XrcRecv);
        if !fit || !self.qps[a].alive || !self.qps[b].alive {
            return;
        }
        for one in [a, b] {
            if self.state(one) != Some(QpState::Reset) {
                self.modify(one, &to_state(QpState::Reset), AttrMask::STATE, None)
                    .expect("RESET is always possible");
            }
        }
        // What is still under way may be taken for something new: nobody's fault.
        let stranger = |(at, qp): (usize, &Qp)| {
            let theirs = qp.peer.is_some_and(|(peer, _)| peer == a || peer == b);
            at != a && at != b && theirs
        };
        let fair =
            !extended && self.fabric.in_flight() == 0 && !self.qps.iter().enumerate().any(stranger);
        let link = Link {
            kind,
            v6: input.byte() & 1 != 0,
            mtu: input.pick(&[Mtu::M1024, Mtu::M256, Mtu::M4096]),
            timeout: input.pick(&[14, 8, 12, 31, 0]),
            retry_cnt: input.pick(&[7, 0, 1]),
            rnr_retry: input.pick(&[7, 0, 1]),
            flow_label: 0,
            traffic_class: input.pick(&[0, 2, 3]),
        };
        let ends: &[usize] = if a == b { &[a] } else { &[a, b] };
        let sides: Vec<Side> = ends.iter().map(|&one| self.side(input, one)).collect();
        let access = if input.rarely(30) {
            Access::REMOTE_READ
        } else {
            ALL_REMOTE
        };
        for side in &sides {
            setup::to_init(&mut self.fabric, side.host, side.qpn, access).expect("INIT");
        }
        for (at, side) in sides.iter().enumerate() {
            let peer = &sides[sides.len() - 1 - at];
            setup::to_rtr(&mut self.fabric, side, peer, &link).expect("RTR");
        }
        for side in &sides {
            setup::to_rts(&mut self.fabric, side, &link).expect("RTS");
        }
        self.enter_connection(ends, &sides, &link, access, fair);
    }

    fn side(&mut self, input: &mut Input<'_>, at: usize) -> Side {
        let psn = input.pick(&[0x00ff_fffd, 0, 0x007f_fffe, 0x0012_3456]);
        Side {
            host: self.qps[at].host,
            qpn: self.qps[at].qpn,
            sq_psn: Psn::new(psn),
            max_rd_atomic: input.pick(&[4, 1, 16, 0]),
            max_dest_rd_atomic: input.pick(&[16, 4, 1, 0]),
            min_rnr_timer: input.pick(&[1, 12, 0, 31]),
        }
    }

    fn enter_connection(
        &mut self,
        ends: &[usize],
        sides: &[Side],
        link: &Link,
        access: Access,
        fair: bool,
    ) {
        for (n, &at) in ends.iter().enumerate() {
            let m = ends.len() - 1 - n;
            let (peer, life) = (ends[m], self.qps[ends[m]].life);
            let path = setup::path(&self.fabric, sides[n].host, sides[m].host, link);
            let words = self.qps[at].words;
            let values = words_of(self.peek(self.qps[at].host, words));
            let target = self
                .peek(self.qps[at].host, self.qps[at].target.span)
                .to_vec();
            let qp = &mut self.qps[at];
            qp.peer = Some((peer, life));
            qp.honest = fair;
            // Timers of one side run while the other stands still.
            qp.harmed = self.fabric.now() < self.frozen_until;
            // More READs than the peer serves are an error with a reason.
            let too_many = |a: &Side, b: &Side| a.max_rd_atomic > b.max_dest_rd_atomic;
            qp.trouble = too_many(&sides[n], &sides[m]) || too_many(&sides[m], &sides[n]);
            qp.path = path;
            qp.pmtu = link.mtu.bytes();
            qp.access = access;
            qp.rnr_retry = link.rnr_retry;
            qp.timeout = link.timeout;
            qp.max_rd_atomic = sides[n].max_rd_atomic;
            qp.first_psn = sides[n].sq_psn;
            qp.values = Some(values);
            qp.target = TargetModel::new(qp.target.span, &target);
            let (qpn, life) = (qp.qpn, qp.life);
            self.watch.know(qpn, life, true);
            if fair {
                let (to, psn) = (sides[m].qpn, sides[n].sq_psn);
                self.watch.trust(qpn, to, link.kind, link.mtu, psn);
            }
            self.tell(|| {
                format!(
                    "connect {qpn} -> {} {:?} {link:?} fair {fair}",
                    sides[m].qpn, sides[n]
                )
            });
        }
    }

    pub(super) fn bring_up_datagrams(&mut self, input: &mut Input<'_>, at: usize) {
        let psn = Psn::new(input.pick(&[0x00ff_fffd, 0]));
        let (host, qpn) = (self.qps[at].host, self.qps[at].qpn);
        setup::bring_up_ud(&mut self.fabric, host, qpn, QKEY, psn).expect("RTS");
        let qp = &mut self.qps[at];
        qp.honest = true;
        self.watch.know(qpn, qp.life, true);
    }

    fn join_or_leave(&mut self, input: &mut Input<'_>, at: usize) {
        let (host, qpn) = (self.qps[at].host, self.qps[at].qpn);
        let group = group();
        let node = &mut self.fabric.host_mut(host).node;
        if input.byte() & 1 == 0 {
            if node.attach_mcast(qpn, group).is_ok() {
                self.qps[at].groups = 1;
                if self.stations[host.0].group_lied {
                    self.lie_to(at);
                }
            }
        } else if node.detach_mcast(qpn, group).is_ok() {
            self.qps[at].groups = 0;
        }
    }

    // ---- moves

    /// A move with the attributes that belong to it.
    pub(super) fn go(&mut self, input: &mut Input<'_>, at: usize, to: QpState) {
        let kind = self.qps[at].kind;
        let from = self.state(at).unwrap_or_default();
        let must = find_move(kind, from, to).map_or(AttrMask::empty(), |m| m.must);
        let mut mask = AttrMask::STATE | must;
        let peer = self.any(input);
        let link = Link {
            v6: input.byte() & 1 != 0,
            ..Link::default()
        };
        let path = setup::path(&self.fabric, self.qps[at].host, self.qps[peer].host, &link);
        let mut attr = QpAttr {
            path_mtu: Mtu::M1024,
            qkey: QKEY,
            dest_qp_num: self.qps[peer].qpn,
            qp_access_flags: ALL_REMOTE,
            ah_attr: setup::address(&path),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            port_num: 1,
            timeout: 12,
            retry_cnt: 3,
            rnr_retry: 3,
            ..to_state(to)
        };
        if to == QpState::Sqd && from == QpState::Rts && input.byte() & 1 != 0 {
            attr.en_sqd_async_notify = true;
            mask |= AttrMask::EN_SQD_ASYNC_NOTIFY;
        }
        let path = mask.contains(AttrMask::AV).then_some(path);
        let done = self.modify(at, &attr, mask, path);
        if find_move(kind, from, to).is_none() {
            assert!(done.is_err(), "{from:?} to {to:?} is no move of {kind:?}");
        }
    }

    /// Any attributes at all.
    pub(super) fn odd_move(&mut self, input: &mut Input<'_>) {
        let at = self.any(input);
        let peer = self.any(input);
        let state = |n: usize| QpState::from_verbs(n as u32).unwrap_or_default();
        let path = setup::path(
            &self.fabric,
            self.qps[at].host,
            self.qps[peer].host,
            &Link::default(),
        );
        let (to, claimed) = (state(input.below(7)), state(input.below(7)));
        // Sometimes with another current state than the real one.
        let lies = input.byte() & 1 != 0;
        let from = if lies {
            claimed
        } else {
            self.state(at).unwrap_or_default()
        };
        let must = find_move(self.qps[at].kind, from, to).map_or(AttrMask::empty(), |m| m.must);
        let mut mask = AttrMask::STATE | must;
        mask.set(AttrMask::CUR_STATE, lies);
        let flips = AttrMask::from_bits_truncate(input.word() & input.word() & input.word());
        let mask = mask.symmetric_difference(flips);
        let mut ah_attr = setup::address(&path);
        ah_attr.is_global = !input.rarely(20);
        ah_attr.port_num = input.pick(&[1, 0, 2]);
        let attr = QpAttr {
            qp_state: to,
            cur_qp_state: claimed,
            path_mtu: input.pick(&Mtu::ALL),
            path_mig_state: input.pick(&[MigState::Migrated, MigState::Rearm, MigState::Armed]),
            qkey: QKey(input.word()),
            rq_psn: Psn::new(input.word()),
            sq_psn: Psn::new(input.word()),
            dest_qp_num: self.qps[peer].qpn,
            qp_access_flags: Access::from_bits_truncate(input.half().into()),
            ah_attr,
            pkey_index: u16::from(input.rarely(20)),
            en_sqd_async_notify: input.byte() & 1 != 0,
            max_rd_atomic: input.byte(),
            max_dest_rd_atomic: input.byte(),
            min_rnr_timer: input.byte(),
            port_num: input.pick(&[1, 0, 2]),
            timeout: input.byte() & 0x3f,
            retry_cnt: input.byte() & 0xf,
            rnr_retry: input.byte() & 0xf,
            ..QpAttr::default()
        };
        let path = (mask.contains(AttrMask::AV) || input.rarely(10)).then_some(path);
        let _ = self.modify(at, &attr, mask, path);
    }

    /// `modify_qp`, and what follows from it for the books.
    pub(super) fn modify(
        &mut self,
        at: usize,
        attr: &QpAttr,
        mask: AttrMask,
        path: Option<Path>,
    ) -> Result<(), Misuse> {
        let (host, qpn) = (self.qps[at].host, self.qps[at].qpn);
        self.collect(self.qps[at].uses_tiny());
        let before = self.fabric.host(host).node.query_qp(qpn);
        let done = setup::modify(&mut self.fabric, host, qpn, attr, mask, path);
        self.tell(|| format!("modify {qpn} to {:?} {mask:?} -> {done:?}", attr.qp_state));
        let after = self.fabric.host(host).node.query_qp(qpn);
        if done.is_err() {
            assert_eq!(before, after, "a refused move changed the queue pair");
            return done;
        }
        let was = before.map(|b| b.0.qp_state).unwrap_or_default();
        let state = after.map(|a| a.0.qp_state).unwrap_or_default();
        let asked = mask.contains(AttrMask::STATE) && attr.qp_state != QpState::Reset;
        assert!(!asked || state == attr.qp_state || state == QpState::Err || state == QpState::Sqe);
        if !HARMLESS.contains(mask) {
            self.lie_to(at);
        }
        // A reliable packet does not say which queue pair it comes from: whoever is named may take
        // it for his peer's.
        if mask.contains(AttrMask::DEST_QPN) {
            let named = |qp: &Qp| qp.qpn == attr.dest_qp_num;
            let named = self.qps.iter().position(named);
            self.qps[at].peer = named.map(|peer| (peer, self.qps[peer].life));
            named.into_iter().for_each(|peer| self.lie_to(peer));
        }
        match state {
            QpState::Reset => self.reset(at),
            QpState::Err => self.trouble(at),
            QpState::Rts if was == QpState::Sqe => self.qps[at].failed = false,
            _ => {}
        }
        if state == QpState::Sqd && was == QpState::Rts {
            let asked = mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify;
            self.qps[at].draining = asked;
        }
        self.note_attributes(at, attr, mask);
        let may_send = !matches!(state, QpState::Reset | QpState::Init);
        self.watch.know(qpn, self.qps[at].life, may_send);
        self.collect(false);
        done
    }

    fn note_attributes(&mut self, at: usize, attr: &QpAttr, mask: AttrMask) {
        let qp = &mut self.qps[at];
        if mask.contains(AttrMask::TIMEOUT) {
            qp.timeout = attr.timeout;
        }
        if mask.contains(AttrMask::RNR_RETRY) {
            qp.rnr_retry = attr.rnr_retry;
        }
        if mask.contains(AttrMask::ACCESS_FLAGS) {
            qp.access = attr.qp_access_flags;
        }
    }

    /// Nothing of what was posted may complete any more.
    fn reset(&mut self, at: usize) {
        self.trouble(at);
        let (host, qpn) = (self.qps[at].host, self.qps[at].qpn);
        self.fabric.host_mut(host).env.purge(qpn);
        self.watch.forget(qpn);
        self.qps[at].begin_life();
    }

    pub(super) fn destroy_any(&mut self, input: &mut Input<'_>) {
        let at = self.any(input);
        self.destroy(at);
    }

    pub(super) fn destroy(&mut self, at: usize) {
        let (host, qpn) = (self.qps[at].host, self.qps[at].qpn);
        self.collect(self.qps[at].uses_tiny());
        let fabric = self.fabric.host_mut(host);
        let done = fabric.node.destroy_qp(qpn, &mut fabric.env);
        self.tell(|| format!("destroy {qpn} -> {done:?}"));
        let possible = self.qps[at].alive && self.qps[at].groups == 0;
        assert_eq!(done.is_ok(), possible, "{done:?}");
        if done.is_ok() {
            self.reset(at);
            self.qps[at].alive = false;
            self.watch.know(qpn, self.qps[at].life, false);
        }
    }

    /// A queue pair in error has given everything back.
    pub(super) fn watch_states(&mut self) {
        for at in 0..self.qps.len() {
            if !self.qps[at].alive || self.state(at) != Some(QpState::Err) {
                continue;
            }
            self.collect(self.qps[at].uses_tiny());
            let qp = &self.qps[at];
            let own = if qp.shared { 0 } else { qp.receives.len() };
            // What is left and unsignaled went well, in silence, before the error.
            let left = qp.sends.iter().find(|s| s.signaled);
            assert!(
                qp.overrun || left.is_none() && own == 0,
                "{}: in ERR, and still outstanding: {left:?} {own} receives",
                qp.qpn,
            );
        }
    }
}

/// The ends of extended reliable connections have only what belongs to them.
fn as_its_type(init: QpInit) -> QpInit {
    match init.qp_type {
        QpType::XrcSend => QpInit {
            recv_cq: init.send_cq,
            cap: QpCap {
                max_recv_wr: 0,
                max_recv_sge: 0,
                ..init.cap
            },
            ..init
        },
        QpType::XrcRecv => QpInit {
            send_cq: CqId::NONE,
            recv_cq: CqId::NONE,
            xrcd: Some(DOMAIN),
            cap: QpCap::default(),
            ..init
        },
        _ => init,
    }
}

/// A group for datagrams.
pub(super) fn group() -> Gid {
    let mut bytes = [0; 16];
    bytes[0] = 0xff;
    bytes[1] = 0x0e;
    bytes[15] = 7;
    Gid(bytes)
}

pub(super) fn to_state(state: QpState) -> QpAttr {
    QpAttr {
        qp_state: state,
        ..QpAttr::default()
    }
}

fn words_of(bytes: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
    }
    words
}
