//! Raw packets: queue pairs that carry whole Ethernet frames, the rules that steer frames to them,
//! and receive queues that share them.
//!
//! Frames are copies of what the interface carries, so the kernel's own stack goes on working. They
//! come in when there is a rule for them and not before; see [`steer`]. Frames that this host sends
//! to a group or to the interface's own address come back, as a network card hands them to itself.

mod calls;
mod port;
mod qp;
mod recv;
mod send;
mod steer;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rocebud_ctl::page::QpCount;
use rocebud_engine::{Env, Node, Reason};
use rocebud_objects::flow::{FlowId, Headers};
use rocebud_objects::{AsyncEvent, Counter, CqId, EventKind, Instant, QpState, RxHash, Wc};
use rocebud_wire::Qpn;

use crate::cq::Cq;
use crate::env::World;

use port::Port;
use qp::{RawQp, Receives};
use steer::{Hits, Steering};

pub use calls::{RawCreate, WqState};

/// What a counter of flow rules has seen.
#[derive(Debug, Default)]
pub struct FlowCounts {
    /// Frames.
    pub packets: AtomicU64,
    /// Their bytes, without the frame check sequence.
    pub bytes: AtomicU64,
}

/// A receive queue that may serve several queue pairs, or a share of one.
#[derive(Debug)]
struct Wq {
    state: WqState,
    queue: recv::RecvQueue,
    /// Where its completions go.
    cq: Arc<Cq>,
    /// Tables that it is in.
    users: u32,
}

/// Receive queues among which frames are spread.
#[derive(Debug)]
struct Table {
    /// A power of two of them.
    wqs: Vec<Qpn>,
    /// Queue pairs that use it.
    users: u32,
}

/// An indirection table of this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TableId(u32);

/// Everything about raw packets that the engine's lock guards.
#[derive(Debug, Default)]
pub(crate) struct Raw {
    ports: HashMap<u32, Port>,
    qps: HashMap<Qpn, RawQp>,
    wqs: HashMap<Qpn, Wq>,
    tables: HashMap<TableId, Table>,
    steering: Steering,
    /// Ethernet groups that queue pairs are attached to, each by a rule.
    groups: HashMap<(Qpn, [u8; 6]), FlowId>,
    next_id: u32,
    /// Sends wait for room.
    stuck: bool,
    /// When the first of those that a rate limit holds back may go.
    due: Option<Instant>,
    /// Completion queues that overran during the call.
    failed: Vec<CqId>,
    /// All that ever did.
    dead: Vec<CqId>,
    /// Frames lost at interfaces that nobody uses any more.
    lost_before: u64,
}

impl Raw {
    /// There is none, so that nothing needs to be done about them.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// It is a raw packet queue pair.
    #[inline]
    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        self.qps.contains_key(&qpn)
    }

    /// Sends wait for room at the interface.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// When sends that a rate limit holds back want [`Raw::transmit`].
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Descriptors that become readable when frames arrive.
    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = i32> + '_ {
        self.ports.values().filter_map(Port::receive_fd)
    }

    /// Every descriptor.
    pub(crate) fn all_fds(&self) -> impl Iterator<Item = i32> + '_ {
        self.ports.values().flat_map(Port::fds)
    }

    /// Closes every socket; queue pairs stay, and send into nothing.
    pub(crate) fn drop_sockets(&mut self) {
        self.ports.clear();
        self.stuck = false;
        self.due = None;
    }

    /// Takes in frames, a bounded number of each interface.
    pub(crate) fn receive(&mut self, node: &mut Node, world: &mut World<'_>) -> usize {
        let Self {
            ports,
            qps,
            wqs,
            tables,
            steering,
            failed,
            ..
        } = self;
        let mut targets = Targets {
            qps,
            wqs,
            tables,
            failed,
        };
        let mut frames = 0;
        for (ifindex, port) in ports.iter_mut() {
            let (own, loopback) = (port.mac, port.loopback);
            frames += port.receive(&mut |frame| {
                let Some(headers) = Headers::read(frame.data) else {
                    return;
                };
                // The loopback interface hands in what it sends by itself.
                let comes_back = !frame.outgoing
                    || !loopback && (headers.is_multicast() || headers.dst_mac == own);
                let hits = steering.find(*ifindex, &headers, comes_back);
                targets.deliver(&hits, frame.data, &headers, world);
            });
        }
        self.settle(node, world);
        frames
    }

    /// Frames that the kernel dropped for want of room.
    pub(crate) fn lost(&self) -> u64 {
        self.lost_before + self.ports.values().map(Port::lost).sum::<u64>()
    }

    /// Sends what waits, as far as there is room now. Returns frames.
    pub(crate) fn transmit(&mut self, node: &mut Node, world: &mut World<'_>) -> usize {
        self.stuck = false;
        self.due = None;
        let mut sent = 0;
        for qp in self.qps.values_mut().filter(|qp| qp.wants_send()) {
            let Some(port) = self.ports.get_mut(&qp.ifindex) else {
                continue;
            };
            let done = send::send(qp, port, &mut self.failed, world);
            sent += done.frames;
            self.stuck |= done.stuck;
            self.due = self.due.into_iter().chain(done.due).min();
        }
        self.settle(node, world);
        sent
    }

    /// The queue pair's device is gone: what is posted is flushed.
    pub(crate) fn fail(&mut self, qpn: Qpn, node: &mut Node, world: &mut World<'_>) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.enter_error(Reason::FlushedByModify, &mut self.failed, world);
        }
        self.settle(node, world);
    }

    /// Takes down whatever uses a completion queue that overran.
    fn settle(&mut self, node: &mut Node, world: &mut World<'_>) {
        while let Some(cq) = self.failed.pop() {
            if self.dead.contains(&cq) {
                continue;
            }
            self.dead.push(cq);
            let kind = EventKind::CqErr;
            world.event(AsyncEvent::Cq { cq, kind });
            node.cq_failed(cq, world);
            let cause = Reason::FlushedByCq;
            for (qpn, qp) in &mut self.qps {
                let idle = matches!(qp.state, QpState::Reset | QpState::Err);
                if qp.uses_cq(cq) && !idle {
                    let kind = EventKind::QpFatal;
                    world.event(AsyncEvent::Qp { qpn: *qpn, kind });
                    qp.enter_error(cause, &mut self.failed, world);
                }
            }
            for wq in self.wqs.values_mut().filter(|wq| wq.queue.cq == cq) {
                wq.state = WqState::Err;
                wq.queue.clear();
            }
        }
    }

    /// Forgets overruns of queues that nobody uses any more; their numbers will be used again.
    fn forget_dead(&mut self) {
        let Self { dead, qps, wqs, .. } = self;
        let used = |cq: CqId| {
            qps.values().any(|qp| qp.uses_cq(cq)) || wqs.values().any(|wq| wq.queue.cq == cq)
        };
        dead.retain(|cq| used(*cq));
    }
}

/// Where frames can go.
struct Targets<'a> {
    qps: &'a mut HashMap<Qpn, RawQp>,
    wqs: &'a mut HashMap<Qpn, Wq>,
    tables: &'a HashMap<TableId, Table>,
    failed: &'a mut Vec<CqId>,
}

impl Targets<'_> {
    fn deliver(&mut self, hits: &Hits<'_>, frame: &[u8], headers: &Headers, world: &mut World<'_>) {
        for rule in hits.rules() {
            if let Some(counts) = &rule.counts {
                counts.packets.fetch_add(1, Ordering::Relaxed);
                counts
                    .bytes
                    .fetch_add(frame.len() as u64, Ordering::Relaxed);
            }
        }
        for rule in hits.takers() {
            let Some(qp) = self.qps.get(&rule.qpn) else {
                continue;
            };
            if !qp.receives() {
                world.add(Counter::DropBadState, 1);
                continue;
            }
            let frame = recv::Arrived {
                data: frame,
                vlan_tag: headers.vlan_tag,
                flow_tag: rule.attr.tag,
            };
            world.add_to_qp(rule.qpn, QpCount::RcvdPkts);
            match &qp.receives {
                Receives::Own(_) => self.place(rule.qpn, &frame, world),
                Receives::Spread { table, hash } => {
                    let share = self.share(*table, hash, headers);
                    self.place_share(share, &frame, world);
                }
            }
        }
    }

    /// The receive queue that a frame falls to.
    fn share(&self, table: TableId, hash: &RxHash, headers: &Headers) -> Option<Qpn> {
        let wqs = &self.tables.get(&table)?.wqs;
        let at = hash.of(headers) as usize % wqs.len().max(1);
        wqs.get(at).copied()
    }

    fn place(&mut self, qpn: Qpn, frame: &recv::Arrived<'_>, world: &mut World<'_>) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        let Receives::Own(queue) = &mut qp.receives else {
            return;
        };
        // Its memory or key is gone, and so may be that of the next.
        if queue.deliver(frame, self.failed, world).is_err() {
            qp.enter_error(Reason::FlushedByError, self.failed, world);
        }
    }

    fn place_share(
        &mut self,
        number: Option<Qpn>,
        frame: &recv::Arrived<'_>,
        world: &mut World<'_>,
    ) {
        let wq = number.and_then(|number| self.wqs.get_mut(&number));
        let Some(wq) = wq.filter(|wq| wq.state == WqState::Ready) else {
            return world.add(Counter::DropBadState, 1);
        };
        if wq.queue.deliver(frame, self.failed, world).is_err() {
            wq.state = WqState::Err;
            wq.queue.clear();
        }
    }
}

/// Adds a completion; a queue that is full is dealt with at the end of the call.
fn complete(world: &mut World<'_>, failed: &mut Vec<CqId>, cq: CqId, wc: Wc, solicited: bool) {
    if world.complete(cq, wc, solicited).is_err() {
        failed.push(cq);
    }
}
