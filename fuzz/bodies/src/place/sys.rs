//! Namespaces and the environment.
#![allow(unsafe_code, reason = "system calls of a test")]

use std::io;

/// Puts this process, which must have one thread, into a fresh network namespace; an ordinary user
/// needs a user namespace for that.
pub(super) fn own_network() -> io::Result<()> {
    // SAFETY: no pointers.
    let uid = unsafe { libc::geteuid() };
    // SAFETY: no pointers.
    let gid = unsafe { libc::getegid() };
    let flags = if uid == 0 {
        libc::CLONE_NEWNET
    } else {
        libc::CLONE_NEWNET | libc::CLONE_NEWUSER
    };
    // SAFETY: no pointers.
    if unsafe { libc::unshare(flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if uid != 0 {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    }
    Ok(())
}

/// Sets a variable of this process, which must have one thread.
pub(super) fn set_env(name: &str, value: &str) {
    // SAFETY: the caller vouches that no other thread exists.
    unsafe { std::env::set_var(name, value) };
}
