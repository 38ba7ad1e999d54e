//! How a call waits: it looks, polls for a moment where that has paid, and then sleeps on descriptors,
//! one thread for all that wait at the same socket.
//!
//! A look at the completion queue costs no system call. A poll costs one or two, and only one that waits
//! for something that is not there yet makes it: after a sleep, since packets may have ended that, or to
//! spare the sleep.

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::{CompChannel as Sleeper, Watch};

use super::super::boundary::{Outcome, last_errno};
use super::super::sleep::{Call, On, Semaphore, Sleep, Sleepy, Stop};
use super::completions::Look;

/// How long a sleeper believes that nothing happened that it was not told of: another thread may
/// have taken the event it waits for. Upstream looks as often.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long a call polls before it sleeps: upstream's `polling_time`.
const POLL_FIRST: Duration = Duration::from_micros(10);

/// Calls that do not poll first after some that polled in vain, at most.
const UNPOLLED_MAX: u32 = 1024;

const CLOSED: Misuse = Misuse::new(Errno::EBADF, "the socket was closed by another thread");
const AGAIN: Misuse = Misuse::new(Errno::EAGAIN, "nothing can be done now without waiting");

/// What can be waited for.
pub(super) trait Waits {
    /// Does what can be done without waiting. A glance takes what others have brought.
    fn look(&mut self, how: Look);
    /// Hears of what a program that only ever tries would miss.
    fn hear(&mut self) {}
    /// Wants the descriptors to tell of what comes from now on, and glances once more.
    fn arm(&mut self);
    /// Adds what to sleep on; `own` is the descriptor that is the socket's number.
    fn descriptors(&self, own: RawFd, into: &mut Vec<libc::pollfd>);
    /// Who sleeps on them; `None`: plain polls do.
    fn sleeper(&self) -> Option<Sleeper>;
    /// Takes what woke a sleeper on [`Waits::descriptors`], and takes back [`Waits::arm`].
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
    /// Threads that wait for the sleeper. Changed with the lock on `inner` held.
    queue: Mutex<Vec<Arc<Semaphore>>>,
    /// How many.
    waiting: AtomicUsize,
    polling: Polling,
}

impl<T: Waits + 'static> Place<T> {
    pub(super) fn new(fd: RawFd, inner: T) -> Arc<Self> {
        Arc::new(Self {
            fd,
            inner: Mutex::new(inner),
            queue: Mutex::new(Vec::new()),
            waiting: AtomicUsize::new(0),
            polling: Polling::new(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells threads that wait for this socket's sleeper to look again. Called after a change that was
    /// made with the lock held: who waits has either seen it, or was counted before. Nobody waits most
    /// of the time.
    pub(super) fn stir(&self) {
        if self.waiting.load(Ordering::Acquire) != 0 {
            self.change_queue(|queue| queue.drain(..).for_each(|who| who.post()));
        }
    }

    fn change_queue(&self, change: impl FnOnce(&mut Vec<Arc<Semaphore>>)) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut queue);
        self.waiting.store(queue.len(), Ordering::Release);
    }

    /// Waits until `ready`, which only looks; EAGAIN if the socket may not wait.
    pub(super) fn wait(
        self: &Arc<Self>,
        call: &Call<'_>,
        nonblocking: bool,
        ready: impl Fn(&T) -> bool,
    ) -> Sleepy<MutexGuard<'_, T>> {
        let mut how = match call.woken_restarting()? {
            Some(sleep) => self.check_same(sleep)?,
            None => Look::Glance,
        };
        let mut inner = self.lock();
        let mut polled_since = None;
        loop {
            if inner.is_closed() {
                return Err(CLOSED.into());
            }
            inner.look(how);
            if ready(&inner) {
                if how == Look::Pump && polled_since.is_some() {
                    self.polling.paid();
                }
                self.stir();
                return Ok(inner);
            }
            if nonblocking {
                if how == Look::Glance {
                    how = Look::Pump;
                    continue;
                }
                // A program that only ever tries must hear of a dead peer as well.
                inner.hear();
                return if ready(&inner) {
                    Ok(inner)
                } else {
                    Err(AGAIN.into())
                };
            }
            if how == Look::Glance && self.polling.is_worth_it() {
                polled_since = Some(Instant::now());
            }
            how = Look::Pump;
            if let Some(since) = polled_since {
                if since.elapsed() < POLL_FIRST {
                    continue;
                }
                self.polling.was_vain();
                polled_since = None;
            }
            if !*inner.sleeping() {
                inner.arm();
                if ready(&inner) {
                    continue;
                }
            }
            return Err(Stop::Sleep(Box::new(self.sleep(inner))));
        }
    }

    /// After a sleep a number may be another socket's.
    fn check_same(self: &Arc<Self>, sleep: Box<dyn Sleep>) -> Outcome<Look> {
        let sleep: Box<dyn Any> = sleep;
        match sleep.downcast::<Asleep<T>>() {
            Ok(sleep) if Arc::ptr_eq(self, &sleep.place) => Ok(Look::Pump),
            _ => Err(CLOSED),
        }
    }

    /// Behind a thread that sleeps on the descriptors, or on them.
    fn sleep(self: &Arc<Self>, mut inner: MutexGuard<'_, T>) -> Asleep<T> {
        let place = Arc::clone(self);
        if *inner.sleeping() {
            let semaphore = Semaphore::own();
            self.change_queue(|queue| queue.push(Arc::clone(&semaphore)));
            return Asleep {
                place,
                at: At::Behind(semaphore),
            };
        }
        let mut fds = Vec::with_capacity(FDS_USUAL);
        inner.descriptors(self.fd, &mut fds);
        let sleeper = inner.sleeper();
        *inner.sleeping() = true;
        drop(inner);
        let own = fds.len();
        let watch = sleeper.map(|sleeper| sleeper.sleep_on(&mut fds));
        Asleep {
            place,
            at: At::Descriptors { fds, own, watch },
        }
    }
}

/// Descriptors of a socket and the device.
const FDS_USUAL: usize = 8;

/// A thread that waits at a socket.
struct Asleep<T: Waits + 'static> {
    place: Arc<Place<T>>,
    at: At,
}

enum At {
    /// The socket's own come first.
    Descriptors {
        fds: Vec<libc::pollfd>,
        own: usize,
        watch: Option<Watch>,
    },
    Behind(Arc<Semaphore>),
    Awake,
}

impl<T: Waits + 'static> Sleep for Asleep<T> {
    fn on(&mut self) -> On {
        match &mut self.at {
            At::Descriptors { fds, .. } => On::Descriptors(fds.as_mut_ptr(), fds.len(), LOOK_AGAIN),
            At::Behind(semaphore) => semaphore.on(LOOK_AGAIN),
            At::Awake => On::NOTHING,
        }
    }

    fn wake(&mut self) {
        let place = &self.place;
        match core::mem::replace(&mut self.at, At::Awake) {
            At::Descriptors { fds, own, watch } => {
                drop(watch);
                let mut inner = place.lock();
                *inner.sleeping() = false;
                place.stir();
                if !inner.is_closed() {
                    inner.woken(fds.get(..own).unwrap_or_default());
                }
            }
            At::Behind(semaphore) => {
                let _inner = place.lock();
                place.change_queue(|queue| queue.retain(|who| !Arc::ptr_eq(who, &semaphore)));
            }
            At::Awake => {}
        }
    }
}

impl<T: Waits + 'static> Drop for Asleep<T> {
    fn drop(&mut self) {
        self.wake();
    }
}

/// Asks the kernel at once.
pub(super) fn poll(fds: &mut [libc::pollfd]) -> Outcome<()> {
    // SAFETY: as many entries as said.
    let n = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) };
    match n {
        0.. => Ok(()),
        _ => Err(Misuse::new(
            last_errno(),
            "the descriptors cannot be polled",
        )),
    }
}

/// Whether to poll before a sleep: always at first, and while it pays; the more rarely the more often
/// it did not. Counts that another thread spoils cost nothing.
struct Polling {
    /// Calls that go without.
    left: AtomicU32,
    next: AtomicU32,
}

impl Polling {
    const fn new() -> Self {
        Self {
            left: AtomicU32::new(0),
            next: AtomicU32::new(0),
        }
    }

    /// Asked once a call.
    fn is_worth_it(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    fn paid(&self) {
        self.next.store(0, Ordering::Relaxed);
    }

    fn was_vain(&self) {
        let next = self.next.load(Ordering::Relaxed);
        self.left.store(next, Ordering::Relaxed);
        let more = (next * 2).clamp(8, UNPOLLED_MAX);
        self.next.store(more, Ordering::Relaxed);
    }
}

/// Readable, please.
pub(super) const fn watch(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls in a row that do not poll.
    fn unpolled(polling: &Polling) -> u32 {
        (0..10_000).take_while(|_| !polling.is_worth_it()).count() as u32
    }

    #[test]
    fn polls_in_vain_grow_rare_and_one_that_paid_makes_up_for_them() {
        let polling = Polling::new();
        for calls in [0, 0, 8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            assert_eq!(unpolled(&polling), calls);
            polling.was_vain();
        }
        assert_eq!(unpolled(&polling), 1024);
        polling.paid();
        polling.was_vain();
        assert_eq!(unpolled(&polling), 0);
    }
}
