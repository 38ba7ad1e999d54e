//! Protection domains and memory regions.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use rocebud_objects::{Access, Errno, Misuse};
use rocebud_verbs::{Advice, AdvisedRange};
use rocebud_wire::LKey;

use super::boundary::{Arg, Outcome, set_errno};
use super::context::Context;
use super::domain::{offer_mr, offer_pd, withdraw};
use super::handle::{Handle, Head, Object, give};
use super::room::Room;
use super::types::{ibv_context, ibv_mr, ibv_mr_init_attr, ibv_pd, ibv_sge};

/// A protection domain of ours.
#[repr(C)]
pub(crate) struct Pd {
    head: Head<ibv_pd>,
    pub(crate) verbs: rocebud_verbs::Pd,
    /// Where objects on it live, when it is a parent domain with allocators.
    pub(crate) room: Option<Room>,
}

impl Object for Pd {
    const DEPTH: usize = 2;
}

impl Pd {
    /// The address that C knows the PD by.
    pub(crate) const fn as_ptr(&self) -> *mut ibv_pd {
        self.head.as_ptr()
    }

    /// The context that the PD belongs to.
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.head.get().context
    }

    /// The number that it can be imported by.
    pub(crate) fn handle(&self) -> u32 {
        self.head.get().handle
    }
}

/// Hands a protection domain to C. `room` gets the address that C knows it by.
pub(crate) fn make_pd(
    context: *mut ibv_context,
    verbs: rocebud_verbs::Pd,
    handle: u32,
    room: Option<impl FnOnce(*mut ibv_pd) -> Room>,
) -> *mut ibv_pd {
    let head = ibv_pd { context, handle };
    let mut pd = Box::new(Pd {
        head: Head::new(head),
        verbs,
        room: None,
    });
    pd.room = room.map(|room| room(pd.as_ptr()));
    give(pd)
}

/// A memory region of ours.
#[repr(C)]
pub(crate) struct Mr {
    head: Head<ibv_mr>,
    pub(crate) verbs: rocebud_verbs::Mr,
}

impl Object for Mr {
    const DEPTH: usize = 2;
}

impl Mr {
    /// The address that C knows the region by.
    pub(crate) const fn as_ptr(&self) -> *mut ibv_mr {
        self.head.as_ptr()
    }
}

/// Hands a region to C.
pub(crate) fn make_mr(
    pd: &Pd,
    verbs: rocebud_verbs::Mr,
    addr: *mut c_void,
    length: usize,
    handle: u32,
) -> *mut ibv_mr {
    let head = ibv_mr {
        context: pd.context(),
        pd: pd.as_ptr(),
        addr,
        length,
        handle,
        lkey: verbs.lkey().0,
        rkey: verbs.rkey().0,
    };
    give(Box::new(Mr {
        head: Head::new(head),
        verbs,
    }))
}

/// Hands a new region to C; it can be imported from now on.
pub(crate) fn give_mr(
    pd: &Pd,
    verbs: rocebud_verbs::Mr,
    addr: *mut c_void,
    length: usize,
) -> *mut ibv_mr {
    let handle = next_handle();
    offer_mr(handle, &verbs, length);
    make_mr(pd, verbs, addr, length, handle)
}

/// Numbers for the `handle` fields, which tools print: never 0, unique until they wrap.
pub(crate) fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

c_api! {
    /// `ibv_alloc_pd`
    fn ibv_alloc_pd(context: Context) -> Pointer, *mut ibv_pd {
        let (verbs, handle) = (context.verbs.alloc_pd()?, next_handle());
        offer_pd(handle, &verbs);
        Ok(make_pd(context.as_ptr(), verbs, handle, None::<fn(_) -> Room>))
    }

    /// `ibv_dealloc_pd`: EBUSY while anything lives on it.
    fn ibv_dealloc_pd(pd: Pd) -> ErrnoCode, () {
        pd.verbs.dealloc()?;
        if !pd.verbs.is_parent() {
            withdraw(pd.handle());
        }
        drop(Handle::<Pd>::from_raw(pd.as_ptr()).reclaim());
        Ok(())
    }

    /// `ibv_reg_mr`
    fn ibv_reg_mr(pd: Pd, addr: *mut c_void, length: usize, access: c_int)
        -> Pointer, *mut ibv_mr
    {
        register(pd, addr, length, addr.addr() as u64, access.cast_unsigned())
    }

    /// `ibv_reg_mr_iova`: the peer addresses the region by `iova`.
    fn ibv_reg_mr_iova(pd: Pd, addr: *mut c_void, length: usize, iova: u64, access: c_int)
        -> Pointer, *mut ibv_mr
    {
        register(pd, addr, length, iova, access.cast_unsigned())
    }

    /// `ibv_reg_mr_iova2`: the same; the headers call it when the flags may be optional ones.
    fn ibv_reg_mr_iova2(pd: Pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint)
        -> Pointer, *mut ibv_mr
    {
        register(pd, addr, length, iova, access)
    }

    /// `ibv_reg_mr_ex`: by address; descriptors of other devices' memory are not known here.
    fn ibv_reg_mr_ex(pd: Pd, attr: Arg<ibv_mr_init_attr>) -> Pointer, *mut ibv_mr {
        let attr = attr.get()?;
        register(pd, attr.addr, attr.length, iova_of(&attr)?, attr.access.cast_unsigned())
    }

    /// `ibv_rereg_mr`: keys stay as they are, also after a failure.
    fn ibv_rereg_mr(
        mr: Mr, flags: c_int, pd: Handle<Pd>, addr: *mut c_void, length: usize, access: c_int,
    ) -> MinusOne, c_int {
        let to = Wanted { flags, pd, addr, length, access };
        reregister(mr, &to)
    }

    /// `ibv_dereg_mr`
    fn ibv_dereg_mr(mr: Mr) -> ErrnoCode, () {
        mr.verbs.dereg()?;
        withdraw(mr.head.get().handle);
        drop(Handle::<Mr>::from_raw(mr.head.as_ptr()).reclaim());
        Ok(())
    }
}

own_entry! {
    /// `verbs_context.alloc_null_mr`
    fn alloc_null_mr(pd: Pd) -> Pointer, *mut ibv_mr {
        let verbs = pd.verbs.alloc_null_mr()?;
        Ok(give_mr(pd, verbs, core::ptr::null_mut(), usize::MAX))
    }

    /// `verbs_context.advise_mr`
    fn advise_mr(pd: Pd, advice: c_uint, flags: u32, list: *mut ibv_sge, num: u32)
        -> ErrnoCode, ()
    {
        let advice = match advice {
            0 => Advice::Prefetch,
            1 => Advice::PrefetchWrite,
            2 => Advice::PrefetchNoFault,
            _ => return Err(Misuse::new(Errno::EOPNOTSUPP, "ibv_advise_mr: unknown advice")),
        };
        if flags & !ADVISE_FLUSH != 0 {
            return Err(Misuse::invalid("ibv_advise_mr: unknown flags"));
        }
        let num = c_int::try_from(num).unwrap_or(-1);
        let list = super::post::sges(list, num, u32::MAX)?;
        let ranges: Vec<AdvisedRange> = list
            .iter()
            .map(|sge| AdvisedRange {
                lkey: LKey(sge.lkey),
                addr: sge.addr,
                len: u64::from(sge.length),
            })
            .collect();
        pd.verbs.advise_mr(advice, flags & ADVISE_FLUSH != 0, &ranges)
    }
}

/// The slots of `verbs_context`: alloc_null_mr, advise_mr.
pub(crate) fn slots() -> [super::types::Slot; 2] {
    type List = *mut ibv_sge;
    [
        slot!(alloc_null_mr, fn(Handle<Pd>) -> *mut ibv_mr),
        slot!(advise_mr, fn(Handle<Pd>, c_uint, u32, List, u32) -> c_int),
    ]
}

/// `IBV_ADVISE_MR_FLAG_FLUSH`
const ADVISE_FLUSH: u32 = 1;

/// `ibv_reg_mr_ex`'s way of naming memory; the address that the region goes by.
fn iova_of(attr: &ibv_mr_init_attr) -> Outcome<u64> {
    const IOVA: u64 = 1;
    const ADDR: u64 = 1 << 1;
    const FD: u64 = 1 << 2;
    let has = |bit| attr.comp_mask & bit != 0;
    let refused = |errno, why| Err(Misuse::new(errno, why));
    match (has(ADDR), has(FD)) {
        (true, true) | (false, false) => refused(
            Errno::EINVAL,
            "ibv_reg_mr_ex: name the memory by address or by descriptor",
        ),
        (true, false) if attr.comp_mask & !(IOVA | ADDR) == 0 => Ok(if has(IOVA) {
            attr.iova
        } else {
            attr.addr.addr() as u64
        }),
        _ => refused(
            Errno::EOPNOTSUPP,
            "ibv_reg_mr_ex: descriptors and DMA handles are not known here",
        ),
    }
}

/// Arguments of `ibv_rereg_mr`.
struct Wanted {
    flags: c_int,
    pd: Handle<Pd>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
}

/// Answers 0 or `IBV_REREG_MR_ERR_CMD`, errno set. An error outcome is for arguments that rdma-core
/// refuses before it asks the device (`IBV_REREG_MR_ERR_INPUT`).
fn reregister(mr: &Mr, to: &Wanted) -> Outcome<c_int> {
    const TRANSLATION: c_int = 1;
    const PD: c_int = 1 << 1;
    const ACCESS: c_int = 1 << 2;
    const ERR_CMD: c_int = -4;
    let has = |bit| to.flags & bit != 0;
    if to.flags == 0 || to.flags & !(TRANSLATION | PD | ACCESS) != 0 {
        return Err(Misuse::invalid("ibv_rereg_mr: unknown flags, or none"));
    }
    if has(TRANSLATION) && (to.addr.is_null() || to.length == 0) {
        return Err(Misuse::invalid(
            "ibv_rereg_mr: another range needs an address and a length",
        ));
    }
    if to.access != 0 && !has(ACCESS) {
        return Err(Misuse::invalid(
            "ibv_rereg_mr: access flags without IBV_REREG_MR_CHANGE_ACCESS",
        ));
    }
    let done = || -> Outcome<()> {
        let pd = if has(PD) { Some(to.pd.mine()?) } else { None };
        let access = access_flags(to.access.cast_unsigned())?;
        let start = to.addr.expose_provenance() as u64;
        mr.verbs.rereg(&rocebud_verbs::Rereg {
            range: has(TRANSLATION).then_some((start, to.length as u64)),
            pd: pd.map(|pd| &pd.verbs),
            access: has(ACCESS).then_some(access),
        })?;
        mr.head.update(|head| {
            if has(TRANSLATION) {
                offer_mr(head.handle, &mr.verbs, to.length);
                (head.addr, head.length) = (to.addr, to.length);
            }
            if let Some(pd) = pd {
                head.pd = pd.as_ptr();
            }
        });
        Ok(())
    };
    Ok(match done() {
        Ok(()) => 0,
        Err(refused) => {
            set_errno(refused.errno);
            ERR_CMD
        }
    })
}

/// Optional flags (from bit 20 up) may be ignored by a device that does not know them.
pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;

/// The access flags that regions know, less unknown optional ones.
pub(crate) fn access_flags(access: u32) -> Outcome<Access> {
    let known = Access::from_bits_truncate(access);
    if access & !OPTIONAL & !known.bits() != 0 {
        return Err(Misuse::invalid("ibv_reg_mr: unknown access flags"));
    }
    Ok(known)
}

fn register(
    pd: &Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Outcome<*mut ibv_mr> {
    let access = access_flags(access)?;
    if addr.addr().checked_add(length).is_none() {
        return Err(Misuse::new(
            Errno::EFAULT,
            "ibv_reg_mr: the range wraps round",
        ));
    }
    // The library copies from and to the region by its address alone.
    let start = addr.expose_provenance() as u64;
    let verbs = pd.verbs.reg_mr(start, length as u64, iova, access)?;
    Ok(give_mr(pd, verbs, addr, length))
}
