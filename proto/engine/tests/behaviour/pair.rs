//! Two nodes on a virtual clock, and a wire that drops, delays and doubles as it is told.

use std::collections::VecDeque;

use rocebud_engine::{Node, NodeConfig, RxMeta};
use rocebud_objects::{
    Access, AhAttr, AsyncEvent, AttrMask, CqId, EventKind, Instant, Misuse, Path, Payload, PdId,
    QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, SrqId,
    UdAddress, Wc, XrcdId,
};
use rocebud_wire::{Gid, LKey, Mtu, Opcode, Packet, Psn, QKey, Qpn, RKey, Syndrome};

use crate::world::{Region, World};

pub const KEY: u32 = 0x100;
pub const START: u64 = 0x10_0000;
pub const SIZE: usize = 4 << 20;
pub const QPN: [Qpn; 2] = [Qpn::new(0x1011), Qpn::new(0x2022)];
pub const CQ: CqId = CqId(1);
pub const PD: PdId = PdId(1);
pub const LATENCY_NS: u64 = 1000;
pub const QKEY: QKey = QKey(0x1111_1111);

#[derive(Clone, Debug)]
pub struct Frame {
    pub from: usize,
    pub bytes: Vec<u8>,
    pub opcode: Opcode,
    pub psn: u32,
    pub ack_req: bool,
    pub syndrome: Option<Syndrome>,
    pub msn: u32,
    pub retransmit: bool,
    pub lost: bool,
    pub at: Instant,
}

impl Frame {
    pub fn is(&self, opcode: Opcode) -> bool {
        self.opcode == opcode
    }

    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).unwrap()
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fate {
    Deliver,
    Drop,
    Twice,
    Delay(u64),
}

#[derive(Clone, Copy)]
pub struct Setup {
    pub qp_type: QpType,
    pub mtu: Mtu,
    pub sq_psn: u32,
    pub rd_atomic: u8,
    pub dest_rd_atomic: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub timeout: u8,
    pub access: Access,
    pub cap: QpCap,
    pub srq: Option<SrqId>,
    pub sq_sig_all: bool,
    pub cfg: NodeConfig,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            mtu: Mtu::M1024,
            sq_psn: 0x100,
            rd_atomic: 16,
            dest_rd_atomic: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            timeout: 14,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            cap: QpCap {
                max_send_wr: 256,
                max_recv_wr: 256,
                max_send_sge: 8,
                max_recv_sge: 8,
                max_inline_data: 512,
            },
            srq: None,
            sq_sig_all: true,
            cfg: NodeConfig::default(),
        }
    }
}

pub struct Side {
    pub node: Node,
    pub world: World,
}

pub struct Pair {
    pub side: [Side; 2],
    pub now: Instant,
    pub setup: Setup,
    pub log: Vec<Frame>,
    /// Every packet arrives with a congestion mark.
    pub marks: bool,
    rule: Box<dyn FnMut(&Frame) -> Fate>,
    wire: VecDeque<(Instant, Frame)>,
}

pub fn region(access: Access) -> Region {
    Region {
        pd: PD,
        start: START,
        bytes: vec![0; SIZE],
        access,
        window: false,
    }
}

pub fn everything() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_WRITE
        | Access::REMOTE_ATOMIC
        | Access::MW_BIND
        | Access::FLUSH_GLOBAL
}

pub fn sge(addr: u64, length: u32) -> Sge {
    Sge {
        addr,
        length,
        lkey: LKey(KEY),
    }
}

pub fn remote(addr: u64) -> Remote {
    Remote {
        addr,
        rkey: RKey(KEY),
    }
}

pub fn wr(wr_id: u64, op: SendOp, pieces: &[Sge]) -> SendWr {
    SendWr {
        wr_id,
        op,
        flags: SendFlags::empty(),
        payload: Payload::Sges(pieces.iter().copied().collect()),
        ud: None,
        xrc_srqn: 0,
    }
}

pub fn path(from: Gid, to: Gid) -> Path {
    Path {
        sgid: from,
        dgid: to,
        hop_limit: 64,
        ..Path::default()
    }
}

pub fn gids() -> [Gid; 2] {
    [Gid::from_v4([10, 0, 0, 1]), Gid::from_v4([10, 0, 0, 2])]
}

/// Attributes and masks of the three usual moves.
pub fn moves(setup: &Setup, side: usize) -> [(QpAttr, AttrMask); 3] {
    let attr = QpAttr {
        port_num: 1,
        qp_access_flags: setup.access,
        qkey: QKEY,
        ah_attr: AhAttr {
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        },
        path_mtu: setup.mtu,
        dest_qp_num: QPN[1 - side],
        rq_psn: Psn::new(setup.sq_psn),
        sq_psn: Psn::new(setup.sq_psn),
        max_rd_atomic: setup.rd_atomic,
        max_dest_rd_atomic: setup.dest_rd_atomic,
        min_rnr_timer: 12,
        timeout: setup.timeout,
        retry_cnt: setup.retry_cnt,
        rnr_retry: setup.rnr_retry,
        ..QpAttr::default()
    };
    type M = AttrMask;
    let (init, rtr, rts) = match setup.qp_type {
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv | QpType::RawPacket => (
            M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC,
        ),
        QpType::Uc => (
            M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
            M::SQ_PSN,
        ),
        QpType::Ud => (M::PKEY_INDEX | M::PORT | M::QKEY, M::empty(), M::SQ_PSN),
    };
    let to = |qp_state, mask| (QpAttr { qp_state, ..attr }, mask | M::STATE);
    [
        to(QpState::Init, init),
        to(QpState::Rtr, rtr),
        to(QpState::Rts, rts),
    ]
}

impl Pair {
    pub fn rc() -> Self {
        Self::new(Setup::default())
    }

    pub fn new(setup: Setup) -> Self {
        let mut pair = Self::bare(setup);
        for side in 0..2 {
            pair.create(side, QPN[side]);
        }
        for side in 0..2 {
            pair.connect(side);
        }
        pair
    }

    /// Nodes without queue pairs.
    pub fn bare(setup: Setup) -> Self {
        let make = || {
            let mut world = World::default();
            world.regions.insert(KEY, region(everything()));
            Side {
                node: Node::new(setup.cfg),
                world,
            }
        };
        Self {
            side: [make(), make()],
            now: Instant(1_000_000),
            setup,
            log: Vec::new(),
            marks: false,
            rule: Box::new(|_| Fate::Deliver),
            wire: VecDeque::new(),
        }
    }

    pub fn init_attr(&self) -> QpInit {
        QpInit {
            qp_type: self.setup.qp_type,
            pd: PD,
            send_cq: CQ,
            recv_cq: CQ,
            srq: self.setup.srq,
            xrcd: (self.setup.qp_type == QpType::XrcRecv).then_some(XrcdId(1)),
            cap: self.setup.cap,
            sq_sig_all: self.setup.sq_sig_all,
        }
    }

    pub fn create(&mut self, side: usize, qpn: Qpn) {
        let mut init = self.init_attr();
        if side == 0 {
            init.srq = None;
        }
        self.side[side].node.create_qp(qpn, init).unwrap();
    }

    pub fn connect(&mut self, side: usize) {
        for (attr, mask) in moves(&self.setup, side) {
            self.modify(side, &attr, mask).unwrap();
        }
    }

    pub fn modify(&mut self, side: usize, attr: &QpAttr, mask: AttrMask) -> Result<(), Misuse> {
        let path = mask
            .contains(AttrMask::AV)
            .then(|| path(gids()[side], gids()[1 - side]));
        let Side { node, world, .. } = &mut self.side[side];
        node.modify_qp(self.now, QPN[side], attr, mask, path, world)
    }

    pub fn set_state(&mut self, side: usize, qp_state: QpState) -> Result<(), Misuse> {
        self.modify(
            side,
            &QpAttr {
                qp_state,
                ..QpAttr::default()
            },
            AttrMask::STATE,
        )
    }

    pub fn state(&self, side: usize) -> QpState {
        self.side[side].node.qp_state(QPN[side]).unwrap()
    }

    pub fn rule(&mut self, rule: impl FnMut(&Frame) -> Fate + 'static) {
        self.rule = Box::new(rule);
    }

    pub fn post(&mut self, side: usize, wr: SendWr) -> Result<(), Misuse> {
        let Side { node, world, .. } = &mut self.side[side];
        node.post_send(self.now, QPN[side], wr, world)
    }

    pub fn post_all(&mut self, side: usize, wrs: &mut Vec<SendWr>) -> Result<(), Misuse> {
        let Side { node, world, .. } = &mut self.side[side];
        node.post_sends(self.now, QPN[side], wrs, world)
    }

    pub fn recv(&mut self, side: usize, wr_id: u64, pieces: &[Sge]) -> Result<(), Misuse> {
        let wr = RecvWr {
            wr_id,
            sges: pieces.iter().copied().collect(),
        };
        let Side { node, world, .. } = &mut self.side[side];
        node.post_recv(self.now, QPN[side], wr, world)
    }

    /// Everything that a side has to send goes onto the wire.
    pub fn transmit(&mut self, side: usize) -> usize {
        self.transmit_some(side, usize::MAX)
    }

    /// Up to so many packets go onto the wire.
    pub fn transmit_some(&mut self, side: usize, most: usize) -> usize {
        let mut buf = vec![0xaa; rocebud_engine::limits::FRAME_BYTES_MAX];
        let mut sent = 0;
        loop {
            if sent == most {
                return sent;
            }
            let Side { node, world, .. } = &mut self.side[side];
            let Some(tx) = node.poll_transmit(self.now, &mut buf, world) else {
                return sent;
            };
            sent += 1;
            let bytes = buf[..tx.len].to_vec();
            let pkt = Packet::parse(&bytes).expect("we send only well-formed packets");
            let frame = Frame {
                from: side,
                opcode: pkt.bth.opcode,
                psn: pkt.bth.psn.value(),
                ack_req: pkt.bth.ack_req,
                syndrome: pkt.ext.aeth.map(|a| a.syndrome),
                msn: pkt.ext.aeth.map_or(0, |a| a.msn),
                retransmit: tx.retransmit,
                lost: tx.lost,
                at: self.now,
                bytes: bytes.clone(),
            };
            let (copies, delay) = match (self.rule)(&frame) {
                Fate::Deliver => (1, 0),
                Fate::Drop => (0, 0),
                Fate::Twice => (2, 0),
                Fate::Delay(ns) => (1, ns),
            };
            let at = self.now + LATENCY_NS + delay;
            for _ in 0..copies {
                let place = self
                    .wire
                    .iter()
                    .rposition(|(t, _)| *t <= at)
                    .map_or(0, |i| i + 1);
                self.wire.insert(place, (at, frame.clone()));
            }
            self.log.push(frame);
        }
    }

    pub fn meta(&self, from: usize) -> RxMeta {
        RxMeta {
            src: gids()[from],
            dst: gids()[1 - from],
            hop_limit: 64,
            traffic_class: if self.marks { 0b11 } else { 0 },
            ipv4_id: 7,
            ipv4_flags: 0x4000,
            ifindex: 0,
            sport: 0xc000,
        }
    }

    /// Hands bytes to a side, as if they came from the other one.
    pub fn inject(&mut self, to: usize, bytes: &[u8]) {
        let meta = self.meta(1 - to);
        self.inject_from(to, &meta, bytes);
    }

    pub fn inject_from(&mut self, to: usize, meta: &RxMeta, bytes: &[u8]) {
        if let Ok(pkt) = Packet::parse(bytes) {
            let Side { node, world, .. } = &mut self.side[to];
            node.on_frame(self.now, meta, &pkt, world);
        }
    }

    /// One round: both sides send, then everything that is due arrives, or time moves on.
    /// False if there is nothing to wait for.
    pub fn step(&mut self) -> bool {
        let sent = self.transmit(0) + self.transmit(1);
        for side in &self.side {
            assert_eq!(side.node.forgotten(), None, "nothing will bring it on");
        }
        let due = self.wire.front().map(|(at, _)| *at);
        let timer = self.side.iter().filter_map(|s| s.node.next_timeout()).min();
        if due.is_none() && self.side.iter().all(|s| s.node.quiescent()) {
            return false;
        }
        let Some(next) = [due, timer].into_iter().flatten().min() else {
            return sent != 0;
        };
        self.now = self.now.max(next);
        while self.wire.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, frame) = self.wire.pop_front().unwrap();
            self.inject(1 - frame.from, &frame.bytes);
        }
        for Side { node, world, .. } in &mut self.side {
            node.on_timeout(self.now, world);
            assert_eq!(node.forgotten(), None, "nothing will bring it on");
        }
        true
    }

    /// Until nothing moves any more.
    pub fn run(&mut self) {
        for _ in 0..2_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("never comes to rest");
    }

    /// Until the clock reaches `until`, or nothing moves.
    pub fn run_until(&mut self, until: Instant) {
        while self.now < until && self.step() {}
    }

    pub fn wcs(&mut self, side: usize) -> Vec<Wc> {
        self.side[side].world.wcs.remove(&CQ).unwrap_or_default()
    }

    /// (wr_id, status) of every completion.
    pub fn results(&mut self, side: usize) -> Vec<(u64, rocebud_objects::WcStatus)> {
        self.wcs(side)
            .iter()
            .map(|wc| (wc.wr_id, wc.status))
            .collect()
    }

    pub fn events(&self, side: usize, kind: EventKind) -> usize {
        let is = |e: &&AsyncEvent| match e {
            AsyncEvent::Qp { kind: k, .. }
            | AsyncEvent::Cq { kind: k, .. }
            | AsyncEvent::Srq { kind: k, .. } => *k == kind,
        };
        self.side[side].world.events.iter().filter(is).count()
    }

    /// Fills a side's memory with a pattern that no two places share.
    pub fn pattern(&mut self, side: usize, addr: u64, len: usize, salt: u64) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len as u64)
            .map(|i| ((i.wrapping_mul(0x9e37_79b9).wrapping_add(salt * 77)) >> 8) as u8)
            .collect();
        self.side[side].world.poke(KEY, addr, &bytes);
        bytes
    }

    pub fn sent(&self, side: usize, opcode: Opcode) -> Vec<&Frame> {
        self.log
            .iter()
            .filter(|f| f.from == side && f.is(opcode))
            .collect()
    }

    pub fn ud(&self, from: usize) -> UdAddress {
        UdAddress {
            path: path(gids()[from], gids()[1 - from]),
            remote_qpn: QPN[1 - from],
            remote_qkey: QKEY,
        }
    }
}
