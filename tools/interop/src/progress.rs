//! What is shown while a run goes on: a line that changes on a terminal, and only what matters elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use crate::cell::{Ran, Verdict};
use crate::cleanup;
use crate::report::Sums;

/// Of one run; all of its lanes tell it.
#[derive(Debug)]
pub struct Progress {
    total: usize,
    sums: Mutex<Sums>,
    terminal: bool,
}

impl Progress {
    /// Of so many cells, none of which has run.
    pub fn new(total: usize) -> Self {
        Self {
            total,
            sums: Mutex::default(),
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// A line that stays.
    pub fn note(&self, text: &str) {
        let clear = self.clear();
        let _ = writeln!(std::io::stderr(), "{clear}{text}");
    }

    fn clear(&self) -> &'static str {
        if self.terminal { "\r\x1b[K" } else { "" }
    }

    /// A cell has run.
    pub fn one(&self, ran: &Ran) {
        cleanup::stop_if_ending();
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.add(&ran.verdict);
        let mut err = std::io::stderr().lock();
        let clear = self.clear();
        if matches!(ran.verdict, Verdict::Failed(_)) {
            let _ = writeln!(err, "{clear}FAILED: {}: {}", ran.name, ran.verdict.why());
        } else if ran.cell.is_none() {
            let seconds = f64::from(u32::try_from(ran.ms).unwrap_or(u32::MAX)) / 1000.0;
            let word = ran.verdict.word();
            let _ = writeln!(err, "{clear}{word} {} ({seconds:.1} s)", ran.name);
        }
        if !self.terminal {
            return;
        }
        let done = sums.ok + sums.failed + sums.known + sums.not_run;
        let (total, failed) = (self.total, sums.failed);
        let _ = write!(err, "{clear}{done}/{total} {failed} failed  {}", ran.name);
        if done == self.total {
            let _ = write!(err, "{clear}");
        }
        let _ = err.flush();
    }
}
