//! Answers to our requests.
//!
//! Only a READ's own responses complete it; an answer to anything later while it is unanswered
//! means that its response was lost.

use rocebud_objects::{Counter, NoteKind, SendOp};
use rocebud_wire::{Aeth, NakCode, Operation, Packet, Position, Psn, Syndrome};

use super::flush::local_reason;
use super::sq::Kind;
use super::{Qp, sge};
use crate::cx::Cx;
use crate::env::Env;
use crate::reasons::Reason;

impl Qp {
    pub(crate) fn on_response<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        match pkt.info.operation {
            Operation::Acknowledge => {
                if let Some(aeth) = pkt.ext.aeth {
                    self.on_acknowledge(pkt.bth.psn, aeth, cx);
                }
            }
            Operation::ReadResponse | Operation::AtomicAcknowledge => self.on_data(pkt, cx),
            _ => {}
        }
    }

    /// The sequence of a PSN that is outstanding.
    fn outstanding(&self, psn: Psn) -> Option<u64> {
        self.sq
            .locate(psn)
            .filter(|s| (self.sq.una..self.sq.nxt).contains(s))
    }

    fn on_acknowledge<E: Env>(&mut self, psn: Psn, aeth: Aeth, cx: &mut Cx<'_, E>) {
        #[cfg(feature = "planted")]
        if cx.planted(crate::config::Planted::PsnComparedWithoutWrap)
            && psn.value() < self.sq.psn(self.sq.una).value()
        {
            return cx.count(Counter::DropBadPsn);
        }
        if let Syndrome::Nak(code) = aeth.syndrome
            && code != NakCode::PsnSequenceError
        {
            return self.on_fatal_nak(psn, code, cx);
        }
        let Some(at) = self.outstanding(psn) else {
            return self.on_ghost(psn, aeth, cx);
        };
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                if !self.acknowledged_through(at + 1, cx) {
                    self.implied_nak(cx);
                }
            }
            Syndrome::RnrNak { timer } => {
                if self.acknowledged_through(at, cx) {
                    self.rnr_nak(timer, cx);
                } else {
                    self.implied_nak(cx);
                }
            }
            Syndrome::Nak(_) => {
                if self.acknowledged_through(at, cx) {
                    self.sequence_nak(cx);
                } else {
                    self.implied_nak(cx);
                }
            }
            Syndrome::Reserved(_) => {}
        }
    }

    /// Outside of what is outstanding: an old ACK, or a sequence NAK for the next packet to come,
    /// which acknowledges all there is.
    fn on_ghost<E: Env>(&mut self, psn: Psn, aeth: Aeth, cx: &mut Cx<'_, E>) {
        let is_sequence_nak = matches!(aeth.syndrome, Syndrome::Nak(_));
        if is_sequence_nak && self.sq.outstanding() && psn == self.sq.psn(self.sq.nxt) {
            if !self.acknowledged_through(self.sq.nxt, cx) {
                self.implied_nak(cx);
            }
        } else {
            cx.count(Counter::DropBadPsn);
        }
    }

    fn on_fatal_nak<E: Env>(&mut self, psn: Psn, code: NakCode, cx: &mut Cx<'_, E>) {
        let reason = match code {
            NakCode::InvalidRequest => Reason::RemoteInvalidRequest,
            NakCode::RemoteAccessError => Reason::RemoteAccess,
            NakCode::RemoteOperationalError => Reason::RemoteOperation,
            NakCode::PsnSequenceError | NakCode::InvalidRdRequest => return,
        };
        // A NAK inside a READ that is partly answered may carry the request's first PSN, which
        // lies below what was received.
        let una = self.sq.una;
        let from = self
            .sq
            .front()
            .map_or(una, |w| if w.started { w.first.min(una) } else { una });
        let Some(at) = self
            .sq
            .locate(psn)
            .filter(|s| (from..self.sq.nxt).contains(s))
        else {
            return cx.count(Counter::DropBadPsn);
        };
        let reached = at <= una || self.acknowledged_through(at, cx);
        let owner = self
            .sq
            .front()
            .is_some_and(|w| w.started && (w.first..w.end()).contains(&at));
        if reached || owner {
            self.note(cx, NoteKind::FatalNakReceived, psn, code as u32);
            self.fail_front(reason, cx);
        } else {
            self.implied_nak(cx);
        }
    }

    /// Everything before `to` is acknowledged, as far as READs and atomics allow. False if one of
    /// them is in the way.
    fn acknowledged_through<E: Env>(&mut self, to: u64, cx: &mut Cx<'_, E>) -> bool {
        #[cfg(feature = "planted")]
        if cx.planted(crate::config::Planted::AckPastUnansweredRead) {
            self.progress(to, cx);
            return true;
        }
        let reach = self.sq.reach(to);
        self.progress(reach, cx);
        reach == to
    }

    /// Moves `una`: budgets, completions, timer.
    fn progress<E: Env>(&mut self, to: u64, cx: &mut Cx<'_, E>) {
        if to <= self.sq.una {
            return;
        }
        let done = self.sq.advance(to, self.pmtu as u64);
        self.give_back(done, cx);
        self.reload_retries();
        while let Some(wqe) = self.sq.pop_complete() {
            self.complete_send(&wqe, cx);
        }
        // Behind a wait for the peer's receive there is nothing left to wait for. What has yet to be
        // sent again may wait in line, too, and no answer will come that could wake it.
        if self.sq.outstanding() && !(self.sq.waits && self.sq.nothing_in_flight()) {
            self.arm_ack_timer(cx);
        } else {
            self.wait_in_line(cx);
        }
        if self.sq.cur < self.sq.base {
            self.sq.cur = self.sq.base;
        }
        self.report_failed(cx);
        self.check_drained(cx);
        if self.sq.may_go_on() {
            cx.core.ready.push(self.index);
        }
    }

    /// A READ response, or the answer to an atomic.
    fn on_data<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        #[cfg(feature = "planted")]
        if cx.planted(crate::config::Planted::PsnComparedWithoutWrap)
            && pkt.bth.psn.value() < self.sq.psn(self.sq.una).value()
        {
            return cx.count(Counter::DropBadPsn);
        }
        let Some(at) = self.outstanding(pkt.bth.psn) else {
            return cx.count(Counter::DropBadPsn);
        };
        if !self.acknowledged_through(at, cx) {
            return self.implied_nak(cx);
        }
        if self.sq.una != at {
            return;
        }
        let Some(wqe) = self.sq.front() else { return };
        let placed = match (wqe.kind, &wqe.wr.op) {
            (Kind::Read, _) => self.place_read(pkt, at, cx),
            (Kind::Single, SendOp::AtomicWrite { .. } | SendOp::Flush { .. }) => {
                let fits = pkt.info.operation == Operation::ReadResponse
                    && pkt.info.position == Position::Only;
                if !fits {
                    Err(Reason::BadResponseOpcode)
                } else if pkt.payload.is_empty() {
                    Ok(())
                } else {
                    Err(Reason::BadResponseLength)
                }
            }
            (Kind::Single, _) => self.place_atomic(pkt, cx),
            // The peer answers a SEND or WRITE with data: not an answer to anything.
            _ => return cx.count(Counter::DropBadPsn),
        };
        match placed {
            Ok(()) => self.progress(at + 1, cx),
            Err(reason) => self.fail_front(reason, cx),
        }
    }

    /// Checks a READ response against the request that drew it, and places its bytes.
    fn place_read<E: Env>(
        &mut self,
        pkt: &Packet<'_>,
        at: u64,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Reason> {
        let (pmtu, pd) = (self.pmtu as u64, self.init.pd);
        let resumed = self.sq.resumed_at == Some(at);
        let Some(wqe) = self.sq.ring.front() else {
            return Ok(());
        };
        let k = at - wqe.first;
        let ends = k + 1 == wqe.chunk_end(k);
        let must_start = k.is_multiple_of(wqe.chunk.max(1));
        let may_start = must_start || resumed;
        let position = pkt.info.position;
        if pkt.info.operation != Operation::ReadResponse
            || position.ends() != ends
            || position.starts() && !may_start
            || !position.starts() && must_start
        {
            return Err(Reason::BadResponseOpcode);
        }
        let expected = wqe.len.saturating_sub(k * pmtu).min(pmtu);
        if pkt.payload.len() as u64 != expected {
            return Err(Reason::BadResponseLength);
        }
        let rocebud_objects::Payload::Sges(sges) = &wqe.wr.payload else {
            return Ok(());
        };
        sge::scatter(cx.env, pd, sges, k * pmtu, pkt.payload).map_err(local_reason)
    }

    /// The value before, in host order.
    fn place_atomic<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) -> Result<(), Reason> {
        let pd = self.init.pd;
        let Some(ack) = pkt.ext.atomic_ack_eth else {
            return Err(Reason::BadResponseOpcode);
        };
        let Some(wqe) = self.sq.ring.front() else {
            return Ok(());
        };
        let rocebud_objects::Payload::Sges(sges) = &wqe.wr.payload else {
            return Ok(());
        };
        sge::scatter(cx.env, pd, sges, 0, &ack.orig.to_ne_bytes()).map_err(local_reason)
    }
}
