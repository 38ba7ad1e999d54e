//! Queue pairs from RESET to RTS, as an application brings them up.

use rocebud_fabric::{Fabric, HostId};
use rocebud_objects::{Access, AhAttr, AttrMask, Misuse, Path, QpAttr, QpState, QpType};
use rocebud_wire::{Gid, Mtu, Psn, QKey, Qpn};

/// One side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side {
    /// Where it lives.
    pub host: HostId,
    /// Its number.
    pub qpn: Qpn,
    /// First PSN that it sends.
    pub sq_psn: Psn,
    /// READs and atomics that it may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that it serves at a time.
    pub max_dest_rd_atomic: u8,
    /// Code of the RNR timer that it asks of its peer.
    pub min_rnr_timer: u8,
}

/// What both sides of a connection share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// RC or UC.
    pub kind: QpType,
    /// Over IPv6 instead of IPv4.
    pub v6: bool,
    /// Payload bytes per packet.
    pub mtu: Mtu,
    /// Exponent of the local ACK timeout.
    pub timeout: u8,
    /// Retries for timeouts and sequence errors.
    pub retry_cnt: u8,
    /// Retries for RNR NAKs.
    pub rnr_retry: u8,
    /// 20-bit flow label.
    pub flow_label: u32,
    /// TOS or traffic class.
    pub traffic_class: u8,
}

impl Default for Link {
    /// RC over IPv4, 1024 bytes, 67 ms, seven retries, endless RNR retries.
    fn default() -> Self {
        Self {
            kind: QpType::Rc,
            v6: false,
            mtu: Mtu::M1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            flow_label: 0,
            traffic_class: 0,
        }
    }
}

/// Everything that a peer may be allowed.
pub const ALL_REMOTE: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// The resolved path from one host to another.
#[must_use]
pub fn path(fabric: &Fabric, from: HostId, to: HostId, link: &Link) -> Path {
    let family = usize::from(link.v6);
    Path {
        sgid: fabric.host(from).gids()[family],
        dgid: fabric.host(to).gids()[family],
        traffic_class: link.traffic_class,
        hop_limit: 64,
        flow_label: link.flow_label,
        ifindex: 1,
    }
}

/// Moves a queue pair, with the clock and the world of its host.
///
/// # Errors
/// What the engine refuses.
pub fn modify(
    fabric: &mut Fabric,
    host: HostId,
    qpn: Qpn,
    attr: &QpAttr,
    mask: AttrMask,
    path: Option<Path>,
) -> Result<(), Misuse> {
    let now = fabric.now();
    let host = fabric.host_mut(host);
    host.node
        .modify_qp(now, qpn, attr, mask, path, &mut host.env)
}

/// Moves a queue pair to `state` with no other attribute.
///
/// # Errors
/// What the engine refuses.
pub fn go(fabric: &mut Fabric, host: HostId, qpn: Qpn, state: QpState) -> Result<(), Misuse> {
    let attr = QpAttr {
        qp_state: state,
        ..QpAttr::default()
    };
    modify(fabric, host, qpn, &attr, AttrMask::STATE, None)
}

/// RESET to INIT, for connected queue pairs.
///
/// # Errors
/// What the engine refuses.
pub fn to_init(fabric: &mut Fabric, host: HostId, qpn: Qpn, access: Access) -> Result<(), Misuse> {
    let attr = QpAttr {
        qp_state: QpState::Init,
        port_num: 1,
        qp_access_flags: access,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    modify(fabric, host, qpn, &attr, mask, None)
}

/// INIT to RTR towards `peer`.
///
/// # Errors
/// What the engine refuses.
pub fn to_rtr(fabric: &mut Fabric, me: &Side, peer: &Side, link: &Link) -> Result<(), Misuse> {
    let path = path(fabric, me.host, peer.host, link);
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        path_mtu: link.mtu,
        dest_qp_num: peer.qpn,
        rq_psn: peer.sq_psn,
        max_dest_rd_atomic: me.max_dest_rd_atomic,
        min_rnr_timer: me.min_rnr_timer,
        ah_attr: address(&path),
        ..QpAttr::default()
    };
    let mut mask =
        AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    if link.kind.is_reliable() {
        mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    }
    modify(fabric, me.host, me.qpn, &attr, mask, Some(path))
}

/// RTR to RTS.
///
/// # Errors
/// What the engine refuses.
pub fn to_rts(fabric: &mut Fabric, me: &Side, link: &Link) -> Result<(), Misuse> {
    let attr = QpAttr {
        qp_state: QpState::Rts,
        sq_psn: me.sq_psn,
        timeout: link.timeout,
        retry_cnt: link.retry_cnt,
        rnr_retry: link.rnr_retry,
        max_rd_atomic: me.max_rd_atomic,
        ..QpAttr::default()
    };
    let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
    if link.kind.is_reliable() {
        mask |= AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
    }
    modify(fabric, me.host, me.qpn, &attr, mask, None)
}

/// INIT to RTS on both sides.
///
/// # Errors
/// What the engine refuses.
pub fn connect(fabric: &mut Fabric, a: &Side, b: &Side, link: &Link) -> Result<(), Misuse> {
    to_rtr(fabric, a, b, link)?;
    to_rtr(fabric, b, a, link)?;
    to_rts(fabric, a, link)?;
    to_rts(fabric, b, link)
}

/// RESET to RTS, for datagrams.
///
/// # Errors
/// What the engine refuses.
pub fn bring_up_ud(
    fabric: &mut Fabric,
    host: HostId,
    qpn: Qpn,
    qkey: QKey,
    sq_psn: Psn,
) -> Result<(), Misuse> {
    let mut attr = QpAttr {
        qp_state: QpState::Init,
        port_num: 1,
        qkey,
        sq_psn,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    modify(fabric, host, qpn, &attr, mask, None)?;
    attr.qp_state = QpState::Rtr;
    modify(fabric, host, qpn, &attr, AttrMask::STATE, None)?;
    attr.qp_state = QpState::Rts;
    let mask = AttrMask::STATE | AttrMask::SQ_PSN;
    modify(fabric, host, qpn, &attr, mask, None)
}

/// Address handle attributes of a resolved path.
#[must_use]
pub fn address(path: &Path) -> AhAttr {
    AhAttr {
        dgid: path.dgid,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        is_global: true,
        port_num: 1,
        ..AhAttr::default()
    }
}

/// Address of host number `index` in both families: 10.0.0.n and fd00::n.
#[must_use]
pub fn host_gids(index: usize) -> [Gid; 2] {
    let n = index as u8 + 1;
    let mut v6 = [0; 16];
    v6[0] = 0xfd;
    v6[15] = n;
    [Gid::from_v4([10, 0, 0, n]), Gid(v6)]
}
