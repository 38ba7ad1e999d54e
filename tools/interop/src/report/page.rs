//! The report as a page: one file that needs nothing else.

use std::fmt::Write as _;

use super::{Report, Sums};
use crate::cell::{Ran, Verdict};

impl Report {
    /// The page. What somebody must look at comes first.
    pub fn html(&self) -> String {
        let mut cells: Vec<&Ran> = self.cells.iter().collect();
        cells.sort_by_key(|ran| match ran.verdict {
            Verdict::Failed(_) => 0,
            Verdict::NotRun(_) => 1,
            Verdict::Known(_) => 2,
            Verdict::Ok => 3,
        });
        let rows: String = cells.into_iter().map(row).collect();
        let groups: String = self
            .groups()
            .into_iter()
            .map(|(name, s)| numbers(name, s))
            .collect();
        let trouble = self.trouble.as_deref().map_or_else(String::new, |why| {
            format!(
                "<p class=failed><b>Not all could be run:</b> {}",
                escaped(why)
            )
        });
        let s = self.sums();
        let verdict = if s.failed == 0 && s.not_run == 0 && s.ok > 0 {
            "All that was tried is right, or the difference is known and explained."
        } else if s.failed == 0 {
            "Nothing failed, but not everything could be tried."
        } else {
            "Something failed: see the first rows."
        };
        let about = format!(
            "{} UTC, {:.0} s, rocebud {}",
            self.when,
            self.seconds,
            env!("CARGO_PKG_VERSION")
        );
        let mut page = PAGE.to_owned();
        for (mark, text) in [
            ("@TITLE@", format!("rocebud interop: {}", self.target)),
            ("@TARGET@", self.about.clone()),
            ("@ABOUT@", about),
            ("@COMMAND@", self.command.clone()),
            ("@VERDICT@", verdict.to_owned()),
        ] {
            page = page.replace(mark, &escaped(&text));
        }
        page.replace("@TROUBLE@", &trouble)
            .replace("@ALL@", &numbers("all", s))
            .replace("@GROUPS@", &groups)
            .replace("@ROWS@", &rows)
    }
}

fn numbers(name: &str, s: Sums) -> String {
    let bad = if s.failed > 0 { " class=failed" } else { "" };
    format!(
        "<tr{bad}><td>{}<td>{}<td>{}<td>{}<td>{}\n",
        escaped(name),
        s.ok,
        s.failed,
        s.known,
        s.not_run
    )
}

fn row(ran: &Ran) -> String {
    let word = ran.verdict.word();
    let mut out = String::new();
    let _ = write!(
        out,
        "<tr class={}><td>{}<td>{}<td title=\"{}\">{}</td><td>{}<td>{}<td>{}<td>",
        word.replace(' ', "-").to_lowercase(),
        escaped(word),
        escaped(&ran.group),
        escaped(&ran.commands.join("\n")),
        escaped(&ran.name),
        ran.packets.packets,
        match ran.cell {
            Some(_) => ran.packets.resent.to_string(),
            None => "-".to_owned(),
        },
        ran.ms,
    );
    let why = escaped(ran.verdict.why());
    match &ran.reason {
        Some(reason) => {
            let _ = write!(
                out,
                "{}<details><summary>what was seen</summary>{why}</details>",
                escaped(reason)
            );
        }
        None => out.push_str(&why),
    }
    out.push('\n');
    out
}

/// As text, also between quotes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const PAGE: &str = r#"<!doctype html><html lang=en><meta charset=utf-8><title>@TITLE@</title>
<style>body{font:14px system-ui,sans-serif;margin:2em;max-width:1500px}table{border-collapse:collapse}
td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}
#cells th{position:sticky;top:0;background:#fff}#cells td:first-child,#cells td:nth-child(2){white-space:nowrap}
#cells td:last-child{white-space:pre-wrap;overflow-wrap:anywhere;width:40%}
.failed{background:#fdd}.known{background:#ffd}.not-run{background:#eee}
#cells tr>:nth-child(n+4):nth-child(-n+6),#groups tr>:nth-child(n+2){text-align:right}
#groups tr:first-child td{font-weight:bold}#cells details{color:#555;margin-top:4px}code{background:#f4f4f4;padding:1px 4px}
dt{font-weight:bold;float:left;clear:left;width:8em}dd{margin:0 0 2px 8em}</style>
<h1>@TITLE@</h1>
<dl><dt>target<dd>@TARGET@<dt>when<dd>@ABOUT@<dt>command<dd><code>@COMMAND@</code></dl>
<p><b>@VERDICT@</b>@TROUBLE@
<details open><summary>by group</summary><table id=groups><thead><tr><th>group<th>ok<th>failed<th>known<th>not run</thead>
<tbody>@ALL@@GROUPS@</tbody></table></details>
<details><summary>how to read this</summary>
<dl><dt>cell<dd>Type of the queue pairs, operation, bytes, path MTU, IPv4 or IPv6, who asks &gt; who answers; "hand": the runner
connected the queue pairs, "cm": rdma_cm did; in brackets the fault on the wire. Or a program of the distribution, client &gt;
server: its commands show when the pointer rests on the name. <code>--only 'WORDS OF THE NAME'</code> runs it again.
<dt>ok<dd>Data, completions and status were right at both ends, and so was every packet: ICRC, PSNs, opcodes, lengths, pads,
AckReq, nothing sent again but for a reason.
<dt>failed<dd>Something was wrong. <code>--captures DIRECTORY</code> keeps the packets of such cells.
<dt>known<dd>Something was wrong; whose fault it is is known, and how that is known is said.
<dt>not run<dd>It could not be tried, and why.
<dt>packets<dd>RoCE packets of the cell that this program saw on the wire; 0 where the wire is not carried by it.
<dt>sent again<dd>Packets of the requester or the responder that were repeated; of programs and probes these are not counted.</dl></details>
<p><input id=f size=40 placeholder="words: only rows that have them all" oninput="
for(const r of document.querySelectorAll('#cells tbody tr'))r.hidden=!f.value.toLowerCase().split(' ').every(w=>r.textContent.toLowerCase().includes(w))">
<table id=cells><thead><tr><th>verdict<th>group<th>cell<th>packets<th>sent again<th>ms<th>reason</thead><tbody>
@ROWS@</tbody></table></html>
"#;
