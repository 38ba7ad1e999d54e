//! What leaves on the wire: PSNs without a hole, nothing sent under a PSN but what was sent under
//! it before, lengths that fit the path MTU, answers only to what was asked.

use std::collections::BTreeMap;

use rocebud_fabric::{Sight, Tap, Verdict as Fate, mix};
use rocebud_objects::QpType;
use rocebud_wire::{Class, Mtu, OpcodeInfo, Operation, Position, Psn, Qpn, Reth};

use crate::violation::{Checker, Verdict, Violation};

#[derive(Clone, Copy, Debug)]
struct Request {
    digest: u64,
    packets: u64,
    read: Option<Reth>,
}

/// The requests of one queue pair since it was connected. Positions count packets from there.
#[derive(Debug)]
struct Flow {
    kind: QpType,
    peer: Qpn,
    mtu: u32,
    start: Psn,
    next: u64,
    requests: BTreeMap<u64, Request>,
}

impl Flow {
    /// Position of a PSN, which lies near `next`.
    fn position(&self, psn: Psn) -> i64 {
        let next = self.start.add(self.next as u32);
        self.next.cast_signed() + i64::from(psn.diff(next))
    }
}

/// Sees every frame and keeps the first violation.
#[derive(Debug, Default)]
pub struct WireChecker {
    flows: BTreeMap<u32, Flow>,
    first: Option<Violation>,
}

impl WireChecker {
    /// `qpn` is connected to `peer` and starts at `sq_psn`.
    pub fn connect(&mut self, qpn: Qpn, peer: Qpn, kind: QpType, mtu: Mtu, sq_psn: Psn) {
        let flow = Flow {
            kind,
            peer,
            mtu: mtu.bytes(),
            start: sq_psn,
            next: 0,
            requests: BTreeMap::new(),
        };
        self.flows.insert(qpn.value(), flow);
    }

    /// `qpn` is disconnected.
    pub fn disconnect(&mut self, qpn: Qpn) {
        self.flows.remove(&qpn.value());
    }

    /// Packets that a queue pair has sent since it was connected, repetitions not counted.
    #[must_use]
    pub fn packets_sent(&self, qpn: Qpn) -> u64 {
        self.flows.get(&qpn.value()).map_or(0, |f| f.next)
    }

    /// The PSN that a queue pair uses next.
    #[must_use]
    pub fn next_psn(&self, qpn: Qpn) -> Option<Psn> {
        let flow = self.flows.get(&qpn.value())?;
        Some(flow.start.add(flow.next as u32))
    }

    /// The first violation, if any.
    ///
    /// # Errors
    /// That violation.
    pub fn verdict(&mut self) -> Verdict {
        self.first.take().map_or(Ok(()), Err)
    }

    fn judge(&mut self, sight: &Sight<'_>) -> Verdict {
        let info = sight.packet.info;
        if !matches!(info.class, Class::Rc | Class::Xrc | Class::Uc) {
            return Ok(());
        }
        let src = sight.frame.src_qp;
        let Some(flow) = self.flows.get_mut(&src.value()) else {
            return wrong(sight, "from a queue pair that is not connected");
        };
        if sight.packet.bth.dest_qp != flow.peer {
            return wrong(sight, "goes to a queue pair that is not the peer");
        }
        check_length(sight, info, flow.mtu)?;
        if info.operation.is_response() {
            let asked = self.flows.get(&sight.packet.bth.dest_qp.value());
            return asked.map_or(Ok(()), |flow| check_answer(sight, flow));
        }
        check_flags(sight, info)?;
        check_request(sight, info, flow)
    }
}

impl Tap for WireChecker {
    fn sent(&mut self, sight: &Sight<'_>, _: Fate) {
        if self.first.is_none() {
            self.first = self.judge(sight).err();
        }
    }
}

fn check_length(sight: &Sight<'_>, info: &OpcodeInfo, mtu: u32) -> Verdict {
    let len = sight.packet.payload.len();
    if info.payload.allows(len, mtu as usize) {
        return Ok(());
    }
    wrong(
        sight,
        &format!("carries {len} bytes at a path MTU of {mtu}"),
    )
}

fn check_flags(sight: &Sight<'_>, info: &OpcodeInfo) -> Verdict {
    let bth = &sight.packet.bth;
    let message = info.operation == Operation::Send || sight.packet.ext.imm_dt.is_some();
    if bth.solicited && !(message && info.position.ends()) {
        return wrong(sight, "has the solicited bit where it may not be");
    }
    if info.class != Class::Uc && info.position.ends() && !bth.ack_req {
        return wrong(sight, "ends a message without asking for an ACK");
    }
    Ok(())
}

/// An answer names a request that was sent.
fn check_answer(sight: &Sight<'_>, asked: &Flow) -> Verdict {
    let position = asked.position(sight.packet.bth.psn);
    if position < 0 || position >= asked.next.cast_signed() {
        return wrong(sight, "answers a PSN that was never sent");
    }
    if sight.packet.bth.solicited || sight.packet.bth.ack_req {
        return wrong(sight, "is an answer with request flags");
    }
    Ok(())
}

fn check_request(sight: &Sight<'_>, info: &OpcodeInfo, flow: &mut Flow) -> Verdict {
    let position = flow.position(sight.packet.bth.psn);
    let request = digest(sight, info, flow.mtu);
    let again = position < flow.next.cast_signed();
    if sight.frame.retransmit != again {
        return wrong(sight, "does not say truly whether it was sent before");
    }
    if position == flow.next.cast_signed() {
        flow.requests.insert(flow.next, request);
        flow.next += request.packets;
        return Ok(());
    }
    if position > flow.next.cast_signed() {
        return wrong(sight, "skips PSNs");
    }
    if !flow.kind.is_reliable() {
        return wrong(sight, "uses a PSN twice");
    }
    let Some(at) = u64::try_from(position).ok() else {
        return wrong(sight, "uses a PSN before the first");
    };
    check_again(sight, flow, at, &request)
}

/// A PSN is used again: by the same packet, or by the rest of the same READ.
fn check_again(sight: &Sight<'_>, flow: &Flow, at: u64, request: &Request) -> Verdict {
    let Some((&first, before)) = flow.requests.range(..=at).next_back() else {
        return wrong(sight, "uses a PSN before the first");
    };
    let (Some(old), Some(new)) = (before.read, request.read) else {
        if first == at && before.digest == request.digest {
            return Ok(());
        }
        return wrong(sight, "is not what was sent under its PSN before");
    };
    let skipped = (at - first) * u64::from(flow.mtu);
    let inside = new.va == old.va.wrapping_add(skipped)
        && new.rkey == old.rkey
        && u64::from(new.dma_len) + skipped <= u64::from(old.dma_len)
        && at + request.packets <= first + before.packets;
    if inside {
        return Ok(());
    }
    wrong(sight, &format!("is not the rest of the READ {old:?}"))
}

fn digest(sight: &Sight<'_>, info: &OpcodeInfo, mtu: u32) -> Request {
    let bytes = &sight.frame.bytes;
    let body = bytes.get(12..bytes.len() - 4).unwrap_or(&[]);
    let seed = u64::from(bytes[0]) << 8 | u64::from(bytes[1]);
    let digest = body.chunks(8).fold(mix(seed + 1), |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(sum ^ u64::from_le_bytes(word))
    });
    let read = (info.operation == Operation::Read)
        .then_some(sight.packet.ext.reth)
        .flatten();
    let packets = read.map_or(1, |r| u64::from(r.dma_len.div_ceil(mtu).max(1)));
    debug_assert!(info.position != Position::First || packets == 1);
    Request {
        digest,
        packets,
        read,
    }
}

fn wrong(sight: &Sight<'_>, why: &str) -> Verdict {
    let bth = &sight.packet.bth;
    let what = format!(
        "{} -> {} {} psn {} {why}",
        sight.frame.src_qp, bth.dest_qp, bth.opcode, bth.psn
    );
    Err(Violation::new(Checker::Wire, what))
}
