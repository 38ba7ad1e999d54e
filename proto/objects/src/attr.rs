//! Identities and attributes of queue pairs, receive queues and address handles.

use bitflags::bitflags;
use rocebud_wire::{Gid, Mtu, PKey, Psn, QKey, Qpn};

/// A protection domain of this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PdId(pub u32);

/// A completion queue of this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CqId(pub u32);

impl CqId {
    /// No completion queue: of a queue pair that needs none.
    pub const NONE: Self = Self(u32::MAX);
}

/// A shared receive queue of this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SrqId(pub u32);

/// An XRC domain of this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct XrcdId(pub u32);

/// Transport service of a queue pair; values of `enum ibv_qp_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connected.
    Rc = 2,
    /// Unreliable connected.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Whole Ethernet frames, as they are.
    RawPacket = 8,
    /// Extended reliable connection, the end that requests.
    XrcSend = 9,
    /// Extended reliable connection, the end that serves: it has no queues of its own and receives
    /// into the shared receive queues of its domain.
    XrcRecv = 10,
}

impl QpType {
    /// Nothing is lost, doubled or reordered: RC and XRC.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }
}

/// Values of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
pub enum QpState {
    /// Nothing may be posted.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue draining or drained.
    Sqd = 4,
    /// Send queue in error (UC and UD).
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

impl QpState {
    /// From the ABI's number.
    #[must_use]
    pub const fn from_verbs(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => return None,
        })
    }
}

/// Path migration state; values of `enum ibv_mig_state`. Kept and given back; APM is not done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub enum MigState {
    #[default]
    Migrated = 0,
    Rearm = 1,
    Armed = 2,
}

bitflags! {
    /// `enum ibv_access_flags`, for regions, windows and queue pairs.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[allow(missing_docs, reason = "the names are those of verbs.h")]
    pub struct Access: u32 {
        const LOCAL_WRITE = 1;
        const REMOTE_WRITE = 1 << 1;
        const REMOTE_READ = 1 << 2;
        const REMOTE_ATOMIC = 1 << 3;
        const MW_BIND = 1 << 4;
        const ZERO_BASED = 1 << 5;
        const ON_DEMAND = 1 << 6;
        const HUGETLB = 1 << 7;
        const FLUSH_GLOBAL = 1 << 8;
        const FLUSH_PERSISTENT = 1 << 9;
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[allow(missing_docs, reason = "the names are those of verbs.h")]
    pub struct AttrMask: u32 {
        const STATE = 1;
        const CUR_STATE = 1 << 1;
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        const ACCESS_FLAGS = 1 << 3;
        const PKEY_INDEX = 1 << 4;
        const PORT = 1 << 5;
        const QKEY = 1 << 6;
        const AV = 1 << 7;
        const PATH_MTU = 1 << 8;
        const TIMEOUT = 1 << 9;
        const RETRY_CNT = 1 << 10;
        const RNR_RETRY = 1 << 11;
        const RQ_PSN = 1 << 12;
        const MAX_QP_RD_ATOMIC = 1 << 13;
        const ALT_PATH = 1 << 14;
        const MIN_RNR_TIMER = 1 << 15;
        const SQ_PSN = 1 << 16;
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        const PATH_MIG_STATE = 1 << 18;
        const CAP = 1 << 19;
        const DEST_QPN = 1 << 20;
        const RATE_LIMIT = 1 << 25;
    }
}

/// Sizes of a queue pair's queues; `struct ibv_qp_cap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    /// Bytes.
    pub max_inline_data: u32,
}

/// How fast a queue pair may send; `struct ibv_qp_rate_limit_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateLimit {
    /// 1000 bits a second; 0 = as fast as it can.
    pub rate_kbps: u32,
    /// Bytes that may leave at once; 0 = what the engine finds right.
    pub max_burst_bytes: u32,
    /// A hint that an engine which counts real bytes does not need; 0 = none.
    pub typical_packet_bytes: u16,
}

/// What `create_qp` gives to the engine. Limits were checked by the layer above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInit {
    /// Transport service.
    pub qp_type: QpType,
    /// Protection domain of its keys.
    pub pd: PdId,
    /// Where send completions go.
    pub send_cq: CqId,
    /// Where receive completions go.
    pub recv_cq: CqId,
    /// Shared receive queue, if it has one.
    pub srq: Option<SrqId>,
    /// Domain of an `XrcRecv` queue pair, which needs no protection domain and no completion
    /// queues.
    pub xrcd: Option<XrcdId>,
    /// Sizes granted.
    pub cap: QpCap,
    /// Every send request makes a completion.
    pub sq_sig_all: bool,
}

/// Address vector as the application gives it; the fields of `struct ibv_ah_attr` that RoCE uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct AhAttr {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: bool,
    pub port_num: u8,
}

/// An address vector resolved against the GID table: where packets of a connection go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Path {
    /// Own address.
    pub sgid: Gid,
    /// Peer's address.
    pub dgid: Gid,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// IP time to live.
    pub hop_limit: u8,
    /// 20 bits; chooses the UDP source port when not 0.
    pub flow_label: u32,
    /// Interface of the device: scope of link-local addresses. 0 = any.
    pub ifindex: u32,
}

/// `struct ibv_qp_attr`, less alternate path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct QpAttr {
    pub qp_state: QpState,
    pub cur_qp_state: QpState,
    pub path_mtu: Mtu,
    pub path_mig_state: MigState,
    pub qkey: QKey,
    pub rq_psn: Psn,
    pub sq_psn: Psn,
    pub dest_qp_num: Qpn,
    pub qp_access_flags: Access,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub sq_draining: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    /// 0 = never; else 4.096 us x 2^timeout.
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub rate_limit: u32,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            path_mtu: Mtu::M256,
            path_mig_state: MigState::Migrated,
            qkey: QKey(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qp_num: Qpn::new(0),
            qp_access_flags: Access::empty(),
            cap: QpCap::default(),
            ah_attr: AhAttr::default(),
            pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            rate_limit: 0,
        }
    }
}

impl QpAttr {
    /// Partition key at `pkey_index`; RoCE tables hold one entry.
    #[must_use]
    pub const fn pkey(&self) -> PKey {
        PKey::DEFAULT
    }
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    /// 0 = not armed.
    pub srq_limit: u32,
}

/// What makes a shared receive queue one of XRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcSrq {
    /// Its domain.
    pub xrcd: XrcdId,
    /// Where its receives complete.
    pub cq: CqId,
}

/// What `create_srq` gives to the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInit {
    /// Protection domain of its receive buffers.
    pub pd: PdId,
    /// Sizes.
    pub attr: SrqAttr,
    /// Of the type XRC.
    pub xrc: Option<XrcSrq>,
}
