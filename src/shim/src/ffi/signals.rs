//! What the program does to SIGSEGV and SIGBUS, told to the library.
//!
//! The library copies from and to memory that the program may unmap, and its own handlers turn the
//! fault into an error completion. A program that installs handlers later would get those faults.
//! So these functions hand such calls to the library, which keeps its handlers in front and the
//! program's behind. All other signals, and programs that use no verbs, see the C library alone.
//!
//! Proof: the `vanishing_memory` cases of tests/peer, with handlers installed by each function.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::{Next, errno};

type Action = libc::sigaction;
type Sigaction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;
type Signal = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;

/// The library's function that stands in for `sigaction`; null until it asked.
static WATCHER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

static SIGACTION: Next = Next::new(c"sigaction");
static SIGNAL: Next = Next::new(c"signal");
static SYSV_SIGNAL: Next = Next::new(c"__sysv_signal");

/// Looks the C library's functions up while that is allowed: they may be called from handlers.
pub(super) fn prepare() {
    for next in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL] {
        let _ = next.get();
    }
}

/// For the library: from now on `watcher` is called in place of `sigaction` for the two signals.
/// The first library that asks has it. Returns the C library's `sigaction`; null if it has none.
#[unsafe(no_mangle)]
extern "C" fn rocebud_shim_watch_signals(watcher: Option<Sigaction>) -> *mut c_void {
    if let Some(watcher) = watcher {
        let watcher = watcher as *mut c_void;
        let null = ptr::null_mut();
        let _ = WATCHER.compare_exchange(null, watcher, Ordering::AcqRel, Ordering::Relaxed);
    }
    SIGACTION.get().unwrap_or(ptr::null_mut())
}

fn watcher(signal: c_int) -> Option<Sigaction> {
    if signal != libc::SIGSEGV && signal != libc::SIGBUS {
        return None;
    }
    let watcher = WATCHER.load(Ordering::Acquire);
    if watcher.is_null() {
        return None;
    }
    // SAFETY: only `rocebud_shim_watch_signals` stores there, and functions of this type.
    Some(unsafe { core::mem::transmute::<*mut c_void, Sigaction>(watcher) })
}

/// `sigaction`
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    if let Some(watcher) = watcher(signal) {
        // SAFETY: the caller's pointers, as it gave them.
        return unsafe { watcher(signal, new, old) };
    }
    let Some(next) = SIGACTION.get() else {
        return missing();
    };
    // SAFETY: the C library's function of this name has this type.
    let next = unsafe { core::mem::transmute::<*mut c_void, Sigaction>(next) };
    // SAFETY: the caller's pointers, as it gave them.
    unsafe { next(signal, new, old) }
}

/// `signal`, as BSD has it: stays installed, system calls begin again.
#[unsafe(no_mangle)]
extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    simple(&SIGNAL, signal, handler, libc::SA_RESTART)
}

/// Another name for `signal`.
#[unsafe(no_mangle)]
extern "C" fn bsd_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    simple(&SIGNAL, signal, handler, libc::SA_RESTART)
}

/// `signal`, as System V has it: once only. By this name programs that ask for XPG4 call it.
#[unsafe(no_mangle)]
extern "C" fn __sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    let flags = libc::SA_RESETHAND | libc::SA_NODEFER;
    simple(&SYSV_SIGNAL, signal, handler, flags)
}

/// Another name for `__sysv_signal`.
#[unsafe(no_mangle)]
extern "C" fn sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    __sysv_signal(signal, handler)
}

fn simple(
    next: &Next,
    signal: c_int,
    handler: libc::sighandler_t,
    flags: c_int,
) -> libc::sighandler_t {
    if let Some(watcher) = watcher(signal) {
        // SAFETY: integers, a mask and an optional function, for all of which zero is a value.
        let mut action: Action = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut old = action;
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        // SAFETY: two live structures.
        let failed = unsafe { watcher(signal, &raw const action, &raw mut old) } != 0;
        return if failed {
            libc::SIG_ERR
        } else {
            old.sa_sigaction
        };
    }
    let Some(next) = next.get() else {
        missing();
        return libc::SIG_ERR;
    };
    // SAFETY: the C library's functions of these names have this type.
    let next = unsafe { core::mem::transmute::<*mut c_void, Signal>(next) };
    // SAFETY: the caller's handler, as it gave it.
    unsafe { next(signal, handler) }
}

fn missing() -> c_int {
    // SAFETY: errno belongs to this thread.
    unsafe { errno().write(libc::ENOSYS) };
    -1
}
