//! `rocebud status`.

use rocebud_ctl::messages::Role;
use rocebud_ctl::page::{Fact, NoteLine, QpCount, QpRecord};
use rocebud_ctl::status::{PeerStatus, ProcessStatus, StatusReport};
use rocebud_ctl::{Client, PageSet};
use rocebud_objects::Counter;
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use crate::args::StatusArgs;
use crate::devices::to_json;
use crate::table::Table;
use crate::{Failure, print, story};

pub(crate) fn run(args: StatusArgs) -> Result<(), Failure> {
    let client = Client::connect_running(Role::Command)?.ok_or_else(|| {
        Failure::new(
            "no rocebud daemon runs in this network namespace: start a program with `rocebud run \
             -- PROGRAM`, or `rocebud daemon`",
        )
    })?;
    let report = client.status()?;
    let mut processes: Vec<Process> = report.processes.iter().map(|p| look(&client, p)).collect();
    if let Some(qpn) = args.qp {
        for process in &mut processes {
            process.qps.retain(|qp| qp.qpn_number == qpn);
        }
        processes.retain(|p| !p.qps.is_empty());
        if processes.is_empty() {
            return Err(Failure::new(format!(
                "no process here has or had queue pair {qpn:#x}: `rocebud status` lists those \
                 that are known (as root, those of all users)"
            )));
        }
    }
    if args.json {
        return print(&to_json(&Json {
            daemon: &report,
            processes: &processes,
        })?);
    }
    let text = match args.qp {
        Some(_) => processes.iter().map(qp_text).collect(),
        None => overview(&report, &processes),
    };
    print(&text)
}

/// The shape of `--json`.
#[derive(Serialize)]
struct Json<'a> {
    daemon: &'a StatusReport,
    processes: &'a [Process],
}

/// A process with what its page-set tells.
#[derive(Serialize)]
struct Process {
    #[serde(flatten)]
    status: ProcessStatus,
    /// Why the page-set could not be read.
    hidden: Option<String>,
    memory: Option<&'static str>,
    counters: Vec<(&'static str, u64)>,
    qps: Vec<Qp>,
}

#[derive(Serialize)]
struct Qp {
    qpn: String,
    #[serde(skip)]
    qpn_number: u32,
    #[serde(rename = "type")]
    kind: &'static str,
    state: &'static str,
    dest_qpn: String,
    sgid: String,
    dgid: String,
    counts: Vec<(&'static str, u64)>,
    /// First error completion: status and reason.
    error: Option<Event>,
    /// The last events, oldest first.
    events: Vec<Event>,
}

#[derive(Serialize)]
struct Event {
    age_ms: f64,
    psn: u32,
    text: String,
}

fn look(client: &Client, status: &ProcessStatus) -> Process {
    let mut process = Process {
        status: status.clone(),
        hidden: None,
        memory: None,
        counters: Vec::new(),
        qps: Vec::new(),
    };
    if !status.has_pages {
        return process;
    }
    match client.pages_of(status.key) {
        Ok(pages) => read(&mut process, &pages),
        Err(error) => process.hidden = Some(error.message),
    }
    process
}

fn read(process: &mut Process, pages: &PageSet) {
    process.memory = match pages.fact(Fact::MemoryMode).load(Relaxed) {
        1 => Some("fault handlers"),
        2 => Some("process_vm_readv/writev"),
        _ => None,
    };
    let counters = Counter::ALL.iter();
    let counters = counters.map(|c| (c.name(), pages.counter(*c).load(Relaxed)));
    process.counters = counters.filter(|(_, n)| *n > 0).collect();
    let now = monotonic_ns();
    process.qps = pages.qps().filter_map(|record| qp(record, now)).collect();
    process.qps.sort_by_key(|qp| qp.qpn_number);
}

fn qp(record: &QpRecord, now: u64) -> Option<Qp> {
    let qpn = record.qpn()?.value();
    let identity = record.identity()?;
    let event = |line: &NoteLine| Event {
        #[allow(clippy::cast_precision_loss, reason = "an age for people to read")]
        age_ms: now.saturating_sub(line.at.0) as f64 / 1e6,
        psn: line.psn.value(),
        text: story::sentence(line),
    };
    let counts = QpCount::ALL.iter();
    let counts = counts.map(|(count, name)| (*name, record.count(*count).load(Relaxed)));
    Some(Qp {
        qpn: format!("{qpn:#08x}"),
        qpn_number: qpn,
        kind: match identity.qp_type {
            2 => "RC",
            8 => "RAW",
            3 => "UC",
            4 => "UD",
            _ => "?",
        },
        state: story::state_name(record.state()),
        dest_qpn: format!("{:#08x}", identity.dest_qpn.value()),
        sgid: identity.sgid.to_string(),
        dgid: identity.dgid.to_string(),
        counts: counts.filter(|(_, n)| *n > 0).collect(),
        error: record.error().as_ref().map(|line| Event {
            text: story::completion(line.arg),
            ..event(line)
        }),
        events: record.notes().iter().map(event).collect(),
    })
}

fn overview(report: &StatusReport, processes: &[Process]) -> String {
    let mut text = String::new();
    let kind = if report.auto { ", automatic" } else { "" };
    let _ = writeln!(
        text,
        "rocebud daemon {}: process {}, user {}{kind}, at {}, up {}",
        report.version,
        report.pid,
        report.uid,
        report.socket,
        age(report.uptime_ms)
    );
    let ip = if report.ipv6 {
        "IPv4 and IPv6"
    } else {
        "IPv4 only"
    };
    let kib = report.rcvbuf_bytes / 1024;
    let _ = writeln!(text, "UDP port 4791: {ip}, receive buffers of {kib} KiB");
    for remark in &report.remarks {
        let _ = writeln!(text, "Note: {remark}");
    }
    counters(&mut text, "Slot 0 (the daemon's own)", &report.counters, 0);
    slots(&mut text, report);
    connections(&mut text, report);
    for process in processes {
        text.push('\n');
        process_text(&mut text, process);
    }
    if processes.is_empty() {
        text.push_str("\nNo process uses verbs now.\n");
    }
    text
}

fn connections(text: &mut String, report: &StatusReport) {
    let has = &report.connections;
    counters(text, "Connection manager", &has.counters, 0);
    for peer in &has.peers {
        let _ = writeln!(text, "Peer {}: {}", peer.address, standing(peer));
    }
    if has.identifiers == 0 && has.connections == 0 {
        return;
    }
    let _ = writeln!(
        text,
        "Connections: {}, of {} identifiers",
        has.connections, has.identifiers
    );
    for listener in &has.listeners {
        let owner = report.processes.iter().find(|p| p.key == listener.process);
        let owner = owner.map_or_else(String::new, |p| format!(" ({}, {})", p.pid, p.command));
        let _ = writeln!(
            text,
            "  {} {} is listened on{owner}",
            listener.space, listener.address
        );
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
        bytes => format!("receive buffers of {} KiB", bytes / 1024),
    };
    let extensions = match peer.extensions {
        0 => "no extensions".to_owned(),
        bits => format!("extensions {bits:#x}"),
    };
    format!("runs rocebud: {ids}, {buffer}, {extensions}")
}

fn slots(text: &mut String, report: &StatusReport) {
    let mut table = Table::new(["SLOT", "QPNS", "POSITION", "OWNER"]);
    for slot in &report.slots {
        let owner = report.processes.iter().find(|p| Some(p.key) == slot.owner);
        let first = u32::from(slot.slot) << 12;
        let owner = match owner {
            Some(p) => format!("{} ({})", p.pid, p.command),
            None => format!("time-wait, {} left", age(slot.time_wait_ms)),
        };
        let position = match slot.owner {
            Some(_) => slot.position.to_string(),
            None => "-".to_owned(),
        };
        table.row([
            format!("{:#05x}", slot.slot),
            format!("{first:#08x}-{:#08x}", first + 0xfff),
            position,
            owner,
        ]);
    }
    if !table.is_empty() {
        text.push('\n');
        text.push_str(&table.text(0));
    }
}

fn process_text(text: &mut String, process: &Process) {
    let p = &process.status;
    let times = match p.dead_ms {
        None => format!("connected {} ago", age(p.age_ms)),
        Some(ms) => format!("ended {} ago after {}", age(ms), age(p.age_ms)),
    };
    let memory = process.memory.map(|m| format!(", memory by {m}"));
    let _ = writeln!(
        text,
        "Process {} ({}), user {}, {times}{}",
        p.pid,
        p.command,
        p.uid,
        memory.unwrap_or_default()
    );
    if let Some(hidden) = &process.hidden {
        let _ = writeln!(text, "  {hidden}");
    }
    counters(text, "Counters", &process.counters, 2);
    let mut table = Table::new(["QPN", "TYPE", "STATE", "PEER", "LAST EVENT"]);
    for qp in &process.qps {
        table.row([
            qp.qpn.clone(),
            qp.kind.to_owned(),
            qp.state.to_owned(),
            peer(qp),
            qp.events
                .last()
                .map_or_else(String::new, |e| format!("{} ago: {}", ago(e), e.text)),
        ]);
    }
    if !table.is_empty() {
        text.push_str(&table.text(2));
    }
    for qp in &process.qps {
        if let Some(error) = &qp.error {
            let _ = writeln!(
                text,
                "  {} failed {} ago: {}",
                qp.qpn,
                ago(error),
                error.text
            );
        }
    }
}

/// A queue pair with its story.
fn qp_text(process: &Process) -> String {
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
            let _ = writeln!(text, "  First error, {} ago: {}", ago(error), error.text);
        }
        if qp.events.is_empty() {
            text.push_str("  No events.\n");
        } else {
            text.push_str("  Last events:\n");
        }
        for event in &qp.events {
            let _ = writeln!(text, "  {:>12} ago  {}", ago(event), event.text);
        }
    }
    text
}

fn peer(qp: &Qp) -> String {
    match qp.kind {
        "UD" => "-".to_owned(),
        _ if qp.dgid == "::" => "not yet".to_owned(),
        _ => format!("{} at {}", qp.dest_qpn, qp.dgid),
    }
}

fn counters(text: &mut String, title: &str, list: &[(impl AsRef<str>, u64)], indent: usize) {
    if list.is_empty() {
        return;
    }
    let list = list
        .iter()
        .map(|(name, n)| format!("{} {n}", name.as_ref()));
    let list = list.collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "{:indent$}{title}: {list}", "");
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

/// The clock of page-sets.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
