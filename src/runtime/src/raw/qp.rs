//! A raw packet queue pair.

use std::collections::VecDeque;

use rocebud_engine::state::{duties, find_move};
use rocebud_engine::{Env, Pace, Reason};
use rocebud_objects::{
    AsyncEvent, AttrMask, Counter, CqId, Errno, EventKind, Misuse, Note, NoteKind, Payload, QpAttr,
    QpInit, QpState, QpType, RateLimit, RecvWr, RxHash, SendFlags, SendOp, SendWr, Wc, WcOpcode,
};
use rocebud_wire::{Psn, Qpn};

use super::recv::RecvQueue;
use super::{TableId, complete};
use crate::env::World;

/// Where its frames go.
#[derive(Debug)]
pub(super) enum Receives {
    /// Into its own queue.
    Own(RecvQueue),
    /// Into queues that others may use too. Such a queue pair receives and does nothing else; it
    /// has no states.
    Spread { table: TableId, hash: RxHash },
}

#[derive(Debug)]
pub(super) struct RawQp {
    pub(super) qpn: Qpn,
    pub(super) ifindex: u32,
    pub(super) init: QpInit,
    pub(super) state: QpState,
    pub(super) receives: Receives,
    pub(super) pace: Pace,
    port_num: u8,
    sq: VecDeque<SendWr>,
}

const SPREADS: Misuse = Misuse::new(
    Errno::EOPNOTSUPP,
    "a queue pair with an indirection table has no states and no queues of its own",
);

impl RawQp {
    pub(super) fn new(qpn: Qpn, ifindex: u32, init: QpInit, receives: Receives) -> Self {
        Self {
            qpn,
            ifindex,
            init,
            state: QpState::Reset,
            receives,
            pace: Pace::default(),
            port_num: 0,
            sq: VecDeque::new(),
        }
    }

    pub(super) fn uses_cq(&self, cq: CqId) -> bool {
        let spreads = matches!(self.receives, Receives::Spread { .. });
        !spreads && (self.init.send_cq == cq || self.init.recv_cq == cq)
    }

    /// Frames are taken in now.
    pub(super) fn receives(&self) -> bool {
        matches!(self.receives, Receives::Spread { .. }) || duties(self.state).respond
    }

    pub(super) fn wants_send(&self) -> bool {
        !self.sq.is_empty() && duties(self.state).start_sends
    }

    pub(super) fn sends(&self) -> impl Iterator<Item = &SendWr> {
        self.sq.iter()
    }

    // ---- states

    /// `ibv_modify_qp`: check all, then change all.
    pub(super) fn modify(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        failed: &mut Vec<CqId>,
        world: &mut World<'_>,
    ) -> Result<(), Misuse> {
        let to = self.check_move(attr, mask)?;
        match to {
            QpState::Reset => self.reset(world),
            QpState::Err => self.enter_error(Reason::FlushedByModify, failed, world),
            _ => {
                if mask.contains(AttrMask::PORT) {
                    self.port_num = attr.port_num;
                }
                if mask.contains(AttrMask::RATE_LIMIT) {
                    self.pace = Pace::new(RateLimit {
                        rate_kbps: attr.rate_limit,
                        ..RateLimit::default()
                    });
                }
                let drains = to == QpState::Sqd && self.state == QpState::Rts;
                self.set_state(to, world);
                // A frame is sent at once or not at all: nothing is ever under way.
                if drains
                    && mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY)
                    && attr.en_sqd_async_notify
                {
                    self.raise(EventKind::SqDrained, world);
                }
            }
        }
        Ok(())
    }

    fn check_move(&self, attr: &QpAttr, mask: AttrMask) -> Result<QpState, Misuse> {
        if matches!(self.receives, Receives::Spread { .. }) {
            return Err(SPREADS);
        }
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_qp_state != self.state {
            return Err(Misuse::invalid(
                "modify_qp: cur_qp_state is not the queue pair's state",
            ));
        }
        let to = if mask.contains(AttrMask::STATE) {
            attr.qp_state
        } else {
            self.state
        };
        let Some(found) = find_move(QpType::RawPacket, self.state, to) else {
            return Err(Misuse::invalid(
                "modify_qp: this state cannot follow the current one",
            ));
        };
        let given = mask.difference(AttrMask::STATE);
        if !given.contains(found.must) {
            return Err(Misuse::invalid(
                "modify_qp: a required attribute is not in the mask",
            ));
        }
        if !found.must.union(found.may).contains(given) {
            return Err(Misuse::invalid(
                "modify_qp: an attribute in the mask is not allowed here",
            ));
        }
        if mask.contains(AttrMask::PORT) && attr.port_num != 1 {
            return Err(Misuse::invalid("modify_qp: no such port"));
        }
        Ok(to)
    }

    /// `ibv_modify_qp_rate_limit`: until RESET.
    pub(super) fn set_rate_limit(&mut self, limit: RateLimit) -> Result<(), Misuse> {
        if self.state != QpState::Rts {
            return Err(Misuse::invalid(
                "modify_qp_rate_limit: the queue pair is not in RTS",
            ));
        }
        self.pace = Pace::new(limit);
        Ok(())
    }

    pub(super) fn query(&self) -> (QpAttr, QpInit) {
        let attr = QpAttr {
            qp_state: self.state,
            cur_qp_state: self.state,
            cap: self.init.cap,
            port_num: self.port_num,
            ..QpAttr::default()
        };
        (attr, self.init)
    }

    fn reset(&mut self, world: &mut World<'_>) {
        self.pace = Pace::default();
        self.sq.clear();
        if let Receives::Own(queue) = &mut self.receives {
            queue.clear();
        }
        self.set_state(QpState::Reset, world);
    }

    /// To ERR: whatever is posted is flushed.
    pub(super) fn enter_error(
        &mut self,
        cause: Reason,
        failed: &mut Vec<CqId>,
        world: &mut World<'_>,
    ) {
        if self.state == QpState::Err {
            return;
        }
        self.set_state(QpState::Err, world);
        while let Some(wr) = self.sq.pop_front() {
            self.send_failed(&wr, cause, failed, world);
        }
        if let Receives::Own(queue) = &mut self.receives {
            queue.flush(cause, failed, world);
        }
    }

    fn set_state(&mut self, state: QpState, world: &mut World<'_>) {
        if self.state != state {
            self.state = state;
            let note = Note {
                kind: NoteKind::State,
                psn: Psn::new(0),
                arg: state as u32,
            };
            world.note(self.qpn, note);
        }
    }

    fn raise(&self, kind: EventKind, world: &mut World<'_>) {
        let qpn = self.qpn;
        world.event(AsyncEvent::Qp { qpn, kind });
    }

    // ---- sends

    /// `ahead`: requests that will be queued before this one.
    pub(super) fn check_send(&self, wr: &SendWr, ahead: usize) -> Result<(), Misuse> {
        if matches!(self.receives, Receives::Spread { .. }) {
            return Err(SPREADS);
        }
        if !duties(self.state).post_send {
            return Err(Misuse::invalid(
                "post_send: the queue pair is not in RTS yet",
            ));
        }
        if wr.op != SendOp::Send {
            return Err(Misuse::invalid(
                "post_send: raw packet queue pairs send frames and do nothing else",
            ));
        }
        if wr.flags.contains(SendFlags::IP_CSUM) {
            return Err(Misuse::invalid(
                "post_send: this device computes no checksums (see device_cap_flags)",
            ));
        }
        if self.sq.len() + ahead >= self.init.cap.max_send_wr as usize {
            return Err(Misuse::new(
                Errno::ENOMEM,
                "post_send: the send queue holds max_send_wr requests; poll completions first",
            ));
        }
        match &wr.payload {
            Payload::Sges(list) if list.len() > self.init.cap.max_send_sge as usize => {
                Err(Misuse::invalid("post_send: more SGEs than max_send_sge"))
            }
            Payload::Inline(bytes) if bytes.len() > self.init.cap.max_inline_data as usize => Err(
                Misuse::invalid("post_send: inline data is longer than max_inline_data"),
            ),
            _ => Ok(()),
        }
    }

    pub(super) fn enqueue_send(
        &mut self,
        wr: SendWr,
        failed: &mut Vec<CqId>,
        world: &mut World<'_>,
    ) {
        if duties(self.state).flush_sends {
            return self.send_failed(&wr, Reason::FlushedByModify, failed, world);
        }
        self.sq.push_back(wr);
    }

    /// The request at the front was sent.
    pub(super) fn complete_send(&mut self, failed: &mut Vec<CqId>, world: &mut World<'_>) {
        let Some(wr) = self.sq.pop_front() else {
            return;
        };
        if !self.init.sq_sig_all && !wr.flags.contains(SendFlags::SIGNALED) {
            return;
        }
        let wc = Wc {
            wr_id: wr.wr_id,
            opcode: WcOpcode::Send,
            byte_len: u32::try_from(wr.payload.len()).unwrap_or(u32::MAX),
            qp_num: self.qpn,
            ..Wc::default()
        };
        complete(world, failed, self.init.send_cq, wc, false);
    }

    /// The request at the front cannot be sent.
    pub(super) fn fail_send(
        &mut self,
        reason: Reason,
        failed: &mut Vec<CqId>,
        world: &mut World<'_>,
    ) {
        if let Some(wr) = self.sq.pop_front() {
            self.send_failed(&wr, reason, failed, world);
        }
        self.enter_error(Reason::FlushedByError, failed, world);
    }

    fn send_failed(
        &self,
        wr: &SendWr,
        reason: Reason,
        failed: &mut Vec<CqId>,
        world: &mut World<'_>,
    ) {
        let wc = Wc {
            wr_id: wr.wr_id,
            status: reason.status(),
            vendor_err: reason as u32,
            opcode: WcOpcode::Send,
            qp_num: self.qpn,
            ..Wc::default()
        };
        let flushed = wc.status == rocebud_objects::WcStatus::WrFlushErr;
        world.add(
            if flushed {
                Counter::ReqCqeFlushError
            } else {
                Counter::ReqCqeError
            },
            1,
        );
        complete(world, failed, self.init.send_cq, wc, true);
    }

    // ---- receives

    pub(super) fn post_recv(
        &mut self,
        wr: RecvWr,
        failed: &mut Vec<CqId>,
        world: &mut World<'_>,
    ) -> Result<(), Misuse> {
        let duties = duties(self.state);
        let Receives::Own(queue) = &mut self.receives else {
            return Err(SPREADS);
        };
        if !duties.post_recv {
            return Err(Misuse::invalid("post_recv: the queue pair is in RESET"));
        }
        if duties.flush_recvs {
            queue.flush_one(wr.wr_id, Reason::FlushedByModify, failed, world);
            return Ok(());
        }
        queue.post(wr)?;
        if duties.respond && queue.unpark(failed, world).is_err() {
            self.enter_error(Reason::FlushedByError, failed, world);
        }
        Ok(())
    }
}
