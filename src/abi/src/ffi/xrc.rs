//! XRC domains, and what lives in them: reached through `verbs_context`.

use core::ffi::c_int;

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::OpenXrcd;
use rocebud_wire::Qpn;

use super::boundary::{Arg, Outcome};
use super::context::Context;
use super::cq::Cq;
use super::handle::{Handle, Head, Object, give};
use super::memory::Pd;
use super::qp::publish_target;
use super::srq::{attr_of, publish_srq};
use super::types::{
    Slot, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_srq, ibv_srq_init_attr_ex, ibv_xrcd,
    ibv_xrcd_init_attr,
};

/// An XRC domain of ours.
#[repr(C)]
pub(crate) struct Xrcd {
    head: Head<ibv_xrcd>,
    pub(crate) verbs: rocebud_verbs::Xrcd,
}

impl Object for Xrcd {
    const DEPTH: usize = 2;
}

/// `enum ibv_xrcd_init_attr_mask`: descriptor and flags, both of which must be there.
const MASK_XRCD: u32 = 1 | 1 << 1;
/// `enum ibv_srq_init_attr_mask`
const MASK_SRQ_TYPE: u32 = 1;
const MASK_SRQ_PD: u32 = 1 << 1;
const MASK_SRQ_XRCD: u32 = 1 << 2;
const MASK_SRQ_CQ: u32 = 1 << 3;
/// `enum ibv_qp_open_attr_mask`
const MASK_OPEN_NUM: u32 = 1;
const MASK_OPEN_XRCD: u32 = 1 << 1;
const MASK_OPEN_CONTEXT: u32 = 1 << 2;
const MASK_OPEN_TYPE: u32 = 1 << 3;
/// `IBV_QPT_XRC_RECV`
const XRC_RECV: u32 = 10;

own_entry! {
    /// `verbs_context.open_xrcd`
    fn open_xrcd(context: Context, init: Arg<ibv_xrcd_init_attr>) -> Pointer, *mut ibv_xrcd {
        let wanted = init.get()?;
        if wanted.comp_mask != MASK_XRCD {
            return Err(Misuse::invalid("ibv_open_xrcd: comp_mask must have FD and OFLAGS alone"));
        }
        if wanted.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Misuse::invalid("ibv_open_xrcd: oflags are O_CREAT and O_EXCL"));
        }
        let verbs = context.verbs.open_xrcd(OpenXrcd {
            fd: (wanted.fd != -1).then_some(wanted.fd),
            create: wanted.oflags & libc::O_CREAT != 0,
            exclusive: wanted.oflags & libc::O_EXCL != 0,
        })?;
        let head = ibv_xrcd { context: context.as_ptr() };
        Ok(give(Box::new(Xrcd { head: Head::new(head), verbs })))
    }

    /// `verbs_context.close_xrcd`: EBUSY while anything lives in it.
    fn close_xrcd(xrcd: Xrcd) -> ErrnoCode, () {
        xrcd.verbs.close()?;
        drop(Handle::<Xrcd>::from_raw(xrcd.head.as_ptr()).reclaim());
        Ok(())
    }

    /// `verbs_context.create_srq_ex`: of the basic type, or of XRC.
    fn create_srq_ex(_context: Context, init: Arg<ibv_srq_init_attr_ex>) -> Pointer, *mut ibv_srq {
        let mut wanted = init.get()?;
        let has = |bit| wanted.comp_mask & bit != 0;
        if !has(MASK_SRQ_PD) {
            return Err(Misuse::invalid("ibv_create_srq_ex: comp_mask must have the PD"));
        }
        let pd = Handle::<Pd>::from_raw(wanted.pd).mine()?;
        let attr = attr_of(&wanted.attr);
        let verbs = match if has(MASK_SRQ_TYPE) { wanted.srq_type } else { 0 } {
            0 => pd.verbs.create_srq(&attr, 0)?,
            1 if has(MASK_SRQ_XRCD) && has(MASK_SRQ_CQ) => {
                let xrcd = Handle::<Xrcd>::from_raw(wanted.xrcd).mine()?;
                let cq = Handle::<Cq>::from_raw(wanted.cq).mine()?;
                pd.verbs.create_xrc_srq(&attr, &xrcd.verbs, &cq.verbs, 0)?
            }
            1 => return Err(Misuse::invalid("ibv_create_srq_ex: XRC needs a domain and a CQ")),
            _ => return Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "ibv_create_srq_ex: types are basic and XRC",
            )),
        };
        let granted = verbs.query()?;
        wanted.attr.max_wr = granted.max_wr;
        wanted.attr.max_sge = granted.max_sge;
        init.set(wanted)?;
        publish_srq(pd, verbs, wanted.srq_context)
    }

    /// `verbs_context.open_qp`: another handle of an XRC_RECV queue pair of this process.
    fn open_qp(context: Context, attr: Arg<ibv_qp_open_attr>) -> Pointer, *mut ibv_qp {
        const NEEDED: u32 = MASK_OPEN_NUM | MASK_OPEN_XRCD | MASK_OPEN_TYPE;
        let wanted = attr.get()?;
        if wanted.comp_mask & !MASK_OPEN_CONTEXT != NEEDED || wanted.qp_type != XRC_RECV {
            return Err(Misuse::invalid(
                "ibv_open_qp: needs number, XRC domain and type, which is XRC_RECV",
            ));
        }
        let xrcd = Handle::<Xrcd>::from_raw(wanted.xrcd).mine()?;
        xrcd.verbs.check(&context.verbs)?;
        let verbs = xrcd.verbs.open_qp(Qpn::new(wanted.qp_num))?;
        let user = if wanted.comp_mask & MASK_OPEN_CONTEXT == 0 {
            core::ptr::null_mut()
        } else {
            wanted.qp_context
        };
        publish_target(xrcd.head.get().context, verbs, user)
    }
}

/// `ibv_create_qp_ex` of the type XRC_RECV.
pub(crate) fn create_target(
    context: &Context,
    wanted: &ibv_qp_init_attr_ex,
) -> Outcome<*mut ibv_qp> {
    let xrcd = Handle::<Xrcd>::from_raw(wanted.xrcd).mine()?;
    xrcd.verbs.check(&context.verbs)?;
    let verbs = xrcd.verbs.create_qp(0)?;
    publish_target(xrcd.head.get().context, verbs, wanted.qp_context)
}

/// The slots of `verbs_context`: open_xrcd, close_xrcd, create_srq_ex, open_qp.
pub(crate) fn slots() -> [Slot; 4] {
    type C = Handle<Context>;
    [
        slot!(open_xrcd, fn(C, Arg<ibv_xrcd_init_attr>) -> *mut ibv_xrcd),
        slot!(close_xrcd, fn(Handle<Xrcd>) -> c_int),
        slot!(
            create_srq_ex,
            fn(C, Arg<ibv_srq_init_attr_ex>) -> *mut ibv_srq
        ),
        slot!(open_qp, fn(C, Arg<ibv_qp_open_attr>) -> *mut ibv_qp),
    ]
}
