//! Errors, flushing, and the end of a queue pair.

use rocebud_objects::{
    AsyncEvent, Counter, EventKind, NoteKind, QpAttr, QpState, SendFlags, SendOp, Wc, WcOpcode,
    WcStatus,
};

use super::Qp;
use super::responder::Responder;
use super::sq::{Flight, Timer, Wqe};
use crate::cx::Cx;
use crate::env::{Env, LocalFault};
use crate::reasons::Reason;

/// The opcode that a completion shows.
pub(crate) const fn wc_opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInv { .. } => WcOpcode::Send,
        SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CmpSwap { .. } => WcOpcode::CompSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
        SendOp::Flush { .. } => WcOpcode::Flush,
        SendOp::LocalInv { .. } => WcOpcode::LocalInv,
        SendOp::BindMw { .. } => WcOpcode::BindMw,
    }
}

/// The reason that a local fault gives.
pub(crate) const fn local_reason(fault: LocalFault) -> Reason {
    match fault {
        LocalFault::Key => Reason::LocalKey,
        LocalFault::Pd => Reason::LocalPd,
        LocalFault::Bounds => Reason::LocalBounds,
        LocalFault::Access => Reason::LocalAccess,
        LocalFault::Page => Reason::LocalPage,
    }
}

impl Qp {
    /// Completes a send with success, if it is signaled.
    pub(crate) fn complete_send<E: Env>(&self, wqe: &Wqe, cx: &mut Cx<'_, E>) {
        if !self.init.sq_sig_all && !wqe.wr.flags.contains(SendFlags::SIGNALED) {
            return;
        }
        let wc = Wc {
            wr_id: wqe.wr.wr_id,
            opcode: wc_opcode(&wqe.wr.op),
            byte_len: u32::try_from(wqe.len).unwrap_or(u32::MAX),
            qp_num: self.qpn,
            ..Wc::default()
        };
        cx.complete(self.init.send_cq, wc, false);
    }

    /// Completes a send with an error, signaled or not.
    pub(crate) fn complete_send_error<E: Env>(
        &self,
        wqe: &Wqe,
        reason: Reason,
        cx: &mut Cx<'_, E>,
    ) {
        let status = reason.status();
        let flushed = status == WcStatus::WrFlushErr;
        let wc = Wc {
            wr_id: wqe.wr.wr_id,
            status,
            opcode: wc_opcode(&wqe.wr.op),
            vendor_err: reason as u32,
            qp_num: self.qpn,
            ..Wc::default()
        };
        cx.count(if flushed {
            Counter::ReqCqeFlushError
        } else {
            Counter::ReqCqeError
        });
        if !flushed {
            let arg = (status as u32) << 16 | reason as u32;
            self.note(cx, NoteKind::ErrorCompletion, self.sq.psn(self.sq.una), arg);
        }
        cx.complete(self.init.send_cq, wc, true);
    }

    /// The request at the front failed: its completion, then everything behind it is flushed. RC
    /// goes to ERR; the unreliable services stop sending (SQE) and go on receiving.
    pub(crate) fn fail_front<E: Env>(&mut self, reason: Reason, cx: &mut Cx<'_, E>) {
        let Some(wqe) = self.sq.pop_front() else {
            return;
        };
        self.complete_send_error(&wqe, reason, cx);
        if self.init.qp_type.is_reliable() {
            self.enter_error(Reason::FlushedByError, false, cx);
        } else {
            self.set_state(QpState::Sqe, cx);
            self.flush_sends(Reason::FlushedBySqe, cx);
        }
    }

    /// Reports a request that failed earlier, once everything before it is complete.
    pub(crate) fn report_failed<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        if let Some(reason) = self.sq.front().and_then(|w| w.fail) {
            self.fail_front(reason, cx);
        }
    }

    /// Marks the request that the cursor is in as failed.
    pub(crate) fn fail_current<E: Env>(&mut self, reason: Reason, cx: &mut Cx<'_, E>) {
        if let Some(w) = self.sq.current() {
            w.fail = Some(reason);
        }
        self.report_failed(cx);
    }

    pub(crate) fn set_state<E: Env>(&mut self, state: QpState, cx: &mut Cx<'_, E>) {
        if self.state != state {
            self.state = state;
            self.note(cx, NoteKind::State, self.sq.psn(self.sq.nxt), state as u32);
        }
    }

    /// To ERR. `keep_answers`: what was accepted before is still answered, and the NAK at the end.
    pub(crate) fn enter_error<E: Env>(
        &mut self,
        cause: Reason,
        keep_answers: bool,
        cx: &mut Cx<'_, E>,
    ) {
        if self.state == QpState::Err {
            return;
        }
        self.set_state(QpState::Err, cx);
        self.draining = false;
        self.set_timer(Timer::Off, cx);
        if keep_answers {
            cx.core.ready.push(self.index);
        } else {
            self.resp.answers.clear();
        }
        self.flush_sends(cause, cx);
        self.drop_all_parked(cx);
        if let Some(held) = self.held.take() {
            self.complete_recv_error(held.cq, held.wr.wr_id, cause, cx);
        }
        while let Some(wr) = self.rq.pop_front() {
            self.complete_recv_error(self.init.recv_cq, wr.wr_id, cause, cx);
        }
        if self.init.srq.is_some() {
            self.raise(EventKind::QpLastWqeReached, cx);
        }
    }

    fn flush_sends<E: Env>(&mut self, cause: Reason, cx: &mut Cx<'_, E>) {
        let flight = self.sq.rewind();
        self.give_back(flight, cx);
        while let Some(wqe) = self.sq.pop_front() {
            Self::undo_local(&wqe, cx);
            self.complete_send_error(&wqe, cause, cx);
            #[cfg(feature = "planted")]
            if self.sq.ring.is_empty() && cx.planted(crate::config::Planted::DoubleFlush) {
                self.complete_send_error(&wqe, cause, cx);
            }
        }
        // Numbers that were sent stay used: a later request must not carry them again.
        self.sq.una = self.sq.nxt;
        self.sq.cursor = self.sq.nxt;
    }

    pub(crate) fn raise<E: Env>(&self, kind: EventKind, cx: &mut Cx<'_, E>) {
        cx.env.event(AsyncEvent::Qp {
            qpn: self.qpn,
            kind,
        });
    }

    /// A completion queue of ours is unusable.
    pub(crate) fn cq_failed<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        if !matches!(self.state, QpState::Reset | QpState::Err) {
            // No completion can tell.
            let why = (WcStatus::WrFlushErr as u32) << 16 | Reason::FlushedByCq as u32;
            self.note(cx, NoteKind::ErrorCompletion, self.sq.psn(self.sq.una), why);
            self.raise(EventKind::QpFatal, cx);
            self.enter_error(Reason::FlushedByCq, false, cx);
        }
    }

    /// Returns budgets, at the peer's buffer and at our own.
    pub(crate) fn give_back<E: Env>(&mut self, flight: Flight, cx: &mut Cx<'_, E>) {
        let core = &mut *cx.core;
        if flight.bytes != 0
            && let Some(window) = self.peer.and_then(|id| core.peers.window(id))
        {
            window.release(flight.bytes, &mut core.ready);
        }
        core.reads.release(flight.read_bytes, &mut core.ready);
    }

    /// Everything forgotten, nothing completed: RESET and destroy. The state stays: to be destroyed is
    /// none, and whoever reads the story afterwards wants to know how it was before.
    pub(crate) fn retire<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        self.set_timer(Timer::Off, cx);
        let flight = self.sq.rewind();
        self.give_back(flight, cx);
        if let Some(peer) = self.peer.take() {
            cx.core.peers.detach(peer);
        }
        self.drop_all_parked(cx);
        if let Some(held) = self.held.take()
            && let Some(srq) = held.srq.and_then(|id| cx.core.srqs.get_mut(&id))
        {
            srq.give_back(held.wr);
        }
        while let Some(wqe) = self.sq.pop_front() {
            Self::undo_local(&wqe, cx);
        }
        cx.env.release_windows(self.qpn);
        self.sq.reset();
        self.rq.clear();
        self.resp = Responder::default();
        self.served = None;
        self.attr = QpAttr::default();
        self.path = rocebud_objects::Path::default();
        self.draining = false;
        self.pace = super::pace::Pace::default();
        self.notify = super::Notify::default();
        cx.core.paced.set(self.index, None);
    }
}
