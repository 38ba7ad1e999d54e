//! Carrying out a request that is next: check, apply, answer.

use rocebud_objects::{Access, AtomicOp, WcOpcode};
use rocebud_wire::{Operation, Packet, Reth};

use super::answers::{Answer, Body, ReadJob};
use super::flush::local_reason;
use super::replay::{Memory, Remembered};
use super::responder::{Incoming, Refusal, Target};
use super::{Qp, sge};
use crate::cx::Cx;
use crate::env::{Env, RemoteFault};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::reasons::Reason;

const INVALID: Refusal = Refusal::Invalid(None);

const fn remote_refusal(fault: RemoteFault) -> Refusal {
    match fault {
        RemoteFault::Page => Refusal::Operational(None),
        _ => Refusal::Access,
    }
}

/// The operation of a CmpSwap or FetchAdd packet.
pub(crate) fn atomic_op(pkt: &Packet<'_>) -> Option<AtomicOp> {
    let eth = pkt.ext.atomic_eth?;
    Some(match pkt.info.operation {
        Operation::CmpSwap => AtomicOp::CmpSwap {
            compare: eth.compare,
            swap: eth.swap_add,
        },
        _ => AtomicOp::FetchAdd { add: eth.swap_add },
    })
}

impl Qp {
    pub(crate) fn execute<E: Env>(
        &mut self,
        pkt: &Packet<'_>,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Refusal> {
        self.check_sequence(pkt.info)?;
        self.check_enabled(pkt)?;
        match pkt.info.operation {
            Operation::Send => {
                self.take_send(pkt, cx)?;
                self.accept_part(pkt, cx);
            }
            Operation::Write => {
                self.take_write(pkt, cx)?;
                self.accept_part(pkt, cx);
            }
            Operation::Read => self.take_read(pkt, cx)?,
            Operation::CmpSwap | Operation::FetchAdd => self.take_atomic(pkt, cx)?,
            Operation::AtomicWrite => self.take_atomic_write(pkt, cx)?,
            Operation::Flush => self.take_flush(pkt, cx)?,
            _ => return Err(INVALID),
        }
        Ok(())
    }

    fn accept_part<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        if pkt.info.position.ends() {
            self.resp.count_message();
        }
        self.accepted(pkt.bth.ack_req, cx);
    }

    /// Is the operation switched on for this queue pair?
    pub(crate) fn check_enabled(&self, pkt: &Packet<'_>) -> Result<(), Refusal> {
        let need = match pkt.info.operation {
            Operation::Write | Operation::AtomicWrite => Access::REMOTE_WRITE,
            Operation::Read => Access::REMOTE_READ,
            Operation::CmpSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            _ => Access::empty(),
        };
        if self.attr.qp_access_flags.contains(need) {
            Ok(())
        } else {
            Err(INVALID)
        }
    }

    pub(crate) fn check_remote<E: Env>(
        &self,
        reth: Reth,
        need: Access,
        cx: &Cx<'_, E>,
    ) -> Result<(), Refusal> {
        let len = u64::from(reth.dma_len);
        cx.env
            .check_remote(self.scope(), reth.rkey, reth.va, len, need)
            .map_err(remote_refusal)
    }

    /// A packet of a SEND, into the receive in use.
    pub(crate) fn take_send<E: Env>(
        &mut self,
        pkt: &Packet<'_>,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Refusal> {
        let position = pkt.info.position;
        if !pkt.info.payload.allows(pkt.payload.len(), self.pmtu) {
            return Err(Refusal::Invalid(Some(Reason::PeerBadLength)));
        }
        if position.starts() && !self.hold_receive(cx) {
            return Err(Refusal::NoReceive);
        }
        let Some(held) = &mut self.held else {
            return Err(INVALID);
        };
        let (got, len) = (held.got, pkt.payload.len() as u64);
        if held.capacity.checked_sub(got).is_none_or(|room| len > room) {
            return Err(Refusal::Invalid(Some(Reason::ReceiveTooSmall)));
        }
        sge::scatter(cx.env, held.pd, &held.wr.sges, got, pkt.payload)
            .map_err(|fault| Refusal::Operational(Some(local_reason(fault))))?;
        held.got += len;
        if !position.ends() {
            self.resp.incoming = Incoming::Send;
            return Ok(());
        }
        self.resp.incoming = Incoming::Idle;
        if let Some(rkey) = pkt.ext.ieth {
            let scope = self.scope();
            cx.env
                .invalidate(scope, rkey)
                .map_err(|_| Refusal::Invalidate)?;
        }
        self.complete_receive(pkt, WcOpcode::Recv, got + len, pkt.ext.ieth, 0, cx);
        Ok(())
    }

    /// A packet of a WRITE. Nothing is written before every check has passed.
    pub(crate) fn take_write<E: Env>(
        &mut self,
        pkt: &Packet<'_>,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Refusal> {
        let len = u32::try_from(pkt.payload.len()).unwrap_or(u32::MAX);
        let ends = pkt.info.position.ends();
        let target = self.write_target(pkt, cx)?;
        let full = target.left as usize > self.pmtu;
        let expected = if full {
            self.pmtu as u64
        } else {
            u64::from(target.left)
        };
        if u64::from(len) != expected || full == ends {
            return Err(INVALID);
        }
        let with_imm = pkt.ext.imm_dt.is_some();
        if with_imm && !self.has_receive(cx) {
            return Err(Refusal::NoReceive);
        }
        if len != 0 {
            let scope = self.scope();
            cx.env
                .write_remote(scope, target.rkey, target.va, pkt.payload)
                .map_err(remote_refusal)?;
        }
        if !ends {
            self.resp.incoming = Incoming::Write(Target {
                va: target.va.wrapping_add(u64::from(len)),
                left: target.left - len,
                ..target
            });
            return Ok(());
        }
        self.resp.incoming = Incoming::Idle;
        if with_imm && self.hold_receive(cx) {
            let bytes = u64::from(target.total);
            self.complete_receive(pkt, WcOpcode::RecvRdmaWithImm, bytes, None, 0, cx);
        }
        Ok(())
    }

    /// Where this packet of a WRITE goes: from its RETH, checked as a whole, or from the packet
    /// before.
    fn write_target<E: Env>(&self, pkt: &Packet<'_>, cx: &Cx<'_, E>) -> Result<Target, Refusal> {
        let Some(reth) = pkt.ext.reth else {
            return match self.resp.incoming {
                Incoming::Write(target) => Ok(target),
                _ => Err(INVALID),
            };
        };
        if u64::from(reth.dma_len) > MESSAGE_BYTES_MAX {
            return Err(INVALID);
        }
        if reth.dma_len != 0 {
            self.check_remote(reth, Access::REMOTE_WRITE, cx)?;
        }
        let Reth { va, rkey, dma_len } = reth;
        Ok(Target {
            va,
            rkey,
            left: dma_len,
            total: dma_len,
        })
    }

    /// Room for one more READ or atomic?
    fn check_depth(&self) -> Result<(), Refusal> {
        if self.resp.answers.pending() >= usize::from(self.attr.max_dest_rd_atomic) {
            return Err(INVALID);
        }
        Ok(())
    }

    /// Accepts a request that has an answer of its own.
    fn answer<E: Env>(&mut self, packets: u32, memory: Memory, body: Body, cx: &mut Cx<'_, E>) {
        self.resp.count_message();
        let (psn, msn) = (self.resp.epsn, self.resp.msn);
        let entry = Remembered {
            psn,
            packets,
            msn,
            memory,
        };
        self.resp
            .replay
            .remember(entry, self.attr.max_dest_rd_atomic);
        self.resp.answers.push(Answer {
            psn,
            msn,
            body,
            repeated: false,
        });
        self.resp.epsn = psn.add(packets);
        cx.core.ready.push(self.index);
    }

    fn take_read<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) -> Result<(), Refusal> {
        let Some(reth) = pkt.ext.reth else {
            return Err(INVALID);
        };
        if u64::from(reth.dma_len) > MESSAGE_BYTES_MAX {
            return Err(INVALID);
        }
        self.check_depth()?;
        if reth.dma_len != 0 {
            self.check_remote(reth, Access::REMOTE_READ, cx)?;
        }
        let Reth {
            va,
            rkey,
            dma_len: len,
        } = reth;
        let pmtu = u32::try_from(self.pmtu).unwrap_or(u32::MAX);
        let packets = len.div_ceil(pmtu).max(1);
        let job = ReadJob {
            va,
            rkey,
            left: len,
            pd: self.scope().pd,
            first: true,
            again: false,
        };
        self.answer(packets, Memory::Read { va, rkey, len }, Body::Read(job), cx);
        Ok(())
    }

    fn take_atomic<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) -> Result<(), Refusal> {
        let (Some(eth), Some(op)) = (pkt.ext.atomic_eth, atomic_op(pkt)) else {
            return Err(INVALID);
        };
        if eth.va % 8 != 0 {
            return Err(INVALID);
        }
        self.check_depth()?;
        let scope = self.scope();
        let orig = cx
            .env
            .atomic_remote(scope, eth.rkey, eth.va, op)
            .map_err(remote_refusal)?;
        self.answer(1, Memory::Atomic { orig }, Body::Atomic { orig }, cx);
        Ok(())
    }

    fn take_atomic_write<E: Env>(
        &mut self,
        pkt: &Packet<'_>,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Refusal> {
        let (Some(reth), Ok(value)) = (pkt.ext.reth, <[u8; 8]>::try_from(pkt.payload)) else {
            return Err(INVALID);
        };
        if reth.va % 8 != 0 || reth.dma_len != 8 {
            return Err(INVALID);
        }
        self.check_depth()?;
        let scope = self.scope();
        cx.env
            .atomic_write_remote(scope, reth.rkey, reth.va, value)
            .map_err(remote_refusal)?;
        self.answer(1, Memory::Done, Body::Done, cx);
        Ok(())
    }

    fn take_flush<E: Env>(&mut self, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) -> Result<(), Refusal> {
        let (Some(reth), Some(feth)) = (pkt.ext.reth, pkt.ext.feth) else {
            return Err(INVALID);
        };
        // Placement 0 asks for nothing, higher bits and selectors are reserved.
        if feth.sel > 1 || feth.plt == 0 || feth.plt > 3 {
            return Err(INVALID);
        }
        self.check_depth()?;
        let (scope, len) = (self.scope(), u64::from(reth.dma_len));
        cx.env
            .flush_remote(scope, reth.rkey, reth.va, len, feth.sel == 1, feth.plt)
            .map_err(remote_refusal)?;
        self.answer(1, Memory::Done, Body::Done, cx);
        Ok(())
    }
}
