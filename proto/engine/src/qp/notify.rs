//! The notification point of congestion control: congestion marks in, notifications (CNPs) out.
//!
//! Any packet of a connection that arrives marked, request or response, in order or not, tells
//! that the path to here fills up; its sender hears of it, at most once in [`CNP_INTERVAL_NS`].
//! Marks on datagrams are counted only: their senders have no connection whose rate could fall.
//! Nor does a marked CNP draw another one, or two congested ends would never stop.

use rocebud_objects::{Counter, Instant, Path, QpType};
use rocebud_wire::Packet;

use super::{Qp, is_cnp, state};
use crate::cx::Cx;
use crate::env::Env;
use crate::limits::CNP_INTERVAL_NS;
use crate::node::{RxMeta, Transmit};

/// DSCP 48, as NICs send them, which switches put before the data; ECN-capable, so that a full
/// queue marks it rather than drops it.
const CNP_TRAFFIC_CLASS: u8 = 48 << 2 | 0b10;

/// What the ECN bits say when a switch has marked the packet.
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// When a connection's peer is told of congestion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Notify {
    pub(super) due: bool,
    /// When the last one left.
    last: Option<Instant>,
}

impl Notify {
    /// A marked packet came. True if a notification is due for it that was not before.
    fn marked(&mut self, now: Instant) -> bool {
        let early = |last| now.ns_since(last) < CNP_INTERVAL_NS;
        if self.due || self.last.is_some_and(early) {
            return false;
        }
        self.due = true;
        true
    }

    fn left(&mut self, now: Instant) {
        *self = Self {
            due: false,
            last: Some(now),
        };
    }
}

impl Qp {
    /// Looks at the congestion mark of an admitted packet.
    #[inline]
    pub(super) fn look_at_mark<E: Env>(
        &mut self,
        rx: &RxMeta,
        pkt: &Packet<'_>,
        cx: &mut Cx<'_, E>,
    ) {
        if rx.traffic_class & 3 != CONGESTION_EXPERIENCED {
            return;
        }
        cx.count(Counter::NpEcnMarkedRocePackets);
        let connected = self.init.qp_type != QpType::Ud;
        if connected && !is_cnp(pkt) && self.notify.marked(cx.now) {
            cx.core.ready.push(self.index);
        }
    }

    /// The notification that is due. It is no packet of the connection's sequence.
    pub(super) fn next_cnp<E: Env>(
        &mut self,
        buf: &mut [u8],
        cx: &mut Cx<'_, E>,
    ) -> Option<Transmit> {
        self.notify.left(cx.now);
        if !state::duties(self.state).respond {
            return None;
        }
        let frame = rocebud_wire::cnp(self.attr.dest_qp_num);
        buf.get_mut(..frame.len())?.copy_from_slice(&frame);
        cx.count(Counter::NpCnpSent);
        cx.count(Counter::SentPkts);
        let path = Path {
            traffic_class: CNP_TRAFFIC_CLASS,
            ..self.path
        };
        Some(Transmit {
            path,
            ..self.transmit(frame.len(), false)
        })
    }
}
