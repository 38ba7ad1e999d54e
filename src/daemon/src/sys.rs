//! System calls that rustix lacks: signals as a descriptor, affinity.

#![allow(unsafe_code, reason = "signalfd and affinity")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Blocks the signals that end the daemon and returns a descriptor that is readable when one has
/// come.
pub(crate) fn stop_signals() -> io::Result<OwnedFd> {
    // SAFETY: sigset_t is plain data for which zero is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: set is valid and the signals exist.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: set is valid; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: set is valid; -1 asks for a new descriptor.
    match unsafe { libc::signalfd(-1, &raw const set, flags) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor was just made and belongs to nobody else.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// A program that started the daemon may have been bound to one core; the daemon is not it.
pub(crate) fn any_cpu() {
    // SAFETY: cpu_set_t is plain data for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: cpu is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: set is valid and its size is given. A refusal changes nothing.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}
