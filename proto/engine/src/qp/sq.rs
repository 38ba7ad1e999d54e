//! The send queue: work requests in order, and where each stands.
//!
//! Inside, packets are counted by a 64-bit *sequence* that never wraps; a PSN is its low 24 bits
//! plus the start value. Three marks move along it:
//!
//! ```text
//!   una          cursor            nxt
//!    |  in flight  |  sent before    |  never sent
//! ```
//!
//! `una` is the first packet not acknowledged, `cursor` the next to send, `nxt` one past the
//! highest ever sent. Going back means `cursor = una`. A READ owns as many numbers as it has
//! response packets.

use alloc::collections::VecDeque;

use rocebud_objects::{Instant, SendOp, SendWr};
use rocebud_wire::Psn;

use crate::limits::PACKET_COST_BYTES;
use crate::reasons::Reason;

/// What a request is to the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// SEND or WRITE: acknowledged by any ACK at or behind it.
    Forward,
    /// READ: completed by its own responses alone.
    Read,
    /// Atomic, ATOMIC WRITE, FLUSH: one packet, completed by its own response alone.
    Single,
    /// LOCAL_INV and binds: no packet.
    Local,
}

pub(crate) const fn kind(op: &SendOp) -> Kind {
    match op {
        SendOp::Send
        | SendOp::SendImm { .. }
        | SendOp::SendInv { .. }
        | SendOp::Write { .. }
        | SendOp::WriteImm { .. } => Kind::Forward,
        SendOp::Read { .. } => Kind::Read,
        SendOp::CmpSwap { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush { .. } => Kind::Single,
        SendOp::LocalInv { .. } | SendOp::BindMw { .. } => Kind::Local,
    }
}

/// A work request in the queue.
#[derive(Debug)]
pub(crate) struct Wqe {
    pub(crate) wr: SendWr,
    pub(crate) kind: Kind,
    /// Message bytes.
    pub(crate) len: u64,
    /// Sequence of its first packet; valid once started.
    pub(crate) first: u64,
    /// Numbers that it owns; valid once started.
    pub(crate) packets: u64,
    /// Response packets of each READ request, but for the last.
    pub(crate) chunk: u64,
    pub(crate) started: bool,
    /// It cannot go on; reported when everything before it is complete.
    pub(crate) fail: Option<Reason>,
}

impl Wqe {
    pub(crate) fn new(wr: SendWr) -> Self {
        let kind = kind(&wr.op);
        let len = match wr.op {
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. } => 8,
            SendOp::Flush { .. } | SendOp::LocalInv { .. } | SendOp::BindMw { .. } => 0,
            _ => wr.payload.len(),
        };
        Self {
            wr,
            kind,
            len,
            first: 0,
            packets: 0,
            chunk: 1,
            started: false,
            fail: None,
        }
    }

    /// One past its last packet.
    pub(crate) const fn end(&self) -> u64 {
        self.first + self.packets
    }

    /// Where the READ request that asks for packet `k` ends.
    pub(crate) fn chunk_end(&self, k: u64) -> u64 {
        let chunk = self.chunk.max(1);
        ((k / chunk + 1) * chunk).min(self.packets)
    }

    /// READ requests that end at or before packet `k`.
    fn chunks_before(&self, k: u64) -> u64 {
        let chunk = self.chunk.max(1);
        if k >= self.packets {
            self.packets.div_ceil(chunk)
        } else {
            k / chunk
        }
    }

    /// Message bytes in packets `from..to`, and the charge for each packet.
    pub(crate) fn cost(&self, from: u64, to: u64, pmtu: u64) -> u64 {
        let bytes = (to * pmtu)
            .min(self.len)
            .saturating_sub((from * pmtu).min(self.len));
        bytes + (to - from) * PACKET_COST_BYTES
    }
}

/// What the one timer of a queue pair waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Timer {
    #[default]
    Off,
    /// An answer.
    Ack { deadline: Instant },
    /// The peer's receive queue.
    Rnr { until: Instant },
    /// Its turn at a budget, while it holds nothing of it.
    Line { until: Instant },
}

/// In flight, between `una` and `cursor`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flight {
    /// SEND and WRITE packets.
    pub(crate) packets: u64,
    /// Their cost at the peer.
    pub(crate) bytes: u64,
    /// READ requests, atomics and the like.
    pub(crate) reads: u64,
    /// Cost of the responses they draw.
    pub(crate) read_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    pub(crate) ring: VecDeque<Wqe>,
    /// Number of the request at the front.
    pub(crate) base: u64,
    /// Number of the request that `cursor` is in, or of the next to start.
    pub(crate) cur: u64,
    pub(crate) una: u64,
    pub(crate) cursor: u64,
    pub(crate) nxt: u64,
    /// PSN of sequence 0.
    psn0: Psn,
    pub(crate) flight: Flight,
    /// Took its share of a budget since it last waited for one.
    pub(crate) served: bool,
    /// Stands in line for a budget: what it gets back itself is not its own to take again.
    pub(crate) waits: bool,
    /// Packets since one asked for an ACK.
    pub(crate) unasked: u32,
    /// The timer ran out while nothing in flight asked for an ACK: the next packet has to.
    pub(crate) overdue: bool,
    /// A READ was asked for again from here, in the middle of an earlier request: its answer
    /// begins anew here.
    pub(crate) resumed_at: Option<u64>,
    /// A NAK (or implied one) has already sent us back to here.
    pub(crate) nak_acted: Option<u64>,
    /// What is sent again was not lost: the peer had no receive when it came.
    pub(crate) unready: bool,
    pub(crate) retries_left: u8,
    pub(crate) rnr_left: u8,
    /// Timeouts in a row.
    pub(crate) timeouts: u32,
    /// How often the timer that runs was prolonged.
    pub(crate) excuses: u32,
    pub(crate) timer: Timer,
}

impl SendQueue {
    /// Starts anew at `psn`; the ring must be empty of started requests.
    pub(crate) fn restart(&mut self, psn: Psn) {
        self.psn0 = psn;
        self.una = 0;
        self.cursor = 0;
        self.nxt = 0;
        self.flight = Flight::default();
        self.unasked = 0;
        self.overdue = false;
        self.resumed_at = None;
        self.nak_acted = None;
        self.unready = false;
        self.timeouts = 0;
    }

    #[allow(clippy::cast_possible_truncation, reason = "masked to 24 bits first")]
    pub(crate) const fn psn(&self, sequence: u64) -> Psn {
        self.psn0.add((sequence & Psn::MASK as u64) as u32)
    }

    /// Sequence of a PSN in the half-range order around `una`; may lie outside [una, nxt).
    pub(crate) fn locate(&self, psn: Psn) -> Option<u64> {
        self.una
            .checked_add_signed(i64::from(psn.diff(self.psn(self.una))))
    }

    pub(crate) fn front(&self) -> Option<&Wqe> {
        self.ring.front()
    }

    /// The request that the cursor is in.
    pub(crate) fn current(&mut self) -> Option<&mut Wqe> {
        let at = usize::try_from(self.cur - self.base).ok()?;
        self.ring.get_mut(at)
    }

    /// Something is unacknowledged.
    pub(crate) const fn outstanding(&self) -> bool {
        self.una < self.nxt
    }

    /// Whatever is unacknowledged has yet to be sent again.
    pub(crate) const fn nothing_in_flight(&self) -> bool {
        self.cursor <= self.una
    }

    /// Packets are in flight, and none of them asks for an ACK.
    pub(crate) fn is_unheard(&self) -> bool {
        self.flight.packets != 0 && u64::from(self.unasked) >= self.flight.packets
    }

    /// Has work, and need not wait until others had their turn at a budget.
    pub(crate) fn may_go_on(&self) -> bool {
        self.has_work() && (!self.waits || self.is_unheard())
    }

    /// Every started request is complete.
    pub(crate) fn drained(&self) -> bool {
        self.ring.front().is_none_or(|w| !w.started)
    }

    /// There is something to send, or to send again.
    pub(crate) fn has_work(&self) -> bool {
        self.cursor < self.nxt || self.cur - self.base < self.ring.len() as u64
    }

    /// Every request was sent to its end, and nothing has to be sent again. May miss it.
    #[inline]
    pub(crate) fn has_sent_all(&self) -> bool {
        let (at, len) = (self.cur - self.base, self.ring.len() as u64);
        let is_over = |w: &Wqe| w.started && w.fail.is_none() && self.cursor >= w.end();
        self.cursor >= self.nxt
            && (at == len || at + 1 == len && self.ring.back().is_some_and(is_over))
    }

    /// How far an ACK of everything before `to` reaches: READs and atomics without their own
    /// response stop it.
    pub(crate) fn reach(&self, to: u64) -> u64 {
        for w in self.ring.iter().take_while(|w| w.started && w.first < to) {
            if matches!(w.kind, Kind::Read | Kind::Single) && w.end() > self.una {
                return to.min(w.first.max(self.una));
            }
        }
        to
    }

    /// Moves `una` to `to` and returns what is no longer in flight.
    pub(crate) fn advance(&mut self, to: u64, pmtu: u64) -> Flight {
        let before = self.flight;
        if to >= self.cursor {
            self.flight = Flight::default();
            self.cursor = to;
        } else {
            for w in self.ring.iter().take_while(|w| w.started && w.first < to) {
                let from = self.una.max(w.first) - w.first;
                let end = to.min(w.end()).saturating_sub(w.first);
                if end <= from {
                    continue;
                }
                let (packets, bytes, reads, read_bytes) = match w.kind {
                    Kind::Forward => (end - from, w.cost(from, end, pmtu), 0, 0),
                    Kind::Read => {
                        let chunks = w.chunks_before(end) - w.chunks_before(from);
                        (0, 0, chunks, w.cost(from, end, pmtu))
                    }
                    Kind::Single => (0, 0, 1, PACKET_COST_BYTES),
                    Kind::Local => (0, 0, 0, 0),
                };
                self.flight.packets = self.flight.packets.saturating_sub(packets);
                self.flight.bytes = self.flight.bytes.saturating_sub(bytes);
                self.flight.reads = self.flight.reads.saturating_sub(reads);
                self.flight.read_bytes = self.flight.read_bytes.saturating_sub(read_bytes);
            }
        }
        self.una = to;
        before.minus(self.flight)
    }

    /// Takes the front off if it is complete.
    pub(crate) fn pop_complete(&mut self) -> Option<Wqe> {
        let w = self.ring.front()?;
        if !w.started || w.fail.is_some() || w.end() > self.una {
            return None;
        }
        self.pop_front()
    }

    /// Takes the front off.
    pub(crate) fn pop_front(&mut self) -> Option<Wqe> {
        let w = self.ring.pop_front()?;
        self.base += 1;
        self.cur = self.cur.max(self.base);
        Some(w)
    }

    /// Goes back to the first unacknowledged packet; returns what was in flight.
    pub(crate) fn rewind(&mut self) -> Flight {
        self.cursor = self.una;
        self.cur = self.base;
        self.unasked = 0;
        self.overdue = false;
        core::mem::take(&mut self.flight)
    }
}

impl Flight {
    pub(crate) const fn minus(self, after: Self) -> Self {
        Self {
            packets: self.packets - after.packets,
            bytes: self.bytes - after.bytes,
            reads: self.reads - after.reads,
            read_bytes: self.read_bytes - after.read_bytes,
        }
    }
}

impl SendQueue {
    /// Empty, as created; the ring keeps its room.
    pub(crate) fn reset(&mut self) {
        let mut ring = core::mem::take(&mut self.ring);
        ring.clear();
        *self = Self {
            ring,
            ..Self::default()
        };
    }

    /// What is left to do failed already, and waits for what is before it.
    pub(crate) fn fails_later(&self) -> bool {
        usize::try_from(self.cur - self.base)
            .ok()
            .and_then(|at| self.ring.get(at))
            .is_some_and(|w| w.fail.is_some())
    }
}
