//! Extended reliable connections: many requesters' connections end in few receive queues.
//!
//! An `XrcSend` queue pair requests as RC does and names, in every packet, a shared receive queue
//! at the peer. An `XrcRecv` queue pair serves as RC does, but has nothing of its own: receives,
//! their completion queue and the protection domain of all keys are those of the queue that the
//! packet names, which must be of the same XRC domain.

use rocebud_objects::{CqId, PdId, QpType, SrqId};
use rocebud_wire::{Opcode, Packet, XrcEth};

use super::Qp;
use super::responder::Refusal;
use super::sq::Wqe;
use crate::cx::{Core, Cx};
use crate::env::Env;

/// Added to an RC opcode.
const UC_CLASS: u8 = 0x20;
const XRC_CLASS: u8 = 0xa0;

/// The shared receive queue that a request names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Served {
    pub(crate) srq: SrqId,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
}

/// An opcode of RC, for a transport service.
pub(crate) const fn of_class(rc: Opcode, qp_type: QpType) -> Opcode {
    Opcode(
        rc.0 | match qp_type {
            QpType::Rc | QpType::Ud | QpType::RawPacket => 0,
            QpType::Uc => UC_CLASS,
            QpType::XrcSend | QpType::XrcRecv => XRC_CLASS,
        },
    )
}

/// The header that names the peer's receive queue; every packet of a message carries it.
pub(crate) const fn xrceth(qp_type: QpType, wqe: &Wqe) -> Option<XrcEth> {
    match qp_type {
        QpType::XrcSend => Some(XrcEth {
            srqn: wqe.wr.xrc_srqn,
        }),
        _ => None,
    }
}

impl Qp {
    /// Check only: the queue that a request names. `None` for services that name none.
    fn find_served<E: Env>(
        &self,
        pkt: &Packet<'_>,
        cx: &Cx<'_, E>,
    ) -> Result<Option<Served>, Refusal> {
        if self.init.qp_type != QpType::XrcRecv {
            return Ok(None);
        }
        let Some(eth) = pkt.ext.xrceth else {
            return Err(Refusal::Invalid(None));
        };
        let id = SrqId(eth.srqn);
        let srq = cx.core.srqs.get(&id).ok_or(Refusal::Domain)?;
        let xrc = srq.xrc.ok_or(Refusal::Domain)?;
        if self.init.xrcd != Some(xrc.xrcd) {
            return Err(Refusal::Domain);
        }
        Ok(Some(Served {
            srq: id,
            pd: srq.pd,
            cq: xrc.cq,
        }))
    }

    /// What follows is about the queue that this request names. A message stays with the queue
    /// that its first packet named.
    pub(crate) fn serve<E: Env>(
        &mut self,
        pkt: &Packet<'_>,
        cx: &Cx<'_, E>,
    ) -> Result<(), Refusal> {
        let served = self.find_served(pkt, cx)?;
        if pkt.info.position.starts() {
            self.resp.message_srq = served.map(|s| s.srq);
        } else if served.map(|s| s.srq) != self.resp.message_srq {
            return Err(Refusal::Invalid(None));
        }
        self.served = served;
        Ok(())
    }

    /// As [`Qp::serve`], for a request that was seen before: it changes no message under way.
    pub(crate) fn serve_again<E: Env>(&mut self, pkt: &Packet<'_>, cx: &Cx<'_, E>) -> bool {
        match self.find_served(pkt, cx) {
            Ok(served) => {
                self.served = served;
                true
            }
            Err(_) => false,
        }
    }

    /// A shared receive queue is gone, and the receive in use with it.
    pub(crate) fn forget_srq(&mut self, id: SrqId) {
        self.held.take_if(|held| held.srq == Some(id));
        self.served.take_if(|served| served.srq == id);
    }

    /// Receives of its domain complete there.
    pub(crate) fn serves_into(&self, cq: CqId, core: &Core) -> bool {
        self.init.xrcd.is_some_and(|xrcd| {
            let mut queues = core.srqs.values().filter_map(|srq| srq.xrc);
            queues.any(|xrc| xrc.xrcd == xrcd && xrc.cq == cq)
        })
    }
}
