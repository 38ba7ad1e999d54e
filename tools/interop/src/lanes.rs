//! Benches side by side: each takes the next cell when it has done one.
//!
//! A bench that is lost (its guest ended, its device vanished) is told from a cell that fails: what is left goes to the
//! others, and what nobody is left for is "not run".

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cell::{self, Pair, Ran, Verdict};
use crate::cleanup;
use crate::error::{Doing, Error, Result};
use crate::known::Known;
use crate::matrix::Cell;
use crate::probes::Probe;
use crate::programs::Play;
use crate::progress::Progress;
use crate::run::{Order, explain};
use crate::target::{Bench, Target};
use crate::wire::{Seen, pcap};

/// Something to run.
#[derive(Debug)]
pub enum Item {
    /// Of the matrix.
    Cell(Cell),
    /// What no cell shows.
    Probe(Probe),
    /// An unmodified program.
    Play(Box<Play>),
}

impl Item {
    fn run(&self, bench: &Bench, pair: &mut Option<Pair>, target: &Target) -> (Ran, Vec<Seen>) {
        if let Self::Cell(cell) = self {
            return cell::run(bench, pair, cell, target.label());
        }
        // the two agents of the cells before would hold what the others count
        *pair = None;
        match self {
            Self::Probe(probe) => probe.run(bench, target),
            Self::Play(play) => play.run(bench, target.label()),
            Self::Cell(cell) => cell::run(bench, pair, cell, target.label()),
        }
    }

    fn not_run(&self, target: &str, why: &str) -> Ran {
        let mut ran = match self {
            Self::Cell(cell) => Ran {
                cell: Some(cell.clone()),
                ..Ran::new(cell.name(target), &cell.group)
            },
            Self::Probe(probe) => Ran::new(probe.title(target), "probes"),
            Self::Play(play) => Ran::new(play.name(target), "programs"),
        };
        ran.verdict = Verdict::NotRun(why.to_owned());
        ran
    }
}

#[derive(Debug, Default)]
struct State {
    next: usize,
    ran: Vec<Option<Ran>>,
    /// What the benches are, of those that were set up.
    about: Vec<String>,
    /// Why others could not be.
    refused: Vec<Error>,
    /// Why benches were lost.
    lost: Vec<String>,
    /// What cannot go on at all.
    error: Option<Error>,
}

/// What became of a run.
#[derive(Debug)]
pub struct Done {
    /// What was tested, in words.
    pub about: String,
    /// Everything, in the order given.
    pub ran: Vec<Ran>,
    /// Why benches were lost, if some were.
    pub lost: Option<String>,
}

/// All that is to be run, and what became of it.
#[derive(Debug)]
pub struct Lanes<'a> {
    order: &'a Order,
    items: Vec<Item>,
    known: &'a [Known],
    progress: &'a Progress,
    state: Mutex<State>,
}

impl<'a> Lanes<'a> {
    /// Nothing has run.
    pub fn new(
        order: &'a Order,
        items: Vec<Item>,
        known: &'a [Known],
        progress: &'a Progress,
    ) -> Self {
        let ran = items.iter().map(|_| None).collect();
        let state = State {
            ran,
            ..State::default()
        };
        Self {
            order,
            items,
            known,
            progress,
            state: Mutex::new(state),
        }
    }

    /// Sets up the benches and runs everything.
    ///
    /// # Errors
    /// No bench can be set up, or a file that was asked for cannot be written.
    pub fn run(self) -> Result<Done> {
        let lanes = self.order.lanes.min(self.items.len());
        std::thread::scope(|scope| {
            for _ in 0..lanes {
                scope.spawn(|| self.whole());
            }
        });
        cleanup::stop_if_ending();
        let Self {
            order,
            items,
            progress,
            state,
            ..
        } = self;
        let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = state.error {
            return Err(error);
        }
        if state.about.is_empty() {
            let none = Error("no lane began".into());
            return Err(state.refused.into_iter().next().unwrap_or(none));
        }
        for error in &state.refused {
            progress.note(&format!("one bench less: {error}"));
        }
        let side_by_side = match state.about.len() {
            1 => String::new(),
            many => format!(", {many} of them side by side"),
        };
        let target = order.target.label();
        let short: Vec<&str> = state.lost.iter().map(|why| first_line(why)).collect();
        let short = short.join("; ");
        let ran = items.iter().zip(state.ran);
        let ran = ran.map(|(item, ran)| ran.unwrap_or_else(|| item.not_run(target, &short)));
        Ok(Done {
            about: state.about.swap_remove(0) + &side_by_side,
            ran: ran.collect(),
            lost: Some(state.lost.join("; ")).filter(|why| !why.is_empty()),
        })
    }

    /// A lane's life, on one thread: the kernel ends a guest when the thread that started it is gone.
    fn whole(&self) {
        let up = Bench::set_up(self.order).and_then(|bench| bench.check().map(|()| bench));
        cleanup::stop_if_ending();
        match up {
            Ok(mut bench) => {
                let about = bench.about.clone();
                let first = {
                    let mut state = self.state();
                    state.about.push(about.clone());
                    state.about.len() == 1
                };
                self.progress.note(&if first {
                    format!("{about}: {} cells", self.items.len())
                } else {
                    format!("beside it: {about}")
                });
                self.lane(&mut bench);
            }
            Err(error) => self.state().refused.push(error),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<usize> {
        let mut state = self.state();
        let n = state.next;
        (state.error.is_none() && n < self.items.len()).then(|| {
            state.next += 1;
            n
        })
    }

    fn lane(&self, bench: &mut Bench) {
        let mut pair = None;
        while let Some(n) = self.take() {
            cleanup::stop_if_ending();
            if let Err(error) = self.one(n, bench, &mut pair) {
                self.state().error.get_or_insert(error);
                return;
            }
            let failed = |ran: &Option<Ran>| {
                let verdict = ran.as_ref().map(|ran| &ran.verdict);
                matches!(verdict, Some(Verdict::Failed(_)))
            };
            let failed = self.state().ran.get(n).is_some_and(failed);
            if let Some(why) = failed.then(|| bench.lost()).flatten() {
                cleanup::stop_if_ending();
                self.progress.note(&format!("lost: {why}"));
                let mut state = self.state();
                if !state.lost.contains(&why) {
                    state.lost.push(why);
                }
                return;
            }
        }
    }

    fn one(&self, n: usize, bench: &mut Bench, pair: &mut Option<Pair>) -> Result<()> {
        let Some(item) = self.items.get(n) else {
            return Ok(());
        };
        let (mut ran, frames) = item.run(bench, pair, &self.order.target);
        explain(&mut ran, self.known);
        keep(self.order, &ran, n, &frames)?;
        if let (Some(shelf), Verdict::Ok) = (&self.order.golden, &ran.verdict) {
            shelf.put(bench, &ran, &frames)?;
        }
        self.progress.one(&ran);
        if let Some(slot) = self.state().ran.get_mut(n) {
            *slot = Some(ran);
        }
        Ok(())
    }
}

fn first_line(text: &str) -> &str {
    text.lines()
        .next()
        .unwrap_or_default()
        .trim_end_matches(';')
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
