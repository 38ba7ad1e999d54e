//! An application thread that sleeps on the sockets itself.
//!
//! A packet wakes a thread that waits for it in the library twice over if the progress thread has to be
//! woken first. So one that sleeps, alone among the program's threads, until its own work completes keeps
//! the *lookout*: it sleeps on the sockets besides its own descriptors, and takes the packets with its next
//! poll. The progress thread watches meanwhile, as it does beside a program that polls; when the lookout
//! sleeps through a whole slice it rests for longer, until the lookout goes.
//!
//! A signal handler that does not come back may hold a lookout for ever: packets that have waited while
//! the progress thread rested end its post.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rocebud_objects::Wc;

use crate::cq::Cq;
use crate::progress::Progress;
use crate::runtime::{ClosedRings, Runtime};
use crate::sync::lock;
use crate::sys;

/// Who keeps the lookout.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// Odd while a thread keeps it. Rises with each change.
    turn: AtomicU64,
    /// The progress thread rests.
    trusted: AtomicBool,
}

/// A thread's time as lookout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Post(u64);

impl Lookout {
    /// The post, unless another thread has it.
    pub(crate) fn take(&self) -> Option<Post> {
        let turn = self.turn.load(Ordering::SeqCst);
        (turn.is_multiple_of(2) && self.change(turn)).then_some(Post(turn + 1))
    }

    /// Ends it. True: the progress thread rests, and must be woken.
    #[must_use]
    pub(crate) fn leave(&self, post: Post) -> bool {
        self.change(post.0);
        self.trusted.load(Ordering::SeqCst)
    }

    /// Ends another thread's, unless it has ended.
    pub(crate) fn depose(&self, post: Post) -> bool {
        self.change(post.0)
    }

    /// Who keeps it now.
    #[inline]
    pub(crate) fn kept(&self) -> Option<Post> {
        let turn = self.turn.load(Ordering::SeqCst);
        (!turn.is_multiple_of(2)).then_some(Post(turn))
    }

    /// The progress thread is about to rest. False: it must not, that lookout has gone. One that goes
    /// later sees that it is trusted.
    pub(crate) fn trust(&self, post: Post) -> bool {
        self.trusted.store(true, Ordering::SeqCst);
        self.kept() == Some(post)
    }

    /// It has rested.
    pub(crate) fn distrust(&self) {
        self.trusted.store(false, Ordering::SeqCst);
    }

    fn change(&self, from: u64) -> bool {
        let (to, order) = (from.wrapping_add(1), Ordering::SeqCst);
        self.turn.compare_exchange(from, to, order, order).is_ok()
    }
}

/// A thread of the application sleeps on descriptors while this lives, as lookout or beside others.
#[derive(Debug)]
pub struct Watch {
    runtime: Arc<Runtime>,
    post: Option<Post>,
    /// Of the lookout's sockets.
    _rings: Option<ClosedRings>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        match self.post {
            Some(post) => self.runtime.progress.leave_lookout(post),
            None => self.runtime.progress.wakes_up(),
        }
    }
}

impl Progress {
    /// Begins a sleep on the sockets. `None`: other threads sleep, and the progress thread has them in
    /// its sight.
    fn keep_lookout(&self) -> Option<Post> {
        if self.has_sleepers() {
            return None;
        }
        self.lookout.take()
    }

    fn leave_lookout(&self, post: Post) {
        if self.lookout.leave(post) {
            self.wake();
        }
    }

    /// The sockets that a lookout sleeps on are not all any more: the progress thread takes over.
    pub(crate) fn depose_lookout(&self) {
        if let Some(post) = self.lookout.kept() {
            self.lookout.depose(post);
        }
        self.wake();
    }
}

impl Runtime {
    /// Takes what has completed; does not run the engine.
    pub fn take(&self, cq: &Cq, out: &mut [Wc]) -> usize {
        let n = cq.take(out);
        if n != 0 {
            self.progress.polled_well();
        }
        n
    }

    /// Begins a sleep until one of the descriptors is ready or packets are there. It adds to them what else
    /// there is to sleep on; the caller polls them all, drops what it got here, and polls its completion
    /// queues. What completes in other threads it hears of by their events: the queues are armed before.
    #[must_use]
    pub fn sleep_on(self: &Arc<Self>, fds: &mut Vec<libc::pollfd>) -> Watch {
        self.send_before_sleep();
        let post = self.progress.keep_lookout();
        let mut rings = None;
        match post {
            Some(_) => {
                let sockets = lock(&self.sockets);
                let closed = sockets.close_rings();
                if closed.waiting() != 0 {
                    fds.push(self.progress.always_ready());
                }
                fds.extend(sockets.receive.iter().map(|fd| sys::poll_fd(*fd)));
                rings = Some(closed);
            }
            None => self.progress.falls_asleep(),
        }
        Watch {
            runtime: Arc::clone(self),
            post,
            _rings: rings,
        }
    }

    /// What was left to the program's next call does not wait for one that sleeps.
    fn send_before_sleep(&self) {
        let mut core = lock(&self.core);
        core.later.called();
        if core.has_more() {
            self.kick(&mut core);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_keeps_it_and_another_after_it() {
        let lookout = Lookout::default();
        let post = lookout.take().unwrap();
        assert_eq!(lookout.take(), None);
        assert_eq!(lookout.kept(), Some(post));
        assert!(!lookout.leave(post));
        assert_eq!(lookout.kept(), None);
        assert_ne!(lookout.take(), Some(post));
    }

    #[test]
    fn who_goes_while_it_is_trusted_hears_of_it() {
        let lookout = Lookout::default();
        let post = lookout.take().unwrap();
        assert!(lookout.trust(post));
        assert!(lookout.leave(post));
        assert!(!lookout.trust(post));
        lookout.distrust();
        let post = lookout.take().unwrap();
        assert!(!lookout.leave(post));
    }

    #[test]
    fn a_deposed_one_takes_no_post_from_its_successor() {
        let lookout = Lookout::default();
        let old = lookout.take().unwrap();
        assert!(lookout.depose(old));
        let new = lookout.take().unwrap();
        assert!(!lookout.leave(old));
        assert!(!lookout.depose(old));
        assert_eq!(lookout.kept(), Some(new));
    }
}
