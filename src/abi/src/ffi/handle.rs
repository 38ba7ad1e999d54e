//! Pointers to verbs objects: whose they are, and how ours are reached.
//!
//! Each object begins with a pointer to its context, a context with a pointer to its device, and
//! our devices begin with the address of a mark that no other library can have. So following the
//! first word tells the owner, for every kind of object.

use core::ffi::c_void;
use core::marker::PhantomData;

use super::boundary::{NULL, Outcome};
use super::real;

/// Our devices carry its address in their first word.
static MARK: u8 = 0x4f;

/// The first word of a device of ours.
pub(crate) fn mark() -> *const c_void {
    core::ptr::from_ref(&MARK).cast()
}

/// An object of this library that C knows by a pointer to its C structure.
pub(crate) trait Object {
    /// How often the first word is followed to reach the device's mark.
    const DEPTH: usize;
    /// Where the C structure lies inside the Rust one.
    const OFFSET: usize = 0;
}

/// An argument of a C entry: a pointer to an object of ours, of the real library's, or NULL.
#[repr(transparent)]
pub(crate) struct Handle<T>(*mut c_void, PhantomData<T>);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Handle<T> {}

/// Whose object a pointer names.
pub(crate) enum Owner<'a, T> {
    /// One of ours.
    Us(&'a T),
    /// The real library's: the call goes there.
    Them(&'static real::Library),
}

impl<T: Object> Handle<T> {
    /// A pointer out of a C structure.
    pub(crate) const fn from_raw<H>(p: *mut H) -> Self {
        Self(p.cast(), PhantomData)
    }

    /// The caller gave NULL.
    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Finds the owner; EINVAL for NULL.
    pub(crate) fn owner<'a>(self) -> Outcome<Owner<'a, T>> {
        let mut word: *const c_void = self.0;
        for _ in 0..=T::DEPTH {
            if word.is_null() {
                return Err(NULL);
            }
            // SAFETY: verbs.h: the caller passes a live object; its first word, followed DEPTH
            // times, passes live objects only (context, device) and ends at the device's mark.
            word = unsafe { word.cast::<*const c_void>().read() };
        }
        if word == mark() {
            Ok(Owner::Us(self.ours()))
        } else {
            real::library().map(Owner::Them)
        }
    }

    /// An object that must be ours because it came along with one of ours. EINVAL otherwise.
    pub(crate) fn mine<'a>(self) -> Outcome<&'a T> {
        match self.owner()? {
            Owner::Us(object) => Ok(object),
            Owner::Them(_) => Err(FOREIGN),
        }
    }

    /// The object, when the pointer can only be ours: entries reached through our own context's
    /// table.
    pub(crate) fn ours<'a>(self) -> &'a T {
        // SAFETY: an object of ours lies at OFFSET before its C structure, in a Box that lives
        // until the application destroys the object, which ends its right to pass the pointer.
        unsafe { &*self.0.wrapping_byte_sub(T::OFFSET).cast::<T>() }
    }

    /// Where the object lies.
    pub(crate) fn place(self) -> *mut T {
        self.0.wrapping_byte_sub(T::OFFSET).cast()
    }

    /// Takes back the box of an object that the application destroyed.
    pub(crate) fn reclaim(self) -> Box<T> {
        // SAFETY: made by Box::into_raw in `give`; a successful destroy comes once.
        unsafe { Box::from_raw(self.0.wrapping_byte_sub(T::OFFSET).cast::<T>()) }
    }
}

/// Hands an object to C: the pointer to its C structure.
pub(crate) fn give<T: Object, H>(object: Box<T>) -> *mut H {
    Box::into_raw(object).wrapping_byte_add(T::OFFSET).cast()
}

const FOREIGN: rocebud_objects::Misuse = rocebud_objects::Misuse::invalid(
    "objects of a rocebud device and of another device are mixed in one call",
);

/// The C structure at the head of an object of ours: C reads and writes its public fields, so no
/// reference to it is ever made.
#[repr(transparent)]
pub(crate) struct Head<H>(core::cell::UnsafeCell<H>);

// SAFETY: access goes through whole-field reads and writes that verbs.h leaves to the caller's
// own synchronisation; the library itself writes a head only inside calls that own the object.
unsafe impl<H> Send for Head<H> {}
// SAFETY: as above.
unsafe impl<H> Sync for Head<H> {}

impl<H: Copy> Head<H> {
    /// A head with this content.
    pub(crate) const fn new(head: H) -> Self {
        Self(core::cell::UnsafeCell::new(head))
    }

    /// What the head holds now.
    pub(crate) fn get(&self) -> H {
        // SAFETY: the cell holds an initialised H; see the Sync promise for races.
        unsafe { self.0.get().read() }
    }

    /// Changes the head.
    pub(crate) fn update(&self, change: impl FnOnce(&mut H)) {
        let mut head = self.get();
        change(&mut head);
        // SAFETY: as in `get`.
        unsafe { self.0.get().write(head) }
    }

    /// Reads the field at `offset`; see [`Head::set_field`].
    #[inline]
    pub(crate) fn field<F: Copy>(&self, offset: usize) -> F {
        assert!(
            offset.is_multiple_of(align_of::<F>()) && offset + size_of::<F>() <= size_of::<H>()
        );
        // SAFETY: as in `set_field`.
        unsafe { self.0.get().wrapping_byte_add(offset).cast::<F>().read() }
    }

    /// Writes the field at `offset`, an `offset_of!` of H with a field of type F. Checked, so that
    /// a wrong pair is a panic and not a stray write.
    #[inline]
    pub(crate) fn set_field<F: Copy>(&self, offset: usize, value: F) {
        assert!(
            offset.is_multiple_of(align_of::<F>()) && offset + size_of::<F>() <= size_of::<H>()
        );
        // SAFETY: inside the head and aligned, as was just checked; heads hold plain fields, for
        // which any bytes are a value. See the Sync promise for races.
        unsafe {
            self.0
                .get()
                .wrapping_byte_add(offset)
                .cast::<F>()
                .write(value)
        };
    }

    /// The address that C knows the object by.
    pub(crate) const fn as_ptr(&self) -> *mut H {
        self.0.get()
    }
}
