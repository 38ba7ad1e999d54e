//! `rocebud status`.

use rocebud_ctl::messages::Role;
use rocebud_ctl::page::{Fact, NoteLine, QpCount, QpRecord};
use rocebud_ctl::status::{ProcessStatus, StatusReport};
use rocebud_ctl::{Client, PageSet};
use rocebud_objects::{Counter, NoteKind};
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

use crate::args::StatusArgs;
use crate::devices::to_json;
use crate::{Failure, print, story};

mod text;

pub(crate) fn run(args: StatusArgs) -> Result<(), Failure> {
    let client = Client::connect_running(Role::Command)?.ok_or_else(no_daemon)?;
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
        Some(_) => processes.iter().map(text::queue_pairs).collect(),
        None => text::overview(&report, &processes),
    };
    print(&text)
}

/// None that this user may ask.
fn no_daemon() -> Failure {
    Failure::new(match rocebud_daemon::holder_of_namespace() {
        Some((pid, uid)) if uid == rustix::process::geteuid().as_raw() => format!(
            "the rocebud daemon of this network namespace, process {pid}, listens at a socket of \
             its own: name that in ROCEBUD_SOCKET"
        ),
        Some((pid, uid)) => format!(
            "the rocebud daemon of this network namespace, process {pid}, is user {uid}'s own: ask \
             as that user"
        ),
        None => "no rocebud daemon runs in this network namespace: start a program with `rocebud \
                 run -- PROGRAM`, or `rocebud daemon`"
            .to_owned(),
    })
}

/// The shape of `--json`.
#[derive(Serialize)]
struct Json<'a> {
    daemon: &'a StatusReport,
    processes: &'a [Process],
}

/// How memory is copied where our handlers could not be installed.
const BY_KERNEL: &str = "process_vm_readv/writev";

/// A process with what its page-set tells.
#[derive(Default, Serialize)]
struct Process {
    #[serde(flatten)]
    status: ProcessStatus,
    /// Why the page-set could not be read.
    hidden: Option<String>,
    /// How its memory is copied: `fault handlers` at full speed.
    memory: Option<&'static str>,
    counters: Vec<(&'static str, u64)>,
    qps: Vec<Qp>,
}

#[derive(Default, Serialize)]
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
    /// It entered a state; anything else is trouble.
    #[serde(skip)]
    is_move: bool,
}

fn look(client: &Client, status: &ProcessStatus) -> Process {
    let mut process = Process {
        status: status.clone(),
        ..Process::default()
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
        2 => Some(BY_KERNEL),
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
        is_move: line.kind == Some(NoteKind::State),
    };
    let counts = QpCount::ALL.iter();
    let counts = counts.map(|(count, name)| (*name, record.count(*count).load(Relaxed)));
    Some(Qp {
        qpn: format!("{qpn:#08x}"),
        qpn_number: qpn,
        kind: match identity.qp_type {
            2 => "RC",
            3 => "UC",
            4 => "UD",
            8 => "RAW",
            9 => "XRC_SEND",
            10 => "XRC_RECV",
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

/// The clock of page-sets.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
