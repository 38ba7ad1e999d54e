//! Unreliable connections: no answers, no retries. A message arrives whole or not at all, except
//! that bytes of a broken WRITE stay where they were written.

use rocebud_objects::Counter;
use rocebud_wire::Packet;

use super::Qp;
use super::responder::{Incoming, Refusal};
use crate::cx::Cx;
use crate::env::Env;
use crate::reasons::Reason;

impl Qp {
    /// The last packet is out: that is all the completion promises.
    pub(crate) fn finish_unreliable<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        self.sq.una = self.sq.cursor;
        while let Some(wqe) = self.sq.pop_complete() {
            self.complete_send(&wqe, cx);
        }
        self.check_drained(cx);
    }

    /// A gap is not an error: the broken message is dropped, and the next First or Only packet,
    /// whatever its PSN, starts anew.
    pub(crate) fn on_uc_request<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        let position = pkt.info.position;
        let expected = pkt.bth.psn == self.resp.epsn;
        if !expected || self.check_sequence(pkt.info).is_err() {
            if !expected {
                cx.count(Counter::OutOfSequence);
            }
            self.break_off(cx);
            if !position.starts() {
                return cx.count(Counter::DropNoReceive);
            }
        }
        self.resp.epsn = pkt.bth.psn.add(1);
        self.established(cx);
        let done = match self.check_enabled(pkt) {
            Err(refusal) => Err(refusal),
            Ok(()) if pkt.info.operation == rocebud_wire::Operation::Send => {
                self.take_send(pkt, cx)
            }
            Ok(()) => self.take_write(pkt, cx),
        };
        if let Err(refusal) = done {
            self.refuse_uc(&refusal, cx);
        }
    }

    /// The rest of the message that was under way will not come. Its receive is kept for the
    /// next one.
    fn break_off<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        if self.resp.incoming != Incoming::Idle {
            self.resp.incoming = Incoming::Idle;
            cx.count(Counter::DropNoReceive);
        }
    }

    fn refuse_uc<E: Env>(&mut self, refusal: &Refusal, cx: &mut Cx<'_, E>) {
        self.resp.incoming = Incoming::Idle;
        match *refusal {
            Refusal::NoReceive => cx.count(Counter::DropNoReceive),
            // Our own buffer is at fault, not the peer: the program must hear of it.
            Refusal::Operational(Some(reason)) => {
                if let Some(held) = self.held.take() {
                    self.complete_recv_error(held.cq, held.wr.wr_id, reason, cx);
                }
                self.enter_error(Reason::FlushedByError, false, cx);
            }
            _ => cx.count(Counter::DropRefused),
        }
    }
}
