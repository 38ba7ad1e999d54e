//! The queue pair of an identifier: made with what it lacks, and moved as the connection wants it.

use core::ffi::{c_int, c_uint, c_void};

use rocebud_objects::{AttrMask, Misuse};
use rocebud_verbs::cm::{CmAh, CmAnswer, CmQpAttr, CmRequest, refusal};

use super::super::boundary::{Arg, MinusOne, NULL, Outcome, Silent, enter, last_errno};
use super::super::context::Context;
use super::super::handle::Handle;
use super::super::types::{
    Plain, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};
use super::super::{qp, xrc};
use super::device;
use super::id::{Id, see, show};
use super::types::{ALL, RC, UD, XRC_RECV, XRC_SEND, rdma_cm_id};
use super::verbs::{self, outcome};

/// `enum ibv_qp_state`
const INIT: c_uint = 1;
const RTR: c_uint = 2;
const RTS: c_uint = 3;
const ERR: c_uint = 6;

/// `enum ibv_qp_init_attr_mask`
const QP_PD: u32 = 1;
const QP_XRCD: u32 = 1 << 1;
/// `enum ibv_srq_init_attr_mask`
const SRQ_TYPE: u32 = 1;
const SRQ_PD: u32 = 1 << 1;
const SRQ_XRCD: u32 = 1 << 2;
const SRQ_CQ: u32 = 1 << 3;
/// `IBV_SRQT_BASIC`, `IBV_SRQT_XRC`
const BASIC: c_int = 0;
const XRC: c_int = 1;

/// `struct ibv_ah_attr` of a global address.
pub(super) fn c_ah(ah: &CmAh) -> ibv_ah_attr {
    let mut out = ibv_ah_attr::zeroed();
    out.grh.dgid = ibv_gid(ah.dgid);
    out.grh.sgid_index = ah.sgid_index;
    out.grh.flow_label = ah.flow_label;
    out.grh.hop_limit = ah.hop_limit;
    out.grh.traffic_class = ah.traffic_class;
    out.is_global = 1;
    out.port_num = 1;
    out
}

/// The attributes for a move to `state`, and which of them count.
fn attributes(
    known: &CmQpAttr,
    qp_type: c_uint,
    state: c_uint,
) -> Outcome<(ibv_qp_attr, AttrMask)> {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = state;
    attr.port_num = 1;
    attr.qp_access_flags = known.access_flags;
    attr.qkey = known.qkey;
    attr.ah_attr = c_ah(&known.ah);
    attr.path_mtu = c_uint::from(known.path_mtu);
    attr.dest_qp_num = known.dest_qpn;
    attr.rq_psn = known.rq_psn;
    attr.sq_psn = known.sq_psn;
    attr.max_rd_atomic = known.max_rd_atomic;
    attr.max_dest_rd_atomic = known.max_dest_rd_atomic;
    attr.min_rnr_timer = known.min_rnr_timer;
    attr.timeout = known.timeout;
    attr.retry_cnt = known.retry_cnt;
    attr.rnr_retry = known.rnr_retry;
    let requester = matches!(qp_type, RC | XRC_SEND);
    let responder = matches!(qp_type, RC | XRC_RECV);
    let datagram = qp_type == UD;
    let mut mask = AttrMask::STATE;
    match state {
        INIT => {
            mask |= AttrMask::PKEY_INDEX | AttrMask::PORT;
            mask |= if datagram {
                AttrMask::QKEY
            } else {
                AttrMask::ACCESS_FLAGS
            };
        }
        RTR if datagram => {}
        RTS if datagram => {
            attr.sq_psn = 0;
            mask |= AttrMask::SQ_PSN;
        }
        RTR | RTS if !known.connected => return Err(NOT_YET),
        RTR => {
            mask |= AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
            if responder {
                mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
            }
        }
        RTS => {
            mask |= AttrMask::SQ_PSN;
            if requester {
                mask |= AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
            }
            if requester || responder {
                mask |= AttrMask::TIMEOUT;
            }
        }
        _ => {
            return Err(Misuse::invalid(
                "rdma_init_qp_attr: states are INIT, RTR and RTS",
            ));
        }
    }
    Ok((attr, mask))
}

const NOT_YET: Misuse =
    Misuse::invalid("the peer of this identifier has not answered yet: no RTR before that");

fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: AttrMask) -> Outcome<()> {
    // SAFETY: a living queue pair and its attributes.
    outcome(unsafe { verbs::ibv_modify_qp(qp, attr, mask.bits().cast_signed()) })
}

impl Id {
    fn known(&self) -> Outcome<CmQpAttr> {
        match self.manager.ask(CmRequest::QpAttr { id: self.number })? {
            CmAnswer::QpAttr(attr) => Ok(attr),
            answer => Err(refusal(&answer)),
        }
    }

    /// Moves its queue pair, if it has one, to RTR and RTS. `None`: as many READs and atomics as
    /// the peer said.
    pub(super) fn make_ready(&self, resources: Option<u8>, depth: Option<u8>) -> Outcome<()> {
        let qp = self.qp();
        if qp.is_null() {
            return Ok(());
        }
        let mut known = self.known()?;
        let (most_resources, most_depth) = device::depths(self.verbs()?);
        known.max_dest_rd_atomic =
            resources.unwrap_or_else(|| known.max_dest_rd_atomic.min(most_resources));
        known.max_rd_atomic = depth.unwrap_or_else(|| known.max_rd_atomic.min(most_depth));
        // INIT once more: which accesses are allowed is known only now.
        for state in [INIT, RTR, RTS] {
            let (mut attr, mask) = attributes(&known, self.qp_type(), state)?;
            modify(qp, &mut attr, mask)?;
        }
        Ok(())
    }

    /// Moves its queue pair, if it has one, to ERR.
    pub(super) fn make_error(&self) -> Outcome<()> {
        let qp = self.qp();
        if qp.is_null() {
            return Ok(());
        }
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = ERR;
        modify(qp, &mut attr, AttrMask::STATE)
    }

    /// Moves a new queue pair: to INIT, and one for datagrams all the way.
    fn begin(&self, qp: *mut ibv_qp) -> Outcome<()> {
        let known = self.known()?;
        let states: &[c_uint] = match self.qp_type() {
            UD => &[INIT, RTR, RTS],
            _ => &[INIT],
        };
        for state in states {
            let (mut attr, mask) = attributes(&known, self.qp_type(), *state)?;
            modify(qp, &mut attr, mask)?;
        }
        Ok(())
    }

    /// A completion queue with a channel of its own.
    fn create_cq(&self, entries: u32) -> Outcome<(*mut ibv_comp_channel, *mut ibv_cq)> {
        let verbs = self.verbs()?;
        let refused = || Misuse::new(last_errno(), "no completion queue for the identifier");
        // SAFETY: a living context.
        let channel = unsafe { verbs::ibv_create_comp_channel(verbs) };
        if channel.is_null() {
            return Err(refused());
        }
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let user: *mut c_void = self.as_ptr().cast();
        // SAFETY: a living context and its channel.
        let cq = unsafe { verbs::ibv_create_cq(verbs, entries, user, channel, 0) };
        if cq.is_null() {
            let error = refused();
            // SAFETY: made just now, and unused.
            unsafe { verbs::ibv_destroy_comp_channel(channel) };
            return Err(error);
        }
        Ok((channel, cq))
    }

    fn create_cqs(&self, send: u32, receive: u32) -> Outcome<()> {
        if receive != 0 {
            let (channel, cq) = self.create_cq(receive)?;
            show!(self, recv_cq_channel: *mut ibv_comp_channel = channel);
            show!(self, recv_cq: *mut ibv_cq = cq);
        }
        if send != 0 {
            let (channel, cq) = match self.create_cq(send) {
                Ok(made) => made,
                Err(e) => {
                    self.destroy_cqs();
                    return Err(e);
                }
            };
            show!(self, send_cq_channel: *mut ibv_comp_channel = channel);
            show!(self, send_cq: *mut ibv_cq = cq);
        }
        Ok(())
    }

    /// Destroys the queues that this library made. Those of an XRC shared receive queue stay with
    /// it.
    fn destroy_cqs(&self) {
        if self.qp_type() == XRC_RECV && !see!(self, srq: *mut ibv_srq).is_null() {
            return;
        }
        let (send, receive) = (
            see!(self, send_cq: *mut ibv_cq),
            see!(self, recv_cq: *mut ibv_cq),
        );
        for cq in distinct(send, receive) {
            // SAFETY: a queue of this identifier, in use by nothing more.
            unsafe { verbs::ibv_destroy_cq(cq) };
        }
        show!(self, send_cq: *mut ibv_cq = core::ptr::null_mut());
        show!(self, recv_cq: *mut ibv_cq = core::ptr::null_mut());
        let send = see!(self, send_cq_channel: *mut ibv_comp_channel);
        let receive = see!(self, recv_cq_channel: *mut ibv_comp_channel);
        for channel in distinct(send, receive) {
            // SAFETY: a channel of this identifier; its queue has gone.
            unsafe { verbs::ibv_destroy_comp_channel(channel) };
        }
        show!(self, send_cq_channel: *mut ibv_comp_channel = core::ptr::null_mut());
        show!(self, recv_cq_channel: *mut ibv_comp_channel = core::ptr::null_mut());
    }

    /// Checks what the program gives, and fills in what the identifier has.
    fn fill_qp(&self, init: &mut ibv_qp_init_attr_ex) -> Outcome<()> {
        let verbs = self.verbs()?;
        if init.comp_mask & QP_PD == 0 || init.pd.is_null() {
            init.comp_mask |= QP_PD;
            init.pd = see!(self, pd: *mut ibv_pd);
        } else {
            // SAFETY: the program gives a living protection domain.
            let context = unsafe { (*init.pd).context };
            if context != verbs {
                return Err(Misuse::invalid(
                    "rdma_create_qp: the protection domain is of another context than the \
                     identifier's (id->verbs)",
                ));
            }
        }
        let (send, receive) = (
            see!(self, send_cq: *mut ibv_cq),
            see!(self, recv_cq: *mut ibv_cq),
        );
        let other = |own: *mut ibv_cq, given: *mut ibv_cq| {
            !own.is_null() && !given.is_null() && own != given
        };
        if other(receive, init.recv_cq) || other(send, init.send_cq) {
            return Err(Misuse::invalid(
                "rdma_create_qp: the identifier has other completion queues already",
            ));
        }
        if self.qp_type() == XRC_RECV && (init.comp_mask & QP_XRCD == 0 || init.xrcd.is_null()) {
            init.xrcd = device::xrcd(verbs)?.cast();
            init.comp_mask |= QP_XRCD;
        }
        let wants = |given: *mut ibv_cq, own: *mut ibv_cq, entries: u32| match given.is_null()
            && own.is_null()
        {
            true => entries,
            false => 0,
        };
        self.create_cqs(
            wants(init.send_cq, send, init.cap.max_send_wr),
            wants(init.recv_cq, receive, init.cap.max_recv_wr),
        )?;
        if init.send_cq.is_null() {
            init.send_cq = see!(self, send_cq: *mut ibv_cq);
        }
        if init.recv_cq.is_null() {
            init.recv_cq = see!(self, recv_cq: *mut ibv_cq);
        }
        if init.srq.is_null() {
            init.srq = see!(self, srq: *mut ibv_srq);
        }
        Ok(())
    }

    /// `rdma_create_qp_ex`
    pub(super) fn create_qp(&self, init: &mut ibv_qp_init_attr_ex) -> Outcome<()> {
        if !self.qp().is_null() {
            return Err(Misuse::invalid("the identifier has a queue pair already"));
        }
        self.fill_qp(init)?;
        let begun = new_qp(self.verbs()?, init).and_then(|qp| match self.begin(qp) {
            Ok(()) => Ok(qp),
            Err(e) => {
                // SAFETY: made just now, and unused.
                unsafe { verbs::ibv_destroy_qp(qp) };
                Err(e)
            }
        });
        let qp = match begun {
            Ok(qp) => qp,
            Err(e) => {
                self.destroy_cqs();
                return Err(e);
            }
        };
        // SAFETY: made just now.
        let pd = unsafe { (*qp).pd };
        if !pd.is_null() {
            show!(self, pd: *mut ibv_pd = pd);
        }
        show!(self, qp: *mut ibv_qp = qp);
        Ok(())
    }

    /// As [`Id::create_qp`], with the structure that has no tail.
    pub(super) fn create_plain_qp(
        &self,
        pd: *mut ibv_pd,
        init: &mut ibv_qp_init_attr,
    ) -> Outcome<()> {
        let mut full = ibv_qp_init_attr_ex {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            comp_mask: QP_PD,
            pd,
            ..ibv_qp_init_attr_ex::zeroed()
        };
        let made = self.create_qp(&mut full);
        init.send_cq = full.send_cq;
        init.recv_cq = full.recv_cq;
        init.srq = full.srq;
        init.cap = full.cap;
        made
    }

    pub(super) fn destroy_qp(&self) {
        let qp = self.qp();
        if !qp.is_null() {
            // SAFETY: the identifier's queue pair.
            unsafe { verbs::ibv_destroy_qp(qp) };
        }
        show!(self, qp: *mut ibv_qp = core::ptr::null_mut());
        self.destroy_cqs();
    }

    fn create_srq(&self, init: &mut ibv_srq_init_attr_ex) -> Outcome<()> {
        let verbs = self.verbs()?;
        if init.comp_mask & SRQ_TYPE == 0 {
            return Err(Misuse::invalid(
                "rdma_create_srq_ex: comp_mask must have the type",
            ));
        }
        if init.comp_mask & SRQ_PD == 0 || init.pd.is_null() {
            init.pd = see!(self, pd: *mut ibv_pd);
            init.comp_mask |= SRQ_PD;
        }
        if init.srq_type == XRC {
            if init.comp_mask & SRQ_XRCD == 0 || init.xrcd.is_null() {
                init.xrcd = device::xrcd(verbs)?.cast();
            }
            if init.comp_mask & SRQ_CQ == 0 || init.cq.is_null() {
                self.create_cqs(0, init.attr.max_wr)?;
                init.cq = see!(self, recv_cq: *mut ibv_cq);
            }
            init.comp_mask |= SRQ_XRCD | SRQ_CQ;
        }
        let context = Handle::<Context>::from_raw(verbs);
        let srq = xrc::create_srq_ex(context, Arg::from_raw(init));
        if srq.is_null() {
            let error = Misuse::new(last_errno(), "no shared receive queue to be had");
            self.destroy_cqs();
            return Err(error);
        }
        if see!(self, pd: *mut ibv_pd).is_null() {
            show!(self, pd: *mut ibv_pd = init.pd);
        }
        show!(self, srq: *mut ibv_srq = srq);
        Ok(())
    }

    pub(super) fn destroy_srq(&self) {
        let srq = see!(self, srq: *mut ibv_srq);
        if !srq.is_null() {
            // SAFETY: the identifier's queue.
            unsafe { verbs::ibv_destroy_srq(srq) };
        }
        show!(self, srq: *mut ibv_srq = core::ptr::null_mut());
        self.destroy_cqs();
    }
}

/// Each of two that is not NULL, once.
fn distinct<T>(a: *mut T, b: *mut T) -> impl Iterator<Item = *mut T> {
    let b = (a != b).then_some(b);
    [Some(a), b].into_iter().flatten().filter(|p| !p.is_null())
}

/// As the header's own `ibv_create_qp_ex` does it.
fn new_qp(context: *mut ibv_context, init: &mut ibv_qp_init_attr_ex) -> Outcome<*mut ibv_qp> {
    let made = if init.comp_mask == QP_PD {
        let first: *mut ibv_qp_init_attr_ex = init;
        // SAFETY: a living protection domain; the extended structure begins with the other.
        unsafe { verbs::ibv_create_qp(init.pd, first.cast::<ibv_qp_init_attr>()) }
    } else {
        qp::create_qp_ex(Handle::<Context>::from_raw(context), Arg::from_raw(init))
    };
    if made.is_null() {
        return Err(Misuse::new(
            last_errno(),
            "no queue pair for the identifier",
        ));
    }
    Ok(made)
}

/// `rdma_create_qp`
#[unsafe(no_mangle)]
extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        let arg = Arg::from_raw(init);
        let mut wanted = arg.get()?;
        let made = this.create_plain_qp(pd, &mut wanted);
        arg.set(wanted)?;
        made.map(|()| 0)
    })
}

/// `rdma_create_qp_ex`
#[unsafe(no_mangle)]
extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        if init.is_null() {
            return Err(NULL);
        }
        // SAFETY: rdma_cma.h: an initialised structure, the caller's own.
        this.create_qp(unsafe { &mut *init })?;
        Ok(0)
    })
}

/// `rdma_destroy_qp`
#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    enter::<Silent, ()>(|| {
        Id::of(id)?.destroy_qp();
        Ok(())
    });
}

/// `rdma_create_srq`
#[unsafe(no_mangle)]
extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        let arg = Arg::from_raw(init);
        let wanted = arg.get()?;
        let mut full = ibv_srq_init_attr_ex {
            srq_context: wanted.srq_context,
            attr: wanted.attr,
            comp_mask: SRQ_TYPE | SRQ_PD,
            srq_type: if this.qp_type() == XRC_RECV {
                XRC
            } else {
                BASIC
            },
            pd,
            ..ibv_srq_init_attr_ex::zeroed()
        };
        this.create_srq(&mut full)?;
        arg.set(ibv_srq_init_attr {
            srq_context: full.srq_context,
            attr: full.attr,
        })?;
        Ok(0)
    })
}

/// `rdma_create_srq_ex`
#[unsafe(no_mangle)]
extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        if init.is_null() {
            return Err(NULL);
        }
        // SAFETY: rdma_cma.h: an initialised structure, the caller's own.
        this.create_srq(unsafe { &mut *init })?;
        Ok(0)
    })
}

/// `rdma_destroy_srq`
#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    enter::<Silent, ()>(|| {
        Id::of(id)?.destroy_srq();
        Ok(())
    });
}

/// `rdma_init_qp_attr`: for a queue pair that the program moves itself.
#[unsafe(no_mangle)]
extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        let (attr, mask) = (Arg::from_raw(attr), Arg::from_raw(mask));
        let state = attr.get()?.qp_state;
        this.verbs()?;
        let known = this.known()?;
        let (out, bits) = attributes(&known, this.qp_type(), state)?;
        attr.set(out)?;
        mask.set(bits.bits().cast_signed())?;
        Ok(0)
    })
}

/// Whether a count of READs and atomics was left to the library.
pub(super) const fn chosen(count: u8) -> Option<u8> {
    if count == ALL { None } else { Some(count) }
}
