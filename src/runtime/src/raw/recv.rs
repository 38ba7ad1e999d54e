//! A receive queue of frames.

use std::borrow::Cow;
use std::collections::VecDeque;

use rocebud_engine::{Env, LocalFault, Reason};
use rocebud_objects::flow::{ETHER_HEADER_BYTES, VLAN_BYTES};
use rocebud_objects::{Counter, CqId, Errno, Misuse, PdId, RecvWr, Wc, WcOpcode};
use rocebud_wire::Qpn;

use super::complete;
use crate::env::World;

/// Frames that came before their receives: so many bytes of them are kept, for so long.
const PARKED_BYTES_MAX: usize = 32 << 20;
const PARKED_NS_MAX: u64 = 1_000_000_000;
/// What a frame that is kept costs beyond its bytes.
const PARKED_COST_BYTES: usize = 256;

/// Bytes in front of a VLAN tag.
const ADDRESSES_BYTES: usize = ETHER_HEADER_BYTES - 2;

/// A frame for somebody.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived<'a> {
    pub(super) data: &'a [u8],
    pub(super) vlan_tag: Option<u16>,
    pub(super) flow_tag: u32,
}

#[derive(Debug)]
struct Parked {
    data: Box<[u8]>,
    vlan_tag: Option<u16>,
    flow_tag: u32,
    since_ns: u64,
}

#[derive(Debug)]
pub(super) struct RecvQueue {
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    /// What completions show as their queue pair.
    pub(super) number: Qpn,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    /// VLAN tags are taken off and told in the completion.
    pub(super) strips: bool,
    wrs: VecDeque<RecvWr>,
    parked: VecDeque<Parked>,
    parked_bytes: usize,
}

impl RecvQueue {
    pub(super) fn new(pd: PdId, cq: CqId, number: Qpn, max_wr: u32, max_sge: u32) -> Self {
        Self {
            pd,
            cq,
            number,
            max_wr,
            max_sge,
            strips: false,
            wrs: VecDeque::new(),
            parked: VecDeque::new(),
            parked_bytes: 0,
        }
    }

    /// Adds a receive.
    pub(super) fn post(&mut self, wr: RecvWr) -> Result<(), Misuse> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(Misuse::invalid("post_recv: more SGEs than max_recv_sge"));
        }
        if self.wrs.len() >= self.max_wr as usize {
            return Err(Misuse::new(
                Errno::ENOMEM,
                "post_recv: the receive queue holds max_recv_wr requests; poll completions first",
            ));
        }
        self.wrs.push_back(wr);
        Ok(())
    }

    /// Gives frames that waited to receives posted since.
    pub(super) fn unpark(
        &mut self,
        failed: &mut Vec<CqId>,
        world: &mut World<'_>,
    ) -> Result<(), LocalFault> {
        while !self.wrs.is_empty() {
            let Some(parked) = self.parked.pop_front() else {
                break;
            };
            self.parked_bytes -= parked.data.len() + PARKED_COST_BYTES;
            if world.now.0.saturating_sub(parked.since_ns) > PARKED_NS_MAX {
                world.add(Counter::DropNoReceive, 1);
                continue;
            }
            let frame = Arrived {
                data: &parked.data,
                vlan_tag: parked.vlan_tag,
                flow_tag: parked.flow_tag,
            };
            self.place(&frame, failed, world)?;
        }
        Ok(())
    }

    /// Places a frame into the next receive, or keeps it for one.
    pub(super) fn deliver(
        &mut self,
        frame: &Arrived<'_>,
        failed: &mut Vec<CqId>,
        world: &mut World<'_>,
    ) -> Result<(), LocalFault> {
        if !self.wrs.is_empty() {
            return self.place(frame, failed, world);
        }
        self.drop_stale(world);
        let cost = frame.data.len() + PARKED_COST_BYTES;
        if self.parked_bytes + cost > PARKED_BYTES_MAX {
            world.add(Counter::DropNoReceive, 1);
            return Ok(());
        }
        self.parked_bytes += cost;
        self.parked.push_back(Parked {
            data: frame.data.into(),
            vlan_tag: frame.vlan_tag,
            flow_tag: frame.flow_tag,
            since_ns: world.now.0,
        });
        Ok(())
    }

    fn drop_stale(&mut self, world: &World<'_>) {
        let stale = |p: &Parked| world.now.0.saturating_sub(p.since_ns) > PARKED_NS_MAX;
        while self.parked.front().is_some_and(stale) {
            if let Some(parked) = self.parked.pop_front() {
                self.parked_bytes -= parked.data.len() + PARKED_COST_BYTES;
                world.add(Counter::DropNoReceive, 1);
            }
        }
    }

    /// The receive at the front takes the frame. One that is too small stays for the next frame.
    fn place(
        &mut self,
        frame: &Arrived<'_>,
        failed: &mut Vec<CqId>,
        world: &mut World<'_>,
    ) -> Result<(), LocalFault> {
        let Some(wr) = self.wrs.front() else {
            return Ok(());
        };
        let tag = frame.vlan_tag.filter(|_| self.strips);
        let data = match tag {
            Some(_) => Cow::Owned(untagged(frame.data)),
            None => Cow::Borrowed(frame.data),
        };
        let capacity: u64 = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        if capacity < data.len() as u64 {
            world.add(Counter::DropNoReceive, 1);
            return Ok(());
        }
        let placed = scatter(world, self.pd, wr, &data);
        let mut wc = Wc {
            wr_id: wr.wr_id,
            opcode: WcOpcode::Recv,
            byte_len: u32::try_from(data.len()).unwrap_or(u32::MAX),
            qp_num: self.number,
            cvlan: tag.unwrap_or(0),
            flow_tag: frame.flow_tag,
            ..Wc::default()
        };
        self.wrs.pop_front();
        if let Err(fault) = placed {
            wc.status = reason(fault).status();
            wc.vendor_err = reason(fault) as u32;
            world.add(Counter::RespCqeError, 1);
        }
        complete(world, failed, self.cq, wc, false);
        placed
    }

    /// Completes every receive as flushed.
    pub(super) fn flush(&mut self, cause: Reason, failed: &mut Vec<CqId>, world: &mut World<'_>) {
        while let Some(wr) = self.wrs.pop_front() {
            self.flush_one(wr.wr_id, cause, failed, world);
        }
        self.clear();
    }

    pub(super) fn flush_one(
        &self,
        wr_id: u64,
        cause: Reason,
        failed: &mut Vec<CqId>,
        world: &mut World<'_>,
    ) {
        let wc = Wc {
            wr_id,
            status: cause.status(),
            vendor_err: cause as u32,
            opcode: WcOpcode::Recv,
            qp_num: self.number,
            ..Wc::default()
        };
        world.add(Counter::RespCqeFlushError, 1);
        complete(world, failed, self.cq, wc, true);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.wrs.clear();
        self.parked.clear();
        self.parked_bytes = 0;
    }
}

/// The frame without its first VLAN tag.
fn untagged(frame: &[u8]) -> Vec<u8> {
    let head = frame.get(..ADDRESSES_BYTES).unwrap_or(frame);
    let tail = frame.get(ADDRESSES_BYTES + VLAN_BYTES..);
    [head, tail.unwrap_or_default()].concat()
}

fn scatter(
    world: &mut World<'_>,
    pd: PdId,
    wr: &RecvWr,
    mut data: &[u8],
) -> Result<(), LocalFault> {
    for sge in wr.sges.iter().filter(|sge| sge.length != 0) {
        let (piece, rest) = data.split_at(data.len().min(sge.length as usize));
        if piece.is_empty() {
            break;
        }
        world.write_local(pd, sge.lkey, sge.addr, piece)?;
        data = rest;
    }
    Ok(())
}

/// Why a completion tells of a fault.
pub(super) const fn reason(fault: LocalFault) -> Reason {
    match fault {
        LocalFault::Key => Reason::LocalKey,
        LocalFault::Pd => Reason::LocalPd,
        LocalFault::Bounds => Reason::LocalBounds,
        LocalFault::Access => Reason::LocalAccess,
        LocalFault::Page => Reason::LocalPage,
    }
}
