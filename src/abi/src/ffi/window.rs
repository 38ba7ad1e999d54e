//! Memory windows, which the headers reach through `ibv_context.ops`.

use core::ffi::{c_int, c_uint};

use rocebud_objects::{Access, Misuse, MwType, SendFlags, SendOp};
use rocebud_verbs::MwBindInfo;
use rocebud_wire::RKey;

use super::boundary::{Arg, Outcome};
use super::handle::{Handle, Head, Object, give};
use super::memory::{Mr, Pd, next_handle};
use super::qp::Qp;
use super::types::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info};

/// A memory window of ours.
#[repr(C)]
pub(crate) struct Mw {
    head: Head<ibv_mw>,
    verbs: rocebud_verbs::Mw,
}

impl Object for Mw {
    const DEPTH: usize = 2;
}

own_entry! {
    /// `ibv_context.ops.alloc_mw`
    fn alloc_mw(pd: Pd, kind: c_uint) -> Pointer, *mut ibv_mw {
        let mw_type = match kind {
            1 => MwType::One,
            2 => MwType::Two,
            _ => return Err(Misuse::invalid("ibv_alloc_mw: types are 1 and 2")),
        };
        let verbs = pd.verbs.alloc_mw(mw_type)?;
        let head = ibv_mw {
            context: pd.context(),
            pd: pd.as_ptr(),
            rkey: verbs.rkey().0,
            handle: next_handle(),
            r#type: kind,
        };
        Ok(give(Box::new(Mw { head: Head::new(head), verbs })))
    }

    /// `ibv_context.ops.bind_mw`: type 1 only. The window's rkey changes at once.
    fn bind_mw(qp: Qp, mw: Handle<Mw>, bind: Arg<ibv_mw_bind>) -> ErrnoCode, () {
        let (mw, bind) = (mw.mine()?, bind.get()?);
        let flags = SendFlags::from_bits_truncate(bind.send_flags);
        let info = bind_info(&bind.bind_info)?;
        let rkey = qp.verbs.bind_mw(&mw.verbs, bind.wr_id, flags, &info)?;
        mw.head.update(|head| head.rkey = rkey.0);
        Ok(())
    }

    /// `ibv_context.ops.dealloc_mw`
    fn dealloc_mw(mw: Mw) -> ErrnoCode, () {
        mw.verbs.dealloc()?;
        drop(Handle::<Mw>::from_raw(mw.head.as_ptr()).reclaim());
        Ok(())
    }
}

/// The slots of `ibv_context.ops`: alloc_mw, bind_mw, dealloc_mw.
pub(crate) fn slots() -> [super::types::Slot; 3] {
    type Bind = Arg<ibv_mw_bind>;
    [
        slot!(alloc_mw, fn(Handle<Pd>, c_uint) -> *mut ibv_mw),
        slot!(bind_mw, fn(Handle<Qp>, Handle<Mw>, Bind) -> c_int),
        slot!(dealloc_mw, fn(Handle<Mw>) -> c_int),
    ]
}

/// What a send request that binds does: type 2 only; the caller chose `rkey`.
pub(crate) fn bind_operation(
    mw: Handle<Mw>,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Outcome<SendOp> {
    let mw = mw.mine()?;
    if mw.verbs.mw_type() != MwType::Two {
        return Err(Misuse::invalid(
            "IBV_WR_BIND_MW: type 1 windows are bound by ibv_bind_mw",
        ));
    }
    Ok(mw.verbs.bind_op(RKey(rkey), &bind_info(info)?))
}

fn bind_info<'a>(info: &ibv_mw_bind_info) -> Outcome<MwBindInfo<'a>> {
    let mr = if info.mr.is_null() {
        None
    } else {
        Some(&Handle::<Mr>::from_raw(info.mr).mine()?.verbs)
    };
    let access = Access::from_bits_retain(info.mw_access_flags & !super::memory::OPTIONAL);
    Ok(MwBindInfo {
        mr,
        addr: info.addr,
        len: info.length,
        access,
    })
}
