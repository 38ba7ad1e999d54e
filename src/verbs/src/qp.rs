//! Queue pairs.

use rocebud_objects::{
    AttrMask, Misuse, Payload, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, SendWr, Sge,
};
use rocebud_wire::{Gid, Qpn};

use crate::{Cq, Srq};

/// What `create_qp` is told; `struct ibv_qp_init_attr`.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct QpCreate {
    pub qp_type: QpType,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub srq: Option<Srq>,
    pub cap: QpCap,
    pub sq_sig_all: bool,
    /// What asynchronous events give back.
    pub user: u64,
}

impl QpCreate {
    /// Sixteen requests each way, one SGE each.
    #[must_use]
    pub fn new(qp_type: QpType, send_cq: &Cq, recv_cq: &Cq) -> Self {
        Self {
            qp_type,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: false,
            user: 0,
        }
    }
}

/// A list of requests was refused in the middle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostError {
    /// Requests posted before it; also the position of the bad one.
    pub posted: usize,
    /// Why.
    pub misuse: Misuse,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {}

impl Qp {
    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        todo!()
    }

    /// Its type.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        todo!()
    }

    /// Sizes granted.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        todo!()
    }

    /// `ibv_modify_qp`. On an error nothing has changed.
    ///
    /// # Errors
    /// EINVAL: move, mask or value. EHOSTUNREACH, ENETUNREACH: no way to the destination.
    pub fn modify(&self, _attr: &QpAttr, _mask: AttrMask) -> Result<(), Misuse> {
        todo!()
    }

    /// `ibv_query_qp`; everything is filled.
    ///
    /// # Errors
    /// EINVAL: destroyed.
    pub fn query(&self) -> Result<(QpAttr, QpInit), Misuse> {
        todo!()
    }

    /// State now; ERR once it is destroyed or the device is dead.
    #[must_use]
    pub fn state(&self) -> QpState {
        todo!()
    }

    /// `ibv_post_send` of one request.
    ///
    /// # Errors
    /// EINVAL: state, opcode for this type, sizes. ENOMEM: the send queue is full.
    pub fn post_send(&self, _wr: SendWr) -> Result<(), Misuse> {
        todo!()
    }

    /// `ibv_post_send` of a list: stops at the first that is refused (by us or by the iterator);
    /// earlier ones stay posted and leave together. The iterator must call no verb.
    ///
    /// # Errors
    /// As [`Qp::post_send`], with the position.
    pub fn post_send_list(
        &self,
        _wrs: impl IntoIterator<Item = Result<SendWr, Misuse>>,
    ) -> Result<(), PostError> {
        todo!()
    }

    /// Copies what `sges` name (their keys are not looked at) for a request with INLINE. May be
    /// called by the iterator of [`Qp::post_send_list`].
    ///
    /// # Errors
    /// EINVAL: longer than `max_inline_data`, added up in 64 bits. EFAULT: memory not there.
    pub fn gather_inline(&self, _sges: &[Sge]) -> Result<Payload, Misuse> {
        todo!()
    }

    /// `ibv_post_recv` of one request.
    ///
    /// # Errors
    /// EINVAL: RESET, too many SGEs, or the queue pair has an SRQ. ENOMEM: full.
    pub fn post_recv(&self, _wr: RecvWr) -> Result<(), Misuse> {
        todo!()
    }

    /// `ibv_post_recv` of a list; see [`Qp::post_send_list`].
    ///
    /// # Errors
    /// As [`Qp::post_recv`], with the position.
    pub fn post_recv_list(
        &self,
        _wrs: impl IntoIterator<Item = Result<RecvWr, Misuse>>,
    ) -> Result<(), PostError> {
        todo!()
    }

    /// `ibv_attach_mcast`; joins the group on the network too.
    ///
    /// # Errors
    /// EINVAL: not UD, or not multicast. ENOMEM: too many.
    pub fn attach_mcast(&self, _group: Gid) -> Result<(), Misuse> {
        todo!()
    }

    /// `ibv_detach_mcast`.
    ///
    /// # Errors
    /// EINVAL: not attached.
    pub fn detach_mcast(&self, _group: Gid) -> Result<(), Misuse> {
        todo!()
    }

    /// `ibv_destroy_qp`: its completions vanish; waits until every event taken was acknowledged.
    ///
    /// # Errors
    /// EBUSY: attached to a multicast group.
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

    /// Sets [`Qp::user`].
    pub fn set_user(&self, _user: u64) {
        todo!()
    }
}
