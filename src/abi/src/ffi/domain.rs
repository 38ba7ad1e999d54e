//! Thread domains, parent domains, and objects imported within the process.
//!
//! A device is imported by its command descriptor, everything else by the number in its `handle`
//! field. Between processes nothing can be imported: the engine with all its objects lives in the
//! process that made them.

use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rocebud_objects::{Errno, Misuse};

use super::boundary::{Arg, Pointer, enter};
use super::context::{Context, open_context};
use super::dm::Dm;
use super::handle::{Handle, Head, Object, give};
use super::memory::{Mr, Pd};
use super::real;
use super::room::Room;
use super::types::{
    ibv_context, ibv_dm, ibv_mr, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};

/// A thread domain of ours.
#[repr(C)]
pub(crate) struct Td {
    head: Head<ibv_td>,
    verbs: rocebud_verbs::Td,
}

impl Object for Td {
    const DEPTH: usize = 2;
}

/// `enum ibv_parent_domain_init_attr_mask`
const MASK_ALLOCATORS: u32 = 1;
const MASK_PD_CONTEXT: u32 = 1 << 1;

own_entry! {
    /// `verbs_context.alloc_td`
    fn alloc_td(context: Context, init: Arg<ibv_td_init_attr>) -> Pointer, *mut ibv_td {
        if init.get()?.comp_mask != 0 {
            return Err(Misuse::invalid("ibv_alloc_td: comp_mask must be 0"));
        }
        let verbs = context.verbs.alloc_td()?;
        let head = ibv_td { context: context.as_ptr() };
        Ok(give(Box::new(Td { head: Head::new(head), verbs })))
    }

    /// `verbs_context.dealloc_td`: EBUSY while a parent domain stands on it.
    fn dealloc_td(td: Td) -> ErrnoCode, () {
        td.verbs.dealloc()?;
        drop(Handle::<Td>::from_raw(td.head.as_ptr()).reclaim());
        Ok(())
    }

    /// `verbs_context.alloc_parent_domain`
    fn alloc_parent_domain(_context: Context, init: Arg<ibv_parent_domain_init_attr>)
        -> Pointer, *mut ibv_pd
    {
        let wanted = init.get()?;
        if wanted.comp_mask & !(MASK_ALLOCATORS | MASK_PD_CONTEXT) != 0 {
            return Err(Misuse::invalid("ibv_alloc_parent_domain: unknown bits in comp_mask"));
        }
        let base = Handle::<Pd>::from_raw(wanted.pd).mine()?;
        let td = Handle::<Td>::from_raw(wanted.td);
        let td = if td.is_null() { None } else { Some(&td.mine()?.verbs) };
        let allocators = if wanted.comp_mask & MASK_ALLOCATORS == 0 {
            None
        } else {
            let pair = wanted.alloc.zip(wanted.free);
            Some(pair.ok_or(Misuse::invalid("ibv_alloc_parent_domain: an allocator is NULL"))?)
        };
        let verbs = base.verbs.parent(td)?;
        let context = if wanted.comp_mask & MASK_PD_CONTEXT == 0 {
            core::ptr::null_mut()
        } else {
            wanted.pd_context
        };
        let room = allocators.map(|(alloc, free)| {
            move |pd| Room { pd, context, alloc, free }
        });
        Ok(super::memory::make_pd(base.context(), verbs, base.handle(), room))
    }
}

/// What can be imported, by its handle.
enum Shared {
    Pd(rocebud_verbs::Pd),
    /// The region, and its length.
    Mr(rocebud_verbs::Mr, usize),
    Dm(rocebud_verbs::Dm),
}

static SHARED: Mutex<Option<HashMap<u32, Shared>>> = Mutex::new(None);

fn shared() -> MutexGuard<'static, Option<HashMap<u32, Shared>>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A protection domain can be imported from now on.
pub(crate) fn offer_pd(handle: u32, pd: &rocebud_verbs::Pd) {
    let pd = Shared::Pd(pd.clone());
    shared().get_or_insert_default().insert(handle, pd);
}

/// A memory region can be imported from now on.
pub(crate) fn offer_mr(handle: u32, mr: &rocebud_verbs::Mr, length: usize) {
    let mr = Shared::Mr(mr.clone(), length);
    shared().get_or_insert_default().insert(handle, mr);
}

/// Device memory can be imported from now on.
pub(crate) fn offer_dm(handle: u32, dm: &rocebud_verbs::Dm) {
    let dm = Shared::Dm(dm.clone());
    shared().get_or_insert_default().insert(handle, dm);
}

/// The object of this handle was destroyed.
pub(crate) fn withdraw(handle: u32) {
    if let Some(objects) = shared().as_mut() {
        objects.remove(&handle);
    }
}

/// Forgets what closed devices left behind.
pub(crate) fn withdraw_dead() {
    if let Some(objects) = shared().as_mut() {
        objects.retain(|_, object| match object {
            Shared::Pd(pd) => pd.is_alive(),
            Shared::Mr(mr, _) => mr.is_alive(),
            Shared::Dm(dm) => dm.is_alive(),
        });
    }
}

const NO_SUCH_HANDLE: Misuse = Misuse::new(
    Errno::ENOENT,
    "import: this open device has no object of that kind and handle",
);
const ANOTHER_PROCESS: Misuse = Misuse::new(
    Errno::EOPNOTSUPP,
    "ibv_import_device: the descriptor is another process's; objects are shared within one alone",
);
/// No descriptor of an open device at all.
pub(crate) const NOT_A_DEVICE: Misuse =
    Misuse::invalid("ibv_import_device: not a descriptor of an open verbs device");

/// `ibv_import_device`: the descriptor is the new context's from now on.
#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    if let Some(f) = theirs(cmd_fd) {
        return f(cmd_fd);
    }
    enter::<Pointer, *mut ibv_context>(|| {
        let (device, verbs) = super::command::find(cmd_fd)?.ok_or(ANOTHER_PROCESS)?;
        verbs.check_process().map_err(|_| ANOTHER_PROCESS)?;
        let verbs = verbs.import()?;
        open_context(device, verbs, cmd_fd)
    })
}

type Import = extern "C" fn(c_int) -> *mut ibv_context;

/// The real library's call, when the descriptor can only be for it.
fn theirs(cmd_fd: c_int) -> Option<Import> {
    if super::command::find(cmd_fd).is_ok() || !real::has_devices() {
        return None;
    }
    let f = real::library().ok()?.symbol(c"ibv_import_device")?;
    // SAFETY: the real library's function has this type.
    Some(unsafe { core::mem::transmute::<*mut c_void, Import>(f) })
}

c_api! {
    /// `ibv_import_pd`
    fn ibv_import_pd(context: Context, handle: u32) -> Pointer, *mut ibv_pd {
        let objects = shared();
        let Some(Shared::Pd(pd)) = objects.as_ref().and_then(|all| all.get(&handle)) else {
            return Err(NO_SUCH_HANDLE);
        };
        let verbs = pd.import(&context.verbs)?;
        drop(objects);
        Ok(super::memory::make_pd(context.as_ptr(), verbs, handle, None::<fn(_) -> Room>))
    }

    /// `ibv_unimport_pd`: the protection domain itself stays.
    fn ibv_unimport_pd(pd: Pd) -> Silent, () {
        drop(Handle::<Pd>::from_raw(pd.as_ptr()).reclaim());
        Ok(())
    }

    /// `ibv_import_dm`
    fn ibv_import_dm(context: Context, handle: u32) -> Pointer, *mut ibv_dm {
        let objects = shared();
        let Some(Shared::Dm(dm)) = objects.as_ref().and_then(|all| all.get(&handle)) else {
            return Err(NO_SUCH_HANDLE);
        };
        let verbs = dm.import(&context.verbs)?;
        drop(objects);
        Ok(super::dm::make_dm(context.as_ptr(), verbs, handle, true))
    }

    /// `ibv_unimport_dm`: the device memory itself stays.
    fn ibv_unimport_dm(dm: Dm) -> Silent, () {
        drop(Handle::<Dm>::from_raw(dm.as_ptr()).reclaim());
        Ok(())
    }

    /// `ibv_import_mr`: its address is not known here.
    fn ibv_import_mr(pd: Pd, handle: u32) -> Pointer, *mut ibv_mr {
        let objects = shared();
        let Some(Shared::Mr(mr, length)) = objects.as_ref().and_then(|all| all.get(&handle)) else {
            return Err(NO_SUCH_HANDLE);
        };
        let (verbs, length) = (mr.import(&pd.verbs)?, *length);
        drop(objects);
        Ok(super::memory::make_mr(pd, verbs, core::ptr::null_mut(), length, handle))
    }

    /// `ibv_unimport_mr`: the region itself stays.
    fn ibv_unimport_mr(mr: Mr) -> Silent, () {
        drop(Handle::<Mr>::from_raw(mr.as_ptr()).reclaim());
        Ok(())
    }
}
