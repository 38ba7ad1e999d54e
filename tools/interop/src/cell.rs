//! A cell: one scenario between the two agents, its packets looked at.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::check::{self, Findings, Qp};
use crate::endpoint;
use crate::error::{Error, Result, fail};
use crate::matrix::{Cell, Connect, Family, Type, Who};
use crate::session::{Answer, GONE, Session};
use crate::target::Bench;
use crate::wire::{Seen, rule::is_roce};

/// What became of a cell.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub enum Verdict {
    /// Everything right.
    Ok,
    /// Something was wrong.
    Failed(String),
    /// Something was wrong, and it is known: the reason is in [`Ran::reason`].
    Known(String),
    /// It could not run.
    NotRun(String),
}

/// A cell that ran.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ran {
    /// Its name.
    pub name: String,
    /// The group it is of.
    pub group: String,
    /// What it was, if it was of the matrix.
    pub cell: Option<Cell>,
    /// What became of it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Whose fault it is, and how that is known, where somebody has found out.
    #[serde(default)]
    pub reason: Option<String>,
    /// The programs that ran: the server's command, the client's.
    #[serde(default)]
    pub commands: Vec<String>,
    /// What its packets showed.
    pub packets: Findings,
    /// How long it took.
    pub ms: u64,
}

impl Ran {
    /// Nothing known of it yet.
    pub fn new(name: String, group: &str) -> Self {
        Self {
            name,
            group: group.to_owned(),
            cell: None,
            verdict: Verdict::Ok,
            reason: None,
            commands: Vec::new(),
            packets: Findings::default(),
            ms: 0,
        }
    }
}

/// The two conversations.
#[derive(Debug)]
pub struct Pair {
    ours: Session,
    theirs: Session,
}

/// The first PSNs of the queue pairs: one wraps within the first packets.
const PSNS: (u32, u32) = (0xff_fffd, 0x00_abcd);

impl Pair {
    /// Meets both agents.
    ///
    /// # Errors
    /// One does not answer.
    pub fn meet(bench: &Bench) -> Result<Self> {
        Ok(Self::of(bench.ours.session()?, bench.theirs.session()?))
    }

    fn of(mut ours: Session, mut theirs: Session) -> Self {
        ours.join(&mut theirs);
        Self { ours, theirs }
    }

    /// (requester, responder)
    fn roles(&mut self, requester: Who) -> (&mut Session, &mut Session) {
        match requester {
            Who::Ours => (&mut self.ours, &mut self.theirs),
            Who::Theirs => (&mut self.theirs, &mut self.ours),
        }
    }

    fn both(&mut self) -> [&mut Session; 2] {
        [&mut self.ours, &mut self.theirs]
    }
}

/// Runs a cell. `pair` is made anew when an agent has ended.
pub fn run(bench: &Bench, pair: &mut Option<Pair>, cell: &Cell, target: &str) -> (Ran, Vec<Seen>) {
    run_with(bench, pair, cell, target, &mut |_, _| Ok(()))
}

/// The same, doing something when the queue pairs (the requester's, the responder's) are connected.
pub fn run_with(
    bench: &Bench,
    pair: &mut Option<Pair>,
    cell: &Cell,
    target: &str,
    between: &mut dyn FnMut(Qp, Qp) -> Result<()>,
) -> (Ran, Vec<Seen>) {
    let begin = Instant::now();
    let mut ran = Ran::new(cell.name(target), &cell.group);
    let mut frames = Vec::new();
    ran.cell = Some(cell.clone());
    ran.verdict = match not_possible(bench, cell) {
        Some(why) => Verdict::NotRun(why),
        None => match play(bench, pair, cell, &mut frames, &mut ran.packets, between) {
            Ok(()) => Verdict::Ok,
            Err(Error(why)) => {
                if why.contains(GONE) || why.contains("agent is") {
                    *pair = None;
                }
                Verdict::Failed(why)
            }
        },
    };
    ran.ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    (ran, frames)
}

/// Why a cell cannot run here.
fn not_possible(bench: &Bench, cell: &Cell) -> Option<String> {
    let v6 = cell.family == Family::V6;
    if bench.ours.address(v6).is_none() || bench.theirs.address(v6).is_none() {
        return Some("an end has no address of this family".into());
    }
    if cell.fault.is_some() && bench.wire().is_none() && endpoint::of_cell(cell).is_none() {
        return Some(
            "our end can only lose packets; other faults need a wire that this program carries"
                .into(),
        );
    }
    bench.too_large(cell.mtu)
}

fn play(
    bench: &Bench,
    pair: &mut Option<Pair>,
    cell: &Cell,
    frames: &mut Vec<Seen>,
    packets: &mut Findings,
    between: &mut dyn FnMut(Qp, Qp) -> Result<()>,
) -> Result<()> {
    if bench.wire().is_none()
        && let Some(rules) = endpoint::of_cell(cell)
    {
        return losing(bench, cell, &rules);
    }
    let pair = match pair {
        Some(pair) => pair,
        empty => empty.insert(Pair::meet(bench)?),
    };
    if let Some(wire) = bench.wire() {
        wire.rules(cell.rule().into_iter().collect());
        wire.keep(true);
    }
    let played = connect(bench, pair, cell).and_then(|qps| {
        between(qps.0, qps.1)?;
        traffic(pair, cell)?;
        Ok(qps)
    });
    let struck = bench.wire().map(|wire| wire.struck());
    if let Some(wire) = bench.wire() {
        wire.rules(Vec::new());
        *frames = wire.take();
        wire.keep(false);
    }
    let ended = finish(pair, cell);
    let (requester, responder) = match played {
        Ok(qps) => qps,
        Err(error) => {
            packets.packets = frames.iter().filter(|f| is_roce(&f.bytes)).count();
            // whoever waits for an agent that has ended says so, but not why
            let Error(gone) = ended.err().unwrap_or_else(|| Error(String::new()));
            return if gone.contains(GONE) && gone != error.0 {
                fail(format!("{gone} ({error})"))
            } else {
                Err(error)
            };
        }
    };
    ended?;
    if bench.wire().is_some() {
        *packets = check::judge(cell, requester, responder, frames);
        if let [first, ..] = packets.wrong.as_slice() {
            return fail(format!("packets: {first}"));
        }
        if cell.fault.is_some() && struck.is_some_and(|s| s != [1]) {
            return fail("the packet that the fault names was never sent");
        }
    }
    Ok(())
}

fn finish(pair: &mut Pair, cell: &Cell) -> Result<()> {
    let mut ended = Ok(());
    for side in pair.both() {
        if cell.connect == Connect::Cm {
            side.closed();
        }
        let finished = side.ask("finish").map(drop);
        ended = ended.and(finished);
    }
    ended
}

/// A cell whose packet our own end loses: an agent of ours for it alone, since its library reads the rule when it starts.
fn losing(bench: &Bench, cell: &Cell, rules: &str) -> Result<()> {
    let mut pair = Pair::of(bench.ours.losing(rules)?, bench.theirs.session()?);
    connect(bench, &mut pair, cell)?;
    traffic(&mut pair, cell)?;
    let lost = match pair.ours.pid() {
        Some(pid) => endpoint::lost(&bench.ours, pid)?,
        None => 0,
    };
    finish(&mut pair, cell)?;
    match lost {
        0 => fail("the packet that the fault names was never sent"),
        1 => Ok(()),
        many => fail(format!(
            "{many} packets were lost, not the one that is named"
        )),
    }
}

/// Brings the queue pairs up; answers requester's and responder's.
fn connect(bench: &Bench, pair: &mut Pair, cell: &Cell) -> Result<(Qp, Qp)> {
    let v6 = cell.family == Family::V6;
    let (ours, theirs) = (
        bench.ours.address(v6).unwrap_or(""),
        bench.theirs.address(v6).unwrap_or(""),
    );
    if cell.connect == Connect::Hand {
        pair.ours.open(&bench.ours.device, ours)?;
        pair.theirs.open(&bench.theirs.device, theirs)?;
    }
    let (from, to) = match cell.requester {
        Who::Ours => (ours, theirs),
        Who::Theirs => (theirs, ours),
    };
    let (requester, responder) = pair.roles(cell.requester);
    let (a, b) = match cell.connect {
        Connect::Hand => by_hand(requester, responder, cell)?,
        Connect::Cm => by_cm(requester, responder, cell, (from, to))?,
    };
    let known = cell.connect == Connect::Hand;
    for (side, other) in [(requester, &b), (responder, &a)] {
        let word = |key| other.word(key).to_owned();
        let (qpn, addr, key, ro) = (word("qpn"), word("addr"), word("key"), word("key_ro"));
        side.ask(&format!(
            "remote qpn={qpn} addr={addr} key={key} key_ro={ro}"
        ))?;
    }
    let qp = |answer: &Answer, psn| Qp {
        qpn: u32::try_from(answer.number("qpn")).unwrap_or_default(),
        psn: known.then_some(psn),
    };
    Ok((qp(&a, PSNS.0), qp(&b, PSNS.1)))
}

/// Where a packet is lost the timer may have to notice (134 ms); elsewhere it must never run out.
fn start_line(cell: &Cell, psn: u32) -> String {
    let kind = match cell.kind {
        Type::Rc => "rc",
        Type::Uc => "uc",
        Type::Ud => "ud",
    };
    let timeout = if cell.fault.is_some() { 15 } else { 20 };
    format!(
        "start type={kind} mtu={} psn={psn} count={} size={} seed=7 timeout={timeout} srq={} cm={} wait=20",
        cell.mtu,
        cell.count,
        cell.size,
        u8::from(cell.srq),
        u8::from(cell.connect == Connect::Cm)
    )
}

fn by_hand(
    requester: &mut Session,
    responder: &mut Session,
    cell: &Cell,
) -> Result<(Answer, Answer)> {
    let a = requester.ask(&start_line(cell, PSNS.0))?;
    let b = responder.ask(&start_line(cell, PSNS.1))?;
    for (side, other, psn) in [(responder, &a, PSNS.0), (requester, &b, PSNS.1)] {
        let (qpn, gid) = (other.word("qpn"), other.word("gid"));
        side.ask(&format!("connect qpn={qpn} psn={psn} gid={gid}"))?;
    }
    Ok((a, b))
}

fn by_cm(
    requester: &mut Session,
    responder: &mut Session,
    cell: &Cell,
    (from, to): (&str, &str),
) -> Result<(Answer, Answer)> {
    requester.ask(&start_line(cell, 0))?;
    responder.ask(&start_line(cell, 0))?;
    responder.ask(&format!("cm-listen addr={to} port=7472"))?;
    responder.send("cm-accept")?;
    requester.send(&format!("cm-connect from={from} addr={to} port=7472"))?;
    let a = requester.receive(40);
    let b = responder.receive(40);
    Ok((a?, b?))
}

/// The statuses with which a refused operation must end: the requester's, the responder's receive (0: none).
fn refusal(op: &str) -> Option<(u64, u64)> {
    match op {
        "bad_rkey_write" | "bad_rkey_read" | "read_only_write" | "beyond_read" => Some((10, 0)),
        "long_send" => Some((9, 1)),
        _ => None,
    }
}

/// The messages, and what both sides say of them.
fn traffic(pair: &mut Pair, cell: &Cell) -> Result<()> {
    let (requester, responder) = pair.roles(cell.requester);
    let op = &cell.op;
    responder.ask(&format!("respond op={op} late={}", u8::from(cell.late)))?;
    requester.send(&format!("request op={op}"))?;
    if cell.late {
        std::thread::sleep(Duration::from_millis(60));
        responder.ask(&format!("receives op={op}"))?;
    }
    let asked = requester.receive(40)?;
    let count = u64::from(cell.count);
    if let Some((status, receive)) = refusal(op) {
        let got = asked.number("status");
        if got != status {
            return fail(format!(
                "requester ended with status {got}, expected {status}"
            ));
        }
        let flushed = asked.number("flushed");
        if asked.number("good") != 0 || flushed != count - 1 {
            return fail(format!(
                "requester: {flushed} of {} requests behind it were flushed",
                count - 1
            ));
        }
        let answer = responder.ask(&format!("verify op={op} data={}", u8::from(receive == 0)))?;
        let got = answer.number("status");
        if got != receive {
            return fail(format!(
                "responder's receive ended with status {got}, expected {receive}"
            ));
        }
        return Ok(());
    }
    let lossy = cell.loses() && cell.kind != Type::Rc;
    let answer = responder.ask(&format!("verify op={op} lossy={}", u8::from(lossy)))?;
    for (who, said) in [("requester", &asked), ("responder", &answer)] {
        let status = said.number("status");
        if status != 0 {
            return fail(format!("{who} ended with status {status}"));
        }
    }
    if asked.number("good") != count {
        return fail(format!(
            "requester: {} of {count} completions",
            asked.number("good")
        ));
    }
    Ok(())
}
