//! The unsafe calls of the command: taking over a descriptor, leaving namespaces.

#![allow(unsafe_code, reason = "descriptors by number, unshare")]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::thread::UnshareFlags;

use crate::Failure;

/// The descriptor that whoever started us gave us by number.
pub(crate) fn inherited(number: i32) -> Result<OwnedFd, Failure> {
    let refused = || Failure::new(format!("--status-fd {number} is no descriptor to write to"));
    if number < 3 {
        return Err(refused());
    }
    // SAFETY: only asked whether it is open.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(fd).map_err(|_| refused())?;
    // SAFETY: open (just checked); this runs first of all, so nobody in this process has made a
    // descriptor of that number, and the starter has left it to us.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    let flags = rustix::io::FdFlags::CLOEXEC;
    rustix::io::fcntl_setfd(&owned, flags).map_err(|_| refused())?;
    Ok(owned)
}

/// Leaves namespaces of the process. Descriptor tables are not touched.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    let flags = flags.difference(UnshareFlags::FILES);
    // SAFETY: without UnshareFlags::FILES the call has no conditions.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}
