//! A run: the bench, every chosen cell, the report.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Instant;

use crate::cell::{Ran, Verdict};
use crate::error::{Result, fail};
use crate::golden::Shelf;
use crate::inside;
use crate::known::{self, Known};
use crate::lanes::{Item, Lanes};
use crate::matrix::{Cell, Matrix};
use crate::peer::Options;
use crate::probes::{self, Probe};
use crate::programs::{self, Play};
use crate::progress::Progress;
use crate::report::{self, Report};
use crate::target::Target;

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
    /// Benches that work side by side.
    pub lanes: usize,
    /// How this run was asked for.
    pub command: String,
}

/// Runs it. Progress goes to standard error.
///
/// # Errors
/// The bench cannot be set up.
pub fn run(order: &Order) -> Result<Report> {
    let begin = Instant::now();
    let when = report::now();
    if order.target == Target::Inside {
        return inside::run(order);
    }
    let items = chosen_items(order)?;
    let target = order.target.name().to_owned();
    let known = known::of(&target)?;
    let progress = Progress::new(items.len());
    let done = Lanes::new(order, items, &known, &progress).run()?;
    Ok(Report {
        target,
        command: order.command.clone(),
        when,
        about: done.about,
        seconds: begin.elapsed().as_secs_f64(),
        cells: done.ran,
        trouble: done.lost,
    })
}

/// In the order of the report: cells, probes, programs.
fn chosen_items(order: &Order) -> Result<Vec<Item>> {
    let mut items: Vec<Item> = chosen(order)?.into_iter().map(Item::Cell).collect();
    if order.golden.is_none() {
        items.extend(chosen_probes(order).into_iter().map(Item::Probe));
        let plays = chosen_plays(order)?.into_iter();
        items.extend(plays.map(Box::new).map(Item::Play));
    }
    if items.is_empty() {
        return fail("no cell has these words in its name");
    }
    Ok(items)
}

pub(crate) fn chosen(order: &Order) -> Result<Vec<Cell>> {
    let target = order.target.label();
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
        let name = format!("programs {}", play.name(order.target.label()));
        wanted(&name, &order.only)
    });
    Ok(plays)
}

fn chosen_probes(order: &Order) -> Vec<Probe> {
    let named = |p: &&Probe| wanted(&format!("probes {}", p.name), &order.only);
    let fits = |p: &&Probe| p.target.is_none_or(|only| only == order.target.name());
    probes::ALL
        .iter()
        .filter(named)
        .filter(fits)
        .copied()
        .collect()
}

/// Has all the words, and none of those behind a `!`.
fn wanted(name: &str, words: &[String]) -> bool {
    words.iter().all(|word| match word.strip_prefix('!') {
        Some(not) => !name.contains(not),
        None => name.contains(word.as_str()),
    })
}

pub(crate) fn explain(ran: &mut Ran, known: &[Known]) {
    if let Verdict::Failed(why) = &ran.verdict
        && let Some(entry) = known.iter().find(|k| k.explains(&ran.name, why))
    {
        ran.reason = Some(entry.reason.clone());
        ran.verdict = Verdict::Known(why.clone());
    }
}
