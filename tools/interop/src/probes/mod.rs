//! Probes: what no cell shows by itself, each with a judgement of its own.

use std::time::Instant;

use rocebud_wire::Packet;
use rocebud_wire::frame::Frame;
use serde_json::Value;

use crate::cell::{self, Pair, Ran, Verdict};
use crate::check::{Findings, Qp};
use crate::error::{Doing, Error, Result, fail};
use crate::matrix::{Cell, Matrix};
use crate::target::{Bench, Target};
use crate::wire::Seen;

pub mod ecn;
pub mod hello;
pub mod icrc;
pub mod same;

/// A probe. All of them need a wire that this program carries, and are part of the short form.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// What it shows.
    pub name: &'static str,
    /// Only of this target.
    pub target: Option<&'static str>,
    /// What it needs besides, if it is not there.
    missing: fn() -> Option<String>,
    run: fn(&mut Scene<'_>) -> Result<()>,
}

/// Every probe.
pub const ALL: &[Probe] = &[
    Probe {
        name: "ECN: marks are counted and answered with CNPs",
        target: None,
        missing: nothing,
        run: ecn::marks,
    },
    Probe {
        name: "ECN: tshark decodes our CNPs",
        target: None,
        missing: ecn::no_tshark,
        run: ecn::decoded,
    },
    Probe {
        name: "ECN: CNPs sent to us are counted",
        target: None,
        missing: nothing,
        run: ecn::notifications,
    },
    Probe {
        name: "ICRC: every packet is accepted, spoiled ones are not",
        target: None,
        missing: nothing,
        run: icrc::spoiled,
    },
    Probe {
        name: "hello: rxe is asked who it is, and nobody is disturbed",
        target: Some("rxe"),
        missing: nothing,
        run: hello::undisturbed,
    },
    Probe {
        name: "differential: no packet differs from rocebud's without a reason",
        target: None,
        missing: nothing,
        run: same::packets,
    },
];

fn nothing() -> Option<String> {
    None
}

/// What a probe works with.
#[derive(Debug)]
pub struct Scene<'a> {
    bench: &'a Bench,
    target: &'a Target,
    /// New at each probe, so that the counters of our process begin at 0.
    pair: Option<Pair>,
    frames: Vec<Seen>,
    packets: Findings,
}

impl Probe {
    /// A line that names it.
    pub fn title(&self, target: &str) -> String {
        format!("{} ({target})", self.name)
    }

    /// Runs it.
    pub fn run(&self, bench: &Bench, target: &Target) -> (Ran, Vec<Seen>) {
        let begin = Instant::now();
        let mut ran = Ran::new(self.title(target.label()), "probes");
        let mut scene = Scene {
            bench,
            target,
            pair: None,
            frames: Vec::new(),
            packets: Findings::default(),
        };
        let missing = bench
            .wire()
            .is_none()
            .then(|| "it needs a wire that this program carries".to_owned());
        ran.verdict = match missing.or_else(self.missing) {
            Some(why) => Verdict::NotRun(why),
            None => match (self.run)(&mut scene) {
                Ok(()) => Verdict::Ok,
                Err(Error(why)) => Verdict::Failed(why),
            },
        };
        ran.packets = scene.packets;
        ran.ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        (ran, scene.frames)
    }
}

/// The queue pair that a RoCE frame is for.
fn destination(seen: &Seen) -> Option<u32> {
    let frame = Frame::parse(&seen.bytes).ok()?;
    let packet = Packet::parse(frame.ib).ok()?;
    Some(packet.bth.dest_qp.value())
}

/// The cells of a matrix.
fn cells(text: &str) -> Result<Vec<Cell>> {
    Matrix::parse(text)?.cells()
}

impl Scene<'_> {
    /// Plays a cell, which must be right; answers the frames between its queue pairs.
    fn cell(&mut self, cell: &Cell) -> Result<Vec<Seen>> {
        self.cell_with(cell, &mut |_, _| Ok(()))
    }

    /// The same, doing something between connecting (requester and responder are given) and the messages.
    fn cell_with(
        &mut self,
        cell: &Cell,
        between: &mut dyn FnMut(Qp, Qp) -> Result<()>,
    ) -> Result<Vec<Seen>> {
        let mut own = [0; 2];
        let (ran, mut frames) = cell::run_with(
            self.bench,
            &mut self.pair,
            cell,
            self.target.label(),
            &mut |requester, responder| {
                own = [requester.qpn, responder.qpn];
                between(requester, responder)
            },
        );
        // what a queue pair of the cell before sent last may only now come by
        frames.retain(|f| destination(f).is_some_and(|qpn| own.contains(&qpn)));
        self.packets.packets += ran.packets.packets;
        self.packets.marked += ran.packets.marked;
        self.packets.cnps += ran.packets.cnps;
        self.frames.extend_from_slice(&frames);
        match ran.verdict {
            Verdict::Ok => Ok(frames),
            other => fail(format!("{}: {}", ran.name, other.why())),
        }
    }

    /// A counter of our process, summed over the processes that live.
    fn counter(&self, name: &str) -> Result<u64> {
        let command = format!("{} status --json", self.bench.ours.program);
        let ended = self.bench.ours.place.run(&command, 30)?;
        let said: Value =
            serde_json::from_str(&ended.output).doing(|| format!("reading {command}"))?;
        let processes = said["processes"].as_array().cloned().unwrap_or_default();
        let of = |process: &Value| {
            let counters = process["counters"].as_array().cloned().unwrap_or_default();
            let found = counters.iter().find(|c| c[0] == name);
            found.and_then(|c| c[1].as_u64()).unwrap_or(0)
        };
        let alive = |p: &&Value| p["dead_ms"].is_null();
        if processes.iter().filter(alive).count() == 0 {
            return fail(format!("{command} tells of no process that lives"));
        }
        Ok(processes.iter().filter(alive).map(of).sum())
    }
}
