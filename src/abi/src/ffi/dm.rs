//! Device memory, which the headers reach through `verbs_context` and the object itself.

use core::ffi::{c_int, c_uint, c_void};

use rocebud_objects::Misuse;

use super::boundary::Arg;
use super::context::Context;
use super::domain::{offer_dm, withdraw};
use super::handle::{Handle, Head, Object, give};
use super::memory::{Pd, access_flags, give_mr, next_handle};
use super::types::{Slot, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr};

/// Device memory of ours.
#[repr(C)]
pub(crate) struct Dm {
    head: Head<ibv_dm>,
    verbs: rocebud_verbs::Dm,
    /// Made by `ibv_import_dm`: another name of what somebody else frees.
    imported: bool,
}

impl Object for Dm {
    const DEPTH: usize = 2;
}

impl Dm {
    /// The address that C knows the device memory by.
    pub(crate) const fn as_ptr(&self) -> *mut ibv_dm {
        self.head.as_ptr()
    }
}

own_entry! {
    /// `verbs_context.alloc_dm`
    fn alloc_dm(context: Context, attr: Arg<ibv_alloc_dm_attr>) -> Pointer, *mut ibv_dm {
        let attr = attr.get()?;
        if attr.comp_mask != 0 {
            return Err(Misuse::invalid("ibv_alloc_dm: comp_mask must be 0"));
        }
        let verbs = context.verbs.alloc_dm(attr.length as u64, attr.log_align_req)?;
        let handle = next_handle();
        offer_dm(handle, &verbs);
        Ok(make_dm(context.as_ptr(), verbs, handle, false))
    }

    /// `verbs_context.free_dm`: EBUSY while it is registered.
    fn free_dm(dm: Dm) -> ErrnoCode, () {
        if dm.imported {
            return Err(Misuse::invalid("ibv_free_dm: imported; ibv_unimport_dm lets it go"));
        }
        dm.verbs.free()?;
        withdraw(dm.head.get().handle);
        drop(Handle::<Dm>::from_raw(dm.as_ptr()).reclaim());
        Ok(())
    }

    /// `verbs_context.reg_dm_mr`
    fn reg_dm_mr(pd: Pd, dm: Handle<Dm>, offset: u64, length: usize, access: c_uint)
        -> Pointer, *mut ibv_mr
    {
        let dm = dm.mine()?;
        let access = access_flags(access)?;
        let verbs = pd.verbs.reg_dm_mr(&dm.verbs, offset, length as u64, access)?;
        Ok(give_mr(pd, verbs, core::ptr::null_mut(), length))
    }

    /// `ibv_dm.memcpy_to_dm`
    fn memcpy_to_dm(dm: Dm, offset: u64, host: *const c_void, length: usize) -> ErrnoCode, () {
        dm.verbs.copy_to(offset, host.expose_provenance() as u64, length as u64)
    }
}

/// `ibv_dm.memcpy_from_dm`
extern "C" fn memcpy_from_dm(
    host: *mut c_void,
    dm: Handle<Dm>,
    offset: u64,
    length: usize,
) -> c_int {
    super::boundary::enter::<super::boundary::ErrnoCode, ()>(|| {
        let host = host.expose_provenance() as u64;
        dm.mine()?.verbs.copy_from(offset, host, length as u64)
    })
}

/// Hands device memory to C.
pub(crate) fn make_dm(
    context: *mut ibv_context,
    verbs: rocebud_verbs::Dm,
    handle: u32,
    imported: bool,
) -> *mut ibv_dm {
    let head = ibv_dm {
        context,
        memcpy_to_dm: slot!(
            memcpy_to_dm,
            fn(Handle<Dm>, u64, *const c_void, usize) -> c_int
        ),
        memcpy_from_dm: slot!(
            memcpy_from_dm,
            fn(*mut c_void, Handle<Dm>, u64, usize) -> c_int
        ),
        comp_mask: 0,
        handle,
    };
    give(Box::new(Dm {
        head: Head::new(head),
        verbs,
        imported,
    }))
}

/// The slots of `verbs_context`: alloc_dm, free_dm, reg_dm_mr.
pub(crate) fn slots() -> [Slot; 3] {
    type Attr = Arg<ibv_alloc_dm_attr>;
    [
        slot!(alloc_dm, fn(Handle<Context>, Attr) -> *mut ibv_dm),
        slot!(free_dm, fn(Handle<Dm>) -> c_int),
        slot!(
            reg_dm_mr,
            fn(Handle<Pd>, Handle<Dm>, u64, usize, c_uint) -> *mut ibv_mr
        ),
    ]
}
