//! Ends of the process that no handler of the C library's hears of.
//!
//! What `exit` ends has handlers by which the library says what is due; `_exit` has none, and a program
//! that ends by it with its last receive just polled would take the ACK along. So it passes through here.
//! (`quick_exit` has handlers of its own.) The library itself cannot stand in for `_exit`: by its name it is
//! a library of verbs, and a program that opens it by `dlopen` has bound `_exit` long before.
//!
//! Proof: tests/peer/c/hasty.c.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::Next;

type Watcher = extern "C" fn();
type Exit = unsafe extern "C" fn(c_int) -> !;

/// What the library wants to be called before the end; null until it asked.
static WATCHER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

static EXIT: Next = Next::new(c"_exit");

/// Looks the C library's function up while that is allowed: it may be called from handlers.
pub(super) fn prepare() {
    let _ = EXIT.get();
}

/// For the library: from now on `watcher` is called before the process ends by `_exit` or `_Exit`, in the
/// thread that calls it: a handler of a signal, or a child made by `vfork`, maybe. The first library that asks has it.
#[unsafe(no_mangle)]
extern "C" fn rocebud_shim_watch_exit(watcher: Option<Watcher>) {
    if let Some(watcher) = watcher {
        let watcher = watcher as *mut c_void;
        let null = ptr::null_mut();
        let _ = WATCHER.compare_exchange(null, watcher, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// `_exit`
#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> ! {
    let watcher = WATCHER.load(Ordering::Acquire);
    if !watcher.is_null() {
        // SAFETY: only `rocebud_shim_watch_exit` stores there, and functions of this type.
        let watcher = unsafe { core::mem::transmute::<*mut c_void, Watcher>(watcher) };
        watcher();
    }
    if let Some(next) = EXIT.get() {
        // SAFETY: the C library's function of this name has this type.
        let next = unsafe { core::mem::transmute::<*mut c_void, Exit>(next) };
        // SAFETY: ends the process.
        unsafe { next(status) }
    }
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Another name for `_exit`.
#[unsafe(no_mangle)]
extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}
