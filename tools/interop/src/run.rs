//! A run: the bench, every chosen cell, the report.

use std::io::{IsTerminal, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Instant;

use crate::cell::{self, Ran, Verdict};
use crate::cleanup;
use crate::error::{Doing, Result, fail};
use crate::golden::Shelf;
use crate::inside;
use crate::known::{self, Known};
use crate::matrix::{Cell, Matrix};
use crate::peer::{Options, Peer};
use crate::probes::{self, Probe};
use crate::programs::{self, Play};
use crate::report::{Report, Sums};
use crate::target::{Bench, Target};
use crate::wire::{Seen, pcap};

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Order {
    /// Against whom.
    pub target: Target,
    /// The matrix, as TOML.
    pub matrix: String,
    /// Only the short form.
    pub short: bool,
    /// Only cells with all these words in their names or groups, and without those behind a `!`.
    pub only: Vec<String>,
    /// How the guest is to be.
    pub options: Options,
    /// Ours and the target's, in pairs of one family.
    pub addresses: Vec<IpAddr>,
    /// Where rocebud runs, for devices of this machine.
    pub namespace: Option<String>,
    /// Captures of the cells that are not "ok" go here.
    pub captures: Option<PathBuf>,
    /// Captures of all cells.
    pub capture_all: bool,
    /// Golden captures of the cells that are right.
    pub golden: Option<Shelf>,
}

/// Runs it. Progress goes to standard error.
///
/// # Errors
/// The bench cannot be set up, or the target is gone.
pub fn run(order: &Order) -> Result<Report> {
    let begin = Instant::now();
    if order.target == Target::Inside {
        return inside::run(order);
    }
    let cells: Vec<Cell> = chosen(order)?;
    let (plays, probes) = match order.golden {
        Some(_) => (Vec::new(), Vec::new()),
        None => (chosen_plays(order)?, chosen_probes(order)),
    };
    let total = cells.len() + probes.len() + plays.len();
    if total == 0 {
        return fail("no cell has these words in its name");
    }
    let target = order.target.name().to_owned();
    let known = known::of(&target)?;
    let mut bench = Bench::set_up(order)?;
    let mut progress = Progress::new(total);
    progress.note(&format!("{}: {total} cells", bench.about));
    bench.check()?;
    let mut pair = None;
    let mut ran = Vec::new();
    for cell in &cells {
        alive(&mut bench, ran.len(), total)?;
        let (mut one, frames) = cell::run(&bench, &mut pair, cell, &target);
        explain(&mut one, &known);
        keep(order, &one, ran.len(), &frames)?;
        if let (Some(shelf), Verdict::Ok) = (&order.golden, &one.verdict) {
            shelf.put(&mut bench, &one, &frames)?;
        }
        progress.one(&one);
        ran.push(one);
    }
    drop(pair);
    for probe in &probes {
        alive(&mut bench, ran.len(), total)?;
        let (mut one, frames) = probe.run(&bench, &target);
        explain(&mut one, &known);
        keep(order, &one, ran.len(), &frames)?;
        progress.one(&one);
        ran.push(one);
    }
    for play in &plays {
        alive(&mut bench, ran.len(), total)?;
        let (mut one, frames) = play.run(&bench, &target);
        explain(&mut one, &known);
        keep(order, &one, ran.len(), &frames)?;
        progress.one(&one);
        ran.push(one);
    }
    let about = bench.about.clone();
    Ok(Report {
        target,
        about,
        seconds: begin.elapsed().as_secs_f64(),
        cells: ran,
    })
}

pub(crate) fn chosen(order: &Order) -> Result<Vec<Cell>> {
    let target = order.target.name();
    let wanted = |cell: &Cell| {
        let name = format!("{} {}", cell.group, cell.name(target));
        (cell.short || !order.short) && wanted(&name, &order.only)
    };
    let mut cells = Matrix::parse(&order.matrix)?.cells()?;
    cells.retain(wanted);
    Ok(cells)
}

fn chosen_plays(order: &Order) -> Result<Vec<Play>> {
    let target = order.target.name();
    let mut plays = programs::plays(target, order.short)?;
    plays.retain(|play| {
        let name = format!("programs {}", play.name(target));
        wanted(&name, &order.only)
    });
    Ok(plays)
}

fn chosen_probes(order: &Order) -> Vec<Probe> {
    let named = |p: &&Probe| wanted(&format!("probes {}", p.name), &order.only);
    probes::ALL.iter().filter(named).copied().collect()
}

/// Has all the words, and none of those behind a `!`.
fn wanted(name: &str, words: &[String]) -> bool {
    words.iter().all(|word| match word.strip_prefix('!') {
        Some(not) => !name.contains(not),
        None => name.contains(word.as_str()),
    })
}

fn alive(bench: &mut Bench, done: usize, total: usize) -> Result<()> {
    cleanup::stop_if_ending();
    if bench.peer().is_none_or(Peer::alive) {
        return Ok(());
    }
    fail(format!("the guest ended, after {done} of {total} cells"))
}

pub(crate) fn explain(ran: &mut Ran, known: &[Known]) {
    if let Verdict::Failed(why) = &ran.verdict
        && let Some(entry) = known.iter().find(|k| k.explains(&ran.name, why))
    {
        ran.verdict = Verdict::Known(format!("{why}: {}", entry.reason));
    }
}

fn keep(order: &Order, ran: &Ran, number: usize, frames: &[Seen]) -> Result<()> {
    let Some(dir) = &order.captures else {
        return Ok(());
    };
    if ran.verdict == Verdict::Ok && !order.capture_all {
        return Ok(());
    }
    std::fs::create_dir_all(dir).doing(|| format!("{}", dir.display()))?;
    let name: String = ran
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    pcap::write(&dir.join(format!("{number:03}-{name}.pcap")), frames)
}

/// A line that changes on a terminal, and only what matters elsewhere.
struct Progress {
    total: usize,
    sums: Sums,
    terminal: bool,
}

impl Progress {
    fn new(total: usize) -> Self {
        Self {
            total,
            sums: Sums::default(),
            terminal: std::io::stderr().is_terminal(),
        }
    }

    fn note(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    fn one(&mut self, ran: &Ran) {
        cleanup::stop_if_ending();
        self.sums.add(&ran.verdict);
        let mut err = std::io::stderr().lock();
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        if matches!(ran.verdict, Verdict::Failed(_)) {
            let _ = writeln!(err, "{clear}FAILED: {}: {}", ran.name, ran.verdict.why());
        } else if ran.cell.is_none() {
            let seconds = f64::from(u32::try_from(ran.ms).unwrap_or(u32::MAX)) / 1000.0;
            let _ = writeln!(
                err,
                "{clear}{} {} ({seconds:.1} s)",
                ran.verdict.word(),
                ran.name
            );
        }
        if self.terminal {
            let s = &self.sums;
            let done = s.ok + s.failed + s.known + s.not_run;
            let _ = write!(
                err,
                "{clear}{done}/{} {} failed  {}",
                self.total, s.failed, ran.name
            );
            if done == self.total {
                let _ = write!(err, "{clear}");
            }
            let _ = err.flush();
        }
    }
}
