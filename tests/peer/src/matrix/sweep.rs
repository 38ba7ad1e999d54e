//! Running cells: two at a time in places of their own, progress, results in a file, resuming.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Value, json};

use super::cell::{Cell, Choice};
use super::data::Data;
use super::judge;
use super::lab::{Counted, Lab};
use super::plan::{Extent, cells};
use crate::{Failure, tree};

/// What is to be run, and how.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// How much of the matrix.
    pub extent: Extent,
    /// Only cells whose name has all of these in it.
    pub only: Vec<String>,
    /// Leave out what passed according to the file of results.
    pub resume: bool,
    /// How many cells at once.
    pub jobs: usize,
}

/// How it went.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// Cells that worked.
    pub worked: usize,
    /// Cells that were refused as listed.
    pub refused: usize,
    /// Cells that this machine cannot run, and what it lacks.
    pub lacking: Vec<String>,
    /// What went wrong.
    pub failed: Vec<String>,
    /// Cells with packets sent again.
    pub retransmitting: usize,
    /// Cells that passed earlier.
    pub kept: usize,
    /// Seconds.
    pub took_s: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacking: BTreeSet<&str> = self
            .lacking
            .iter()
            .filter_map(|l| Some(l.split_once(": ")?.1))
            .collect();
        for what in &lacking {
            let count = self.lacking.iter().filter(|l| l.ends_with(what)).count();
            writeln!(f, "lacking: {what} ({count} cells)")?;
        }
        for name in &self.failed {
            writeln!(f, "FAILED: {name}")?;
        }
        write!(
            f,
            "matrix: {} worked ({} of them sent packets again), {} refused as listed, {} lacking, \
             {} failed, {} kept from before, {} s",
            self.worked,
            self.retransmitting,
            self.refused,
            self.lacking.len(),
            self.failed.len(),
            self.kept,
            self.took_s
        )
    }
}

/// How one cell went.
enum Verdict {
    Worked(Counted),
    Refused,
    Lacking(String),
    Failed(String),
}

impl Sweep {
    /// The file of results: a JSON object a line.
    pub fn results(&self) -> PathBuf {
        let name = match self.extent {
            Extent::Cover => "cover.jsonl",
            Extent::CoverByRdmaCm => "cover_by_rdma_cm.jsonl",
            Extent::Full => "full.jsonl",
        };
        tree::root().join("build/tests/matrix").join(name)
    }

    /// Names of the cells, in order.
    pub fn names(&self, data: &Data) -> Vec<String> {
        self.chosen(data)
            .iter()
            .map(|c| Cell::new(data, c).to_string())
            .collect()
    }

    fn chosen(&self, data: &Data) -> Vec<Vec<Choice>> {
        let wanted = |c: &Vec<Choice>| {
            let name = Cell::new(data, c).to_string();
            self.only.iter().all(|w| name.contains(w.as_str()))
        };
        cells(data, self.extent)
            .into_iter()
            .filter(wanted)
            .collect()
    }

    /// Runs them, with a line for each.
    ///
    /// # Errors
    /// The file of results cannot be written.
    pub fn run(&self, data: &Data) -> Result<Summary, Failure> {
        let start = Instant::now();
        let (passed, log) = self.open_results()?;
        let all = self.chosen(data);
        let todo: VecDeque<Vec<Choice>> = all
            .iter()
            .filter(|c| !passed.contains(&Cell::new(data, c).to_string()))
            .cloned()
            .collect();
        let summary = Summary {
            kept: all.len() - todo.len(),
            ..Summary::default()
        };
        let shared = Shared {
            sweep: self,
            total: todo.len(),
            state: Mutex::new(State {
                todo,
                summary,
                log,
                done: 0,
            }),
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| shared.work(data));
            }
        });
        let mut summary = shared
            .state
            .into_inner()
            .map_err(|e| e.to_string())?
            .summary;
        summary.took_s = start.elapsed().as_secs();
        Ok(summary)
    }

    /// Names of cells that passed, if those are to be kept, and the file to add to.
    fn open_results(&self) -> Result<(BTreeSet<String>, File), Failure> {
        let path = self.results();
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        let mut passed = BTreeSet::new();
        if self.resume {
            let lines = before
                .lines()
                .filter_map(|l| serde_json::from_str::<Value>(l).ok());
            for line in lines.filter(|l| l["verdict"] == "worked" || l["verdict"] == "refused") {
                passed.insert(line["cell"].as_str().unwrap_or_default().to_owned());
            }
        }
        let mut options = OpenOptions::new();
        options
            .create(true)
            .append(self.resume)
            .write(true)
            .truncate(!self.resume);
        Ok((passed, options.open(&path)?))
    }
}

struct State {
    todo: VecDeque<Vec<Choice>>,
    summary: Summary,
    log: File,
    done: usize,
}

struct Shared<'a> {
    sweep: &'a Sweep,
    total: usize,
    state: Mutex<State>,
}

impl Shared<'_> {
    /// Takes cells until none is left.
    fn work(&self, data: &Data) {
        let mut lab = Lab::new(data);
        while let Some(choices) = self.next() {
            let cell = Cell::new(data, &choices);
            let start = Instant::now();
            let verdict = self.one(&cell, &mut lab);
            self.note(&cell, verdict, start.elapsed().as_millis());
        }
    }

    fn next(&self) -> Option<Vec<Choice>> {
        self.state.lock().ok()?.todo.pop_front()
    }

    fn one(&self, cell: &Cell<'_>, lab: &mut Lab<'_>) -> Verdict {
        let Some(place) = cell.place() else {
            return Verdict::Failed("no place".into());
        };
        let full = self.sweep.extent == Extent::Full;
        let ran = lab
            .stage(place)
            .and_then(|stage| judge::run(cell, stage, full));
        match ran {
            Ok(_) if cell.refusal().is_some() => Verdict::Refused,
            Ok(counted) => Verdict::Worked(counted),
            Err(Failure::Skip(what)) => Verdict::Lacking(what),
            Err(Failure::Wrong(why)) => {
                lab.close(place); // what hangs about must not spoil the next
                Verdict::Failed(why)
            }
        }
    }

    fn note(&self, cell: &Cell<'_>, verdict: Verdict, took_ms: u128) {
        let Ok(mut state) = self.state.lock() else {
            return;
        };
        state.done += 1;
        let name = cell.to_string();
        let (word, more) = match &verdict {
            Verdict::Worked(c) => ("worked", json!({ "retransmits": c.retransmits })),
            Verdict::Refused => (
                "refused",
                json!({ "says": cell.refusal().map(|r| &r.says) }),
            ),
            Verdict::Lacking(what) => ("lacking", json!({ "lacks": what })),
            Verdict::Failed(why) => ("FAILED", json!({ "why": why })),
        };
        println!("{}/{} {word} {name} ({took_ms} ms)", state.done, self.total);
        let mut line = json!({ "cell": name, "verdict": word, "ms": took_ms as u64 });
        if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
            line.extend(more);
        }
        let _ = writeln!(state.log, "{line}");
        let summary = &mut state.summary;
        match verdict {
            Verdict::Worked(c) => {
                summary.worked += 1;
                summary.retransmitting += usize::from(c.retransmits > 0);
            }
            Verdict::Refused => summary.refused += 1,
            Verdict::Lacking(what) => summary.lacking.push(format!("{name}: {what}")),
            Verdict::Failed(why) => {
                why.lines().for_each(|l| println!("    {l}"));
                summary.failed.push(name);
            }
        }
    }
}
