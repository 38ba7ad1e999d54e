//! Checks at `post_send` and `post_recv`: what is refused here never makes a completion.

use alloc::vec::Vec;

use rocebud_objects::{Errno, Misuse, Payload, QpType, RecvWr, SendFlags, SendOp, SendWr};

use super::Qp;
use super::sq::Wqe;
use super::state::duties;
use crate::cx::Cx;
use crate::env::Env;
use crate::limits;
use crate::reasons::Reason;

impl Qp {
    pub(crate) fn post_send<E: Env>(
        &mut self,
        wr: SendWr,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Misuse> {
        self.check_send(&wr, 0)?;
        self.enqueue_send(wr, cx);
        Ok(())
    }

    /// All of them, taken out of `wrs`, or, when one is refused, none.
    pub(crate) fn post_sends<E: Env>(
        &mut self,
        wrs: &mut Vec<SendWr>,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Misuse> {
        for (ahead, wr) in wrs.iter().enumerate() {
            self.check_send(wr, ahead)?;
        }
        for wr in wrs.drain(..) {
            self.enqueue_send(wr, cx);
        }
        Ok(())
    }

    fn enqueue_send<E: Env>(&mut self, wr: SendWr, cx: &mut Cx<'_, E>) {
        let duties = duties(self.state);
        let wqe = Wqe::new(wr);
        if duties.flush_sends {
            return self.complete_send_error(&wqe, self.flush_reason(), cx);
        }
        self.sq.ring.push_back(wqe);
        if duties.start_sends {
            cx.core.ready.push(self.index);
        }
    }

    /// `ahead`: requests that will be queued before this one.
    fn check_send(&self, wr: &SendWr, ahead: usize) -> Result<(), Misuse> {
        if !duties(self.state).post_send {
            return Err(Misuse::invalid(
                "post_send: the queue pair is not in RTS yet",
            ));
        }
        check_opcode(self.init.qp_type, &wr.op)?;
        if self.sq.ring.len() + ahead >= self.init.cap.max_send_wr as usize {
            return Err(Misuse::new(
                Errno::ENOMEM,
                "post_send: the send queue holds max_send_wr requests; poll completions first",
            ));
        }
        let len = wr.payload.len();
        self.check_pieces(wr, len)?;
        if len > limits::MESSAGE_BYTES_MAX {
            return Err(Misuse::invalid(
                "post_send: message is longer than max_msg_sz (2^31)",
            ));
        }
        if self.init.qp_type == QpType::Ud && wr.ud.is_none() {
            return Err(Misuse::invalid(
                "post_send: a datagram needs an address handle",
            ));
        }
        match wr.op {
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } if len < 8 => Err(Misuse::invalid(
                "post_send: an atomic needs 8 bytes for its result",
            )),
            SendOp::AtomicWrite { .. } if len != 8 => {
                Err(Misuse::invalid("post_send: an atomic write is 8 bytes"))
            }
            SendOp::BindMw { .. } if has_pieces(&wr.payload) => {
                Err(Misuse::invalid("post_send: a bind takes no SGEs"))
            }
            _ => Ok(()),
        }
    }

    fn check_pieces(&self, wr: &SendWr, len: u64) -> Result<(), Misuse> {
        let inline = wr.flags.contains(SendFlags::INLINE);
        match &wr.payload {
            Payload::Inline(_) if !may_inline(&wr.op) => Err(Misuse::invalid(
                "post_send: only sends and writes can be inline",
            )),
            Payload::Inline(_) if len > u64::from(self.init.cap.max_inline_data) => Err(
                Misuse::invalid("post_send: inline data is longer than max_inline_data"),
            ),
            Payload::Sges(_) if inline && len > u64::from(self.init.cap.max_inline_data) => Err(
                Misuse::invalid("post_send: inline data is longer than max_inline_data"),
            ),
            Payload::Sges(_) if inline && len != 0 => Err(Misuse::invalid(
                "post_send: inline data was not copied by the caller",
            )),
            Payload::Sges(list) if list.len() > self.init.cap.max_send_sge as usize => {
                Err(Misuse::invalid("post_send: more SGEs than max_send_sge"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn post_recv<E: Env>(
        &mut self,
        wr: RecvWr,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Misuse> {
        let duties = duties(self.state);
        if matches!(self.init.qp_type, QpType::XrcSend | QpType::XrcRecv) {
            return Err(Misuse::invalid(
                "post_recv: XRC receives are posted to shared receive queues",
            ));
        }
        if self.init.srq.is_some() {
            return Err(Misuse::invalid(
                "post_recv: post to the shared receive queue instead",
            ));
        }
        if !duties.post_recv {
            return Err(Misuse::invalid("post_recv: the queue pair is in RESET"));
        }
        if wr.sges.len() > self.init.cap.max_recv_sge as usize {
            return Err(Misuse::invalid("post_recv: more SGEs than max_recv_sge"));
        }
        if self.rq.len() >= self.init.cap.max_recv_wr as usize {
            return Err(Misuse::new(
                Errno::ENOMEM,
                "post_recv: the receive queue holds max_recv_wr requests; poll completions first",
            ));
        }
        if duties.flush_recvs {
            self.complete_recv_error(self.init.recv_cq, wr.wr_id, self.flush_reason(), cx);
            return Ok(());
        }
        self.rq.push_back(wr);
        if !self.parked.is_empty() {
            self.unpark(cx);
        }
        Ok(())
    }

    /// Why something posted now is flushed at once.
    const fn flush_reason(&self) -> Reason {
        match self.state {
            rocebud_objects::QpState::Sqe => Reason::FlushedBySqe,
            _ => Reason::FlushedByModify,
        }
    }
}

/// Operations by transport service.
fn check_opcode(qp_type: QpType, op: &SendOp) -> Result<(), Misuse> {
    let ok = match qp_type {
        QpType::Rc => true,
        QpType::Uc => matches!(
            op,
            SendOp::Send
                | SendOp::SendImm { .. }
                | SendOp::Write { .. }
                | SendOp::WriteImm { .. }
                | SendOp::LocalInv { .. }
                | SendOp::BindMw { .. }
        ),
        QpType::Ud => matches!(op, SendOp::Send | SendOp::SendImm { .. }),
        // The wire has no opcode for it.
        QpType::XrcSend => !matches!(op, SendOp::AtomicWrite { .. }),
        QpType::XrcRecv | QpType::RawPacket => false,
    };
    if ok {
        Ok(())
    } else {
        Err(Misuse::invalid(
            "post_send: this transport service does not have this operation",
        ))
    }
}

/// Pieces, even empty ones.
fn has_pieces(payload: &Payload) -> bool {
    match payload {
        Payload::Sges(list) => !list.is_empty(),
        Payload::Inline(bytes) => !bytes.is_empty(),
    }
}

const fn may_inline(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Send
            | SendOp::SendImm { .. }
            | SendOp::SendInv { .. }
            | SendOp::Write { .. }
            | SendOp::WriteImm { .. }
            | SendOp::AtomicWrite { .. }
    )
}
