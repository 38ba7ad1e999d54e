//! System calls that no safe wrapper gives us the way we need them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970.
pub(crate) fn realtime_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

#[inline]
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is a valid place for the result and lives through the call.
    unsafe { libc::clock_gettime(clock, &raw mut ts) };
    (ts.tv_sec.cast_unsigned())
        .wrapping_mul(1_000_000_000)
        .wrapping_add(ts.tv_nsec.cast_unsigned())
}

/// A blocking eventfd in semaphore mode, closed on exec.
pub(crate) fn semaphore() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
    owned(fd)
}

/// A non-blocking eventfd that wakes a thread.
pub(crate) fn wake_event() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    owned(fd)
}

/// A non-blocking timer on `CLOCK_MONOTONIC`.
pub(crate) fn timer() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe {
        libc::timerfd_create(
            libc::CLOCK_MONOTONIC,
            libc::TFD_NONBLOCK | libc::TFD_CLOEXEC,
        )
    };
    owned(fd)
}

/// Lets the timer expire at an absolute time; 0 disarms it.
pub(crate) fn set_timer(fd: BorrowedFd<'_>, at_ns: u64) {
    let spec = libc::itimerspec {
        it_interval: timespec(0),
        it_value: timespec(at_ns),
    };
    // SAFETY: `spec` is valid for reading; the old value is not asked for.
    unsafe {
        libc::timerfd_settime(
            fd.as_raw_fd(),
            libc::TFD_TIMER_ABSTIME,
            &raw const spec,
            std::ptr::null_mut(),
        )
    };
}

/// Adds to an eventfd.
pub(crate) fn signal(fd: BorrowedFd<'_>, count: u64) {
    let word = count.to_ne_bytes();
    // Not by the C library's function, which is a cancellation point.
    // SAFETY: eight bytes are readable at `word`.
    unsafe { libc::syscall(libc::SYS_write, fd.as_raw_fd(), word.as_ptr(), word.len()) };
}

/// Writes to standard error, as far as it takes it.
pub(crate) fn say(mut text: &[u8]) {
    while !text.is_empty() {
        // SAFETY: as many bytes are readable there.
        let n = unsafe {
            libc::syscall(
                libc::SYS_write,
                libc::STDERR_FILENO,
                text.as_ptr(),
                text.len(),
            )
        };
        match usize::try_from(n) {
            Ok(written @ 1..) => text = text.get(written..).unwrap_or_default(),
            Err(_) if errno() == libc::EINTR => {}
            _ => return,
        }
    }
}

/// Takes one from a semaphore, waiting if its flags say so.
pub(crate) fn take_waiting(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut word = [0u8; 8];
    // SAFETY: eight bytes are writable at `word`.
    let n = unsafe { libc::read(fd.as_raw_fd(), word.as_mut_ptr().cast(), word.len()) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Takes from an eventfd or timerfd what is there, without waiting whatever its flags say.
pub(crate) fn take(fd: BorrowedFd<'_>) -> bool {
    let mut word = [0u8; 8];
    let mut iov = libc::iovec {
        iov_base: word.as_mut_ptr().cast(),
        iov_len: word.len(),
    };
    // Plain system calls: those of the C library are cancellation points.
    let (offset, high) = (-1 as libc::c_long, -1 as libc::c_long);
    // SAFETY: `iov` describes the eight writable bytes of `word`.
    let n = unsafe {
        libc::syscall(
            libc::SYS_preadv2,
            fd.as_raw_fd(),
            &raw mut iov,
            1,
            offset,
            high,
            libc::RWF_NOWAIT,
        )
    };
    if n >= 0 || errno() != libc::EOPNOTSUPP {
        return n == 8;
    }
    // Kernels before 5.8: look, then read. Only we read, under a lock, so nobody steals it.
    if !poll(&mut [poll_fd(fd.as_raw_fd())], Some(0)).is_ok_and(|n| n > 0) {
        return false;
    }
    // SAFETY: eight bytes are writable at `word`.
    let n = unsafe {
        libc::syscall(
            libc::SYS_read,
            fd.as_raw_fd(),
            word.as_mut_ptr(),
            word.len(),
        )
    };
    n == 8
}

/// Sets O_NONBLOCK, as programs do.
#[cfg(test)]
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) {
    // SAFETY: no pointers.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
}

/// A descriptor to be polled for input.
pub(crate) const fn poll_fd(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// `ppoll`: waits at most `timeout_ns`, for ever without one. Returns how many are ready.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout_ns: Option<u64>) -> io::Result<usize> {
    let ts = timespec(timeout_ns.unwrap_or(0));
    let ts_ptr = if timeout_ns.is_some() {
        &raw const ts
    } else {
        std::ptr::null()
    };
    // SAFETY: `fds` is a valid array of its length; `ts_ptr` is null or points to `ts`; no signal
    // mask, of the kernel's size.
    let n = unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            fds.as_mut_ptr(),
            fds.len(),
            ts_ptr,
            std::ptr::null::<libc::sigset_t>(),
            size_of::<u64>(),
        )
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Gives the processor to whoever waits for it.
pub(crate) fn yield_now() {
    // SAFETY: no arguments.
    unsafe { libc::sched_yield() };
}

/// Timers of this thread fire as exactly as the machine can.
pub(crate) fn exact_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes a plain number.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// This thread runs for a moment at a time, and wants that moment at once, also beside programs that
/// spin: Linux 6.12 and later preempt those for it, and let them finish their slice of milliseconds
/// without. No right is needed; where it is refused nothing is lost.
pub(crate) fn short_slices() {
    /// `struct sched_attr`, its first version.
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SLICE_NS: u64 = 100_000;
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>();
    // SAFETY: the kernel writes at most `size` bytes into a live structure of integers.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    // Only where the slice is nothing else than that: real-time programs know what they want.
    if rc != 0 || attr.policy != libc::SCHED_OTHER.cast_unsigned() {
        return;
    }
    attr.size = size as u32;
    attr.runtime = SLICE_NS;
    // SAFETY: the kernel reads a live structure of `size` bytes.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

/// Blocks every signal of this thread that is not raised by its own instructions, and puts the old
/// mask back when dropped.
pub(crate) struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    pub(crate) fn new() -> Self {
        let mut set = empty_set();
        let mut old = empty_set();
        // SAFETY: `set` is an initialised signal set.
        unsafe { libc::sigfillset(&raw mut set) };
        for signal in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGSYS,
        ] {
            // SAFETY: `set` is an initialised signal set, the number is a signal.
            unsafe { libc::sigdelset(&raw mut set, signal) };
        }
        // SAFETY: both sets are initialised and live through the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut old) };
        Self(old)
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set came from `pthread_sigmask`; the old value is not asked for.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the line above.
    unsafe { set.assume_init() }
}

/// Asks the kernel to bring a range of application memory to its backing store.
pub(crate) fn persist(addr: u64, len: u64) -> bool {
    let page = page_size();
    let start = addr & !(page - 1);
    let len = (addr - start).saturating_add(len);
    let (Ok(start), Ok(len)) = (usize::try_from(start), usize::try_from(len)) else {
        return false;
    };
    // SAFETY: `msync` only reads page tables; an unmapped range gives ENOMEM.
    unsafe { libc::msync(start as *mut libc::c_void, len, libc::MS_SYNC) == 0 }
}

/// Bytes of a page.
pub fn page_size() -> u64 {
    static SIZE: AtomicU64 = AtomicU64::new(0);
    match SIZE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: no pointers.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let size = u64::try_from(size).unwrap_or(4096);
            SIZE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

/// A word that reads as 0 in a child made by fork.
static FORK_WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(&raw const PLAIN_WORD as *mut AtomicU64);
/// The word until its page is there, or where none could be had.
static PLAIN_WORD: AtomicU64 = AtomicU64::new(0);

/// Sets the word up and has `child` run in every child made by `fork`. Called once.
pub(crate) fn watch_forks(child: extern "C" fn()) -> io::Result<()> {
    let len = usize::try_from(page_size()).unwrap_or(4096);
    // SAFETY: a fresh private mapping; nothing else is touched.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page is ours; wiping it in children is what we want.
    unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) };
    let word: *mut AtomicU64 = page.cast();
    FORK_WORD.store(word, Ordering::Release);
    // SAFETY: `child` is async-signal-safe (its own promise) and lives for ever.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(child)) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    Ok(())
}

/// Has `last` run when the process exits by `exit` or by returning from `main`. To be called once.
pub(crate) fn at_exit(last: extern "C" fn()) {
    // SAFETY: a plain function that stays mapped: the library is never unloaded.
    unsafe { libc::atexit(last) };
}

/// Has `last` run when the process ends by `quick_exit`; `last` is async-signal-safe, as that is. To be
/// called once.
pub(crate) fn at_quick_exit(last: extern "C" fn()) {
    unsafe extern "C" {
        fn at_quick_exit(last: extern "C" fn()) -> libc::c_int;
    }
    // SAFETY: a plain function that stays mapped: the library is never unloaded.
    unsafe { at_quick_exit(last) };
}

/// Asks the preload shim, where there is one, to call `last` before the process ends by `_exit` or `_Exit`;
/// `last` is async-signal-safe, as these are.
pub(crate) fn at_bare_exit(last: extern "C" fn()) {
    type Watch = unsafe extern "C" fn(Option<extern "C" fn()>);
    // SAFETY: the name ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"rocebud_shim_watch_exit".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the shim's function of this name has this type.
        let watch = unsafe { std::mem::transmute::<*mut libc::c_void, Watch>(found) };
        // SAFETY: a plain function that stays mapped: the library is never unloaded.
        unsafe { watch(Some(last)) };
    }
}

/// Sleeps while the word is `value`, until [`futex_wake`] or for so long. Async-signal-safe, and no
/// cancellation point.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, timeout_ns: u64) {
    let timeout = timespec(timeout_ns);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: both live through the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            value,
            &raw const timeout,
        )
    };
}

/// Wakes all who sleep on a word.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives through the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, libc::c_int::MAX) };
}

/// The word; 0 in a fresh child.
#[inline]
pub(crate) fn fork_word() -> u64 {
    fork_cell().load(Ordering::Acquire)
}

/// Makes the word `value` if it is 0.
pub(crate) fn set_fork_word(value: u64) -> bool {
    let cell = fork_cell();
    let set = cell.compare_exchange(0, value, Ordering::AcqRel, Ordering::Acquire);
    set.is_ok()
}

/// For the handler of a fork, where MADV_WIPEONFORK is missing.
pub(crate) fn wipe_fork_word() {
    fork_cell().store(0, Ordering::Release);
}

#[inline]
fn fork_cell() -> &'static AtomicU64 {
    // SAFETY: a static, or the page mapped for good by `watch_forks`, aligned, and zeros or what
    // was stored there; in a child it is private.
    unsafe { &*FORK_WORD.load(Ordering::Acquire) }
}

/// What a pointer to a leaked box points to; `None` for null.
pub(crate) fn leaked<T: Sync>(at: *mut T) -> Option<&'static T> {
    // SAFETY: the caller keeps null or a leaked box, which is never freed nor borrowed mutably.
    unsafe { at.as_ref() }
}

/// Closes a descriptor by number, in a child that must not run destructors.
pub(crate) fn close_raw(fd: RawFd) {
    // SAFETY: no pointers; the caller knows that the number is ours.
    unsafe { libc::close(fd) };
}

/// A buffer that begins on a page.
pub(crate) struct PageBuf {
    ptr: std::ptr::NonNull<u8>,
    layout: std::alloc::Layout,
}

// SAFETY: a plain owned allocation.
unsafe impl Send for PageBuf {}

impl PageBuf {
    pub(crate) fn new(len: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(len.max(1), 4096)
            .unwrap_or_else(|_| std::alloc::Layout::new::<[u8; 4096]>());
        // SAFETY: the layout is not empty.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(ptr) = std::ptr::NonNull::new(ptr) else {
            std::alloc::handle_alloc_error(layout)
        };
        Self { ptr, layout }
    }
}

impl Drop for PageBuf {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { std::alloc::dealloc(self.ptr.as_ptr(), self.layout) };
    }
}

impl std::ops::Deref for PageBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `layout.size()` initialised bytes, owned by us.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.layout.size()) }
    }
}

impl std::ops::DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `layout.size()` initialised bytes, owned by us and borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.layout.size()) }
    }
}

/// Zeroed pages of our own, known by their address only: the guarded copies of `src/mem` reach
/// them, as they reach the program's memory.
#[derive(Debug)]
pub struct Pages {
    /// Whole mapping.
    start: usize,
    mapped: usize,
    /// Aligned as asked.
    addr: u64,
}

impl Pages {
    /// `len` bytes at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// The system has no memory for them, or the sizes overflow.
    pub fn new(len: usize, align: usize) -> io::Result<Self> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let slack = align.saturating_sub(page);
        let mapped = (len.max(1).checked_next_multiple_of(page))
            .and_then(|bytes| bytes.checked_add(slack))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping, at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), mapped, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Everybody reaches it by its number from here on.
        let start = at.expose_provenance();
        let addr = start.next_multiple_of(align.max(1)) as u64;
        Ok(Self {
            start,
            mapped,
            addr,
        })
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: mapped by `new`, and nobody else unmaps it. Copies that come too late fault and
        // are told so.
        unsafe { libc::munmap(start, self.mapped) };
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made by the kernel for us, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
