//! One end of a connection, with a buffer.

use std::time::{Duration, Instant};

use rocebud_verbs::*;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Endpoint {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
    pub(crate) gid_index: u8,
    pub(crate) gid: Gid,
    pub(crate) buffer: Box<[u8]>,
}

pub(crate) fn all_access() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::FLUSH_GLOBAL
}

pub(crate) fn loopback() -> Context {
    let devices = device_list().expect("device list");
    let device = devices.iter().find(|d| d.info().loopback);
    device.expect("loopback device").open().expect("open")
}

impl Endpoint {
    pub(crate) fn new(qp_type: QpType, v6: bool, bytes: usize) -> Self {
        let context = loopback();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(512, None, 0, 1).unwrap();
        let create = QpCreate {
            cap: QpCap {
                max_send_wr: 256,
                max_recv_wr: 256,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 128,
            },
            ..QpCreate::new(qp_type, &cq, &cq)
        };
        let qp = pd.create_qp(&create).unwrap();
        Self::with(context, pd, cq, qp, v6, bytes)
    }

    pub(crate) fn with(context: Context, pd: Pd, cq: Cq, qp: Qp, v6: bool, bytes: usize) -> Self {
        let entry = context
            .gid_table()
            .into_iter()
            .find(|e| e.gid.v4().is_none() == v6)
            .expect("a GID of that family");
        let buffer = vec![0u8; bytes].into_boxed_slice();
        let at = buffer.as_ptr() as u64;
        let mr = pd.reg_mr(at, bytes as u64, at, all_access()).unwrap();
        Self {
            qp,
            cq,
            mr,
            pd,
            gid_index: u8::try_from(entry.gid_index).unwrap(),
            gid: entry.gid,
            context,
            buffer,
        }
    }

    pub(crate) fn at(&self, offset: usize) -> u64 {
        self.buffer.as_ptr() as u64 + offset as u64
    }

    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge {
            addr: self.at(offset),
            length: u32::try_from(len).unwrap(),
            lkey: self.mr.lkey(),
        }
    }

    pub(crate) fn sges(&self, offset: usize, len: usize) -> Payload {
        Payload::Sges([self.sge(offset, len)].into_iter().collect())
    }

    pub(crate) fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.at(offset),
            rkey: self.mr.rkey(),
        }
    }

    pub(crate) fn av(&self, to: Gid) -> AhAttr {
        AhAttr {
            dgid: to,
            sgid_index: self.gid_index,
            hop_limit: 64,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        }
    }

    pub(crate) fn init(&self) {
        let attr = QpAttr {
            qp_state: QpState::Init,
            port_num: 1,
            qkey: QKey(0x1111_1111),
            qp_access_flags: all_access(),
            ..QpAttr::default()
        };
        let last = if self.qp.qp_type() == QpType::Ud {
            AttrMask::QKEY
        } else {
            AttrMask::ACCESS_FLAGS
        };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | last;
        self.qp.modify(&attr, mask).unwrap();
    }

    /// Both ends fit again, whatever happened: RESET, and connected to each other.
    pub(crate) fn restart(&self, peer: &Self) {
        for end in [self, peer] {
            let reset = QpAttr {
                qp_state: QpState::Reset,
                ..QpAttr::default()
            };
            end.qp.modify(&reset, AttrMask::STATE).unwrap();
        }
        self.init();
        peer.init();
        self.ready(peer);
        peer.ready(self);
    }

    pub(crate) fn ready(&self, peer: &Self) {
        let (rtr, rts) = masks(self.qp.qp_type());
        let attr = QpAttr {
            qp_state: QpState::Rtr,
            path_mtu: Mtu::M1024,
            dest_qp_num: peer.qp.qpn(),
            rq_psn: Psn::new(peer.qp.qpn().value() ^ 0x00ff_fff0),
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ah_attr: self.av(peer.gid),
            ..QpAttr::default()
        };
        self.qp.modify(&attr, rtr).unwrap();
        let attr = QpAttr {
            qp_state: QpState::Rts,
            sq_psn: Psn::new(self.qp.qpn().value() ^ 0x00ff_fff0),
            timeout: 12,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..QpAttr::default()
        };
        self.qp.modify(&attr, rts).unwrap();
    }

    pub(crate) fn post_recv(&self, wr_id: u64, offset: usize, len: usize) {
        let wr = RecvWr {
            wr_id,
            sges: [self.sge(offset, len)].into_iter().collect(),
        };
        self.qp.post_recv(wr).unwrap();
    }

    pub(crate) fn post(&self, wr_id: u64, op: SendOp, payload: Payload) {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            payload,
            ud: None,
            xrc_srqn: 0,
        };
        self.qp.post_send(wr).unwrap();
    }

    pub(crate) fn wait(&self) -> Wc {
        wait_cq(&self.cq)
    }

    pub(crate) fn wait_good(&self) -> Wc {
        let wc = self.wait();
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }
}

pub(crate) fn wait_cq(cq: &Cq) -> Wc {
    let until = Instant::now() + PATIENCE;
    let mut out = [Wc::default()];
    while cq.poll(&mut out).expect("poll") == 0 {
        assert!(Instant::now() < until, "no completion came");
    }
    out[0]
}

/// Waits until `good`.
pub(crate) fn wait_until(what: &str, mut good: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !good() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub(crate) fn masks(qp_type: QpType) -> (AttrMask, AttrMask) {
    let connected =
        AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let rts = AttrMask::STATE | AttrMask::SQ_PSN;
    match qp_type {
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv | QpType::RawPacket => (
            connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
            rts | AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::MAX_QP_RD_ATOMIC,
        ),
        QpType::Uc => (connected, rts),
        QpType::Ud => (AttrMask::STATE, rts),
    }
}

pub(crate) fn pair(qp_type: QpType, v6: bool, bytes: usize) -> (Endpoint, Endpoint) {
    let a = Endpoint::new(qp_type, v6, bytes);
    let b = Endpoint::new(qp_type, v6, bytes);
    a.init();
    b.init();
    a.ready(&b);
    b.ready(&a);
    (a, b)
}

/// Bytes that differ everywhere.
pub(crate) fn pattern(buffer: &mut [u8], seed: u64) {
    let mut x = seed | 1;
    for byte in buffer {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (x >> 56) as u8;
    }
}

/// What the process has counted so far.
pub(crate) fn print_counters() {
    let context = loopback();
    for counter in Counter::ALL {
        match context.counter(*counter) {
            0 => {}
            n => println!("    {} {n}", counter.name()),
        }
    }
}
