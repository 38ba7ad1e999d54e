//! Namespaces, the daemon, forks.
#![allow(unsafe_code, reason = "system calls of a test")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, ExitCode};

/// A network namespace of our own, with its loopback up. Must be called before threads exist.
pub(crate) fn enter_namespace() -> io::Result<()> {
    // SAFETY: no pointers.
    let uid = unsafe { libc::geteuid() };
    // SAFETY: no pointers.
    let gid = unsafe { libc::getegid() };
    let flags = if uid == 0 {
        libc::CLONE_NEWNET
    } else {
        libc::CLONE_NEWNET | libc::CLONE_NEWUSER
    };
    // SAFETY: no pointers; we are single-threaded.
    if unsafe { libc::unshare(flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if uid != 0 {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    }
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status()?;
    if !up.success() {
        return Err(io::Error::other("`ip link set lo up` failed"));
    }
    // SAFETY: we are single-threaded.
    unsafe { std::env::set_var("ROCEBUD_DAEMON", std::env::current_exe()?) };
    Ok(())
}

/// What the library starts as `rocebud daemon --auto --status-fd N`.
pub(crate) fn be_daemon(args: &[String]) -> ExitCode {
    let after = |word: &str| {
        let at = args.iter().position(|a| a == word)?;
        args.get(at + 1)?.parse::<i32>().ok()
    };
    let status = after("--status-fd").map(|fd| {
        // SAFETY: the starter gave us this descriptor for this purpose.
        unsafe { OwnedFd::from_raw_fd(fd) }
    });
    let options = rocebud_daemon::Options {
        auto: args.iter().any(|a| a == "--auto"),
        status,
        ..rocebud_daemon::Options::default()
    };
    match rocebud_daemon::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `child` in a child process; its result is the exit code that this gives back.
pub(crate) fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only `child`, then leaves without destructors.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let code = child();
        // SAFETY: no pointers.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert!(libc::WIFEXITED(status), "child died: {status:#x}");
    libc::WEXITSTATUS(status)
}

/// Fresh pages, writable or not; leaked unless unmapped.
pub(crate) fn map(len: usize, writable: bool) -> u64 {
    let prot = if writable {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_READ
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

/// Maps fresh pages where some were taken away.
pub(crate) fn map_at(at: u64, len: usize) {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing is mapped there, or the call fails.
    let got = unsafe { libc::mmap(at as *mut libc::c_void, len, prot, flags, -1, 0) };
    assert_eq!(got as u64, at, "the place was taken meanwhile");
}

/// Takes pages of [`map`] away.
pub(crate) fn unmap(at: u64, len: usize) {
    // SAFETY: only called on pages that the caller mapped and nobody uses.
    unsafe { libc::munmap(at as *mut libc::c_void, len) };
}

/// Ends the daemon of this namespace as a crash would.
pub(crate) fn kill(pid: u32) {
    // SAFETY: no pointers.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
}

/// Sets O_NONBLOCK.
pub(crate) fn set_nonblocking(fd: i32) {
    // SAFETY: no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

/// Something waits to be read from the descriptor.
pub(crate) fn readable(fd: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry of our own.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Writes `byte` all over pages of [`map`].
pub(crate) fn fill(at: u64, len: usize, byte: u8) {
    // SAFETY: the caller mapped `len` bytes there.
    unsafe { std::ptr::write_bytes(at as *mut u8, byte, len) };
}

/// Every byte is `byte`.
pub(crate) fn is_filled(at: u64, len: usize, byte: u8) -> bool {
    (at..at + len as u64).all(|at| {
        // SAFETY: the caller mapped `len` bytes there.
        let found = unsafe { std::ptr::read_volatile(at as *const u8) };
        found == byte
    })
}

/// Processor time and voluntary context switches of this process.
pub(crate) fn usage() -> (std::time::Duration, i64) {
    // SAFETY: all zeros is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid place.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let time = |t: libc::timeval| {
        std::time::Duration::from_micros((t.tv_sec * 1_000_000 + t.tv_usec).unsigned_abs())
    };
    (time(usage.ru_utime) + time(usage.ru_stime), usage.ru_nvcsw)
}

/// Sockets that this process has.
pub(crate) fn sockets() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .count()
}

/// Takes the loopback of our namespace up or down.
pub(crate) fn set_link(up: bool) {
    let word = if up { "up" } else { "down" };
    let done = Command::new("ip")
        .args(["link", "set", "lo", word])
        .status();
    assert!(done.is_ok_and(|s| s.success()));
}
