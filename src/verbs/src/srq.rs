//! Shared receive queues.

use rocebud_objects::{Misuse, RecvWr, SrqAttr};

pub use rocebud_runtime::SrqMask;

use crate::PostError;

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct Srq {}

impl Srq {
    /// `ibv_post_srq_recv` of one request.
    ///
    /// # Errors
    /// EINVAL: too many SGEs. ENOMEM: full.
    pub fn post_recv(&self, _wr: RecvWr) -> Result<(), Misuse> {
        todo!()
    }

    /// `ibv_post_srq_recv` of a list: stops at the first that is refused; earlier ones stay.
    ///
    /// # Errors
    /// As [`Srq::post_recv`], with the position.
    pub fn post_recv_list(
        &self,
        _wrs: impl IntoIterator<Item = Result<RecvWr, Misuse>>,
    ) -> Result<(), PostError> {
        todo!()
    }

    /// `ibv_modify_srq`.
    ///
    /// # Errors
    /// EINVAL: limit above the size, size below what is posted or above the device's.
    pub fn modify(&self, _attr: &SrqAttr, _mask: SrqMask) -> Result<(), Misuse> {
        todo!()
    }

    /// `ibv_query_srq`.
    ///
    /// # Errors
    /// EIO: the device is dead.
    pub fn query(&self) -> Result<SrqAttr, Misuse> {
        todo!()
    }

    /// `ibv_get_srq_num`.
    #[must_use]
    pub fn number(&self) -> u32 {
        todo!()
    }

    /// `ibv_destroy_srq`: waits until every event taken was acknowledged.
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

    /// Sets [`Srq::user`].
    pub fn set_user(&self, _user: u64) {
        todo!()
    }
}
