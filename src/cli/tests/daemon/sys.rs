//! Unsafe calls of these tests.

#![allow(unsafe_code, reason = "unshare, descriptors by number")]

use std::os::fd::{BorrowedFd, RawFd};

use rustix::thread::UnshareFlags;

/// Puts this thread, and what it starts from now on, into a fresh network namespace.
pub(crate) fn own_network() -> std::io::Result<()> {
    // SAFETY: without UnshareFlags::FILES the call has no conditions.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Lets programs that this process starts inherit a descriptor.
pub(crate) fn inherit(fd: RawFd) {
    // SAFETY: the caller's descriptor is open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).expect("fcntl");
}
