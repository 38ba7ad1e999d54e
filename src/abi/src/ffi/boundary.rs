//! What every C entry does: no panic crosses it, and each call answers by its own convention.

use core::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rocebud_objects::{Errno, Misuse};

/// A verbs call's outcome before it takes the shape that C expects.
pub(crate) type Outcome<T> = Result<T, Misuse>;

/// How a C function tells failure.
pub(crate) trait Convention<T> {
    /// The C return type.
    type Ret;
    /// The answer for an outcome.
    fn answer(outcome: Outcome<T>) -> Self::Ret;
}

/// 0, or a positive errno: most of ibv_*.
pub(crate) struct ErrnoCode;
/// The value, or −1 with errno set.
pub(crate) struct MinusOne;
/// The pointer, or NULL with errno set.
pub(crate) struct Pointer;
/// Nothing to say.
pub(crate) struct Silent;
/// The count, or a negative errno.
pub(crate) struct NegativeErrno;
/// The count, or a negative errno, as an int.
pub(crate) struct CountOrNegative;
/// The value as it is; failures give the type's zero.
pub(crate) struct Value;

impl Convention<()> for ErrnoCode {
    type Ret = c_int;
    fn answer(outcome: Outcome<()>) -> c_int {
        match outcome {
            Ok(()) => 0,
            Err(e) => {
                set_errno(e.errno);
                e.errno.0
            }
        }
    }
}

impl Convention<c_int> for MinusOne {
    type Ret = c_int;
    fn answer(outcome: Outcome<c_int>) -> c_int {
        outcome.unwrap_or_else(|e| {
            set_errno(e.errno);
            -1
        })
    }
}

impl Convention<isize> for MinusOne {
    type Ret = isize;
    fn answer(outcome: Outcome<isize>) -> isize {
        outcome.unwrap_or_else(|e| {
            set_errno(e.errno);
            -1
        })
    }
}

impl<T> Convention<*mut T> for Pointer {
    type Ret = *mut T;
    fn answer(outcome: Outcome<*mut T>) -> *mut T {
        outcome.unwrap_or_else(|e| {
            set_errno(e.errno);
            core::ptr::null_mut()
        })
    }
}

impl Convention<()> for Silent {
    type Ret = ();
    fn answer(_: Outcome<()>) {}
}

impl Convention<usize> for NegativeErrno {
    type Ret = isize;
    fn answer(outcome: Outcome<usize>) -> isize {
        match outcome {
            Ok(n) => n.cast_signed(),
            Err(e) => -(e.errno.0 as isize),
        }
    }
}

impl Convention<usize> for CountOrNegative {
    type Ret = c_int;
    fn answer(outcome: Outcome<usize>) -> c_int {
        match outcome {
            Ok(n) => c_int::try_from(n).unwrap_or(c_int::MAX),
            Err(e) => -e.errno.0,
        }
    }
}

impl<T: Default> Convention<T> for Value {
    type Ret = T;
    fn answer(outcome: Outcome<T>) -> T {
        outcome.unwrap_or_default()
    }
}

/// Runs the body of a C entry. A panic is our own fault: the application gets EIO and lives on.
pub(crate) fn enter<C: Convention<T>, T>(body: impl FnOnce() -> Outcome<T>) -> C::Ret {
    C::answer(guard(body))
}

/// Runs a body whose failure is kept for later. A panic of ours becomes EIO.
///
/// A thread that was cancelled (`pthread_cancel`) lives on until it has left: nothing in here can be
/// unwound, and the C library would do it in any read or write. Who waits, is in [`sleep`](super::sleep).
pub(crate) fn guard<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _later = Uncancelled::new();
    guard_fast(body)
}

/// As [`enter`], for the data path, where no call of the C library is a cancellation point.
#[inline]
pub(crate) fn enter_fast<C: Convention<T>, T>(body: impl FnOnce() -> Outcome<T>) -> C::Ret {
    C::answer(guard_fast(body))
}

/// As [`guard`], for the data path.
#[inline]
pub(crate) fn guard_fast<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(PANICKED))
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// While this lives, the calling thread is not cancelled.
struct Uncancelled(c_int);

impl Uncancelled {
    fn new() -> Self {
        const DISABLE: c_int = 1;
        let mut old = 0;
        // SAFETY: room for an int.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
        Self(old)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: a state that it had; NULL: nobody wants to know the old one.
        unsafe { pthread_setcancelstate(self.0, core::ptr::null_mut()) };
    }
}

const PANICKED: Misuse = Misuse::new(
    Errno::EIO,
    "rocebud panicked inside this call; the message is on standard error; please report it",
);

/// A pointer argument is NULL that must not be.
pub(crate) const NULL: Misuse = Misuse::invalid("a pointer argument of this call is NULL");

/// Sets the calling thread's errno.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: takes nothing and always answers.
    let own = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own int.
    unsafe { own.write(errno.0) }
}

/// The calling thread's errno after a failed call of libc.
pub(crate) fn last_errno() -> Errno {
    Errno(
        std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    )
}

/// A pointer argument to one C structure, read or written as a whole.
#[repr(transparent)]
pub(crate) struct Arg<T>(*mut T);

impl<T> Clone for Arg<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Arg<T> {}

impl<T: Copy> Arg<T> {
    /// A pointer made here, into an array of the caller's.
    pub(crate) const fn from_raw(p: *mut T) -> Self {
        Self(p)
    }

    /// The caller gave NULL.
    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The pointer itself, for arithmetic of verbs' list types.
    pub(crate) const fn raw(self) -> *mut T {
        self.0
    }

    /// Reads the structure; EINVAL for NULL.
    pub(crate) fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(NULL);
        }
        // SAFETY: verbs.h: the caller passes a pointer to an initialised T, or NULL.
        Ok(unsafe { self.0.read() })
    }

    /// Writes the structure; EINVAL for NULL.
    pub(crate) fn set(self, value: T) -> Outcome<()> {
        if self.0.is_null() {
            return Err(NULL);
        }
        // SAFETY: verbs.h: the caller passes a pointer to room for a T, or NULL.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes the structure unless the caller did not want it.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            let _ = self.set(value);
        }
    }

    /// Writes the first `room` bytes of `value` and zeroes what the caller knows beyond it: the
    /// rule for structures that grow at their tail and come with their size.
    pub(crate) fn set_sized(self, value: &T, room: usize) -> Outcome<()> {
        if self.0.is_null() {
            return Err(NULL);
        }
        let n = room.min(size_of::<T>());
        let dst = self.0.cast::<u8>();
        // SAFETY: the caller vouches for `room` bytes at the pointer; n <= room.
        unsafe { core::ptr::copy_nonoverlapping(core::ptr::from_ref(value).cast(), dst, n) };
        // SAFETY: as above; n..room lies inside the caller's structure.
        unsafe { dst.wrapping_add(n).write_bytes(0, room - n) };
        Ok(())
    }

    /// Writes element `i` of the caller's array.
    ///
    /// # Safety
    /// The caller's array has more than `i` elements.
    pub(crate) unsafe fn set_at(self, i: usize, value: T) {
        // SAFETY: the caller of this function vouches for the index.
        unsafe { self.0.wrapping_add(i).write(value) }
    }
}

/// A pointer that passes through us unchanged.
pub(crate) type Opaque = *mut c_void;
