//! Messages that found no receive posted: unreliable ones wait for it a while.
//!
//! The peer of a UC or UD queue pair cannot be told to wait, as an RNR NAK tells an RC one. A
//! program that takes completions and posts receives again is never far behind, but on a busy
//! machine it may have no turn for longer than its receives last. So packets wait here, in order:
//! at most [`NodeConfig::park_bytes_max`](crate::NodeConfig::park_bytes_max) for all queue pairs
//! together and for [`NodeConfig::park_ns`](crate::NodeConfig::park_ns). What does not fit or waits
//! longer is dropped and counted. RC never parks: its peer sends again.

use alloc::vec::Vec;

use rocebud_objects::{Counter, Instant, QpType};
use rocebud_wire::{Bth, Ext, OpcodeInfo, Operation, Packet};

use super::Qp;
use crate::cx::Cx;
use crate::env::Env;
use crate::limits::PARKED_COST_BYTES;
use crate::node::RxMeta;

/// A packet that waits.
#[derive(Debug)]
pub(crate) struct Parked {
    rx: RxMeta,
    bth: Bth,
    ext: Ext,
    info: &'static OpcodeInfo,
    payload: Vec<u8>,
    until: Instant,
}

impl Parked {
    fn new(rx: &RxMeta, pkt: &Packet<'_>, until: Instant) -> Self {
        Self {
            rx: *rx,
            bth: pkt.bth,
            ext: pkt.ext,
            info: pkt.info,
            payload: pkt.payload.to_vec(),
            until,
        }
    }

    fn packet(&self) -> Packet<'_> {
        Packet {
            bth: self.bth,
            ext: self.ext,
            payload: &self.payload,
            info: self.info,
        }
    }

    fn cost(&self) -> u64 {
        cost(&self.packet())
    }
}

fn cost(pkt: &Packet<'_>) -> u64 {
    pkt.payload.len() as u64 + PARKED_COST_BYTES
}

impl Qp {
    /// A packet of an unreliable service, which takes its turn behind those that wait.
    pub(crate) fn on_unreliable<E: Env>(
        &mut self,
        rx: &RxMeta,
        pkt: &Packet<'_>,
        cx: &mut Cx<'_, E>,
    ) {
        if self.parked.is_empty() && !self.lacks_receive(pkt, cx) {
            self.take_unreliable(rx, pkt, cx);
        } else {
            self.park(rx, pkt, cx);
        }
    }

    fn take_unreliable<E: Env>(&mut self, rx: &RxMeta, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        match self.init.qp_type {
            QpType::Ud => self.on_datagram(rx, pkt, cx),
            _ => self.on_uc_request(pkt, cx),
        }
    }

    /// The packet needs a receive, and there is none.
    fn lacks_receive<E: Env>(&self, pkt: &Packet<'_>, cx: &Cx<'_, E>) -> bool {
        let needs = match (self.init.qp_type, pkt.info.operation) {
            (QpType::Ud, _) => self.accepts_datagram(pkt).is_ok(),
            (_, Operation::Send) => pkt.info.position.starts(),
            _ => pkt.ext.imm_dt.is_some(),
        };
        needs && !self.has_receive(cx)
    }

    fn park<E: Env>(&mut self, rx: &RxMeta, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        let bytes = cx.core.parked_bytes + cost(pkt);
        if bytes > cx.core.cfg.park_bytes_max {
            return cx.count(Counter::DropNoReceive);
        }
        cx.core.parked_bytes = bytes;
        let until = cx.now + cx.core.cfg.park_ns;
        if self.parked.is_empty() {
            cx.core.timers.set(self.index, Some(until));
            self.await_receive(cx);
        }
        self.parked.push_back(Parked::new(rx, pkt, until));
    }

    /// A receive of the shared queue is to be offered to this queue pair too.
    fn await_receive<E: Env>(&self, cx: &mut Cx<'_, E>) {
        if let Some(srq) = self.init.srq.and_then(|id| cx.core.srqs.get_mut(&id)) {
            srq.wait(self.index);
        }
    }

    /// Receives were posted: what waited for them is taken.
    pub(crate) fn unpark<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        while let Some(front) = self.parked.front() {
            if self.lacks_receive(&front.packet(), cx) {
                return self.await_receive(cx);
            }
            let Some(parked) = self.parked.pop_front() else {
                return;
            };
            cx.core.parked_bytes = cx.core.parked_bytes.saturating_sub(parked.cost());
            // It may be the queue pair's end, which drops the others.
            self.take_unreliable(&parked.rx, &parked.packet(), cx);
            if cx.core.failed_cqs.contains(&self.init.recv_cq) {
                // So is this, at the end of the call; until then no more receives are taken from others
                // that share them.
                return;
            }
        }
        cx.core.timers.set(self.index, None);
    }

    /// Drops what has waited long enough.
    pub(crate) fn on_parked_timeout<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        while let Some(front) = self.parked.front() {
            if front.until > cx.now {
                return cx.core.timers.set(self.index, Some(front.until));
            }
            self.drop_parked(cx);
        }
    }

    /// Drops all that waits.
    pub(crate) fn drop_all_parked<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        while !self.parked.is_empty() {
            self.drop_parked(cx);
        }
    }

    fn drop_parked<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        if let Some(parked) = self.parked.pop_front() {
            cx.core.parked_bytes = cx.core.parked_bytes.saturating_sub(parked.cost());
            cx.count(Counter::DropNoReceive);
        }
    }
}
