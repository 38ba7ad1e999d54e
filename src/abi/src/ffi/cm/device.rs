//! The contexts that this library opens for its callers, one a device, each with a protection
//! domain. They stay for the process, as programs keep them beyond any list.

use core::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use rocebud_objects::{Errno, Misuse};

use super::super::boundary::{Arg, Outcome, Pointer, enter, last_errno};
use super::super::context::{self, Context};
use super::super::handle::{Handle, Owner};
use super::super::types::{ibv_context, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr};
use super::super::{device, xrc};
use super::verbs;

/// A context, and what is made on it when it is first wanted.
#[derive(Clone, Copy)]
struct Opened {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    /// READs and atomics that a queue pair answers and issues at a time: asked for once, as asking
    /// a device about itself is slow where raw packets are allowed.
    depths: (u8, u8),
}
// SAFETY: verbs objects may be used on any thread, and nobody closes these.
unsafe impl Send for Opened {}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

const GONE: Misuse = Misuse::new(Errno::ENODEV, "the device of this address is gone");

fn ours<'a>(context: *mut ibv_context) -> Option<&'a Context> {
    match Handle::<Context>::from_raw(context).owner() {
        Ok(Owner::Us(context)) => Some(context),
        _ => None,
    }
}

/// A device that came back and a child made by fork get new contexts.
fn lives(context: *mut ibv_context) -> bool {
    ours(context).is_some_and(|c| c.verbs.is_usable())
}

/// One living context a device, of the devices that are there now.
fn contexts() -> Outcome<Vec<*mut ibv_context>> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = Vec::new();
    for device in device::ours()? {
        let of_device = |c: *mut ibv_context| ours(c).is_some_and(|c| c.is_of(device.as_ptr()));
        let known = opened.iter().map(|o| o.context);
        let known = known.filter(|c| of_device(*c)).find(|c| lives(*c));
        let context = match known {
            Some(context) => context,
            None => {
                let context = context::open(device)?;
                opened.push(Opened {
                    context,
                    pd: core::ptr::null_mut(),
                    xrcd: core::ptr::null_mut(),
                    depths: ask_depths(context),
                });
                context
            }
        };
        all.push(context);
    }
    Ok(all)
}

fn with<T>(context: *mut ibv_context, act: impl FnOnce(&mut Opened) -> Outcome<T>) -> Outcome<T> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = opened.iter_mut();
    let one = all.find(|o| o.context == context).ok_or(GONE)?;
    act(one)
}

/// Context and protection domain of the device on an interface.
pub(super) fn on(ifindex: u32) -> Outcome<(*mut ibv_context, *mut ibv_pd)> {
    let is_it = |c: &*mut ibv_context| {
        lives(*c) && ours(*c).is_some_and(|c| c.verbs.device_info().ifindex == ifindex)
    };
    let known: Vec<_> = {
        let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        opened.iter().map(|o| o.context).collect()
    };
    let context = match known.into_iter().find(is_it) {
        Some(context) => context,
        None => contexts()?.into_iter().find(is_it).ok_or(GONE)?,
    };
    let pd = with(context, |one| {
        if one.pd.is_null() {
            // SAFETY: a living context of ours.
            one.pd = unsafe { verbs::ibv_alloc_pd(context) };
        }
        Ok(one.pd)
    })?;
    if pd.is_null() {
        return Err(Misuse::new(last_errno(), "no protection domain to be had"));
    }
    Ok((context, pd))
}

/// The XRC domain of a device that an identifier is bound to.
pub(super) fn xrcd(context: *mut ibv_context) -> Outcome<*mut ibv_xrcd> {
    const FD_AND_OFLAGS: u32 = 1 | 1 << 1;
    with(context, |one| {
        if one.xrcd.is_null() {
            let mut init = ibv_xrcd_init_attr {
                comp_mask: FD_AND_OFLAGS,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            let context = Handle::<Context>::from_raw(context);
            one.xrcd = xrc::open_xrcd(context, Arg::from_raw(&raw mut init));
        }
        if one.xrcd.is_null() {
            return Err(Misuse::new(last_errno(), "no XRC domain to be had"));
        }
        Ok(one.xrcd)
    })
}

fn ask_depths(context: *mut ibv_context) -> (u8, u8) {
    let Some(context) = ours(context) else {
        return (0, 0);
    };
    let attr = context.verbs.query_device();
    let cut = |n: u32| u8::try_from(n).unwrap_or(u8::MAX);
    (cut(attr.max_qp_rd_atom), cut(attr.max_qp_init_rd_atom))
}

/// Most RDMA READs and atomics that a queue pair of a device answers and issues at a time.
pub(super) fn depths(context: *mut ibv_context) -> (u8, u8) {
    with(context, |one| Ok(one.depths)).unwrap_or_else(|_| ask_depths(context))
}

/// `rdma_get_devices`: a NULL-terminated array of open contexts, of our devices.
#[unsafe(no_mangle)]
extern "C" fn rdma_get_devices(count: Arg<c_int>) -> *mut *mut ibv_context {
    let list = enter::<Pointer, *mut *mut ibv_context>(|| {
        let mut all = contexts()?;
        count.set_if_wanted(c_int::try_from(all.len()).unwrap_or(c_int::MAX));
        all.push(core::ptr::null_mut());
        Ok(Box::into_raw(all.into_boxed_slice()).cast())
    });
    if list.is_null() {
        count.set_if_wanted(0);
    }
    list
}

/// `rdma_free_devices`: only the array goes.
#[unsafe(no_mangle)]
extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    if list.is_null() {
        return;
    }
    let mut n = 0;
    // SAFETY: rdma_cma.h: a list of rdma_get_devices, which ends with NULL.
    while !unsafe { list.wrapping_add(n).read() }.is_null() {
        n += 1;
    }
    // SAFETY: made by rdma_get_devices as a boxed slice of this length.
    drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(list, n + 1)) });
}
