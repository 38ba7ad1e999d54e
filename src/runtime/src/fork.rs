//! Children made by `fork`.
//!
//! A child has the parent's memory but not its threads, and its locks may be held by nobody that
//! lives. So the child touches nothing: a word on a page that the kernel wipes in children tells
//! every call to answer with an error, and the handler closes the inherited descriptors by number,
//! so that the child keeps neither sockets nor the connection to the daemon open.

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::sys;

/// Descriptors that a process may have registered here: four slots of eleven sockets, the daemon,
/// and our own.
const FDS_MAX: usize = 128;

static FDS: [AtomicI32; FDS_MAX] = [const { AtomicI32::new(-1) }; FDS_MAX];

/// Begins to watch for forks. Idempotent.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Without it children are not recognised; they would have to misuse their parent's
        // objects for that to matter.
        let _ = sys::watch_forks(in_child);
    });
}

/// This process is a child that was made after [`watch`].
#[inline]
pub(crate) fn is_child() -> bool {
    sys::is_forked()
}

/// A descriptor that children must not keep.
pub(crate) fn close_in_children(fd: RawFd) {
    for place in &FDS {
        let free = place.compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Relaxed);
        if free.is_ok() {
            return;
        }
    }
}

/// The descriptor is about to be closed; its number may mean something else soon.
pub(crate) fn forget(fd: RawFd) {
    for place in &FDS {
        let _ = place.compare_exchange(fd, -1, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Runs in the child, between fork and everything else; only async-signal-safe calls.
extern "C" fn in_child() {
    sys::mark_forked();
    for place in &FDS {
        let fd = place.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            sys::close_raw(fd);
        }
    }
}
