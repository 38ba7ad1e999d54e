//! Receive completions: each receive once, in order, and each message once, whole and in order.

use std::collections::VecDeque;

use rocebud_fabric::{Completed, Span};
use rocebud_objects::{Path, Wc, WcFlags, WcOpcode, WcStatus};
use rocebud_wire::{Qpn, RKey};

use crate::violation::{Checker, Verdict, Violation};

/// A posted receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PostedReceive {
    /// Unique in a run.
    pub wr_id: u64,
    /// Index of its buffer.
    pub buffer: usize,
    /// Scatter list.
    pub pieces: Vec<Span>,
}

/// A receive queue, own or shared, as an application remembers it.
#[derive(Debug)]
pub struct ReceiveLedger {
    shared: bool,
    posted: VecDeque<PostedReceive>,
}

impl ReceiveLedger {
    /// An empty queue. Of a shared one receives may complete in any order.
    #[must_use]
    pub const fn new(shared: bool) -> Self {
        Self {
            shared,
            posted: VecDeque::new(),
        }
    }

    /// Remembers a receive that the engine took.
    pub fn post(&mut self, receive: PostedReceive) {
        self.posted.push_back(receive);
    }

    /// Receives outstanding.
    #[must_use]
    pub fn len(&self) -> usize {
        self.posted.len()
    }

    /// No receive is outstanding.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Judges which receive a completion takes.
    pub fn complete(&mut self, wc: &Wc) -> Verdict<PostedReceive> {
        let at = self
            .posted
            .iter()
            .position(|r| r.wr_id == wc.wr_id)
            .ok_or_else(|| wrong(wc, "completes no receive that is outstanding"))?;
        if at != 0 && !self.shared {
            return Err(wrong(wc, &format!("overtakes {:?}", self.posted[0])));
        }
        self.posted
            .remove(at)
            .ok_or_else(|| wrong(wc, "completes a receive twice"))
    }

    /// Forgets everything: the queue pair went to RESET or is gone.
    pub fn abandon(&mut self) -> Vec<PostedReceive> {
        self.posted.drain(..).collect()
    }
}

/// Where a datagram comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Sender's queue pair.
    pub src_qp: Qpn,
    /// The way that it took.
    pub path: Path,
}

/// A message that takes a receive, as its sender posted it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Its sender's request.
    pub wr_id: u64,
    /// Content stream.
    pub stream: u64,
    /// Bytes.
    pub len: u32,
    /// Immediate.
    pub imm: Option<[u8; 4]>,
    /// Key that it invalidates.
    pub inv: Option<RKey>,
    /// Carries the solicited-event bit.
    pub solicited: bool,
    /// RDMA WRITE with immediate: the bytes are not in the receive buffer.
    pub write: bool,
    /// Sender's queue pair and path, for datagrams.
    pub datagram: Option<Datagram>,
}

impl Message {
    /// Judges the fields of a successful completion. `extra` bytes precede the payload.
    pub fn check(&self, done: &Completed, extra: u32) -> Verdict {
        let wc = &done.wc;
        let opcode = if self.write {
            WcOpcode::RecvRdmaWithImm
        } else {
            WcOpcode::Recv
        };
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::WITH_IMM, self.imm.is_some());
        flags.set(WcFlags::WITH_INV, self.inv.is_some());
        flags.set(WcFlags::GRH, self.datagram.is_some());
        let right = wc.status == WcStatus::Success
            && wc.opcode == opcode
            && wc.byte_len == self.len + extra
            && (wc.wc_flags - WcFlags::IP_CSUM_OK) == flags
            && self.imm.is_none_or(|imm| wc.imm == imm)
            && self.inv.is_none_or(|key| wc.invalidated_rkey == key)
            && self.datagram.is_none_or(|d| wc.src_qp == d.src_qp)
            && done.solicited == self.solicited;
        if right {
            return Ok(());
        }
        Err(wrong(
            wc,
            &format!("(solicited {}) is not {self:?}", done.solicited),
        ))
    }
}

/// Judges the 40 bytes in front of a datagram: zeros and the IPv4 header, or the IPv6 header.
pub fn check_grh(message: &Message, area: &[u8]) -> Verdict {
    let Some(Datagram { path, .. }) = message.datagram else {
        return Ok(());
    };
    let headers = 12 + 8 + if message.imm.is_some() { 4 } else { 0 };
    let udp = 8 + headers + message.len.next_multiple_of(4) + 4;
    let right = match (path.sgid.v4(), path.dgid.v4()) {
        (Some(src), Some(dst)) => {
            let header = &area[20..];
            let sum: u32 = header
                .chunks(2)
                .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
                .sum();
            area[..20] == [0; 20]
                && header[0] == 0x45
                && header[1] == path.traffic_class
                && header[2..4] == (20 + udp as u16).to_be_bytes()
                && header[8..10] == [path.hop_limit, 17]
                && (sum & 0xffff) + (sum >> 16) == 0xffff
                && header[12..16] == src
                && header[16..20] == dst
        }
        _ => {
            let word = u32::from_be_bytes([area[0], area[1], area[2], area[3]]);
            word >> 20 == 0x600 | u32::from(path.traffic_class)
                && area[4..6] == (udp as u16).to_be_bytes()
                && area[6..8] == [17, path.hop_limit]
                && area[8..24] == path.sgid.0
                && area[24..40] == path.dgid.0
        }
    };
    if right {
        return Ok(());
    }
    let what = format!("GRH area {area:02x?} is not that of {message:?}");
    Err(Violation::new(Checker::Receives, what))
}

pub(crate) fn wrong(wc: &Wc, why: &str) -> Violation {
    Violation::new(Checker::Receives, format!("{wc:?} {why}"))
}
