//! Asynchronous events, as they come out.

use std::sync::atomic::Ordering;

use rocebud_objects::EventKind;
use rocebud_runtime::channel::Acked;
use rocebud_runtime::context::{AsyncNotice, Element};
use rocebud_wire::Qpn;

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncElement {
    /// A queue pair.
    Qp {
        /// Its number.
        qpn: Qpn,
        /// Its `user` word.
        user: u64,
    },
    /// A completion queue.
    Cq {
        /// Its `user` word.
        user: u64,
    },
    /// A shared receive queue.
    Srq {
        /// Its `user` word.
        user: u64,
    },
    /// A port.
    Port(u8),
    /// The whole device.
    Device,
}

/// An event taken. Destroying its queue pair, completion queue or shared receive queue waits until
/// it was acknowledged; dropping it unacknowledged leaves it so.
#[derive(Debug)]
pub struct AsyncEventOut {
    /// What happened.
    pub kind: EventKind,
    /// To what.
    pub element: AsyncElement,
    notice: AsyncNotice,
}

impl AsyncEventOut {
    pub(crate) fn new(notice: AsyncNotice) -> Self {
        let element = match &notice.element {
            Element::Qp(qp) => AsyncElement::Qp {
                qpn: qp.qpn,
                user: qp.user.load(Ordering::Acquire),
            },
            Element::Cq(cq) => AsyncElement::Cq {
                user: cq.user.load(Ordering::Acquire),
            },
            Element::Srq(srq) => AsyncElement::Srq {
                user: srq.user.load(Ordering::Acquire),
            },
            Element::Port(port) => AsyncElement::Port(*port),
            Element::Device => AsyncElement::Device,
        };
        Self {
            kind: notice.kind,
            element,
            notice,
        }
    }

    /// `ibv_ack_async_event`. A layer that no longer holds the event can use `ack_async_events` of
    /// the queue pair, completion queue or shared receive queue instead.
    pub fn ack(self) {
        if let Some(acks) = self.notice.acks() {
            acks.ack(1);
        }
    }
}
