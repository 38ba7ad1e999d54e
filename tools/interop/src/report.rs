//! What was found: lines and a closing line for the terminal, JSON for programs, a page for people.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::cell::{Ran, Verdict};

mod page;

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The target's name.
    pub target: String,
    /// The command line.
    pub command: String,
    /// When it began, in UTC.
    pub when: String,
    /// What it is, in words.
    pub about: String,
    /// Seconds, setting up included.
    pub seconds: f64,
    /// Every cell.
    pub cells: Vec<Ran>,
    /// What was lost while it ran: a guest, a device. What could not run for that is "not run".
    pub trouble: Option<String>,
}

/// Numbers of verdicts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Sums {
    /// Right.
    pub ok: usize,
    /// Wrong.
    pub failed: usize,
    /// Wrong, but known.
    pub known: usize,
    /// Not run.
    pub not_run: usize,
}

impl Verdict {
    /// A word for tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed(_) => "FAILED",
            Self::Known(_) => "known",
            Self::NotRun(_) => "not run",
        }
    }

    /// The text behind the word.
    pub fn why(&self) -> &str {
        match self {
            Self::Ok => "",
            Self::Failed(why) | Self::Known(why) | Self::NotRun(why) => why,
        }
    }
}

impl Sums {
    /// Counts one more.
    pub fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Ok => self.ok += 1,
            Verdict::Failed(_) => self.failed += 1,
            Verdict::Known(_) => self.known += 1,
            Verdict::NotRun(_) => self.not_run += 1,
        }
    }
}

impl Report {
    /// How many of each.
    pub fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        self.cells.iter().for_each(|ran| sums.add(&ran.verdict));
        sums
    }

    /// The groups in the order in which they ran, each with its numbers.
    pub fn groups(&self) -> Vec<(&str, Sums)> {
        let mut groups: Vec<(&str, Sums)> = Vec::new();
        for ran in &self.cells {
            let at = groups.iter().position(|(name, _)| *name == ran.group);
            let at = at.unwrap_or_else(|| {
                groups.push((&ran.group, Sums::default()));
                groups.len() - 1
            });
            if let Some((_, sums)) = groups.get_mut(at) {
                sums.add(&ran.verdict);
            }
        }
        groups
    }

    /// A table of groups, then every cell that is not "ok" with its reason, then the closing line.
    pub fn text(&self) -> String {
        let mut out = format!(
            "{:36} {:>5} {:>6} {:>6} {:>8}\n",
            "group", "ok", "failed", "known", "not run"
        );
        for (name, s) in self.groups() {
            let _ = writeln!(
                out,
                "{name:36} {:>5} {:>6} {:>6} {:>8}",
                s.ok, s.failed, s.known, s.not_run
            );
        }
        out.push_str(&self.wrong());
        let s = self.sums();
        let _ = writeln!(
            out,
            "interop: {} passed, {} failed, {} skipped ({}: {}, {:.0} s; {} with a known disagreement)",
            s.ok + s.known,
            s.failed,
            s.not_run,
            self.target,
            self.about,
            self.seconds,
            s.known
        );
        out
    }

    /// Who has failed and how; known disagreements with the reason and one line of what was seen; what was not run, once
    /// for each reason.
    fn wrong(&self) -> String {
        let mut out = String::new();
        let mut not_run: Vec<(&str, &str, usize)> = Vec::new();
        for ran in &self.cells {
            let (name, why) = (ran.name.as_str(), ran.verdict.why());
            match &ran.verdict {
                Verdict::Ok => {}
                Verdict::Failed(_) => {
                    let _ = writeln!(out, "FAILED: {name}: {why}");
                }
                Verdict::Known(_) => {
                    let seen = why.lines().next().unwrap_or_default();
                    let reason = ran.reason.as_deref().unwrap_or_default();
                    let _ = writeln!(out, "known: {name}: {seen}\n    {reason}");
                }
                Verdict::NotRun(_) => match not_run.iter_mut().find(|(_, r, _)| *r == why) {
                    Some((_, _, more)) => *more += 1,
                    None => not_run.push((name, why, 0)),
                },
            }
        }
        for (name, why, more) in not_run {
            let others = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let _ = writeln!(out, "not run: {name}{others}: {why}");
        }
        out
    }

    /// For programs.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Whole<'a> {
            version: &'static str,
            sums: Sums,
            #[serde(flatten)]
            report: &'a Report,
        }
        let whole = Whole {
            version: env!("CARGO_PKG_VERSION"),
            sums: self.sums(),
            report: self,
        };
        serde_json::to_string_pretty(&whole).unwrap_or_default()
    }
}

/// The time, in UTC, as 2026-01-31 12:34:56.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    utc(since.map(|d| d.as_secs()).unwrap_or_default())
}

/// Seconds since 1970, as a date.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut left) = (1970, days);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in months {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let day = left + 1;
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cells: Vec<Ran>) -> Report {
        Report {
            target: "target".into(),
            command: String::new(),
            when: utc(0),
            about: String::new(),
            seconds: 1.0,
            cells,
            trouble: None,
        }
    }

    fn cell(name: &str, verdict: Verdict) -> Ran {
        Ran {
            verdict,
            ..Ran::new(name.into(), "group")
        }
    }

    #[test]
    fn a_page_begins_with_what_is_wrong() {
        let page = report(vec![
            cell("right", Verdict::Ok),
            cell("explained", Verdict::Known("why".into())),
            cell("wrong", Verdict::Failed("why".into())),
        ])
        .html();
        let at = |name: &str| page.find(&format!(">{name}<")).expect("it is listed");
        assert!(at("wrong") < at("explained") && at("explained") < at("right"));
    }

    #[test]
    fn what_peers_say_cannot_become_markup() {
        let page = report(vec![cell("<b>&", Verdict::Failed("<script>".into()))]).html();
        assert!(page.contains("&lt;b&gt;&amp;") && page.contains("&lt;script&gt;"));
        assert!(
            !page.contains("<b>&") && !page.contains("<script>\"") && !page.contains("><script>")
        );
    }

    #[test]
    fn what_was_not_run_is_counted_as_such_and_said_once_for_each_reason() {
        let lost = || Verdict::NotRun("the guest ended".into());
        let text = report(vec![
            cell("a", Verdict::Ok),
            cell("b", lost()),
            cell("c", lost()),
            cell("d", Verdict::NotRun("no tshark".into())),
        ])
        .text();
        assert!(text.contains("not run: b and 1 more: the guest ended\n"));
        assert!(text.contains("not run: d: no tshark\n"));
        assert!(text.contains("interop: 1 passed, 0 failed, 3 skipped"));
    }

    #[test]
    fn seconds_become_a_date() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(utc(951_868_800), "2000-03-01 00:00:00");
        assert_eq!(utc(1_798_761_599), "2026-12-31 23:59:59");
    }
}
