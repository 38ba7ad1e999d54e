//! What the child programs do: handlers, masks, crashes.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a test that is meant to crash"
)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Handler that the program's own had before it, for those that chain.
pub(crate) static PREVIOUS: AtomicUsize = AtomicUsize::new(0);
/// Calls of the program's own handler.
pub(crate) static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Mask that the program's own handler ran with.
pub(crate) static MASK: AtomicU64 = AtomicU64::new(0);
/// Address of the last fault it saw.
pub(crate) static ADDR: AtomicUsize = AtomicUsize::new(0);

/// Installs a handler, or SIG_DFL / SIG_IGN; returns the one before.
pub(crate) fn set_action(signal: i32, handler: usize, flags: i32, blocked: &[i32]) -> usize {
    // SAFETY: zero is a value of every field.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    for signal in blocked {
        // SAFETY: an initialised set.
        unsafe { libc::sigaddset(&raw mut action.sa_mask, *signal) };
    }
    // SAFETY: zero is a value of every field.
    let mut old: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: live structures; the handlers of this file are sound to call.
    let rc = unsafe { libc::sigaction(signal, &raw const action, &raw mut old) };
    assert_eq!(rc, 0);
    old.sa_sigaction
}

/// A handler that ends the program in a way that can be told apart.
pub(crate) extern "C" fn exits_42(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    note(info);
    // SAFETY: never returns, runs nothing else.
    unsafe { libc::_exit(42) };
}

/// A handler that cannot help and calls the one before it.
pub(crate) extern "C" fn chains(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 50 {
        // Passed round and round.
        // SAFETY: never returns.
        unsafe { libc::_exit(99) };
    }
    let previous = PREVIOUS.load(Ordering::Relaxed);
    assert!(previous > 1, "a handler was there before");
    // SAFETY: what sigaction told about the earlier handler, which had SA_SIGINFO.
    let previous = unsafe { std::mem::transmute::<usize, Handler>(previous) };
    previous(signal, info, context);
}

/// A handler that skips the faulting instruction of `crash_two_bytes` and lets the program go on.
#[cfg(target_arch = "x86_64")]
pub(crate) extern "C" fn skips(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    note(info);
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the context of a signal handler.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += 2 };
    // SAFETY: errno may be written; ours must put back what was there.
    unsafe { *libc::__errno_location() = 77 };
}

/// A handler that jumps out, as a program with siglongjmp does.
pub(crate) extern "C" fn jumps_out(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    note(info);
    // SAFETY: `JUMP` was filled in by `catch` on this thread, whose frame is still there.
    unsafe { libc::setcontext(&raw const JUMP) };
}

static mut JUMP: libc::ucontext_t = {
    // SAFETY: integers and pointers, for which zero is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
};

/// Crashes and comes back by `jumps_out`; returns whether it did.
#[inline(never)]
pub(crate) fn catch(addr: usize) -> bool {
    let before = CALLS.load(Ordering::SeqCst);
    // SAFETY: the context is only used while this frame lives.
    assert_eq!(unsafe { libc::getcontext(&raw mut JUMP) }, 0);
    if CALLS.load(Ordering::SeqCst) != before {
        return true;
    }
    crash(addr);
    false
}

fn note(info: *mut libc::siginfo_t) {
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the siginfo of a handler, of a fault.
    ADDR.store(unsafe { (*info).si_addr() } as usize, Ordering::SeqCst);
    MASK.store(mask(), Ordering::SeqCst);
}

/// This thread's mask, bit `signal - 1`.
pub(crate) fn mask() -> u64 {
    // SAFETY: a set is an array of integers.
    let mut set: libc::sigset_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: a live set.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut set) };
    // SAFETY: a live set.
    let has = |signal| unsafe { libc::sigismember(&raw const set, signal) } == 1;
    (1..=64)
        .filter(|s| has(*s))
        .fold(0, |bits, s| bits | 1 << (s - 1))
}

/// Touches an address, by two bytes of machine code.
#[inline(never)]
pub(crate) fn crash(addr: usize) {
    // SAFETY: meant to fault; it only reads, and only if the address is good.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("mov al, [rcx]", in("rcx") addr, out("al") _, options(nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as above.
    unsafe {
        ptr::read_volatile(addr as *const u8);
    }
}

/// A mapped page without a file behind it: touching it is a SIGBUS.
pub(crate) fn bus_page() -> usize {
    // SAFETY: a name with its end.
    let fd = unsafe { libc::memfd_create(c"empty".as_ptr(), 0) };
    assert!(fd >= 0);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let addr = unsafe { libc::mmap(ptr::null_mut(), 4096, prot, libc::MAP_SHARED, fd, 0) };
    assert_ne!(addr, libc::MAP_FAILED);
    addr as usize
}

/// Sends a signal to the whole process, as `kill` does.
pub(crate) fn send_self(signal: i32) {
    // SAFETY: no pointers.
    unsafe { libc::kill(libc::getpid(), signal) };
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub(crate) fn set_errno(value: i32) {
    // SAFETY: errno may be written.
    unsafe { *libc::__errno_location() = value };
}

/// No core files of crashes that are meant.
pub(crate) fn no_core() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a live structure.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
}

/// Runs something in a forked child; returns its exit code.
pub(crate) fn fork_and_wait(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only copies memory and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let code = work();
        // SAFETY: never returns.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a live integer; the child is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WEXITSTATUS(status)
}
