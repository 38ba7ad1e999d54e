//! Events behind a kernel descriptor that programs poll, and the acknowledgements that destroying
//! an object waits for.
//!
//! The descriptor is an eventfd in semaphore mode whose value is the number of events in the list, less
//! those that a thread has just read and is about to take, or has just added and is about to tell of. It
//! is readable exactly while events wait, and its flags (O_NONBLOCK, set by the program with fcntl) decide whether
//! taking an event blocks. A closed queue stays readable, and what is read then is an error.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use rocebud_objects::{Errno, Misuse};

use crate::sync::lock;
use crate::sys;

/// A first-in, first-out queue of events.
#[derive(Debug)]
pub struct EventQueue<T> {
    fd: OwnedFd,
    closed: AtomicBool,
    list: Mutex<VecDeque<T>>,
    /// Events in the list that the descriptor is about to tell of. Raised with the list's lock held.
    untold: AtomicU32,
}

/// Reads of a closed queue that find it readable: more than anybody makes.
const READABLE_FOR_EVER: u64 = 1 << 62;

/// Something that has events which must be acknowledged.
pub trait Acked {
    /// The account to which an event taken is charged; `None` if nobody waits for it.
    fn acks(&self) -> Option<&Acks>;
}

impl<T: Acked> EventQueue<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: sys::semaphore()?,
            closed: AtomicBool::new(false),
            list: Mutex::new(VecDeque::new()),
            untold: AtomicU32::new(0),
        })
    }

    /// The descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Adds an event and wakes who waits, which does not find the list locked then.
    pub fn push(&self, event: T) {
        let mut list = lock(&self.list);
        list.push_back(event);
        self.untold.fetch_add(1, Ordering::Relaxed);
        drop(list);
        sys::signal(self.fd.as_fd(), 1);
        self.untold.fetch_sub(1, Ordering::Release);
    }

    /// Takes the oldest event, if there is one that the descriptor tells of, and charges it.
    pub fn try_take(&self) -> Option<T> {
        let mut list = lock(&self.list);
        if list.is_empty() || !sys::take(self.fd.as_fd()) {
            return None;
        }
        list.pop_front().map(Self::charged)
    }

    /// Takes the oldest event, waiting for one if the descriptor's flags say so. `None` if another
    /// thread was faster: try again.
    ///
    /// The wait is a read and no poll, as it is with a device of the kernel: a read begins again
    /// by itself after a handler that was installed with `SA_RESTART`.
    ///
    /// # Errors
    /// EAGAIN: the descriptor is non-blocking. EINTR (4): a signal was handled. EIO: the queue was
    /// closed and is empty.
    pub fn wait(&self) -> Result<Option<T>, Misuse> {
        self.before_read()?;
        self.after_read(self.read())
    }

    /// First part of a wait, for callers that read the descriptor (eight bytes) themselves.
    ///
    /// # Errors
    /// EIO: the queue was closed and is empty.
    pub fn before_read(&self) -> Result<(), Misuse> {
        if self.is_closed() && self.is_empty() {
            return Err(Misuse::new(
                Errno::EIO,
                "the device is gone: no event will come any more",
            ));
        }
        Ok(())
    }

    pub(crate) fn read(&self) -> io::Result<()> {
        sys::take_waiting(self.fd.as_fd())
    }

    /// Last part of a wait: the descriptor was read.
    ///
    /// # Errors
    /// As [`EventQueue::wait`].
    pub fn after_read(&self, read: io::Result<()>) -> Result<Option<T>, Misuse> {
        if let Err(error) = read {
            let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
            return Err(Misuse::new(
                errno,
                match errno {
                    Errno::EAGAIN => "no event waits and the descriptor is non-blocking",
                    _ => "waiting for an event was interrupted",
                },
            ));
        }
        Ok(lock(&self.list).pop_front().map(Self::charged))
    }

    /// No event will come any more: whoever waits, or will, gets an error once the list is empty.
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            sys::signal(self.fd.as_fd(), READABLE_FOR_EVER);
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn charged(event: T) -> T {
        if let Some(acks) = event.acks() {
            acks.taken();
        }
        event
    }

    /// Takes out, uncharged, every event that `gone` says belongs to a dead object.
    pub fn purge(&self, mut gone: impl FnMut(&T) -> bool) {
        let mut list = lock(&self.list);
        while self.untold.load(Ordering::Acquire) != 0 {
            // Between two lines of `push`.
            sys::yield_now();
        }
        let before = list.len();
        list.retain(|event| !gone(event));
        for _ in list.len()..before {
            sys::take(self.fd.as_fd());
        }
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        lock(&self.list).len()
    }

    /// No event waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Events taken and acknowledged of one object.
#[derive(Debug, Default)]
pub struct Acks {
    count: Mutex<Count>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Count {
    taken: u64,
    acked: u64,
    /// Threads that wait. Waking nobody is a system call, too, and programs acknowledge each event.
    waiting: u32,
}

impl Acks {
    fn taken(&self) {
        lock(&self.count).taken += 1;
    }

    /// Acknowledges `n` events.
    pub fn ack(&self, n: u32) {
        let mut count = lock(&self.count);
        count.acked += u64::from(n);
        if count.waiting != 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until every event taken is acknowledged. Purge the queue first, so that no more can
    /// be taken.
    pub fn wait_settled(&self) {
        let mut count = lock(&self.count);
        count.waiting += 1;
        while count.taken > count.acked {
            count = self
                .changed
                .wait(count)
                .unwrap_or_else(PoisonError::into_inner);
        }
        count.waiting -= 1;
    }
}

#[cfg(test)]
mod tests;
