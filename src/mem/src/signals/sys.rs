//! Handlers, their chain, and signal masks.
//!
//! Proof: `tests/signals` runs programs that install handlers before and after ours, chain
//! back, jump out, block the signals or really crash, and looks at how they end. They pass under
//! AddressSanitizer too, but for the one that jumps out by `setcontext`, which it does not know.
#![allow(unsafe_code)]

use super::chain::{Action, Chain, Link};
use crate::guarded;
use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicUsize, Ordering,
};

/// Faults that may be on their way through a chain at the same time, one a thread.
const PASSING_MAX: usize = 64;

/// A fault that a thread passed on and whose handler has not returned.
struct Passing {
    thread: AtomicI32,
    info: AtomicUsize,
    frame: AtomicUsize,
    depth: AtomicUsize,
}

static SEGV: Chain = Chain::new();
static BUS: Chain = Chain::new();
static PASSING: [Passing; PASSING_MAX] = [const { Passing::new() }; PASSING_MAX];
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// When the actions were last looked at, on the coarse clock.
static LOOKED_AT: AtomicI64 = AtomicI64::new(0);
/// The process whose actions these are: a child made by `vfork` shares our memory, and what it
/// does to its signals is no business of ours.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The C library's `sigaction`, where the shim stands before it.
static REAL: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());
static CHANGE: Mutex<()> = Mutex::new(());
/// The shim's count of changes of signal masks; null without it.
static MASK_CHANGES: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// Changes of masks, and the coarse time, when this thread was last seen to let both signals in.
    static LET_IN_AT: Cell<Option<(u32, i64)>> = const { Cell::new(None) };
}

/// Puts the SIGSEGV and SIGBUS handlers in place. Idempotent.
///
/// Errors: `ENOSYS` on processors for which we have no routines; copies then go through the
/// kernel.
pub fn install() -> io::Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    go_in_front()?;
    OWNER.store(process_id(), Ordering::Release);
    INSTALLED.store(true, Ordering::Release);
    ask_the_shim();
    Ok(())
}

/// Puts our handlers in front again if the program installed its own since; ours then passes on to
/// those. Two system calls. Returns whether anything had to be done. Does nothing before
/// [`install`].
pub fn ensure_in_front() -> bool {
    installed() && go_in_front().unwrap_or(false)
}

/// As [`ensure_in_front`], but at most once in a few milliseconds: costs nothing that shows before
/// every batch of copies. Programs that change their action by a call of the C library are heard
/// at once where the preload shim is there; this is for all others.
pub(crate) fn look_now_and_then() {
    let now = coarse_ns();
    if LOOKED_AT.load(Ordering::Relaxed) != now {
        LOOKED_AT.store(now, Ordering::Relaxed);
        let _ = go_in_front();
    }
}

/// A clock of a few milliseconds' steps, read without a system call.
fn coarse_ns() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec.wrapping_mul(1_000_000_000) + now.tv_nsec
}

pub(crate) fn installed() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

/// Whether this thread blocks one of the two signals. Where the shim counts changes of masks, the
/// kernel is asked only after one, and once in a few milliseconds: for the few that it cannot see,
/// which src/shim/src/ffi/masks.rs names.
pub(crate) fn blocked_here() -> bool {
    let changes = MASK_CHANGES.load(Ordering::Acquire);
    if changes.is_null() {
        return asked_blocked();
    }
    // SAFETY: the shim gave a counter that lives as long as the process.
    let changes = unsafe { (*changes).load(Ordering::Relaxed) };
    let seen = (changes, coarse_ns());
    if LET_IN_AT.get() == Some(seen) {
        return false;
    }
    let blocked = asked_blocked();
    LET_IN_AT.set((!blocked).then_some(seen));
    blocked
}

fn asked_blocked() -> bool {
    let mask = change_mask(libc::SIG_BLOCK, None);
    mask & FAULTS != 0
}

/// Runs something with both signals let in.
pub(crate) fn let_in<R>(access: impl FnOnce() -> R) -> R {
    let before = change_mask(libc::SIG_UNBLOCK, Some(FAULTS));
    let result = access();
    if before & FAULTS != 0 {
        change_mask(libc::SIG_BLOCK, Some(before & FAULTS));
    }
    result
}

/// The two signals as a mask.
const FAULTS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

impl Passing {
    const fn new() -> Self {
        Self {
            thread: AtomicI32::new(0),
            info: AtomicUsize::new(0),
            frame: AtomicUsize::new(0),
            depth: AtomicUsize::new(0),
        }
    }
}

/// Makes ours the current action of both signals. Returns whether it was not.
fn go_in_front() -> io::Result<bool> {
    // Without the lock: a child made by fork may have it held by a thread that it does not have.
    let mut in_front = true;
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        in_front &= action(signal, None)?.sa_sigaction == ours();
    }
    if in_front {
        return Ok(false);
    }
    let _alone = CHANGE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut changed = false;
    for (signal, chain) in [(libc::SIGSEGV, &SEGV), (libc::SIGBUS, &BUS)] {
        let current = action(signal, None)?;
        if current.sa_sigaction == ours() {
            continue;
        }
        // Remembered first: a fault may come as soon as ours is in place.
        chain.push(plain(&current));
        let replaced = action(signal, Some(&our_action(&plain(&current))))?;
        if replaced.sa_sigaction != current.sa_sigaction && replaced.sa_sigaction != ours() {
            chain.push(plain(&replaced));
        }
        changed = true;
    }
    Ok(changed)
}

fn ours() -> libc::sighandler_t {
    on_fault as *const () as libc::sighandler_t
}

/// Our action in front of another: where that one wants the alternate stack or not, so do we,
/// since it will run on our stack; system calls restart or not as it wants.
fn our_action(next: &Action) -> libc::sigaction {
    let mut action = empty_action();
    action.sa_sigaction = ours();
    let is_handler = next.handler != libc::SIG_DFL && next.handler != libc::SIG_IGN;
    let kept = if is_handler {
        next.flags & (libc::SA_ONSTACK | libc::SA_RESTART)
    } else {
        libc::SA_ONSTACK | libc::SA_RESTART
    };
    action.sa_flags = libc::SA_SIGINFO | kept;
    action
}

/// The handler of both signals.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel (or a handler that passes the fault on) gives a valid siginfo.
    let synchronous = unsafe { (*info).si_code } > 0;
    // SAFETY: with SA_SIGINFO the third argument is the interrupted context.
    if synchronous && unsafe { resume(context.cast()) } {
        return;
    }
    // SAFETY: reading and writing the thread's errno is always allowed.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    pass_on(signal, info, context, synchronous);
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// Lets the interrupted code go on behind our routine, if it was in one.
///
/// # Safety
/// `context` is the context given to a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn resume(context: *mut libc::ucontext_t) -> bool {
    // SAFETY: by contract.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let pc = &mut registers[libc::REG_RIP as usize];
    match guarded::resume_at(*pc as usize) {
        Some(fixup) => {
            *pc = fixup as i64;
            true
        }
        None => false,
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn resume(_context: *mut libc::ucontext_t) -> bool {
    let _ = guarded::resume_at;
    false
}

/// Gives a fault that is not ours to the next in the chain. Only async-signal-safe calls here.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, synchronous: bool) {
    let chain = chain_of(signal);
    let frame = stack_pointer();
    let passing = find_passing();
    let outer = passing.map(|p| {
        (
            p.info.load(Ordering::Relaxed),
            p.frame.load(Ordering::Relaxed),
            p.depth.load(Ordering::Relaxed),
        )
    });
    // The same fault, from further down the stack: whom we passed it to passed it back. (A handler
    // that jumped out leaves its record, but a later fault does not begin below it.)
    let depth = match outer {
        Some((i, f, d)) if i == info as usize && frame < f => d + 1,
        _ => 0,
    };
    let Some(link) = chain.link(depth) else {
        return die(signal, synchronous);
    };
    let action = link.action();
    let handler = action.handler;
    if handler == libc::SIG_DFL || (handler == libc::SIG_IGN && synchronous) {
        return die(signal, synchronous);
    }
    if handler == libc::SIG_IGN {
        return;
    }
    if let Some(p) = passing {
        p.info.store(info as usize, Ordering::Relaxed);
        p.frame.store(frame, Ordering::Relaxed);
        p.depth.store(depth, Ordering::Relaxed);
    }
    call(link, &action, signal, info, context);
    if let Some(p) = passing {
        match outer {
            Some((i, f, d)) if depth > 0 => {
                p.info.store(i, Ordering::Relaxed);
                p.frame.store(f, Ordering::Relaxed);
                p.depth.store(d, Ordering::Relaxed);
            }
            _ => {
                p.info.store(0, Ordering::Relaxed);
                p.thread.store(0, Ordering::Release);
            }
        }
    }
}

/// Where the stack is. Not the address of a variable: sanitizers put those elsewhere.
#[inline(always)]
fn stack_pointer() -> usize {
    let sp;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: only reads a register.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // No handlers there, see `install`.
        sp = 0;
    }
    sp
}

/// The record of this thread's fault, or a new one. None if all are taken.
fn find_passing() -> Option<&'static Passing> {
    let thread = thread_id();
    if let Some(mine) = PASSING
        .iter()
        .find(|p| p.thread.load(Ordering::Relaxed) == thread)
    {
        return Some(mine);
    }
    PASSING.iter().find(|p| {
        p.thread
            .compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    })
}

/// Calls a handler the way the kernel would have: its mask, its arguments, once if it said so.
fn call(
    link: &Link,
    action: &Action,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let Action { handler, flags, .. } = *action;
    // SAFETY: the context given to a handler holds the mask of the interrupted code.
    let interrupted = unsafe { (*context.cast::<libc::ucontext_t>()).uc_sigmask };
    let mut mask = mask_bits(&interrupted) | action.mask;
    if flags & libc::SA_NODEFER == 0 {
        mask |= bit(signal);
    }
    if flags & libc::SA_RESETHAND != 0 {
        link.reset(libc::SIG_DFL);
    }
    let before = change_mask(libc::SIG_SETMASK, Some(mask));
    if flags & libc::SA_SIGINFO != 0 {
        type Three = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: with SA_SIGINFO the program installed a function of three arguments.
        let handler = unsafe { std::mem::transmute::<usize, Three>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without it, a function of one.
        let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(handler) };
        handler(signal);
    }
    change_mask(libc::SIG_SETMASK, Some(before));
}

/// Ends the process as if there were no handler: the faulting instruction runs again without one
/// (so that the core dump shows it), a signal that was sent is sent again.
fn die(signal: i32, synchronous: bool) {
    let mut default = empty_action();
    default.sa_sigaction = libc::SIG_DFL;
    let _ = action(signal, Some(&default));
    if !synchronous {
        let pid = process_id();
        // SAFETY: no pointers; the signal is blocked here and arrives when the handler returns.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, thread_id(), signal) };
    }
}

// ---- the shim: what programs do with the two signals passes through here

type Sigaction =
    unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> libc::c_int;

/// Asks the preload shim, where there is one, to send us what the program does to the two signals.
/// Then ours is never behind the program's, not even for a moment, and the program sees only its
/// own actions.
fn ask_the_shim() {
    type Watch = unsafe extern "C" fn(Option<Sigaction>) -> *mut libc::c_void;
    type Changes = unsafe extern "C" fn() -> *const AtomicU32;
    // SAFETY: the name ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"rocebud_shim_mask_changes".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the shim's function of this name has this type.
        let changes = unsafe { std::mem::transmute::<*mut libc::c_void, Changes>(found) };
        // SAFETY: it only tells where the count is.
        MASK_CHANGES.store(unsafe { changes() }.cast_mut(), Ordering::Release);
    }
    // SAFETY: the name ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"rocebud_shim_watch_signals".as_ptr()) };
    if found.is_null() || !REAL.load(Ordering::Acquire).is_null() {
        return;
    }
    // SAFETY: the shim's function of this name has this type.
    let watch = unsafe { std::mem::transmute::<*mut libc::c_void, Watch>(found) };
    // SAFETY: only asks for the C library's function, which must be known before ours is called.
    REAL.store(unsafe { watch(None) }, Ordering::Release);
    // SAFETY: `program_action` may be called from any thread or handler from now on.
    unsafe { watch(Some(program_action)) };
}

/// In place of `sigaction` for SIGSEGV and SIGBUS. Async-signal-safe, as that is.
unsafe extern "C" fn program_action(
    signal: i32,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> libc::c_int {
    if process_id() != OWNER.load(Ordering::Acquire) {
        // SAFETY: the program's pointers, as it gave them.
        return unsafe { real_sigaction(signal, new, old) };
    }
    let chain = chain_of(signal);
    // SAFETY: the program gives null or a live structure.
    let wanted = unsafe { new.as_ref() }.map(plain);
    // By a bare system call the program may have got in front of ours unseen.
    let unseen = action(signal, None).ok().map(|current| plain(&current));
    let unseen = unseen.filter(|current| current.handler != ours());
    let before = match (wanted, unseen) {
        (Some(wanted), None) => chain.replace(wanted),
        (Some(wanted), Some(_)) => {
            chain.push(wanted);
            unseen
        }
        (None, None) => chain.link(0).map(Link::action),
        (None, Some(_)) => unseen,
    };
    if let Some(wanted) = wanted {
        // Stack and restart as the program wants them.
        let _ = action(signal, Some(&our_action(&wanted)));
    }
    if !old.is_null() {
        let before = before.map_or_else(empty_action, |action| full(&action));
        // SAFETY: the program gives room for a structure.
        unsafe { old.write(before) };
    }
    0
}

/// The C library's `sigaction`.
///
/// # Safety
/// As for that.
unsafe fn real_sigaction(
    signal: i32,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> libc::c_int {
    let real = REAL.load(Ordering::Acquire);
    if real.is_null() {
        // SAFETY: by contract.
        return unsafe { libc::sigaction(signal, new, old) };
    }
    // SAFETY: the shim gave the C library's function.
    let real = unsafe { std::mem::transmute::<*mut libc::c_void, Sigaction>(real) };
    // SAFETY: by contract.
    unsafe { real(signal, new, old) }
}

fn chain_of(signal: i32) -> &'static Chain {
    if signal == libc::SIGBUS { &BUS } else { &SEGV }
}

fn plain(action: &libc::sigaction) -> Action {
    Action {
        handler: action.sa_sigaction,
        flags: action.sa_flags,
        mask: mask_bits(&action.sa_mask),
    }
}

fn full(action: &Action) -> libc::sigaction {
    let mut full = empty_action();
    full.sa_sigaction = action.handler;
    full.sa_flags = action.flags;
    full.sa_mask = set_of(action.mask);
    full
}

fn process_id() -> i32 {
    // SAFETY: no pointers.
    unsafe { libc::getpid() }
}

fn thread_id() -> i32 {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Reads, and with `new` replaces, the action of a signal.
fn action(signal: i32, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut old = empty_action();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both are live structures or null; ours never unwinds and only makes safe calls.
    if unsafe { real_sigaction(signal, new, &raw mut old) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(old)
}

fn empty_action() -> libc::sigaction {
    // SAFETY: integers, a mask and an optional function, for all of which zero is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Changes this thread's mask; returns the one before. Without `signals` it only reads. By a bare
/// system call: the C library's function is the shim's, which would count our asking as a change, so
/// that we asked again at the next copy.
fn change_mask(how: i32, signals: Option<u64>) -> u64 {
    let new = signals.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut old = 0u64;
    // SAFETY: the kernel's set is 64 bits, and both are live or null.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            new,
            &raw mut old,
            size_of::<u64>(),
        )
    };
    old
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: a set is an array of integers.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Bits as a set.
fn set_of(mut bits: u64) -> libc::sigset_t {
    let mut set = empty_set();
    while bits != 0 {
        let signal = bits.trailing_zeros() as i32 + 1;
        bits &= bits - 1;
        // SAFETY: a live set and a signal number; unusable numbers are refused.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// A set as bits. The kernel knows 64 signals, the C library's set has room for more.
fn mask_bits(set: &libc::sigset_t) -> u64 {
    // SAFETY: the set is larger than eight bytes on every Linux, and an array of integers.
    let words = unsafe { ptr::from_ref(set).cast::<[u8; 8]>().read() };
    if cfg!(target_endian = "little") || size_of::<usize>() == 8 {
        u64::from_ne_bytes(words)
    } else {
        u64::from_ne_bytes(words).rotate_left(32)
    }
}
