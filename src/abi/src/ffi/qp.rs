//! Queue pairs: create, modify, query, destroy. Posting is in `post` and `qp_ex`.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;

use rocebud_objects::{
    Access, AttrMask, Errno, MigState, Misuse, QpAttr, QpCap, QpInit, QpState, QpType, RateLimit,
};
use rocebud_verbs::QpCreate;
use rocebud_wire::{Gid, Mtu, Psn, QKey, Qpn};

use super::ah::{ah_attr_of, c_ah_attr};
use super::boundary::{Arg, Outcome};
use super::context::Context;
use super::cq::Cq;
use super::handle::{Handle, Head, Object};
use super::memory::{Pd, next_handle};
use super::qp_ex::{Posting, check_operations, with_functions};
use super::room::{Housed, Room, give_in, retire};
use super::srq::Srq;
use super::types::{
    Plain, ibv_context, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_rate_limit_attr,
};

/// A queue pair of ours. Its C structure is the extended one, which begins with the other.
#[repr(C)]
pub(crate) struct Qp {
    head: Head<ibv_qp_ex>,
    pub(crate) verbs: rocebud_verbs::Qp,
    /// Transport service.
    pub(crate) qp_type: QpType,
    /// Sizes granted.
    pub(crate) cap: QpCap,
    sq_sig_all: bool,
    /// Requests being built; `None` without `send_ops_flags`.
    pub(crate) posting: Option<Posting>,
    home: Option<Room>,
}

impl Housed for Qp {
    const RESOURCE: u64 = 1;
    fn home(&mut self) -> &mut Option<Room> {
        &mut self.home
    }
}

impl Object for Qp {
    const DEPTH: usize = 2;
}

impl Qp {
    /// Reads the field of the C structure that lies at `offset`.
    #[inline]
    pub(crate) fn field<F: Copy>(&self, offset: usize) -> F {
        self.head.field(offset)
    }

    /// The address that C knows the queue pair's extended posting by, if it has it.
    pub(crate) fn as_ex(&self) -> *mut c_void {
        match self.posting {
            Some(_) => self.head.as_ptr().cast(),
            None => core::ptr::null_mut(),
        }
    }

    /// Its open device, as C knows it.
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.head.get().qp_base.context
    }

    fn show_state(&self, state: QpState) {
        let at = offset_of!(ibv_qp_ex, qp_base) + offset_of!(ibv_qp, state);
        self.head.set_field(at, state as c_uint);
    }
}

c_api! {
    /// `ibv_create_qp`: the sizes granted are written back.
    fn ibv_create_qp(pd: Pd, init: Arg<ibv_qp_init_attr>) -> Pointer, *mut ibv_qp {
        let mut wanted = init.get()?;
        let qp = create(pd, &wanted, None, false)?;
        wanted.cap = c_cap(&qp.cap);
        init.set(wanted)?;
        publish(pd, qp)
    }

    /// `ibv_modify_qp`: all or nothing.
    fn ibv_modify_qp(qp: Qp, attr: Arg<ibv_qp_attr>, mask: c_int) -> ErrnoCode, () {
        let mask = AttrMask::from_bits(mask.cast_unsigned())
            .ok_or(Misuse::invalid("ibv_modify_qp: unknown bits in the attribute mask"))?;
        let wanted = attr_of(&attr.get()?, mask)?;
        if mask.contains(AttrMask::QKEY) && wanted.qkey.0 & CONTROLLED_QKEY != 0 {
            qp.verbs.check_controlled_qkey()?;
        }
        qp.verbs.modify(&wanted, mask)?;
        if mask.contains(AttrMask::STATE) {
            qp.show_state(wanted.qp_state);
        }
        Ok(())
    }

    /// `ibv_query_qp`: fills everything, whatever the mask asks for.
    fn ibv_query_qp(
        qp: Qp, attr: Arg<ibv_qp_attr>, mask: c_int, init: Arg<ibv_qp_init_attr>,
    ) -> ErrnoCode, () {
        let (now, _): (QpAttr, QpInit) = qp.verbs.query()?;
        let head = qp.head.get().qp_base;
        attr.set(c_attr(&now, &qp.cap))?;
        init.set(ibv_qp_init_attr {
            qp_context: head.qp_context,
            send_cq: head.send_cq,
            recv_cq: head.recv_cq,
            srq: head.srq,
            cap: c_cap(&qp.cap),
            qp_type: head.qp_type,
            sq_sig_all: c_int::from(qp.sq_sig_all),
        })?;
        if mask.cast_unsigned() & AttrMask::STATE.bits() != 0 {
            qp.show_state(now.qp_state);
        }
        Ok(())
    }

    /// `ibv_attach_mcast`: datagrams to the group arrive here too. The LID means nothing in RoCE.
    fn ibv_attach_mcast(qp: Qp, group: Arg<[u8; 16]>, _lid: u16) -> ErrnoCode, () {
        qp.verbs.attach_mcast(Gid(group.get()?))
    }

    /// `ibv_detach_mcast`
    fn ibv_detach_mcast(qp: Qp, group: Arg<[u8; 16]>, _lid: u16) -> ErrnoCode, () {
        qp.verbs.detach_mcast(Gid(group.get()?))
    }

    /// `ibv_query_qp_data_in_order`: whether a reader may watch memory instead of completions.
    fn ibv_query_qp_data_in_order(qp: Qp, op: c_uint, flags: u32) -> Value, c_int {
        const RETURN_CAPS: u32 = 1;
        const DEVICE_ONLY: u32 = 1 << 1;
        const WHOLE_MSG: c_int = 1;
        const ALIGNED_128_BYTES: c_int = 1 << 1;
        // WRITE, WRITE with immediate, SEND, SEND with immediate, READ, SEND with invalidate.
        let placed = matches!(op, 0..=4 | 9) && qp.verbs.places_in_order();
        Ok(match (placed && flags & !(RETURN_CAPS | DEVICE_ONLY) == 0, flags & RETURN_CAPS) {
            (false, _) => 0,
            (true, 0) => 1,
            (true, _) => WHOLE_MSG | ALIGNED_128_BYTES,
        })
    }

    /// `ibv_destroy_qp`: waits until every event that was taken is acknowledged.
    fn ibv_destroy_qp(qp: Qp) -> ErrnoCode, () {
        qp.verbs.destroy()?;
        retire(Handle::<Qp>::from_raw(qp.head.as_ptr()));
        Ok(())
    }
}

/// `enum ibv_qp_init_attr_mask`
const MASK_PD: u32 = 1;
const MASK_XRCD: u32 = 1 << 1;
const MASK_CREATE_FLAGS: u32 = 1 << 2;
const MASK_IND_TABLE: u32 = 1 << 4;
const MASK_RX_HASH: u32 = 1 << 5;
const MASK_SEND_OPS_FLAGS: u32 = 1 << 6;
/// `IBV_QP_CREATE_CVLAN_STRIPPING`
const CVLAN_STRIPPING: u32 = 1 << 9;
const MASK_KNOWN: u32 = MASK_PD | MASK_CREATE_FLAGS | MASK_SEND_OPS_FLAGS;

own_entry! {
    /// `verbs_context.modify_qp_rate_limit`
    fn modify_qp_rate_limit(qp: Qp, attr: Arg<ibv_qp_rate_limit_attr>) -> ErrnoCode, () {
        let wanted = attr.get()?;
        if wanted.comp_mask != 0 {
            return Err(Misuse::invalid("ibv_modify_qp_rate_limit: comp_mask must be 0"));
        }
        qp.verbs.set_rate_limit(RateLimit {
            rate_kbps: wanted.rate_limit,
            max_burst_bytes: wanted.max_burst_sz,
            typical_packet_bytes: wanted.typical_pkt_sz,
        })
    }

    /// `verbs_context.create_qp_ex`
    fn create_qp_ex(context: Context, init: Arg<ibv_qp_init_attr_ex>) -> Pointer, *mut ibv_qp {
        let mut wanted = init.get()?;
        if wanted.qp_type == QpType::XrcRecv as c_uint {
            if wanted.comp_mask & !MASK_PD != MASK_XRCD {
                return Err(Misuse::invalid("ibv_create_qp_ex: XRC_RECV needs an XRC domain alone"));
            }
            return super::xrc::create_target(context, &wanted);
        }
        if wanted.comp_mask & MASK_PD == 0 {
            return Err(Misuse::invalid("ibv_create_qp_ex: comp_mask must have the PD"));
        }
        let flags = if wanted.comp_mask & MASK_CREATE_FLAGS != 0 { wanted.create_flags } else { 0 };
        let raw = wanted.qp_type == QpType::RawPacket as c_uint;
        if wanted.comp_mask & !MASK_CREATE_FLAGS == MASK_PD | MASK_IND_TABLE | MASK_RX_HASH
            && raw && flags == 0
        {
            return super::wq::create_spreading(&wanted);
        }
        if wanted.comp_mask & !MASK_KNOWN != 0 || flags & !(if raw { CVLAN_STRIPPING } else { 0 }) != 0 {
            return Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "ibv_create_qp_ex: of create flags there is CVLAN_STRIPPING, of raw packets; there \
                 is no TSO",
            ));
        }
        let operations = (wanted.comp_mask & MASK_SEND_OPS_FLAGS != 0).then_some(wanted.send_ops_flags);
        let pd = Handle::<Pd>::from_raw(wanted.pd).mine()?;
        let qp = create(pd, &ibv_qp_init_attr {
            qp_context: wanted.qp_context,
            send_cq: wanted.send_cq,
            recv_cq: wanted.recv_cq,
            srq: wanted.srq,
            cap: wanted.cap,
            qp_type: wanted.qp_type,
            sq_sig_all: wanted.sq_sig_all,
        }, operations, flags & CVLAN_STRIPPING != 0)?;
        wanted.cap = c_cap(&qp.cap);
        init.set(wanted)?;
        publish(pd, qp)
    }
}

/// Q_Keys with this bit are for programs with the right to forge packets.
const CONTROLLED_QKEY: u32 = 1 << 31;

fn qp_type(value: c_uint) -> Outcome<QpType> {
    match value {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        4 => Ok(QpType::Ud),
        9 => Ok(QpType::XrcSend),
        10 => Ok(QpType::XrcRecv),
        8 => Ok(QpType::RawPacket),
        _ => Err(Misuse::new(
            Errno::EOPNOTSUPP,
            "queue pairs are RC, UC, UD, XRC or RAW_PACKET",
        )),
    }
}

/// `operations`: what extended posting is asked for, if at all.
fn create(
    pd: &Pd,
    wanted: &ibv_qp_init_attr,
    operations: Option<u64>,
    strips_vlan: bool,
) -> Outcome<Box<Qp>> {
    let qp_type = qp_type(wanted.qp_type)?;
    check_operations(qp_type, operations.unwrap_or(0))?;
    let send_cq = Handle::<Cq>::from_raw(wanted.send_cq).mine()?;
    // The requesting end of XRC receives nothing.
    let recv_cq = if qp_type == QpType::XrcSend {
        send_cq
    } else {
        Handle::<Cq>::from_raw(wanted.recv_cq).mine()?
    };
    let srq = Handle::<Srq>::from_raw(wanted.srq);
    let srq = if srq.is_null() {
        None
    } else {
        Some(srq.mine()?)
    };
    let sq_sig_all = wanted.sq_sig_all != 0;
    let verbs = pd.verbs.create_qp(&QpCreate {
        qp_type,
        send_cq: send_cq.verbs.clone(),
        recv_cq: recv_cq.verbs.clone(),
        srq: srq.map(|s| s.verbs.clone()),
        cap: cap_of(&wanted.cap),
        sq_sig_all,
        strips_vlan,
        user: 0,
    })?;
    let cap = verbs.cap();
    let head = ibv_qp {
        context: pd.context(),
        qp_context: wanted.qp_context,
        pd: pd.as_ptr(),
        send_cq: send_cq.as_ptr(),
        recv_cq: recv_cq.as_ptr(),
        srq: srq.map_or(core::ptr::null_mut(), Srq::as_ptr),
        handle: next_handle(),
        qp_num: verbs.qpn().value(),
        state: QpState::Reset as c_uint,
        qp_type: wanted.qp_type,
        ..ibv_qp::zeroed()
    };
    let mut head = ibv_qp_ex {
        qp_base: head,
        ..ibv_qp_ex::zeroed()
    };
    if operations.is_some() {
        head = with_functions(head);
    }
    Ok(Box::new(Qp {
        head: Head::new(head),
        posting: operations.map(|allowed| Posting::new(allowed, pd.verbs.is_single_threaded())),
        home: None,
        verbs,
        qp_type,
        cap,
        sq_sig_all,
    }))
}

/// Hands the serving end of an extended reliable connection to C.
pub(crate) fn publish_target(
    context: *mut ibv_context,
    verbs: rocebud_verbs::Qp,
    qp_context: *mut c_void,
) -> Outcome<*mut ibv_qp> {
    let head = ibv_qp {
        context,
        qp_context,
        handle: next_handle(),
        qp_num: verbs.qpn().value(),
        state: verbs.state() as c_uint,
        qp_type: QpType::XrcRecv as c_uint,
        ..ibv_qp::zeroed()
    };
    let head = ibv_qp_ex {
        qp_base: head,
        ..ibv_qp_ex::zeroed()
    };
    let qp = Box::new(Qp {
        head: Head::new(head),
        posting: None,
        home: None,
        cap: verbs.cap(),
        qp_type: QpType::XrcRecv,
        sq_sig_all: false,
        verbs,
    });
    let p: *mut ibv_qp = give_in(qp, None)?;
    let qp = Handle::<Qp>::from_raw(p).ours();
    qp.verbs.set_user(p.expose_provenance() as u64);
    Ok(p)
}

/// Hands a queue pair with an indirection table to C.
pub(crate) fn publish_spreading(
    pd: &Pd,
    verbs: rocebud_verbs::Qp,
    qp_context: *mut c_void,
) -> Outcome<*mut ibv_qp> {
    let head = ibv_qp {
        context: pd.context(),
        qp_context,
        pd: pd.as_ptr(),
        handle: next_handle(),
        qp_num: verbs.qpn().value(),
        qp_type: QpType::RawPacket as c_uint,
        ..ibv_qp::zeroed()
    };
    let head = ibv_qp_ex {
        qp_base: head,
        ..ibv_qp_ex::zeroed()
    };
    publish(
        pd,
        Box::new(Qp {
            head: Head::new(head),
            posting: None,
            home: None,
            cap: verbs.cap(),
            qp_type: QpType::RawPacket,
            sq_sig_all: false,
            verbs,
        }),
    )
}

/// Hands the queue pair to C and lets events name it.
fn publish(pd: &Pd, qp: Box<Qp>) -> Outcome<*mut ibv_qp> {
    let p: *mut ibv_qp = give_in(qp, pd.room)?;
    Handle::<Qp>::from_raw(p)
        .ours()
        .verbs
        .set_user(p.expose_provenance() as u64);
    Ok(p)
}

const fn cap_of(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

const fn c_cap(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// The attributes that the mask names; the others hold whatever the caller left there.
fn attr_of(a: &ibv_qp_attr, mask: AttrMask) -> Outcome<QpAttr> {
    let mut out = QpAttr {
        qkey: QKey(a.qkey),
        rq_psn: Psn::new(a.rq_psn),
        sq_psn: Psn::new(a.sq_psn),
        dest_qp_num: Qpn::new(a.dest_qp_num),
        cap: cap_of(&a.cap),
        ah_attr: ah_attr_of(&a.ah_attr),
        pkey_index: a.pkey_index,
        en_sqd_async_notify: a.en_sqd_async_notify != 0,
        max_rd_atomic: a.max_rd_atomic,
        max_dest_rd_atomic: a.max_dest_rd_atomic,
        min_rnr_timer: a.min_rnr_timer,
        port_num: a.port_num,
        timeout: a.timeout,
        retry_cnt: a.retry_cnt,
        rnr_retry: a.rnr_retry,
        rate_limit: a.rate_limit,
        ..QpAttr::default()
    };
    if mask.contains(AttrMask::STATE) {
        out.qp_state = state(a.qp_state)?;
    }
    if mask.contains(AttrMask::CUR_STATE) {
        out.cur_qp_state = state(a.cur_qp_state)?;
    }
    if mask.contains(AttrMask::PATH_MTU) {
        out.path_mtu = Mtu::from_verbs(a.path_mtu).ok_or(Misuse::invalid(
            "ibv_modify_qp: path_mtu is none of IBV_MTU_256 to 4096",
        ))?;
    }
    if mask.contains(AttrMask::PATH_MIG_STATE) {
        out.path_mig_state = match a.path_mig_state {
            0 => MigState::Migrated,
            1 => MigState::Rearm,
            2 => MigState::Armed,
            _ => {
                return Err(Misuse::invalid(
                    "ibv_modify_qp: unknown path migration state",
                ));
            }
        };
    }
    if mask.contains(AttrMask::ACCESS_FLAGS) {
        out.qp_access_flags = Access::from_bits(a.qp_access_flags)
            .ok_or(Misuse::invalid("ibv_modify_qp: unknown access flags"))?;
    }
    Ok(out)
}

fn state(value: c_uint) -> Outcome<QpState> {
    QpState::from_verbs(value).ok_or(Misuse::invalid("ibv_modify_qp: no such queue pair state"))
}

fn c_attr(a: &QpAttr, cap: &QpCap) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: a.qp_state as c_uint,
        cur_qp_state: a.cur_qp_state as c_uint,
        path_mtu: a.path_mtu as c_uint,
        path_mig_state: a.path_mig_state as c_uint,
        qkey: a.qkey.0,
        rq_psn: a.rq_psn.value(),
        sq_psn: a.sq_psn.value(),
        dest_qp_num: a.dest_qp_num.value(),
        qp_access_flags: a.qp_access_flags.bits(),
        cap: c_cap(cap),
        ah_attr: c_ah_attr(&a.ah_attr),
        pkey_index: a.pkey_index,
        en_sqd_async_notify: u8::from(a.en_sqd_async_notify),
        sq_draining: u8::from(a.sq_draining),
        max_rd_atomic: a.max_rd_atomic,
        max_dest_rd_atomic: a.max_dest_rd_atomic,
        min_rnr_timer: a.min_rnr_timer,
        port_num: a.port_num,
        timeout: a.timeout,
        retry_cnt: a.retry_cnt,
        rnr_retry: a.rnr_retry,
        rate_limit: a.rate_limit,
        ..ibv_qp_attr::zeroed()
    }
}
