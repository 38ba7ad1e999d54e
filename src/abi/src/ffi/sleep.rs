//! How calls wait: in their outermost frame, by a call of the C library that is a cancellation point, as
//! the distribution's do.
//!
//! A thread that is cancelled there is unwound, so nothing below may need to be dropped. A call that cannot
//! go on says what it waits for and returns to its C entry; that waits, and calls it again. What it needs
//! meanwhile is kept beside the stack, and let go before the clean-up handlers of the program run.

use core::any::Any;
use core::cell::{Cell, RefCell, UnsafeCell};
use core::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rocebud_objects::{Errno, Misuse};

use super::boundary::{Convention, Outcome, guard, last_errno};

unsafe extern "C-unwind" {
    /// As libc has them; but they may end by unwinding, when the thread is cancelled.
    fn read(fd: c_int, to: *mut c_void, count: usize) -> isize;
    fn pause() -> c_int;
    fn ppoll(
        fds: *mut libc::pollfd,
        n: libc::nfds_t,
        at_most: *const libc::timespec,
        signals: *const libc::sigset_t,
    ) -> c_int;
    fn sem_clockwait(
        semaphore: *mut libc::sem_t,
        clock: libc::clockid_t,
        until: *const libc::timespec,
    ) -> c_int;
    /// pthread.h makes `pthread_cleanup_push` and `_pop` of such, in one way or another.
    fn _pthread_cleanup_push(
        handler: *mut Handler,
        routine: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(handler: *mut Handler, execute: c_int);
}

/// `struct _pthread_cleanup_buffer`: the C library fills it in.
#[repr(C)]
struct Handler {
    _routine: usize,
    _argument: usize,
    _cancel_type: c_int,
    _before: usize,
}

/// What a waiting call needs meanwhile.
enum Kept {
    Anything { what: Box<dyn Any> },
    Asleep(Box<dyn Sleep>),
}

thread_local! {
    /// A box, or null. Without a destructor: a thread that ends may still call us, from destructors of its own.
    static KEPT: Cell<*mut Kept> = const { Cell::new(core::ptr::null_mut()) };
    /// Lives as long as the thread, whoever still wakes it.
    static SEMAPHORE: Arc<Semaphore> = Semaphore::new();
}

fn put(what: Kept) {
    drop(unboxed(KEPT.replace(Box::into_raw(Box::new(what)))));
}

fn take() -> Option<Kept> {
    unboxed(KEPT.replace(core::ptr::null_mut()))
}

fn unboxed(kept: *mut Kept) -> Option<Kept> {
    if kept.is_null() {
        return None;
    }
    // SAFETY: made by `put`, and taken out of its place.
    Some(*unsafe { Box::from_raw(kept) })
}

extern "C" fn let_go(_: *mut c_void) {
    drop(take());
}

/// Makes a call that may not come back; what is kept goes then. Its outcome and errno.
fn wait(call: impl FnOnce() -> isize) -> c_int {
    let mut handler = Handler {
        _routine: 0,
        _argument: 0,
        _cancel_type: 0,
        _before: 0,
    };
    // SAFETY: it is taken back in this frame, unless the frame is unwound.
    unsafe { _pthread_cleanup_push(&raw mut handler, let_go, core::ptr::null_mut()) };
    let errno = if call() < 0 { last_errno().0 } else { 0 };
    // SAFETY: the handler put in last.
    unsafe { _pthread_cleanup_pop(&raw mut handler, 0) };
    errno
}

// ---- calls that wait for a descriptor of their own

/// How far a call has come that may have to wait.
pub(crate) enum Turn<T> {
    /// It is done.
    Over(T),
    /// It has to read from this descriptor first.
    Read(RawFd),
    /// What it waits for will not come, and the program is on its way to its end.
    Never,
}

/// The outcome of a read that a [`Turn`] asked for.
pub(crate) type Read = std::io::Result<()>;

/// Keeps something as long as the calling thread waits, for the next [`Turn::Read`].
pub(crate) fn keep(what: impl Any) {
    let what = Box::new(what);
    put(Kept::Anything { what });
}

/// As [`enter`](super::boundary::enter), for calls that wait for events, in a read(2), as with a device of
/// the kernel.
pub(crate) fn enter_waiting<C: Convention<T>, T>(
    turn: impl Fn(Option<Read>) -> Outcome<Turn<T>>,
) -> C::Ret {
    enter_keeping::<C, T, Nothing>(|read, _| turn(read))
}

/// Of this there is none.
enum Nothing {}

/// As [`enter_waiting`], for calls in stages: each turn gets what the one before let [`keep`] keep. It is
/// dropped where the thread is cancelled.
pub(crate) fn enter_keeping<C: Convention<T>, T, K: Any>(
    turn: impl Fn(Option<Read>, Option<K>) -> Outcome<Turn<T>>,
) -> C::Ret {
    let mut came = None;
    loop {
        let step = guard(|| {
            let kept = match take() {
                Some(Kept::Anything { what }) => what.downcast::<K>().ok(),
                Some(Kept::Asleep(_)) | None => None,
            };
            turn(came.map(read_outcome), kept.map(|kept| *kept))
        });
        let fd = match step {
            Ok(Turn::Over(value)) => return C::answer(Ok(value)),
            Ok(Turn::Read(fd)) => fd,
            Ok(Turn::Never) => wait_for_ever(),
            Err(e) => return C::answer(Err(e)),
        };
        let mut word = 0_u64;
        // SAFETY: room for eight bytes. It may unwind: nothing here needs to be dropped.
        came = Some(wait(|| unsafe {
            read(fd, (&raw mut word).cast(), size_of::<u64>())
        }));
    }
}

fn wait_for_ever() -> ! {
    loop {
        // SAFETY: no arguments.
        unsafe { pause() };
    }
}

fn read_outcome(errno: c_int) -> Read {
    match errno {
        0 => Ok(()),
        errno => Err(std::io::Error::from_raw_os_error(errno)),
    }
}

// ---- calls that sleep on many descriptors, or until another thread wakes them

/// What a call sleeps on. Dropping it wakes it as well: that is what cancelling does.
pub(crate) trait Sleep: Any {
    /// What there is to sleep on. It stays where it is.
    fn on(&mut self) -> On;
    /// The sleep is over, once. With it goes all that others would wait for.
    fn wake(&mut self);
}

/// What the C library is called with.
#[derive(Clone, Copy)]
pub(crate) enum On {
    /// For so long at most.
    Descriptors(*mut libc::pollfd, usize, Duration),
    /// The calling thread's semaphore, until a time of CLOCK_MONOTONIC.
    Semaphore(*mut libc::sem_t, libc::timespec),
}

impl On {
    /// For who is awake.
    pub(crate) const NOTHING: Self = Self::Descriptors(core::ptr::null_mut(), 0, Duration::ZERO);

    /// The errno; 0 after a time that is over, too.
    fn sleep(self) -> c_int {
        let errno = match self {
            Self::Descriptors(fds, n, at_most) => {
                let (at_most, signals) = (timespec(at_most), core::ptr::null());
                // SAFETY: as many entries as said, which are kept. It may unwind.
                wait(
                    || unsafe { ppoll(fds, n as libc::nfds_t, &raw const at_most, signals) }
                        as isize,
                )
            }
            Self::Semaphore(semaphore, until) => {
                let clock = libc::CLOCK_MONOTONIC;
                // SAFETY: the thread's own, which lives as long. It may unwind.
                wait(|| unsafe { sem_clockwait(semaphore, clock, &raw const until) } as isize)
            }
        };
        if errno == libc::ETIMEDOUT { 0 } else { errno }
    }
}

const fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos() as libc::c_long,
    }
}

/// Why a call returns before it is done.
pub(crate) enum Stop {
    /// It cannot be done.
    Failed(Misuse),
    /// It is to be called again after a sleep.
    Sleep(Box<dyn Sleep>),
}

impl From<Misuse> for Stop {
    fn from(e: Misuse) -> Self {
        Self::Failed(e)
    }
}

/// The outcome of what may have to sleep.
pub(crate) type Sleepy<T> = Result<T, Stop>;

/// What outlives the sleeps of a call. Nothing that needs to be dropped.
#[derive(Default)]
struct Memo {
    slept: Cell<bool>,
    errno: Cell<c_int>,
    done: Cell<usize>,
    until: Cell<Option<Option<Instant>>>,
}

/// One turn of a call that may sleep: what it knows of the turns before.
pub(crate) struct Call<'a> {
    memo: &'a Memo,
    /// The sleep it comes from.
    woken: RefCell<Option<Box<dyn Sleep>>>,
}

const INTERRUPTED: &str = "a signal came while the call waited";

impl Call<'_> {
    /// It has not slept yet.
    pub(crate) fn is_first(&self) -> bool {
        !self.memo.slept.get()
    }

    /// What has been done, in a unit of the call's own.
    pub(crate) fn done(&self) -> usize {
        self.memo.done.get()
    }

    /// So much more has been done.
    pub(crate) fn add_done(&self, more: usize) {
        self.memo.done.set(self.done() + more);
    }

    /// When it ends, which its first turn decides. `None`: never.
    pub(crate) fn until(&self, at_most: Option<Duration>) -> Option<Instant> {
        let first = || at_most.and_then(|t| Instant::now().checked_add(t));
        let until = self.memo.until.get().unwrap_or_else(first);
        self.memo.until.set(Some(until));
        until
    }

    /// The sleep that this turn comes from, for who asks first. EINTR after a signal.
    pub(crate) fn woken(&self) -> Outcome<Option<Box<dyn Sleep>>> {
        let woken = self.woken.take();
        match (woken.is_some(), self.memo.errno.take()) {
            (true, errno @ 1..) => Err(Misuse::new(Errno(errno), INTERRUPTED)),
            _ => Ok(woken),
        }
    }

    /// As [`Call::woken`], for calls of which the distribution's wait in a read: that is taken up again by
    /// itself after a handler with `SA_RESTART`.
    pub(crate) fn woken_restarting(&self) -> Outcome<Option<Box<dyn Sleep>>> {
        if self.memo.errno.get() == libc::EINTR && handlers_restart() {
            self.memo.errno.set(0);
        }
        self.woken()
    }

    /// Lets a part of the call ask.
    pub(crate) fn woken_from(&self, sleep: Option<Box<dyn Sleep>>) {
        self.woken.replace(sleep);
    }

    /// The sleep that this turn comes from, whatever ended it.
    pub(crate) fn any_woken(&self) -> Option<Box<dyn Sleep>> {
        self.woken.take()
    }
}

/// As [`enter`](super::boundary::enter), for calls that sleep; the body is called again after each sleep.
pub(crate) fn enter_sleeping<C: Convention<T>, T>(body: impl Fn(&Call<'_>) -> Sleepy<T>) -> C::Ret {
    let memo = Memo::default();
    loop {
        let step = guard(|| {
            let call = Call {
                memo: &memo,
                woken: RefCell::new(woken(&memo)),
            };
            match body(&call) {
                Ok(value) => Ok(Ok(value)),
                Err(Stop::Failed(e)) => Err(e),
                Err(Stop::Sleep(mut sleep)) => {
                    let on = sleep.on();
                    put(Kept::Asleep(sleep));
                    Ok(Err(on))
                }
            }
        });
        match step {
            Ok(Ok(value)) => return C::answer(Ok(value)),
            Ok(Err(on)) => memo.errno.set(on.sleep()),
            Err(e) => return C::answer(Err(e)),
        }
        memo.slept.set(true);
    }
}

/// Whether every handler of the program's has `SA_RESTART`. Which of them ran nobody tells; a program with one
/// that has not is prepared for EINTR. Left out are those of faults, which are ours, and the C library's two.
fn handlers_restart() -> bool {
    const OTHERS: [c_int; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        32,
        33,
    ];
    /// As the kernel has it: handler (0: default, 1: ignored), flags, restorer, mask.
    type Action = [u64; 4];
    const MASK_BYTES: usize = 8;
    let restarts = |signal: c_int| {
        let mut action: Action = [0; 4];
        let none = core::ptr::null::<Action>();
        // Not by the C library, whose function the program may have replaced.
        // SAFETY: room for an action; none is set.
        let code = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                none,
                &raw mut action,
                MASK_BYTES,
            )
        };
        let [handler, flags, ..] = action;
        code != 0 || handler <= 1 || flags & libc::SA_RESTART as u64 != 0
    };
    let mut signals = (1..=64).filter(|signal| !OTHERS.contains(signal));
    signals.all(restarts)
}

/// What a turn comes from. In a handler of a signal there may be a sleep of the call below: that is its own.
fn woken(memo: &Memo) -> Option<Box<dyn Sleep>> {
    if !memo.slept.get() {
        return None;
    }
    match take() {
        Some(Kept::Asleep(mut sleep)) => {
            sleep.wake();
            Some(sleep)
        }
        _ => None,
    }
}

/// A thread's own: it waits there until another wakes it.
pub(crate) struct Semaphore(UnsafeCell<libc::sem_t>);

// SAFETY: that is what semaphores are for.
unsafe impl Send for Semaphore {}
// SAFETY: as above.
unsafe impl Sync for Semaphore {}

impl Semaphore {
    fn new() -> Arc<Self> {
        // SAFETY: `sem_init` makes one of it.
        let this = Arc::new(Self(UnsafeCell::new(unsafe { core::mem::zeroed() })));
        // SAFETY: room for one, which stays where it is.
        unsafe { libc::sem_init(this.0.get(), 0, 0) };
        this
    }

    /// The calling thread's.
    pub(crate) fn own() -> Arc<Self> {
        SEMAPHORE
            .try_with(Arc::clone)
            .unwrap_or_else(|_| Self::new())
    }

    /// Wakes its thread, now or when it goes to sleep.
    pub(crate) fn post(&self) {
        // SAFETY: a semaphore made by `sem_init`.
        unsafe { libc::sem_post(self.0.get()) };
    }

    /// For its own thread.
    pub(crate) fn on(&self, at_most: Duration) -> On {
        // SAFETY: a time is plain numbers.
        let mut now: libc::timespec = unsafe { core::mem::zeroed() };
        // SAFETY: room for a time.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let seconds = Duration::from_secs(now.tv_sec.cast_unsigned());
        let now = seconds + Duration::from_nanos(now.tv_nsec.cast_unsigned());
        On::Semaphore(self.0.get(), timespec(now + at_most))
    }
}
