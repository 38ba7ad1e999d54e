//! What was found: lines and a closing line for the terminal, JSON for programs, a page for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::cell::{Ran, Verdict};

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The target's name.
    pub target: String,
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
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
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

    /// A table of groups, then every cell that is not "ok" with its reason, then the closing line.
    pub fn text(&self) -> String {
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
        let mut out = format!(
            "{:36} {:>5} {:>6} {:>6} {:>8}\n",
            self.target, "ok", "failed", "known", "not run"
        );
        for (name, s) in groups {
            let _ = writeln!(
                out,
                "{name:36} {:>5} {:>6} {:>6} {:>8}",
                s.ok, s.failed, s.known, s.not_run
            );
        }
        let mut not_run: Vec<(&str, &str, usize)> = Vec::new();
        for ran in self.cells.iter().filter(|r| r.verdict != Verdict::Ok) {
            let (word, why) = (ran.verdict.word(), ran.verdict.why());
            if !matches!(ran.verdict, Verdict::NotRun(_)) {
                let _ = writeln!(out, "{word}: {}: {why}", ran.name);
                continue;
            }
            match not_run.iter_mut().find(|(_, reason, _)| *reason == why) {
                Some((_, _, more)) => *more += 1,
                None => not_run.push((&ran.name, why, 0)),
            }
        }
        for (name, why, more) in not_run {
            let others = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let _ = writeln!(out, "not run: {name}{others}: {why}");
        }
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

    /// For programs.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// A page that needs nothing else.
    pub fn html(&self) -> String {
        let s = self.sums();
        let mut rows = String::new();
        // what somebody must look at comes first
        let mut cells: Vec<&Ran> = self.cells.iter().collect();
        cells.sort_by_key(|ran| match ran.verdict {
            Verdict::Failed(_) => 0,
            Verdict::NotRun(_) => 1,
            Verdict::Known(_) => 2,
            Verdict::Ok => 3,
        });
        for ran in cells {
            let class = ran.verdict.word().replace(' ', "-").to_lowercase();
            let _ = writeln!(
                rows,
                "<tr class={class}><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
                escaped(ran.verdict.word()),
                escaped(&ran.group),
                escaped(&ran.name),
                ran.packets.packets,
                ran.packets.resent,
                ran.ms,
                escaped(ran.verdict.why())
            );
        }
        let mut by: BTreeMap<&str, &str> = BTreeMap::new();
        let title = format!("rocebud interop: {}", self.target);
        let sums = format!(
            "{} ok, {} failed, {} known, {} not run",
            s.ok, s.failed, s.known, s.not_run
        );
        let about = format!("{}; {:.0} s", self.about, self.seconds);
        by.insert("@TITLE@", &title);
        by.insert("@SUMS@", &sums);
        by.insert("@ABOUT@", &about);
        let mut page = PAGE.to_owned();
        for (mark, text) in by {
            page = page.replace(mark, &escaped(text));
        }
        page.replace("@ROWS@", &rows)
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

const PAGE: &str = r#"<!doctype html><html lang=en><meta charset=utf-8><title>@TITLE@</title>
<style>body{font:14px system-ui;margin:2em}table{border-collapse:collapse}td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}
th{position:sticky;top:0;background:#fff}td:first-child{white-space:nowrap}td:last-child{white-space:pre-wrap;overflow-wrap:anywhere;width:45%}
tr.failed{background:#fdd}tr.known{background:#ffd}tr.not-run{background:#eee}tr>:nth-child(n+4):nth-child(-n+6){text-align:right}</style>
<h1>@TITLE@</h1><p>@ABOUT@<p><b>@SUMS@</b> <input id=f placeholder="words to look for" oninput="
for(const r of document.querySelectorAll('tbody tr'))r.hidden=!f.value.split(' ').every(w=>r.textContent.includes(w))">
<table><thead><tr><th>verdict<th>group<th>cell<th>packets<th>sent again<th>ms<th>reason</thead><tbody>
@ROWS@</tbody></table></html>
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_begins_with_what_is_wrong() {
        let cell = |name: &str, verdict| Ran {
            verdict,
            ..Ran::new(name.into(), "group")
        };
        let report = Report {
            target: "target".into(),
            about: String::new(),
            seconds: 1.0,
            cells: vec![
                cell("right", Verdict::Ok),
                cell("explained", Verdict::Known("why".into())),
                cell("wrong", Verdict::Failed("why".into())),
            ],
            trouble: None,
        };
        let page = report.html();
        let at = |name: &str| page.find(&format!("<td>{name}<td>")).expect("it is listed");
        assert!(at("wrong") < at("explained") && at("explained") < at("right"));
    }

    #[test]
    fn what_peers_say_cannot_become_markup() {
        assert_eq!(escaped("<script>&"), "&lt;script&gt;&amp;");
    }
}
