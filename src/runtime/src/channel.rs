//! Events behind a kernel descriptor that programs poll, and the acknowledgements that destroying
//! an object waits for.
//!
//! The descriptor is an eventfd in semaphore mode whose value is always the number of events in
//! the list: both change under the list's lock. It is readable exactly while events wait, and its
//! flags (O_NONBLOCK, set by the program with fcntl) decide whether taking an event blocks.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, PoisonError};

use rocebud_objects::{Errno, Misuse};

use crate::sync::lock;
use crate::sys;

/// A first-in, first-out queue of events.
#[derive(Debug)]
pub struct EventQueue<T> {
    fd: OwnedFd,
    list: Mutex<VecDeque<T>>,
}

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
            list: Mutex::new(VecDeque::new()),
        })
    }

    /// The descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Adds an event and wakes who waits.
    pub fn push(&self, event: T) {
        let mut list = lock(&self.list);
        list.push_back(event);
        sys::signal(self.fd.as_fd());
    }

    /// Takes the oldest event, if there is one, and charges it.
    pub fn try_take(&self) -> Option<T> {
        let mut list = lock(&self.list);
        let event = list.pop_front()?;
        sys::take(self.fd.as_fd());
        if let Some(acks) = event.acks() {
            acks.taken();
        }
        Some(event)
    }

    /// Waits until an event may be there.
    ///
    /// # Errors
    /// EAGAIN: the descriptor is non-blocking. EINTR (4): a signal was handled.
    pub fn wait(&self) -> Result<(), Misuse> {
        if sys::is_nonblocking(self.fd.as_fd()) {
            return Err(Misuse::new(
                Errno::EAGAIN,
                "no event waits and the descriptor is non-blocking",
            ));
        }
        match sys::poll(&mut [sys::poll_fd(self.fd())], None) {
            Ok(_) => Ok(()),
            Err(error) => Err(Misuse::new(
                Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)),
                "waiting for an event was interrupted",
            )),
        }
    }

    /// Takes out, uncharged, every event that `gone` says belongs to a dead object.
    pub fn purge(&self, mut gone: impl FnMut(&T) -> bool) {
        let mut list = lock(&self.list);
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
}

impl Acks {
    fn taken(&self) {
        lock(&self.count).taken += 1;
    }

    /// Acknowledges `n` events.
    pub fn ack(&self, n: u32) {
        lock(&self.count).acked += u64::from(n);
        self.changed.notify_all();
    }

    /// Waits until every event taken is acknowledged. Purge the queue first, so that no more can
    /// be taken.
    pub fn wait_settled(&self) {
        let mut count = lock(&self.count);
        while count.taken > count.acked {
            count = self
                .changed
                .wait(count)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests;
