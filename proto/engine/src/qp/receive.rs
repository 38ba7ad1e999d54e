//! Receive requests in use, and their completions.

use rocebud_objects::{
    AsyncEvent, Counter, CqId, EventKind, NoteKind, PdId, RecvWr, SrqId, Wc, WcFlags, WcOpcode,
};
use rocebud_wire::{Packet, RKey};

use super::{Qp, sge};
use crate::cx::Cx;
use crate::env::Env;
use crate::reasons::Reason;

/// A receive request that a message is being written into.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) wr: RecvWr,
    /// Whose keys its SGEs name: the SRQ's domain, or the queue pair's.
    pub(crate) pd: PdId,
    /// Where it completes.
    pub(crate) cq: CqId,
    /// Shared queue that it was taken from.
    pub(crate) srq: Option<SrqId>,
    /// Bytes that fit.
    pub(crate) capacity: u64,
    /// Bytes written.
    pub(crate) got: u64,
}

impl Qp {
    /// The shared queue that receives come from now.
    pub(crate) fn receive_srq(&self) -> Option<SrqId> {
        self.served.map_or(self.init.srq, |served| Some(served.srq))
    }

    /// A receive is there for the taking.
    pub(crate) fn has_receive<E: Env>(&self, cx: &Cx<'_, E>) -> bool {
        self.held.is_some()
            || match self.receive_srq() {
                None => !self.rq.is_empty(),
                Some(id) => cx.core.srqs.get(&id).is_some_and(|srq| !srq.is_empty()),
            }
    }

    /// Takes a receive into `held`; false if there is none. One that an unreliable message left
    /// behind is used first.
    pub(crate) fn hold_receive<E: Env>(&mut self, cx: &mut Cx<'_, E>) -> bool {
        if let Some(held) = &mut self.held {
            held.got = 0;
            return true;
        }
        let from = self.receive_srq();
        let (wr, pd) = match from {
            None => match self.rq.pop_front() {
                Some(wr) => (wr, self.init.pd),
                None => return false,
            },
            Some(id) => {
                let Some(srq) = cx.core.srqs.get_mut(&id) else {
                    return false;
                };
                let Some((wr, fired)) = srq.take() else {
                    return false;
                };
                let pd = srq.pd;
                if fired {
                    let kind = EventKind::SrqLimitReached;
                    cx.env.event(AsyncEvent::Srq { srq: id, kind });
                }
                (wr, pd)
            }
        };
        let capacity = sge::total(&wr.sges);
        self.held = Some(Held {
            wr,
            pd,
            cq: self.served.map_or(self.init.recv_cq, |served| served.cq),
            srq: from,
            capacity,
            got: 0,
        });
        true
    }

    /// Completes the receive in use with success. `bytes` as the completion shows them.
    pub(crate) fn complete_receive<E: Env>(
        &mut self,
        pkt: &Packet<'_>,
        opcode: WcOpcode,
        bytes: u64,
        invalidated: Option<RKey>,
        sl: u8,
        cx: &mut Cx<'_, E>,
    ) {
        let Some(held) = self.held.take() else { return };
        let mut wc = Wc {
            wr_id: held.wr.wr_id,
            opcode,
            byte_len: u32::try_from(bytes).unwrap_or(u32::MAX),
            qp_num: self.qpn,
            sl,
            ..Wc::default()
        };
        if let Some(imm) = pkt.ext.imm_dt {
            wc.imm = imm;
            wc.wc_flags |= WcFlags::WITH_IMM;
        }
        if let Some(rkey) = invalidated {
            wc.invalidated_rkey = rkey;
            wc.wc_flags |= WcFlags::WITH_INV;
        }
        if let Some(deth) = pkt.ext.deth {
            wc.src_qp = deth.src_qp;
            wc.wc_flags |= WcFlags::GRH;
        }
        cx.complete(held.cq, wc, pkt.bth.solicited);
    }

    /// Completes a receive with an error.
    pub(crate) fn complete_recv_error<E: Env>(
        &self,
        cq: CqId,
        wr_id: u64,
        reason: Reason,
        cx: &mut Cx<'_, E>,
    ) {
        let status = reason.status();
        let flushed = status == rocebud_objects::WcStatus::WrFlushErr;
        let wc = Wc {
            wr_id,
            status,
            opcode: WcOpcode::Recv,
            vendor_err: reason as u32,
            qp_num: self.qpn,
            ..Wc::default()
        };
        cx.count(if flushed {
            Counter::RespCqeFlushError
        } else {
            Counter::RespCqeError
        });
        if !flushed {
            let arg = (status as u32) << 16 | reason as u32;
            self.note(cx, NoteKind::ErrorCompletion, self.resp.epsn, arg);
        }
        cx.complete(cq, wc, true);
    }
}
