//! The packets of a cell, judged: what both sides sent, whatever the completions said.
//!
//! Every packet: ICRC, lengths, pad bytes, P_Key, destination, one source port. Requests: consecutive PSNs from the
//! first, opcode order, sizes, AckReq at the end of each message. Responses: only for what was asked, in order.
//! What was sent again must have a reason: a fault on the wire, or a receive that was late.

use std::collections::BTreeSet;

use rocebud_wire::frame::{Frame, Net};
use rocebud_wire::{Class, Operation, Packet, Position, Psn, Qpn, Reth, Syndrome};

use crate::matrix::{Cell, Type};
use crate::wire::{End, Fault, Seen};

#[cfg(test)]
mod tests;

/// A queue pair of the cell.
#[derive(Clone, Copy, Debug)]
pub struct Qp {
    /// Its number.
    pub qpn: u32,
    /// The first PSN it sends; `None` when rdma_cm chose it.
    pub psn: Option<u32>,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Default, Debug, serde::Serialize, serde::Deserialize)]
pub struct Findings {
    /// RoCE packets between the two queue pairs.
    pub packets: usize,
    /// Packets sent again.
    pub resent: usize,
    /// Negative acknowledgements, RNR among them.
    pub naks: usize,
    /// Packets with a congestion mark.
    pub marked: usize,
    /// Congestion notifications.
    pub cnps: usize,
    /// What is wrong, one line each; at most [`WRONG_MAX`].
    pub wrong: Vec<String>,
}

/// More than this says nothing new.
const WRONG_MAX: usize = 5;

/// Judges what was seen while a cell ran.
pub fn judge(cell: &Cell, requester: Qp, responder: Qp, frames: &[Seen]) -> Findings {
    let mut judge = Judge {
        cell,
        requester,
        responder,
        found: Findings::default(),
        asks: Requests::new(requester.psn),
        answers: Responses::default(),
        ports: [BTreeSet::new(), BTreeSet::new()],
        marks: [0; 2],
    };
    for (number, seen) in frames.iter().enumerate() {
        judge.packet(number, seen);
    }
    judge.end();
    judge.found
}

/// Judges each packet by itself, whoever sent it: for programs, whose scenario nobody knows.
pub fn each(frames: &[Seen]) -> Findings {
    let mut found = Findings::default();
    for (number, seen) in frames.iter().enumerate() {
        let Ok(frame) = Frame::parse(&seen.bytes) else {
            continue;
        };
        found.packets += 1;
        let wrong = match Packet::parse(frame.ib) {
            Ok(packet) => everywhere(&frame, &packet),
            Err(error) => vec![error.to_string()],
        };
        for text in wrong
            .into_iter()
            .take(WRONG_MAX.saturating_sub(found.wrong.len()))
        {
            found
                .wrong
                .push(format!("frame {number}, of {:?}: {text}", seen.from));
        }
    }
    found
}

/// How the wire fell silent, if it did for more than `since`: who did not go on, with the last packet as evidence.
pub fn silence(
    frames: &[Seen],
    end: std::time::Duration,
    since: std::time::Duration,
) -> Option<String> {
    let roce = |seen: &&Seen| crate::wire::rule::is_roce(&seen.bytes);
    let last = frames.iter().rev().find(roce)?;
    let quiet = end.checked_sub(last.at).filter(|quiet| *quiet > since)?;
    let frame = Frame::parse(&last.bytes).ok()?;
    let packet = Packet::parse(frame.ib).ok()?;
    let who = if last.from == End::Ours {
        "rocebud"
    } else {
        "the target"
    };
    let syndrome = packet
        .ext
        .aeth
        .map_or_else(String::new, |a| format!(", {:?}", a.syndrome));
    let fate = last
        .fault
        .map_or_else(String::new, |f| format!(" (the wire's rule: {f:?})"));
    Some(format!(
        "nothing on the wire for {} s; the last packet is {} of {who}, PSN 0x{:x}{syndrome}{fate}",
        quiet.as_secs(),
        packet.info.name,
        packet.bth.psn.value()
    ))
}

struct Judge<'a> {
    cell: &'a Cell,
    requester: Qp,
    responder: Qp,
    found: Findings,
    asks: Requests,
    answers: Responses,
    ports: [BTreeSet<u16>; 2],
    /// Marked packets of the responder, of the requester.
    marks: [usize; 2],
}

impl Judge<'_> {
    fn wrong(&mut self, text: impl Into<String>) {
        if self.found.wrong.len() < WRONG_MAX {
            self.found.wrong.push(text.into());
        }
    }

    fn packet(&mut self, number: usize, seen: &Seen) {
        let Ok(frame) = Frame::parse(&seen.bytes) else {
            return;
        };
        let who = if seen.from == End::Ours {
            "rocebud"
        } else {
            "the target"
        };
        let packet = match Packet::parse(frame.ib) {
            Ok(packet) => packet,
            Err(error) => return self.wrong(format!("frame {number}, of {who}: {error}")),
        };
        let at = format!(
            "frame {number}, {} of {who}, PSN 0x{:x}",
            packet.info.name,
            packet.bth.psn.value()
        );
        for text in everywhere(&frame, &packet) {
            self.wrong(format!("{at}: {text}"));
        }
        let asks = seen.from == self.cell.requester.end();
        let to = if asks { self.responder } else { self.requester };
        if packet.bth.dest_qp != Qpn::new(to.qpn) {
            // connection management, and queue pairs of cells before
            return;
        }
        self.found.packets += 1;
        if let Net::V4(_, udp) | Net::V6(_, udp) = frame.outer.net {
            self.ports[usize::from(asks)].insert(udp.sport);
        }
        if self.congestion(asks, &at, is_marked(seen, &frame), &packet) {
            return;
        }
        let class = match self.cell.kind {
            Type::Rc => Class::Rc,
            Type::Uc => Class::Uc,
            Type::Ud => Class::Ud,
        };
        if packet.info.class != class {
            return self.wrong(format!("{at}: not of this transport"));
        }
        let outcome = if asks && packet.info.operation.is_request() {
            self.asks.on(self.cell, &packet)
        } else if !asks && packet.info.operation.is_response() {
            self.answers.on(self.cell, &packet, &self.asks)
        } else {
            Err("the wrong side sends this".into())
        };
        match outcome {
            Ok(What::New) => {}
            Ok(What::Again) => self.found.resent += 1,
            Ok(What::Nak) => self.found.naks += 1,
            Err(text) => self.wrong(format!("{at}: {text}")),
        }
    }

    /// Counts marks and notifications. True for these: they are of no sequence, but never without cause.
    fn congestion(&mut self, asks: bool, at: &str, marked: bool, packet: &Packet<'_>) -> bool {
        let [asked, answered] = &mut self.marks;
        let (own, others) = if asks {
            (answered, asked)
        } else {
            (asked, answered)
        };
        if marked {
            *own += 1;
            self.found.marked += 1;
        }
        if packet.info.class != Class::Cnp {
            return false;
        }
        self.found.cnps += 1;
        if *others == 0 {
            self.wrong(format!("{at}: nothing was marked"));
        }
        true
    }

    fn end(&mut self) {
        let troubled = self.cell.fault.is_some() || self.cell.late;
        let refused = refused(&self.cell.op);
        let Findings { resent, naks, .. } = self.found;
        if resent > 0 && !troubled && !refused {
            self.wrong(format!(
                "{resent} packets sent again, though nothing was lost"
            ));
        }
        if naks > 0 && !troubled && !refused {
            self.wrong(format!("{naks} NAKs, though nothing was wrong"));
        }
        if refused && naks != 1 {
            self.wrong(format!(
                "{naks} NAKs for a request that must be refused once"
            ));
        }
        if self.ports.iter().any(|p| p.len() > 1) {
            self.wrong("a side changed its UDP source port");
        }
        if refused || self.cell.kind != Type::Rc {
            return;
        }
        let expected = usize::try_from(self.cell.count).unwrap_or_default();
        if self.asks.messages != expected {
            let had = self.asks.messages;
            self.wrong(format!(
                "{had} whole messages on the wire, {expected} were asked for"
            ));
        }
        if let Some(next) = self.asks.next {
            let (sent, acked) = (next.sub(1), self.answers.last);
            if acked != Some(sent) {
                let acked =
                    acked.map_or_else(|| "nothing".into(), |psn| format!("0x{:x}", psn.value()));
                self.wrong(format!(
                    "the last PSN is 0x{:x}, acknowledged is {acked}",
                    sent.value()
                ));
            }
        }
    }
}

/// Operations of the matrix that the responder must refuse.
pub fn refused(op: &str) -> bool {
    matches!(
        op,
        "bad_rkey_write" | "bad_rkey_read" | "read_only_write" | "beyond_read" | "long_send"
    )
}

/// It says (when it arrives) that a queue on its way was full.
fn is_marked(seen: &Seen, frame: &Frame<'_>) -> bool {
    let class = match &frame.outer.net {
        Net::V4(ip, _) => ip.tos,
        Net::V6(ip, _) | Net::Grh(ip) => ip.traffic_class,
    };
    class & 3 == 3 || seen.fault == Some(Fault::Mark)
}

/// What holds for every packet of everybody.
fn everywhere(frame: &Frame<'_>, packet: &Packet<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    if !frame.icrc_ok() {
        wrong.push("wrong ICRC".to_owned());
    }
    let pad = usize::from(packet.bth.pad);
    let end = frame.ib.len().saturating_sub(rocebud_wire::ICRC_LEN);
    if frame
        .ib
        .get(end.saturating_sub(pad)..end)
        .is_some_and(|p| p.iter().any(|b| *b != 0))
    {
        wrong.push("pad bytes are not 0".to_owned());
    }
    if packet.bth.pkey.0 & 0x7fff != 0x7fff {
        wrong.push(format!("P_Key 0x{:x}", packet.bth.pkey.0));
    }
    if !frame.ib.len().is_multiple_of(4) {
        wrong.push(format!("{} bytes are no whole words", frame.ib.len()));
    }
    wrong
}

enum What {
    New,
    Again,
    Nak,
}

/// The requester's packets.
#[derive(Debug)]
struct Requests {
    next: Option<Psn>,
    first: Option<Psn>,
    open: Option<(Operation, u32)>,
    /// Bytes asked for so far, where a READ is asked for in parts.
    read: Option<(u64, u32)>,
    messages: usize,
}

impl Requests {
    fn new(psn: Option<u32>) -> Self {
        Self {
            next: psn.map(Psn::new),
            first: None,
            open: None,
            read: None,
            messages: 0,
        }
    }

    fn on(&mut self, cell: &Cell, packet: &Packet<'_>) -> Result<What, String> {
        let psn = packet.bth.psn;
        let next = *self.next.get_or_insert(psn);
        self.first.get_or_insert(next);
        if psn.before(next) {
            return Ok(What::Again);
        }
        if psn != next {
            return Err(format!("a gap: 0x{:x} comes next", next.value()));
        }
        self.next = Some(next.add(span(cell, packet)));
        self.shape(cell, packet)?;
        Ok(What::New)
    }

    /// Opcode order, sizes, AckReq.
    fn shape(&mut self, cell: &Cell, packet: &Packet<'_>) -> Result<(), String> {
        let length = u32::try_from(packet.payload.len()).unwrap_or(u32::MAX);
        let (operation, position) = (packet.info.operation, packet.info.position);
        let carries = matches!(operation, Operation::Send | Operation::Write);
        let before = match (position, self.open.take()) {
            (Position::First | Position::Only, None) => 0,
            (Position::Middle | Position::Last, Some((of, sum))) if of == operation => sum,
            (_, was) => return Err(format!("opcode out of order, after {was:?}")),
        };
        if !position.ends() {
            self.open = Some((operation, before + length));
            return Ok(());
        }
        if carries && before + length != cell.size {
            let had = before + length;
            return Err(format!("the message has {had} bytes, not {}", cell.size));
        }
        let whole = match packet.ext.reth {
            Some(reth) if operation == Operation::Read => self.part(cell, reth)?,
            Some(reth) if reth.dma_len != cell.size => {
                return Err(format!(
                    "RETH says {} bytes, not {}",
                    reth.dma_len, cell.size
                ));
            }
            _ => true,
        };
        self.messages += usize::from(whole);
        if cell.kind == Type::Rc && !packet.bth.ack_req {
            return Err("the end of a message without AckReq".into());
        }
        Ok(())
    }
}

impl Requests {
    /// A READ may be asked for in several requests, one behind the other, each a whole number of packets but the last.
    /// Is this the last?
    fn part(&mut self, cell: &Cell, reth: Reth) -> Result<bool, String> {
        let (start, sum) = self.read.take().unwrap_or((reth.va, 0));
        let had = sum.saturating_add(reth.dma_len);
        if reth.va != start.wrapping_add(u64::from(sum)) {
            return Err(format!(
                "a READ goes on at 0x{:x}, not behind the part before",
                reth.va
            ));
        }
        if had > cell.size || (had < cell.size && !had.is_multiple_of(cell.mtu)) {
            return Err(format!("{had} bytes asked for, of {}", cell.size));
        }
        if had < cell.size {
            self.read = Some((start, had));
        }
        Ok(had == cell.size)
    }
}

/// PSNs that a request takes.
fn span(cell: &Cell, packet: &Packet<'_>) -> u32 {
    match (packet.info.operation, packet.ext.reth) {
        (Operation::Read, Some(reth)) => reth.dma_len.div_ceil(cell.mtu).max(1),
        _ => 1,
    }
}

/// The responder's packets.
#[derive(Debug, Default)]
struct Responses {
    last: Option<Psn>,
    msn: Option<u32>,
}

impl Responses {
    fn on(&mut self, cell: &Cell, packet: &Packet<'_>, asks: &Requests) -> Result<What, String> {
        let psn = packet.bth.psn;
        let (Some(first), Some(next)) = (asks.first, asks.next) else {
            return Err("an answer before any request".into());
        };
        if psn.before(first.sub(1)) || !psn.before(next) {
            return Err(format!(
                "an answer for PSNs that were not asked for (0x{:x}..)",
                first.value()
            ));
        }
        if let Some(aeth) = packet.ext.aeth
            && !matches!(aeth.syndrome, Syndrome::Ack { .. })
        {
            return Ok(What::Nak);
        }
        let full = usize::try_from(cell.mtu).unwrap_or(usize::MAX);
        if matches!(packet.info.position, Position::First | Position::Middle)
            && packet.payload.len() != full
        {
            return Err(format!(
                "{} bytes, though more follow",
                packet.payload.len()
            ));
        }
        if self.last.is_some_and(|last| !psn.after(last)) {
            return Ok(What::Again);
        }
        self.last = Some(psn);
        if let Some(aeth) = packet.ext.aeth {
            if self
                .msn
                .is_some_and(|msn| aeth.msn.wrapping_sub(msn) & 0x80_0000 != 0)
            {
                return Err(format!("MSN {} after {:?}", aeth.msn, self.msn));
            }
            self.msn = Some(aeth.msn);
        }
        Ok(What::New)
    }
}
