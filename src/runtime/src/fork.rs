//! Children made by `fork`.
//!
//! A child has the parent's memory but not its threads, and its locks may be held by nobody that
//! lives. So it touches nothing of the parent's: a word on a page that the kernel wipes in children
//! holds the number of the generation, objects remember theirs, and every call on an object of
//! another generation answers with an error. The handler of a fork closes the inherited descriptors
//! by number, so that the child keeps neither sockets nor the connection to the daemon open.
//!
//! A child may use verbs itself, with objects of its own: that begins a generation.

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::sys;

/// Descriptors that a process may have registered here: four slots of eleven sockets, the daemon,
/// and our own.
const FDS_MAX: usize = 128;

static FDS: [AtomicI32; FDS_MAX] = [const { AtomicI32::new(-1) }; FDS_MAX];

/// Of nobody yet: a process before its first use of verbs, or a fresh child.
pub(crate) const NONE: u64 = 0;

/// Begins to watch for forks. Idempotent.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Without it children are not recognised; they would have to misuse their parent's
        // objects for that to matter.
        let _ = sys::watch_forks(in_child);
    });
}

/// The generation of this process; [`NONE`] in a child that has not used verbs.
#[inline]
pub(crate) fn generation() -> u64 {
    sys::fork_word()
}

/// Begins generation `next` in a process that has none. False if another thread was faster.
pub(crate) fn begin(next: u64) -> bool {
    watch();
    // Where a child was made past the C library's fork, its handlers have not run.
    let inherited = std::array::from_fn::<_, FDS_MAX, _>(|i| FDS[i].load(Ordering::Acquire));
    if !sys::set_fork_word(next) {
        return false;
    }
    for fd in inherited {
        if fd >= 0 {
            forget(fd);
            sys::close_raw(fd);
        }
    }
    true
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
    sys::wipe_fork_word();
    for place in &FDS {
        let fd = place.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            sys::close_raw(fd);
        }
    }
}
