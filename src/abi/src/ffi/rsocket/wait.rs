//! How a call waits: it looks, polls for a moment, and then sleeps on descriptors, one thread for
//! all that wait at the same socket.

use core::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rocebud_objects::{Errno, Misuse};

use super::super::boundary::{Outcome, last_errno};

/// How long a sleeper believes that nothing happened that it was not told of: another thread may
/// have taken the event it waits for. Upstream looks as often.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long a call polls before it sleeps: upstream's `polling_time`.
const POLL_FIRST: Duration = Duration::from_micros(10);

const CLOSED: Misuse = Misuse::new(Errno::EBADF, "the socket was closed by another thread");
const AGAIN: Misuse = Misuse::new(Errno::EAGAIN, "nothing can be done now without waiting");

/// What can be waited for.
pub(super) trait Waits {
    /// Does what can be done without waiting.
    fn pump(&mut self);
    /// Hears of what a program that only ever tries would miss.
    fn hear(&mut self) {}
    /// Wants the descriptors to tell of what comes from now on, and looks once more.
    fn arm(&mut self);
    /// What to sleep on; `own` is the descriptor that is the socket's number.
    fn descriptors(&self, own: RawFd) -> Vec<libc::pollfd>;
    /// Takes what woke a sleeper on [`Waits::descriptors`].
    fn woken(&mut self, fds: &[libc::pollfd]);
    /// Nothing is to be expected any more.
    fn is_closed(&self) -> bool;
    /// Whether a thread sleeps on the descriptors; others wait for it.
    fn sleeping(&mut self) -> &mut bool;
}

/// Where threads meet.
pub(super) struct Place<T> {
    /// The socket's number.
    pub(super) fd: RawFd,
    inner: Mutex<T>,
    changed: Condvar,
    /// Threads that wait for the sleeper. Changed with the lock held.
    waiting: AtomicU32,
}

impl<T: Waits> Place<T> {
    pub(super) const fn new(fd: RawFd, inner: T) -> Self {
        Self {
            fd,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            waiting: AtomicU32::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells threads that wait for this socket's sleeper to look again. Called after a change that was
    /// made with the lock held: who waits has either seen it, or was counted before. Nobody waits most
    /// of the time, and waking nobody is a system call, too.
    pub(super) fn stir(&self) {
        if self.waiting.load(Ordering::Acquire) != 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until `ready`, which only looks; EAGAIN if the socket may not wait.
    pub(super) fn wait(
        &self,
        nonblocking: bool,
        ready: impl Fn(&T) -> bool,
    ) -> Outcome<MutexGuard<'_, T>> {
        let mut inner = self.lock();
        let mut polled_since = None;
        loop {
            if inner.is_closed() {
                return Err(CLOSED);
            }
            inner.pump();
            if ready(&inner) {
                self.stir();
                return Ok(inner);
            }
            if nonblocking {
                // A program that only ever tries must hear of a dead peer as well.
                inner.hear();
                return if ready(&inner) { Ok(inner) } else { Err(AGAIN) };
            }
            if polled_since.get_or_insert_with(Instant::now).elapsed() < POLL_FIRST {
                continue;
            }
            inner = self.sleep(inner, &ready)?;
            polled_since = None;
        }
    }

    /// Sleeps once, unless something has happened by now.
    fn sleep<'a>(
        &'a self,
        mut inner: MutexGuard<'a, T>,
        ready: &impl Fn(&T) -> bool,
    ) -> Outcome<MutexGuard<'a, T>> {
        if *inner.sleeping() {
            self.waiting.fetch_add(1, Ordering::Release);
            let woken = self.changed.wait_timeout(inner, LOOK_AGAIN);
            let inner = woken.unwrap_or_else(PoisonError::into_inner).0;
            self.waiting.fetch_sub(1, Ordering::Release);
            return Ok(inner);
        }
        inner.arm();
        if ready(&inner) {
            return Ok(inner);
        }
        let mut fds = inner.descriptors(self.fd);
        *inner.sleeping() = true;
        drop(inner);
        let waited = poll(&mut fds, LOOK_AGAIN);
        let mut inner = self.lock();
        *inner.sleeping() = false;
        self.stir();
        if !inner.is_closed() {
            inner.woken(&fds);
        }
        waited.map(|()| inner)
    }
}

/// Waits for descriptors. EINTR after a signal.
fn poll(fds: &mut [libc::pollfd], at_most: Duration) -> Outcome<()> {
    let timeout = c_int::try_from(at_most.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: as many entries as said.
    let n = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    if n < 0 {
        return Err(Misuse::new(
            last_errno(),
            "a signal came while the call waited",
        ));
    }
    Ok(())
}

/// Readable, please.
pub(super) const fn watch(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}
