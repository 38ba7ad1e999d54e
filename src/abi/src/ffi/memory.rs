//! Protection domains and memory regions.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use rocebud_objects::{Access, Errno, Misuse};

use super::boundary::Outcome;
use super::context::Context;
use super::domain::{offer_mr, offer_pd, withdraw};
use super::handle::{Handle, Head, Object, give};
use super::room::Room;
use super::types::{ibv_context, ibv_mr, ibv_pd};

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

    /// `ibv_dereg_mr`
    fn ibv_dereg_mr(mr: Mr) -> ErrnoCode, () {
        mr.verbs.dereg()?;
        withdraw(mr.head.get().handle);
        drop(Handle::<Mr>::from_raw(mr.head.as_ptr()).reclaim());
        Ok(())
    }
}

/// Optional flags (from bit 20 up) may be ignored by a device that does not know them.
pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;

/// The access flags that regions know, less unknown optional ones.
fn access_flags(access: u32) -> Outcome<Access> {
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
    let handle = next_handle();
    offer_mr(handle, &verbs, length);
    Ok(make_mr(pd, verbs, addr, length, handle))
}
