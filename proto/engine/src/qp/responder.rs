//! The peer's requests: are they next, seen before, or too early?

use rocebud_objects::{Counter, EventKind, NoteKind, QpState, SrqId};
use rocebud_wire::{NakCode, OpcodeInfo, Operation, Packet, Psn, RKey, Syndrome};

use super::Qp;
use super::answers::{Answer, Answers, Body, ReadJob};
use super::replay::{Memory, Replay};
use crate::cx::Cx;
use crate::env::Env;
use crate::reasons::Reason;

/// The message that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Incoming {
    #[default]
    Idle,
    /// Into `Qp::held`.
    Send,
    Write(Target),
}

/// Where the next bytes of a WRITE go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    pub(crate) va: u64,
    pub(crate) rkey: RKey,
    pub(crate) left: u32,
    pub(crate) total: u32,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// No receive posted: RNR NAK.
    NoReceive,
    /// The request breaks a rule; what the receive in use, if any, completes with.
    Invalid(Option<Reason>),
    /// Key, range or permission.
    Access,
    /// Our own memory failed; what the receive in use completes with.
    Operational(Option<Reason>),
    /// XRC: no such shared receive queue, or one of another domain.
    Domain,
    /// SEND with invalidate placed its data, but the key was bad: acknowledged, and the end.
    Invalidate,
}

#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// Expected PSN.
    pub(crate) epsn: Psn,
    /// Requests completed, 24 bits.
    pub(crate) msn: u32,
    /// A NAK is out and the expected packet has not come: further NAKs are held back.
    nak_sent: bool,
    pub(crate) incoming: Incoming,
    pub(crate) replay: Replay,
    pub(crate) answers: Answers,
    /// Packets accepted since one was acknowledged.
    unacked: u32,
    established: bool,
    /// Shared receive queue of the message under way (XRC).
    pub(crate) message_srq: Option<SrqId>,
    /// Where a run of duplicates goes on: it is one line in the story.
    duplicate_next: Option<Psn>,
}

impl Responder {
    pub(crate) fn count_message(&mut self) {
        self.msn = (self.msn + 1) & Psn::MASK;
    }
}

impl Qp {
    pub(crate) fn on_request<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        let psn = pkt.bth.psn;
        let distance = psn.diff(self.resp.epsn);
        #[cfg(feature = "planted")]
        let distance = match psn.value().cmp(&self.resp.epsn.value()) {
            core::cmp::Ordering::Less
                if cx.planted(crate::config::Planted::PsnComparedWithoutWrap) =>
            {
                -1
            }
            _ => distance,
        };
        match distance {
            0 => self.on_expected(pkt, cx),
            1.. => self.on_early(psn, cx),
            _ => self.on_duplicate(pkt, cx),
        }
    }

    fn on_expected<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        self.resp.nak_sent = false;
        match self.serve(pkt, cx).and_then(|()| self.execute(pkt, cx)) {
            Ok(()) => self.established(cx),
            Err(refusal) => self.refuse(refusal, cx),
        }
    }

    /// First request in RTR: the peer is ready to send, whatever became of its RTU.
    pub(crate) fn established<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        if self.state == QpState::Rtr && !self.resp.established {
            self.raise(EventKind::CommEst, cx);
        }
        self.resp.established = true;
    }

    /// A packet is missing before this one: one NAK, then silence until it comes.
    fn on_early<E: Env>(&mut self, psn: Psn, cx: &mut Cx<'_, E>) {
        cx.count(Counter::OutOfSequence);
        if self.resp.nak_sent {
            return;
        }
        self.note(cx, NoteKind::SeqNakSent, self.resp.epsn, psn.value());
        self.nak(Syndrome::Nak(NakCode::PsnSequenceError), cx);
    }

    fn nak<E: Env>(&mut self, syndrome: Syndrome, cx: &mut Cx<'_, E>) {
        self.resp.nak_sent = true;
        let (psn, msn) = (self.resp.epsn, self.resp.msn);
        // Several refusals of the same packet before anybody polls are one.
        self.resp.answers.push_once(Answer {
            psn,
            msn,
            body: Body::Nak(syndrome),
            repeated: false,
        });
        cx.core.ready.push(self.index);
    }

    /// A packet of a message was carried out. `asked` = it wants an ACK.
    pub(crate) fn accepted<E: Env>(&mut self, asked: bool, cx: &mut Cx<'_, E>) {
        let psn = self.resp.epsn;
        self.resp.epsn = psn.add(1);
        self.resp.unacked += 1;
        if asked || self.resp.unacked >= cx.core.cfg.ack_every_packets.max(1) {
            self.resp.unacked = 0;
            self.resp.answers.ack(psn, self.resp.msn);
            cx.core.ready.push(self.index);
        }
    }

    fn refuse<E: Env>(&mut self, refusal: Refusal, cx: &mut Cx<'_, E>) {
        let (code, event, receive) = match refusal {
            Refusal::NoReceive => {
                let timer = self.attr.min_rnr_timer;
                cx.count(Counter::SendRnrErr);
                self.note(cx, NoteKind::RnrNakSent, self.resp.epsn, u32::from(timer));
                return self.nak(Syndrome::RnrNak { timer }, cx);
            }
            Refusal::Invalidate => {
                self.resp.answers.ack(self.resp.epsn, self.resp.msn);
                if let Some(held) = self.held.take() {
                    self.complete_recv_error(held.cq, held.wr.wr_id, Reason::InvalidateFailed, cx);
                }
                return self.enter_error(Reason::FlushedByError, true, cx);
            }
            Refusal::Invalid(why) => {
                cx.count(Counter::RespInvalidRequest);
                (NakCode::InvalidRequest, EventKind::QpReqErr, why)
            }
            Refusal::Domain => {
                cx.count(Counter::RespInvalidRequest);
                (NakCode::InvalidRequest, EventKind::QpAccessErr, None)
            }
            Refusal::Access => {
                cx.count(Counter::RespRemoteAccessErrors);
                (NakCode::RemoteAccessError, EventKind::QpAccessErr, None)
            }
            Refusal::Operational(why) => {
                (NakCode::RemoteOperationalError, EventKind::QpAccessErr, why)
            }
        };
        self.note(cx, NoteKind::FatalNakSent, self.resp.epsn, code as u32);
        self.nak(Syndrome::Nak(code), cx);
        match self.held.take() {
            Some(held) => {
                let reason = receive.unwrap_or(Reason::PeerRequestRefused);
                self.complete_recv_error(held.cq, held.wr.wr_id, reason, cx);
            }
            None => self.raise(event, cx),
        }
        self.enter_error(Reason::FlushedByPeer, true, cx);
    }

    /// Seen before. Never executed again, never refused.
    fn on_duplicate<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        cx.count(Counter::DuplicateRequest);
        let psn = pkt.bth.psn;
        if self.resp.duplicate_next != Some(psn) {
            self.note(cx, NoteKind::Duplicate, psn, u32::from(pkt.bth.opcode.0));
        }
        self.resp.duplicate_next = Some(psn.add(1));
        match pkt.info.operation {
            Operation::Send | Operation::Write => {
                // As far as possible, but not past a READ or atomic whose answer the requester
                // may be missing: it would take the ACK for a sign of loss.
                let last = self.resp.epsn.sub(1);
                let psn = self
                    .resp
                    .replay
                    .first_after(psn)
                    .map_or(last, |first| first.sub(1));
                self.resp.answers.ack(psn, self.resp.msn);
                cx.core.ready.push(self.index);
            }
            _ => self.replay(pkt, cx),
        }
    }

    /// A READ or atomic again: the same answer, if it is remembered and asked the same way.
    fn replay<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        let psn = pkt.bth.psn;
        let Some(old) = self.resp.replay.find(psn) else {
            return cx.count(Counter::DropBadPsn);
        };
        if !self.serve_again(pkt, cx) {
            return cx.count(Counter::DropBadPsn);
        }
        let body = match (pkt.info.operation, old.memory) {
            (Operation::Read, Memory::Read { .. }) => self.read_again(pkt, old.psn, old.memory, cx),
            (Operation::CmpSwap | Operation::FetchAdd, Memory::Atomic { orig }) => {
                #[cfg(feature = "planted")]
                if cx.planted(crate::config::Planted::DuplicateAtomicExecuted)
                    && let Some(op) = super::execute::atomic_op(pkt)
                    && let Some(eth) = pkt.ext.atomic_eth
                {
                    let _ = cx.env.atomic_remote(self.scope(), eth.rkey, eth.va, op);
                }
                Some(Body::Atomic { orig })
            }
            (Operation::AtomicWrite | Operation::Flush, Memory::Done) => Some(Body::Done),
            _ => None,
        };
        let Some(body) = body else {
            return cx.count(Counter::DropBadPsn);
        };
        let answer = Answer {
            psn,
            msn: old.msn,
            body,
            repeated: true,
        };
        self.resp.answers.replace(old.psn, old.packets, answer);
        cx.core.ready.push(self.index);
    }

    /// A READ again, perhaps from its middle: within the original range, and still allowed.
    fn read_again<E: Env>(
        &self,
        pkt: &Packet<'_>,
        first: Psn,
        memory: Memory,
        cx: &Cx<'_, E>,
    ) -> Option<Body> {
        let Memory::Read { va, rkey, len } = memory else {
            return None;
        };
        let reth = pkt.ext.reth?;
        let skipped = u64::try_from(pkt.bth.psn.diff(first)).ok()? * self.pmtu as u64;
        let rest = u64::from(len).checked_sub(skipped)?;
        let same = reth.rkey == rkey
            && (reth.va == va.wrapping_add(skipped) || len == 0)
            && u64::from(reth.dma_len) <= rest
            && (reth.dma_len != 0 || len == 0);
        if !same {
            return None;
        }
        if reth.dma_len != 0 {
            self.check_remote(reth, rocebud_objects::Access::REMOTE_READ, cx)
                .ok()?;
        }
        Some(Body::Read(ReadJob {
            va: reth.va,
            rkey,
            left: reth.dma_len,
            pd: self.scope().pd,
            first: true,
            again: true,
        }))
    }

    /// Does this opcode continue the message that is under way?
    pub(crate) fn check_sequence(&self, info: &OpcodeInfo) -> Result<(), Refusal> {
        let fits = match self.resp.incoming {
            Incoming::Idle => info.position.starts(),
            Incoming::Send => info.operation == Operation::Send && !info.position.starts(),
            Incoming::Write(_) => info.operation == Operation::Write && !info.position.starts(),
        };
        if fits {
            Ok(())
        } else {
            Err(Refusal::Invalid(Some(Reason::PeerBrokeSequence)))
        }
    }
}
