//! Completion queues and channels.

use std::os::fd::RawFd;

use rocebud_objects::{Misuse, Wc};

/// A completion channel: an event for each armed completion queue that got something.
#[derive(Clone, Debug)]
pub struct CompChannel {}

/// "This completion queue got something."
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqEvent {
    /// The completion queue's `user` word.
    pub user: u64,
}

impl CompChannel {
    /// Becomes readable when an event waits.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        todo!()
    }

    /// `ibv_get_cq_event`: blocks unless the descriptor has O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN: non-blocking and nothing there. EINTR as errno 4: a signal.
    pub fn get_event(&self) -> Result<CqEvent, Misuse> {
        todo!()
    }

    /// `ibv_destroy_comp_channel`.
    ///
    /// # Errors
    /// EBUSY: completion queues use it.
    pub fn destroy(&self) -> Result<(), Misuse> {
        todo!()
    }
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct Cq {}

impl Cq {
    /// `ibv_poll_cq`: fills `out` from the front, in order; 0 when nothing is there. Runs the
    /// engine when the queue is empty.
    ///
    /// # Errors
    /// EIO: the queue overran or the process forked.
    pub fn poll(&self, _out: &mut [Wc]) -> Result<usize, Misuse> {
        todo!()
    }

    /// `ibv_req_notify_cq`: the next completion that qualifies makes one event; one that waits
    /// already makes it at once.
    ///
    /// # Errors
    /// EIO: the process forked.
    pub fn req_notify(&self, _solicited_only: bool) -> Result<(), Misuse> {
        todo!()
    }

    /// `ibv_resize_cq`.
    ///
    /// # Errors
    /// EINVAL: fewer than wait in it, 0, or above `max_cqe`.
    pub fn resize(&self, _cqe: u32) -> Result<(), Misuse> {
        todo!()
    }

    /// Entries granted.
    #[must_use]
    pub fn cqe(&self) -> u32 {
        todo!()
    }

    /// `ibv_ack_cq_events`.
    pub fn ack_events(&self, _n: u32) {
        todo!()
    }

    /// `ibv_destroy_cq`: waits until every event taken was acknowledged.
    ///
    /// # Errors
    /// EBUSY: queue pairs use it.
    pub fn destroy(&self) -> Result<(), Misuse> {
        todo!()
    }

    /// `ibv_ack_async_event`, by object: acknowledges `n` asynchronous events taken.
    pub fn ack_async_events(&self, _n: u32) {
        todo!()
    }

    /// The word that events carry.
    #[must_use]
    pub fn user(&self) -> u64 {
        todo!()
    }

    /// Sets [`Cq::user`].
    pub fn set_user(&self, _user: u64) {
        todo!()
    }
}
