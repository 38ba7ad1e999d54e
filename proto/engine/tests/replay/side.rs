//! One side of a capture, played by the engine on the capture's clock.

use rocebud_engine::Node;
use rocebud_objects::{
    Access, AhAttr, AttrMask, CqId, Instant, Path, Payload, PdId, QpAttr, QpCap, QpInit, QpState,
    QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc,
};
use rocebud_wire::{Gid, LKey, Mtu, Packet, Psn, Qpn};

use crate::capture::{Capture, Seen, Shape};
use crate::world::{Region, World};

const PD: PdId = PdId(1);
const CQ: CqId = CqId(1);
/// Of the memory that no peer names.
const KEY: u32 = 0xffff_ff00;
const SIZE: usize = 1 << 20;
const BEGIN: u64 = 1_000_000_000;

pub struct Side {
    pub node: Node,
    pub world: World,
    pub qpn: Qpn,
    /// What it sent.
    pub sent: Vec<Shape>,
    now: Instant,
}

impl Side {
    /// The requester of a capture, or its responder, ready to send.
    pub fn new(capture: &Capture, asks: bool) -> Self {
        let (responder, requester) = capture.qpns();
        let (qpn, dest_qp_num) = if asks {
            (requester, responder)
        } else {
            (responder, requester)
        };
        let meta = capture.of(asks).next().expect("it sent").meta;
        let mut side = Self {
            node: Node::new(rocebud_engine::NodeConfig::default()),
            world: World::default(),
            qpn,
            sent: Vec::new(),
            now: Instant(BEGIN),
        };
        side.region(KEY, 0, SIZE, Access::LOCAL_WRITE);
        side.create();
        side.connect(dest_qp_num, capture.first_psn(), (meta.src, meta.dst));
        side
    }

    pub fn region(&mut self, key: u32, start: u64, len: usize, access: Access) {
        let region = Region {
            pd: PD,
            start,
            bytes: vec![0; len],
            access,
            window: false,
        };
        self.world.regions.insert(key, region);
    }

    fn create(&mut self) {
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: PD,
            send_cq: CQ,
            recv_cq: CQ,
            srq: None,
            xrcd: None,
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: true,
        };
        self.node.create_qp(self.qpn, init).expect("created");
    }

    /// As the agent of `tools/interop` does.
    fn connect(&mut self, dest_qp_num: Qpn, psn: Psn, (from, to): (Gid, Gid)) {
        type M = AttrMask;
        let attr = QpAttr {
            port_num: 1,
            qp_access_flags: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            ah_attr: AhAttr {
                is_global: true,
                port_num: 1,
                ..AhAttr::default()
            },
            path_mtu: Mtu::M1024,
            dest_qp_num,
            rq_psn: psn,
            sq_psn: psn,
            max_rd_atomic: 8,
            max_dest_rd_atomic: 8,
            min_rnr_timer: 14,
            timeout: 15,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        let rtr = M::AV
            | M::PATH_MTU
            | M::DEST_QPN
            | M::RQ_PSN
            | M::MAX_DEST_RD_ATOMIC
            | M::MIN_RNR_TIMER;
        let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
        let path = Path {
            sgid: from,
            dgid: to,
            hop_limit: 64,
            ..Path::default()
        };
        for (qp_state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            let attr = QpAttr { qp_state, ..attr };
            let path = mask.contains(M::AV).then_some(path);
            let (node, world) = (&mut self.node, &mut self.world);
            node.modify_qp(self.now, self.qpn, &attr, mask | M::STATE, path, world)
                .expect("moved");
        }
    }

    /// Posts receives of so many bytes.
    pub fn receives(&mut self, count: u64, bytes: u32) {
        for wr_id in 0..count {
            let sges = [sge(0, bytes)].into_iter().collect();
            let wr = RecvWr { wr_id, sges };
            let (node, world) = (&mut self.node, &mut self.world);
            node.post_recv(self.now, self.qpn, wr, world)
                .expect("posted");
        }
    }

    pub fn post(&mut self, wr_id: u64, op: SendOp, at: u64, bytes: u32) {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::empty(),
            payload: Payload::Sges([sge(at, bytes)].into_iter().collect()),
            ud: None,
            xrc_srqn: 0,
        };
        let (node, world) = (&mut self.node, &mut self.world);
        node.post_send(self.now, self.qpn, wr, world)
            .expect("posted");
        self.transmit();
    }

    /// Memory that no peer names.
    pub fn poke(&mut self, at: u64, bytes: &[u8]) {
        self.world.poke(KEY, at, bytes);
    }

    pub fn peek(&self, at: u64, len: usize) -> &[u8] {
        self.world.peek(KEY, at, len)
    }

    /// Lets time pass until this packet arrives.
    pub fn arrives(&mut self, seen: &Seen) {
        self.wait_until(Instant(BEGIN + seen.ns));
        let (node, world) = (&mut self.node, &mut self.world);
        node.on_frame(self.now, &seen.meta, &seen.packet(), world);
        self.transmit();
    }

    fn wait_until(&mut self, until: Instant) {
        while let Some(next) = self.node.next_timeout().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.node.on_timeout(self.now, &mut self.world);
            self.transmit();
        }
        self.now = self.now.max(until);
    }

    fn transmit(&mut self) {
        let mut buf = vec![0; rocebud_engine::limits::FRAME_BYTES_MAX];
        while let Some(tx) = self.node.poll_transmit(self.now, &mut buf, &mut self.world) {
            let packet = Packet::parse(&buf[..tx.len]).expect("well-formed");
            self.sent.push(Shape::of(&packet));
        }
    }

    pub fn completions(&mut self) -> Vec<Wc> {
        self.world.wcs.remove(&CQ).unwrap_or_default()
    }
}

fn sge(addr: u64, length: u32) -> Sge {
    Sge {
        addr,
        length,
        lkey: LKey(KEY),
    }
}
