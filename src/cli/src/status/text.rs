//! The status for people, in 80 columns where its parts allow.

use rocebud_ctl::status::{PeerStatus, SlotStatus, StatusReport};
use std::fmt::Write as _;

use super::{Event, Process, Qp};
use crate::story;
use crate::table::Table;

const COLUMNS: usize = 80;

pub(super) fn overview(report: &StatusReport, processes: &[Process]) -> String {
    let mut text = String::new();
    daemon(&mut text, report);
    connections(&mut text, report);
    slots(&mut text, report);
    let (ended, running): (Vec<&Process>, Vec<_>) =
        processes.iter().partition(|p| p.status.dead_ms.is_some());
    for process in &running {
        process_text(&mut text, process);
    }
    if running.is_empty() {
        text.push_str("\nNo process uses verbs now.\n");
    }
    if !ended.is_empty() {
        text.push_str("\nEnded, the last first (some are remembered while the daemon runs):\n");
    }
    for process in &ended {
        process_text(&mut text, process);
    }
    if processes.iter().any(|p| !p.qps.is_empty()) {
        text.push_str("\n`rocebud status --qp QPN`: the last events of a queue pair.\n");
    }
    text
}

fn daemon(text: &mut String, report: &StatusReport) {
    let kind = if report.auto {
        ", started by a program"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "rocebud daemon {}: process {}, user {}{kind}, up {}",
        report.version,
        report.pid,
        report.uid,
        age(report.uptime_ms)
    );
    let ip = if report.ipv6 {
        "IPv4 and IPv6"
    } else {
        "IPv4 only"
    };
    let _ = writeln!(
        text,
        "Listens at {}\nUDP port 4791: {ip}, receive buffers of {}",
        report.socket,
        size(report.rcvbuf_bytes)
    );
    match &report.no_rings {
        None => text.push_str("Rings for small packets of programs that poll: yes\n"),
        Some(why) => sentence(text, "Rings for small packets: no,", why, 2),
    }
    for remark in &report.remarks {
        sentence(text, "Note:", remark, 2);
    }
    let title = "Counters of the daemon (rdma_cm, packets for no process)";
    counters(text, title, &report.counters, 0);
}

fn connections(text: &mut String, report: &StatusReport) {
    let has = &report.connections;
    if has.identifiers > 0 || has.connections > 0 {
        let _ = writeln!(
            text,
            "\nrdma_cm: {} identifiers, {} connections",
            has.identifiers, has.connections
        );
    }
    for listener in &has.listeners {
        let owner = report.processes.iter().find(|p| p.key == listener.process);
        let owner = owner.map_or_else(String::new, |p| {
            format!(": process {} ({})", p.pid, p.command)
        });
        let _ = writeln!(
            text,
            "  listens: {} {}{owner}",
            listener.space, listener.address
        );
    }
    counters(text, "Counters of rdma_cm", &has.counters, 0);
    for peer in &has.peers {
        sentence(text, &format!("Peer {}:", peer.address), &standing(peer), 2);
    }
}

/// What a peer said of itself.
fn standing(peer: &PeerStatus) -> String {
    if peer.asked {
        return "asked whether it runs rocebud".to_owned();
    }
    if !peer.ours {
        return "speaks the standard".to_owned();
    }
    let ids = match peer.id_bound {
        0 => "any IPv4 identification".to_owned(),
        bound => format!("IPv4 identifications below {bound}"),
    };
    let buffer = match peer.receive_buffer {
        0 => "receive buffers of a size it does not say".to_owned(),
        bytes => format!("receive buffers of {}", size(bytes)),
    };
    let extensions = match peer.extensions {
        0 => "no extensions".to_owned(),
        bits => format!("extensions {bits:#x}"),
    };
    let place = if peer.same_kernel {
        " on this machine"
    } else {
        ""
    };
    format!("runs rocebud{place}: {ids}, {buffer}, {extensions}")
}

fn slots(text: &mut String, report: &StatusReport) {
    if report.slots.is_empty() {
        return;
    }
    text.push_str(
        "\nQueue pair numbers come in blocks of 4096; a block rests after its process:\n",
    );
    for slot in &report.slots {
        let first = u32::from(slot.slot) << 12;
        let last = first + 0xfff;
        let _ = writeln!(text, "  {first:#08x}-{last:#08x}  {}", owner(report, slot));
    }
}

fn owner(report: &StatusReport, slot: &SlotStatus) -> String {
    match report.processes.iter().find(|p| Some(p.key) == slot.owner) {
        Some(p) => format!("process {} ({})", p.pid, p.command),
        None => format!("time-wait, {} left", age(slot.time_wait_ms)),
    }
}

fn process_text(text: &mut String, process: &Process) {
    let p = &process.status;
    let times = match p.dead_ms {
        None => format!("connected {} ago", age(p.age_ms)),
        Some(ms) => format!("ended {} ago after {}", age(ms), age(p.age_ms)),
    };
    let _ = writeln!(
        text,
        "\nProcess {} ({}), user {}, {times}",
        p.pid, p.command, p.uid
    );
    if let Some(hidden) = &process.hidden {
        let _ = writeln!(text, "  {hidden}");
    }
    if process.memory == Some(super::BY_KERNEL) {
        text.push_str(
            "  Copies through the kernel (process_vm_readv), which is slow: its handlers of\n  \
             SIGSEGV and SIGBUS could not be installed\n",
        );
    }
    counters(text, "Counters", &process.counters, 2);
    table_of(text, &process.qps);
    for qp in &process.qps {
        if let Some(error) = &qp.error {
            let start = format!("  {} failed {} ago:", qp.qpn, ago(error));
            sentence(text, &start, &error.text, 4);
        }
    }
}

/// Queue pairs, a line each; an event that does not fit stands below.
fn table_of(text: &mut String, qps: &[Qp]) {
    if qps.is_empty() {
        return;
    }
    let last = "LAST EVENT";
    let mut table = Table::new(["QPN", "TYPE", "STATE", "PEER", last]);
    for qp in qps {
        let (qpn, kind, state) = (qp.qpn.clone(), qp.kind.to_owned(), qp.state.to_owned());
        table.row([qpn, kind, state, peer(qp), String::new()]);
    }
    let table = table.text(2);
    let mut lines = table.lines();
    let heading = lines.next().unwrap_or_default();
    let _ = writeln!(text, "{heading}");
    let column = heading.find(last).unwrap_or(0);
    for (line, qp) in lines.zip(qps) {
        let event = telling(qp);
        let event = event.map_or_else(String::new, |e| format!("{} ago: {}", ago(e), e.text));
        if column + event.chars().count() <= COLUMNS {
            let whole = format!("{line:column$}{event}");
            let _ = writeln!(text, "{}", whole.trim_end());
        } else {
            let _ = writeln!(text, "{line}");
            sentence(text, "", &event, 4);
        }
    }
}

/// The event to show beside the state: the last one, but of a queue pair that was destroyed the last
/// that was trouble. That it was destroyed is in its state.
fn telling(qp: &Qp) -> Option<&Event> {
    let is_destroyed = qp.state == story::state_name(None);
    let mut events = qp.events.iter().rev();
    events.find(|event| !(is_destroyed && event.is_move))
}

/// Queue pairs with their stories.
pub(super) fn queue_pairs(process: &Process) -> String {
    let mut text = String::new();
    let p = &process.status;
    for qp in &process.qps {
        let ended = if p.dead_ms.is_some() { " (ended)" } else { "" };
        let _ = writeln!(
            text,
            "Queue pair {} ({}, {}) of process {} ({}){ended}",
            qp.qpn, qp.kind, qp.state, p.pid, p.command
        );
        let _ = writeln!(text, "  own address {}, peer {}", qp.sgid, peer(qp));
        let counts = qp.counts.iter().map(|(name, n)| format!("{name} {n}"));
        let counts = counts.collect::<Vec<_>>().join(", ");
        if !counts.is_empty() {
            let _ = writeln!(text, "  {counts}");
        }
        if let Some(error) = &qp.error {
            let start = format!("  First error, {} ago:", ago(error));
            sentence(&mut text, &start, &error.text, 4);
        }
        if qp.events.is_empty() {
            text.push_str("  No events.\n");
        } else {
            text.push_str("  Last events:\n");
        }
        for event in &qp.events {
            let start = format!("  {:>12} ago ", ago(event));
            sentence(&mut text, &start, &event.text, 20);
        }
    }
    text
}

fn peer(qp: &Qp) -> String {
    match qp.kind {
        "UD" | "RAW" => "-".to_owned(),
        _ if qp.dgid == "::" => "not yet".to_owned(),
        _ => format!("{} at {}", qp.dest_qpn, qp.dgid),
    }
}

/// Counters in lines that fit.
fn counters(text: &mut String, title: &str, list: &[(impl AsRef<str>, u64)], indent: usize) {
    if list.is_empty() {
        return;
    }
    let word = |(at, (name, n)): (usize, &(_, u64))| {
        let comma = if at + 1 < list.len() { "," } else { "" };
        format!("{} {n}{comma}", AsRef::<str>::as_ref(name))
    };
    let title = format!("{:indent$}{title}:", "");
    let words = list.iter().enumerate().map(word);
    fill(text, &title, words, indent + 2);
}

/// A sentence behind `start`, in lines that fit.
fn sentence(text: &mut String, start: &str, words: &str, indent: usize) {
    let words = words.split(' ').map(str::to_owned);
    fill(text, start, words, indent);
}

/// Words behind `start`; the lines that follow the first begin with `indent` spaces.
fn fill(text: &mut String, start: &str, words: impl Iterator<Item = String>, indent: usize) {
    let length = |line: &str| line.chars().count();
    let mut line = start.to_owned();
    for word in words {
        if line.is_empty() {
            line = format!("{:indent$}", "");
        } else if length(&line) + 1 + length(&word) > COLUMNS {
            text.push_str(&line);
            line = format!("\n{:indent$}", "");
        } else {
            line.push(' ');
        }
        line.push_str(&word);
    }
    text.push_str(&line);
    text.push('\n');
}

fn size(bytes: u32) -> String {
    match bytes {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n => format!("{} KiB", n >> 10),
    }
}

fn ago(event: &Event) -> String {
    if event.age_ms < 1000.0 {
        format!("{:.3} ms", event.age_ms)
    } else {
        format!("{:.3} s", event.age_ms / 1000.0)
    }
}

fn age(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        10_000..120_000 => format!("{} s", ms / 1000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_counters_take_lines_that_fit_a_terminal() {
        let list: Vec<(String, u64)> = (0..40).map(|n| (format!("counter_{n}"), n * n)).collect();
        let mut text = String::new();
        counters(&mut text, "Counters", &list, 2);
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("    c")));
        assert!(text.starts_with("  Counters: counter_0 0, ") && text.ends_with("39 1521\n"));
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words.len(), 1 + 2 * list.len(), "{text}");
    }

    #[test]
    fn what_is_long_goes_on_in_further_lines_and_loses_no_word() {
        let said = "the peer refused psn 0x000001: remote access error (rkey, range, permission \
                    or protection domain)";
        let event = |text: &str| Event {
            age_ms: 57.671,
            psn: 1,
            text: text.to_owned(),
            is_move: false,
        };
        let qp = |text: &str| Qp {
            qpn: "0xfec62d".to_owned(),
            qpn_number: 0xfe_c62d,
            kind: "RC",
            state: "destroyed",
            dest_qpn: "0x51fa5c".to_owned(),
            sgid: "::ffff:10.77.0.1".to_owned(),
            dgid: "::ffff:10.77.0.2".to_owned(),
            counts: Vec::new(),
            error: Some(event(said)),
            events: vec![event(text)],
        };
        let qps = ["entered a state", said, "short"].map(qp).into();
        let process = Process {
            qps,
            ..Process::default()
        };
        let mut report = StatusReport {
            no_rings: Some(said.to_owned()),
            remarks: vec![said.to_owned()],
            ..StatusReport::default()
        };
        report.connections.peers = vec![PeerStatus {
            address: "fd00:1111:2222:3333:4444:5555:6666:7777".to_owned(),
            asked: false,
            ours: true,
            id_bound: 0,
            receive_buffer: 1 << 28,
            extensions: 1,
            same_kernel: true,
        }];
        let count = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            words.join(" ").matches(said).count()
        };
        let status = overview(&report, std::slice::from_ref(&process));
        let story = queue_pairs(&process);
        for text in [&status, &story] {
            assert!(text.lines().all(|l| l.chars().count() <= COLUMNS), "{text}");
        }
        assert_eq!((count(&status), count(&story)), (6, 4), "{status}{story}");
        assert!(status.contains("\n    57.671 ms ago: entered a state\n"));
        assert!(status.contains("10.77.0.2  57.671 ms ago: short\n"));
    }

    #[test]
    fn a_queue_pair_that_was_destroyed_shows_its_last_trouble_or_nothing() {
        let event = |&(text, is_move): &(&str, bool)| Event {
            age_ms: 3.0,
            psn: 1,
            text: text.to_owned(),
            is_move,
        };
        let shown = |state, events: &[(&str, bool)]| {
            let qp = Qp {
                state,
                dest_qpn: "0x5".to_owned(),
                dgid: "::1".to_owned(),
                events: events.iter().map(event).collect(),
                ..Qp::default()
            };
            let mut text = String::new();
            table_of(&mut text, &[qp]);
            text.lines().nth(1).unwrap_or_default().to_owned()
        };
        let well = [("entered RTR", true), ("entered RTS", true)];
        let badly = [("timer expired", false), ("entered ERR", true)];
        assert!(shown("destroyed", &well).ends_with("destroyed  0x5 at ::1"));
        assert!(shown("destroyed", &badly).ends_with("::1  3.000 ms ago: timer expired"));
        assert!(shown("RTS", &well).ends_with("::1  3.000 ms ago: entered RTS"));
        assert!(shown("ERR", &badly).ends_with("::1  3.000 ms ago: entered ERR"));
    }

    #[test]
    fn those_that_ended_stand_under_a_heading_of_their_own() {
        let process = |pid, dead_ms| {
            let mut process = Process::default();
            process.status.pid = pid;
            process.status.command = "prog".to_owned();
            process.status.dead_ms = dead_ms;
            process
        };
        let text = overview(
            &StatusReport::default(),
            &[process(7, None), process(8, Some(5))],
        );
        let at = |words: &str| text.find(words).unwrap_or(usize::MAX);
        assert!(at("Process 7 (prog)") < at("\nEnded, "), "{text}");
        assert!(at("\nEnded, ") < at("Process 8 (prog)"), "{text}");
        assert!(!text.contains("No process uses verbs"), "{text}");
        let text = overview(&StatusReport::default(), &[]);
        assert!(!text.contains("Ended") && text.contains("No process uses verbs"));
    }
}
