//! The same cells against the target and against rocebud: what the target's end sends, side by side.
//!
//! What is each end's own by nature (queue pair numbers, keys, addresses, ICRC, times) is not compared. Differences
//! that are right are data with a reason: `matrix/differences.toml`.

use std::collections::BTreeMap;
use std::fmt::Write;

use rocebud_wire::frame::{Frame, Net};
use rocebud_wire::{Bth, Packet, Syndrome};

use crate::cell::{self, Verdict};
use crate::cleanup;
use crate::error::{Result, fail};
use crate::known::{self, Known};
use crate::matrix::{Cell, Connect};
use crate::run::{Order, chosen};
use crate::target::{Bench, Target};
use crate::wire::{End, Seen};

const ACCEPTED: &str = include_str!("../matrix/differences.toml");

/// A packet as names and values, in one order.
type Fields = Vec<(&'static str, String)>;

/// Cells by name, with the packets of the target's end.
type Traces = BTreeMap<String, Vec<Fields>>;

/// What a comparison found.
#[derive(Debug, Default)]
pub struct Differences {
    accepted: Vec<Known>,
    /// How often each reason explained something.
    explained: BTreeMap<String, usize>,
    /// By what differs: how often, and the first place.
    found: BTreeMap<String, (usize, String)>,
    cells: usize,
    skipped: Vec<String>,
    /// The same where somebody knows why.
    excused: Vec<String>,
}

/// Plays the chosen cells against both.
///
/// # Errors
/// A bench cannot be set up, or no cell is left.
pub fn run(order: &Order) -> Result<Differences> {
    let cells = chosen(order)?;
    let bench = Bench::set_up(order)?;
    bench.check()?;
    compare(&bench, &order.target, &cells)
}

/// Plays cells against a target and against rocebud.
///
/// # Errors
/// This program does not carry the wire, rocebud's bench cannot be set up, or no cell is left.
pub fn compare(bench: &Bench, target: &Target, cells: &[Cell]) -> Result<Differences> {
    let target = target.name();
    let mut all = Differences {
        accepted: known::parse(ACCEPTED, target)?,
        ..Differences::default()
    };
    let Some(mtu) = bench.mtu.filter(|_| bench.wire().is_some()) else {
        return fail("packets can be compared only where this program carries the wire");
    };
    let theirs = all.traces(bench, target, cells)?;
    let rocebud = Bench::rocebud(mtu)?;
    rocebud.check()?;
    let ours = all.traces(&rocebud, "rocebud", cells)?;
    for (name, theirs) in &theirs {
        if let Some(ours) = ours.get(name) {
            all.cells += 1;
            all.compare(name, theirs, ours);
        }
    }
    if all.cells == 0 {
        return fail(format!(
            "no cell went right against both: {}",
            all.skipped.join("; ")
        ));
    }
    Ok(all)
}

/// What the target's end sends. rdma_cm draws queue pairs' first PSNs and its own identifiers anew each time, so of
/// cells that it connects only its datagrams are compared, and each once: how often one is repeated is a matter of time.
fn trace(cell: &Cell, frames: &[Seen]) -> Vec<Fields> {
    let theirs = frames.iter().filter(|f| f.from == End::Theirs);
    if cell.connect == Connect::Hand {
        // Daemons of rocebud ask each other who they are, whatever the cell is about, and once.
        return theirs.filter_map(fields_of_pairs).collect();
    }
    let mut told = Vec::new();
    let mut all = Vec::new();
    for seen in theirs {
        if let Some((message, fields)) = management(seen)
            && !told.contains(&message)
        {
            told.push(message);
            all.push(fields);
        }
    }
    all
}

/// A datagram of the connection manager: its kind and transaction, and what of it can be compared.
fn management(seen: &Seen) -> Option<([u8; 10], Fields)> {
    let frame = Frame::parse(&seen.bytes).ok()?;
    let packet = Packet::parse(frame.ib).ok()?;
    let mad = packet.payload;
    let deth = packet.ext.deth?;
    let mut message = [0; 10];
    message.copy_from_slice(mad.get(8..18)?);
    // The end of a connection comes when its cell is over, or even in the next one.
    let opens = (REQ..DREQ).contains(&mad[17]);
    if packet.bth.dest_qp.value() != 1 || mad[1] != CM_CLASS || !opens {
        return None;
    }
    let header: Vec<String> = mad.get(..4)?.iter().map(|b| format!("{b:02x}")).collect();
    let mut fields: Fields = vec![(
        "opcode",
        format!("CM attribute {:02x}{:02x}", mad[16], mad[17]),
    )];
    transport(&packet.bth, &mut fields);
    let mut add = |name, value: String| fields.push((name, value));
    add("Q_Key", format!("{:#x}", deth.qkey.0));
    add("source queue pair", deth.src_qp.value().to_string());
    add("length", mad.len().to_string());
    add("MAD header", header.join(" "));
    network(&frame, &mut fields);
    Some((message, fields))
}

/// Management class of the connection manager.
const CM_CLASS: u8 = 7;
/// Its attributes, in one byte: the first, and that which ends a connection; REP, RTU and their kin are between.
const REQ: u8 = 0x10;
const DREQ: u8 = 0x15;

/// What of a packet can be compared; nothing of one for the general services.
fn fields_of_pairs(seen: &Seen) -> Option<Fields> {
    let frame = Frame::parse(&seen.bytes).ok()?;
    let packet = Packet::parse(frame.ib).ok()?;
    if packet.bth.dest_qp.value() == 1 {
        return None;
    }
    let (bth, ext) = (&packet.bth, &packet.ext);
    let mut fields: Fields = vec![
        ("opcode", packet.info.name.to_owned()),
        ("PSN", format!("{:#x}", bth.psn.value())),
    ];
    let mut add = |name, value: String| fields.push((name, value));
    if let Some(aeth) = ext.aeth {
        let (kind, credits) = match aeth.syndrome {
            Syndrome::Ack { credits } => ("ACK".to_owned(), credits.to_string()),
            other => (format!("{other:?}"), "-".to_owned()),
        };
        add("syndrome", kind);
        add("credits", credits);
        add("MSN", aeth.msn.to_string());
    }
    transport(bth, &mut fields);
    let mut add = |name, value: String| fields.push((name, value));
    add("length", ext.reth.map_or(0, |r| r.dma_len).to_string());
    add("immediate", format!("{:x?}", ext.imm_dt));
    add("atomic", format!("{:x?}", ext.atomic_ack_eth));
    let sum = packet.payload.iter().fold(0_u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add((*byte).into())
    });
    let bytes = packet.payload.len();
    add("payload", format!("{bytes} bytes, sum {sum:08x}"));
    network(&frame, &mut fields);
    Some(fields)
}

fn transport(bth: &Bth, fields: &mut Fields) {
    let mut add = |name, value: String| fields.push((name, value));
    add("AckReq", bth.ack_req.to_string());
    add("solicited", bth.solicited.to_string());
    add("MigReq", bth.migreq.to_string());
    add("P_Key", format!("{:#x}", bth.pkey.0));
}

fn network(frame: &Frame<'_>, fields: &mut Fields) {
    let mut add = |name, value: String| fields.push((name, value));
    match &frame.outer.net {
        Net::V4(ip, udp) => {
            add("TTL", ip.ttl.to_string());
            add("TOS", ip.tos.to_string());
            add("IPv4 flags", format!("{:#x}", ip.flags_frag));
            add("source port", port(udp.sport));
        }
        Net::V6(ip, udp) => {
            add("TTL", ip.hop_limit.to_string());
            add("source port", port(udp.sport));
        }
        Net::Grh(_) => {}
    }
}

/// A source port is a hash of both queue pairs: only its range can be compared.
fn port(port: u16) -> String {
    if port < 0xc000 {
        "below 49152"
    } else {
        "49152 and above"
    }
    .to_owned()
}

/// What a packet is: opcode, PSN and syndrome.
fn identity(fields: &Fields) -> impl Iterator<Item = &(&'static str, String)> {
    let names = ["opcode", "PSN", "syndrome"];
    fields.iter().filter(move |(name, _)| names.contains(name))
}

fn same(a: &Fields, b: &Fields) -> bool {
    identity(a).eq(identity(b))
}

fn kind(fields: &Fields) -> String {
    let named = fields
        .iter()
        .filter(|(name, _)| ["opcode", "syndrome"].contains(name));
    let words: Vec<&str> = named.map(|(_, value)| value.as_str()).collect();
    words.join(" ")
}

impl Differences {
    /// Plays the cells; what the target's end sends in those that go right.
    fn traces(&mut self, bench: &Bench, target: &str, cells: &[Cell]) -> Result<Traces> {
        let known = known::of(target)?;
        let mut pair = None;
        let mut traces = Traces::new();
        for cell in cells {
            cleanup::stop_if_ending();
            let (ran, frames) = cell::run(bench, &mut pair, cell, "target");
            if ran.verdict == Verdict::Ok {
                traces.insert(ran.name, trace(cell, &frames));
                continue;
            }
            let why = ran.verdict.why();
            let line = format!("{target}: {}: {why}", ran.name);
            match known.iter().find(|k| k.explains(&cell.name(target), why)) {
                Some(known) => self.excused.push(format!("{line}: {}", known.reason)),
                None => self.skipped.push(line),
            }
        }
        Ok(traces)
    }

    fn compare(&mut self, cell: &str, theirs: &[Fields], ours: &[Fields]) {
        let (mut t, mut o) = (0, 0);
        loop {
            match (theirs.get(t), ours.get(o)) {
                (None, None) => return,
                (Some(their), Some(our)) if same(their, our) => {
                    self.packet(cell, t, their, our);
                    (t, o) = (t + 1, o + 1);
                }
                // Theirs comes later here, or never: one of ours that they do not send.
                (their, Some(our))
                    if their.is_none_or(|their| ours[o..].iter().any(|our| same(their, our))) =>
                {
                    self.add(format!("only rocebud sends {}", kind(our)), cell, t);
                    o += 1;
                }
                (Some(their), _) => {
                    self.add(format!("only the target sends {}", kind(their)), cell, t);
                    t += 1;
                }
                (None, Some(_)) => return,
            }
        }
    }

    fn packet(&mut self, cell: &str, at: usize, theirs: &Fields, ours: &Fields) {
        for (name, theirs_is) in theirs {
            let ours_is = ours.iter().find(|(n, _)| n == name).map(|(_, value)| value);
            if Some(theirs_is) != ours_is {
                let ours_is = ours_is.map_or("-", String::as_str);
                let what = format!("{}: {name} {theirs_is}, rocebud {ours_is}", kind(theirs));
                self.add(what, cell, at);
            }
        }
    }

    fn add(&mut self, what: String, cell: &str, at: usize) {
        if let Some(known) = self.accepted.iter().find(|k| k.explains(cell, &what)) {
            *self.explained.entry(known.reason.clone()).or_default() += 1;
            return;
        }
        let place = || (0, format!("{cell}, packet {}", at + 1));
        self.found.entry(what).or_insert_with(place).0 += 1;
    }

    /// Cells that could not be compared, and what went wrong in them; without those of which that is known.
    #[must_use]
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// How many kinds of differences have no reason.
    #[must_use]
    pub fn news(&self) -> usize {
        self.found.len()
    }

    /// For people: what is not explained with its first place, then what is, by its reason.
    #[must_use]
    pub fn report(&self, target: &str) -> String {
        let mut text = String::new();
        for (what, (times, first)) in &self.found {
            let _ = writeln!(text, "differs: {what} ({times} times, first: {first})");
        }
        for (reason, times) in &self.explained {
            let _ = writeln!(text, "accepted, {times} times: {reason}");
        }
        for line in &self.excused {
            let _ = writeln!(text, "not compared, known: {line}");
        }
        for line in &self.skipped {
            let _ = writeln!(text, "not compared: {line}");
        }
        let (cells, news) = (self.cells, self.news());
        let not = self.skipped.len() + self.excused.len();
        let _ = writeln!(
            text,
            "{target} and rocebud: {cells} cells compared, {not} not; {news} differences without a reason"
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(opcode: &str, psn: u32, ttl: u32) -> Fields {
        vec![
            ("opcode", opcode.to_owned()),
            ("PSN", psn.to_string()),
            ("TTL", ttl.to_string()),
        ]
    }

    #[test]
    fn a_packet_that_only_one_sends_does_not_hide_what_follows() {
        let mut all = Differences::default();
        let theirs = [packet("A", 1, 64), packet("A", 3, 64), packet("N", 3, 64)];
        let ours = [packet("A", 1, 64), packet("A", 2, 64), packet("A", 3, 63)];
        all.compare("cell", &theirs, &ours);
        let found: Vec<&str> = all.found.keys().map(String::as_str).collect();
        assert_eq!(
            found,
            [
                "A: TTL 64, rocebud 63",
                "only rocebud sends A",
                "only the target sends N"
            ]
        );
        assert_eq!(
            all.found["only rocebud sends A"],
            (1, "cell, packet 2".into())
        );
    }

    #[test]
    fn the_list_of_accepted_differences_is_well_formed() {
        assert!(known::parse(ACCEPTED, "rxe").is_ok());
    }
}
