//! clone, clone, exec.
//!
//! Between clone and exec the new processes share our memory (as `posix_spawn` does) while the
//! calling thread waits, so page tables are not copied and fork handlers do not run. They call
//! nothing but system calls. The first one has no exit signal: the program's SIGCHLD handler and
//! its `wait()` never see it.
//!
//! Proof: the integration test `twenty_starters_give_one_daemon` and valgrind on a starter.

#![allow(unsafe_code, reason = "process creation")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use super::STATUS_FD;

/// Everything the children need, made ready before the first clone.
struct Plan {
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    status: c_int,
    /// Top of the stack of the second child.
    inner_stack: *mut c_void,
}

/// Bytes of stack for each child: some system calls' frames and one signal set.
const STACK_BYTES: usize = 64 * 1024;

pub(super) fn spawn_detached(
    path: &CStr,
    args: &[CString],
    env: &[CString],
    status: &OwnedFd,
) -> io::Result<()> {
    let argv = pointers(args);
    let envp = pointers(env);
    let mut outer = vec![0_u128; STACK_BYTES / 16];
    let mut inner = vec![0_u128; STACK_BYTES / 16];
    let mut plan = Plan {
        path: path.as_ptr(),
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        status: status.as_raw_fd(),
        inner_stack: inner.as_mut_ptr_range().end.cast(),
    };
    let top = outer.as_mut_ptr_range().end.cast();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    let mask = block_signals()?;
    // SAFETY: CLONE_VFORK keeps this frame (plan, stacks, strings) alive and this thread stopped
    // until the child execs or exits; `first` makes only async-signal-safe calls.
    let pid = unsafe { libc::clone(first, top, flags, (&raw mut plan).cast()) };
    let error = io::Error::last_os_error();
    restore_signals(&mask);
    if pid < 0 {
        return Err(error);
    }
    reap(pid);
    Ok(())
}

/// The first child: a session of its own, one more process, gone.
extern "C" fn first(plan: *mut c_void) -> c_int {
    // SAFETY: plan points to the Plan of spawn_detached, whose frame is kept (CLONE_VFORK).
    let stack = unsafe { (*plan.cast::<Plan>()).inner_stack };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: a system call without memory arguments.
    unsafe { libc::setsid() };
    // SAFETY: as in spawn_detached; this process stands still until the second one execs.
    let pid = unsafe { libc::clone(second, stack, flags, plan) };
    if pid < 0 {
        // SAFETY: plan as above.
        let status = unsafe { (*plan.cast::<Plan>()).status };
        report_failure(status);
    }
    // SAFETY: ends this process without running anything of the program's.
    unsafe { libc::_exit(0) }
}

/// The second child: clean descriptors and signals, then the daemon.
extern "C" fn second(plan: *mut c_void) -> c_int {
    // SAFETY: plan points to the Plan of spawn_detached; nobody else uses it now.
    let plan = unsafe { &*plan.cast::<Plan>() };
    default_signals();
    raise_descriptor_limit();
    let status = place_descriptors(plan.status);
    // SAFETY: path, argv and envp are NUL-terminated and live in the frame of spawn_detached.
    unsafe { libc::execve(plan.path, plan.argv, plan.envp) };
    report_failure(status);
    // SAFETY: ends this process without running anything of the program's.
    unsafe { libc::_exit(127) }
}

/// A program that has used up its descriptors is not to starve the daemon that it starts. Limits
/// are this process's own.
fn raise_descriptor_limit() {
    // SAFETY: rlimit is plain data for which zero is a value.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: limit is valid for writing.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: limit is valid for reading.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// stdio on /dev/null, the status pipe at [`STATUS_FD`], nothing else. Returns the pipe's place.
fn place_descriptors(status: c_int) -> c_int {
    const OUT_OF_THE_WAY: c_int = 10;
    let out_of_the_way = |fd: c_int| raw(libc::SYS_fcntl, fd, libc::F_DUPFD, OUT_OF_THE_WAY);
    let pipe = out_of_the_way(status);
    // SAFETY: the path is a NUL-terminated constant; the raw call as in `raw`.
    let null = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/dev/null".as_ptr(),
            libc::O_RDWR,
            0,
        )
    };
    let null = out_of_the_way(null as c_int);
    for fd in 0..3 {
        // Without a /dev/null the descriptor is closed instead.
        if raw(libc::SYS_dup3, null, fd, 0) < 0 {
            raw(libc::SYS_close, fd, 0, 0);
        }
    }
    raw(libc::SYS_dup3, pipe, STATUS_FD, 0);
    let from = STATUS_FD + 1;
    if raw(libc::SYS_close_range, from, -1, 0) != 0 {
        for fd in from..4096 {
            raw(libc::SYS_close, fd, 0, 0);
        }
    }
    STATUS_FD
}

/// A system call on this process's own table of descriptors (no CLONE_FILES), by its number: the
/// memory is still the program's, and a library in front of libc (librspreload is one) would note
/// down there that the program's own descriptors have moved or gone.
fn raw(number: libc::c_long, a: c_int, b: c_int, c: c_int) -> c_int {
    // SAFETY: calls whose arguments are numbers.
    let answer = unsafe { libc::syscall(number, a, b, c) };
    answer as c_int
}

/// Handlers fall away at exec by themselves, ignored signals and the mask do not.
fn default_signals() {
    for signal in 1..=64 {
        // SAFETY: the table of handlers is this process's own (no CLONE_SIGHAND). Signals that
        // cannot be changed answer EINVAL.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: sigset_t is plain data; an empty set is all zero bits.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    restore_signals(&none);
}

fn report_failure(status: c_int) {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let [a, b, c, d] = errno.to_le_bytes();
    let message = [b'x', a, b, c, d];
    // SAFETY: message is valid for reading; the raw call as in `raw`.
    unsafe { libc::syscall(libc::SYS_write, status, message.as_ptr(), message.len()) };
}

fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: sigset_t is plain data for which zero is a value.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut old = all;
    // SAFETY: all is valid for writing.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both sets are valid.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old) } {
        0 => Ok(old),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: mask is valid; no old set is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

fn reap(pid: c_int) {
    loop {
        // SAFETY: no status is asked for. __WALL: the child has no exit signal.
        let rc = unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) };
        if rc >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    let ends = std::iter::once(ptr::null());
    strings.iter().map(|s| s.as_ptr()).chain(ends).collect()
}
