//! Memory that a program gives for our objects: the allocators of a parent domain.
//!
//! A queue pair, completion queue or shared receive queue on such a domain lives in that memory
//! itself, from creation to destruction; then the memory goes back.

use core::ffi::c_void;

use rocebud_objects::{Errno, Misuse};

use super::boundary::Outcome;
use super::handle::{Handle, Object, give};
use super::types::ibv_pd;

/// `ibv_parent_domain_init_attr.alloc`: domain, its context, bytes, alignment, what for.
pub(crate) type Alloc =
    unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
/// `ibv_parent_domain_init_attr.free`: domain, its context, memory, what for.
pub(crate) type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// The allocators of a parent domain.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// The parent domain, as its allocators know it.
    pub(crate) pd: *mut ibv_pd,
    /// `pd_context`
    pub(crate) context: *mut c_void,
    /// Gives memory.
    pub(crate) alloc: Alloc,
    /// Takes it back.
    pub(crate) free: Free,
}

// SAFETY: the pointers are the program's own and only handed back to it; verbs.h lets objects of a
// domain be made and destroyed on any thread.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

/// An object that may live in memory of the program's.
pub(crate) trait Housed: Object {
    /// `resource_type` without a driver's number in the upper half: 1 QP, 2 CQ, 3 SRQ.
    const RESOURCE: u64;
    /// Whose memory the object lives in; `None` = ours.
    fn home(&mut self) -> &mut Option<Room>;
}

/// Objects begin at cache lines.
const ALIGNMENT: usize = 64;

/// `IBV_ALLOCATOR_USE_DEFAULT`
const USE_DEFAULT: usize = usize::MAX;

const NO_MEMORY: Misuse = Misuse::new(
    Errno::ENOMEM,
    "the parent domain's allocator gave no memory",
);
const MISALIGNED: Misuse = Misuse::invalid(
    "the parent domain's allocator gave memory that is not aligned as it was asked for",
);

/// Hands an object to C, in the room that its domain has for it.
pub(crate) fn give_in<T: Housed, H>(mut object: Box<T>, room: Option<Room>) -> Outcome<*mut H> {
    *object.home() = None;
    let Some(room) = room else {
        return Ok(give(object));
    };
    let size = size_of::<T>().next_multiple_of(ALIGNMENT);
    // SAFETY: the program's own function, with the arguments that verbs.h gives it.
    let memory = unsafe { (room.alloc)(room.pd, room.context, size, ALIGNMENT, T::RESOURCE) };
    if memory.is_null() {
        return Err(NO_MEMORY);
    }
    if memory.addr() == USE_DEFAULT {
        return Ok(give(object));
    }
    let place = memory.cast::<T>();
    if !place.is_aligned() {
        // SAFETY: the memory that `alloc` has just given.
        unsafe { (room.free)(room.pd, room.context, memory, T::RESOURCE) };
        return Err(MISALIGNED);
    }
    *object.home() = Some(room);
    // SAFETY: verbs.h: `alloc` gives `size` bytes, ours until they are freed; alignment was checked.
    unsafe { place.write(*object) };
    Ok(place.wrapping_byte_add(T::OFFSET).cast())
}

/// Ends an object that the application destroyed, and gives its memory back.
pub(crate) fn retire<T: Housed>(handle: Handle<T>) {
    let place = handle.place();
    // SAFETY: a successful destroy comes once and ends the application's right to the object.
    let home = unsafe { (*place).home().take() };
    let Some(room) = home else {
        drop(handle.reclaim());
        return;
    };
    // SAFETY: written by `give_in`; nobody uses it any more.
    unsafe { place.drop_in_place() };
    // SAFETY: memory of this room.
    unsafe { (room.free)(room.pd, room.context, place.cast(), T::RESOURCE) };
}
