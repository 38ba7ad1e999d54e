//! What no connection manager should send: nonsense, lies, repetitions, floods; and strangers who know every
//! number of a connection (C057).

use std::time::{Duration, Instant};

use rocebud_peer::device::DevInfo;
use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::{Running, Spec};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::status::{Status, wait_listening};
use rocebud_peer::tree::{c_program, script};
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::connections::{calls, serve, served};
use crate::places::Series;

const PYTHON: &str = "/usr/bin/python3";

/// The hostile host has these two addresses and no daemon.
const PEER: &str = "10.77.0.2";
const THIRD: &str = "10.77.0.9";

pub(crate) fn cases() -> Vec<Case> {
    let calls = [
        Need::Root,
        Need::Build,
        Need::Compiler,
        Need::Header("/usr/include/rdma/rdma_cma.h"),
        Need::Program("rping"),
    ];
    vec![
        Case::new("c057_strangers_who_know_every_number", &calls, strangers),
        Case::new(
            "c026_a_peer_that_comes_again_is_stale_once",
            &calls,
            comes_again,
        ),
        Case::new("connection_messages_that_lie", &calls, bad_messages),
        Case::new("flood_of_connection_requests", &calls, flood),
    ]
}

/// A host under attack: somebody accepts at port 7500, and two programs of its own, which go on all the
/// while, have a connection with each other.
struct Attacked {
    wire: Wire,
    server: Running,
    others: [Running; 2],
}

impl Attacked {
    fn new() -> Result<Self, Failure> {
        let wire = Wire::new(1500)?;
        wire.b.ip(&format!("addr add {THIRD}/24 dev ve0"))?;
        let host = &wire.a;
        let server = serve(host, &calls()?)?;
        let rping = |args: &[&str]| host.rocebud("rping", args).limit(160).start();
        let mut other = rping(&["-s", "-a", &host.v4])?;
        wait_listening(&mut other, host, "7174")?;
        let client = rping(&["-c", "-a", &host.v4, "-C", "1000000000", "-V"])?;
        Ok(Self {
            server,
            others: [other, client],
            wire,
        })
    }

    /// One of the scripts, started on the hostile host.
    fn script(&self, name: &str, more: &[&str]) -> Spec {
        let path = script(name);
        let common = [&path, "--src", PEER, "--dst", &self.wire.a.v4];
        let args = [&common[..], more].concat();
        self.wire.b.plain(PYTHON, &args).limit(100)
    }

    /// What the script says that must have been counted has been, and nothing of it twice.
    fn judged(&self, name: &str, more: &[&str]) -> Outcome {
        let host = &self.wire.a;
        let before = Status::of(host)?;
        let said = self.script(name, more).run()?.succeeded()?;
        let expected: Vec<(&str, u64)> = (said.lines())
            .filter_map(|l| l.strip_prefix("counter ")?.split_once(' '))
            .filter_map(|(name, n)| Some((name, n.parse().ok()?)))
            .collect();
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let now = Status::of(host)?;
            let rose = |name: &str| now.counter(name) - before.counter(name);
            let wrong_ones = expected.iter().filter(|(name, n)| rose(name) != *n);
            let wrong_ones: Vec<String> = wrong_ones
                .map(|(name, n)| format!("{name} rose by {}, not {n}", rose(name)))
                .collect();
            if wrong_ones.is_empty() {
                return Ok(());
            }
            ensure(Instant::now() < end, || {
                format!("{}:\n{said}", wrong_ones.join(", "))
            })?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The connections of others go on, and what was accepted has ended.
    fn end(mut self, accepted: u32) -> Outcome {
        let packets = |host: &Host| Ok::<_, Failure>(Status::of(host)?.counter("rcvd_pkts"));
        let first = packets(&self.wire.a)?;
        let end = Instant::now() + Duration::from_secs(10);
        while packets(&self.wire.a)? < first + 100 {
            ensure(Instant::now() < end, || {
                let [s, c] = [0, 1].map(|i| self.others[i].output());
                format!("a connection of others stands still:\n{s}\n{c}")
            })?;
        }
        let alive = self.others.iter_mut().all(Running::alive);
        ensure(alive, || "a connection of others has ended".into())?;
        let counts = served(self.server)?;
        ensure(counts == (accepted, accepted), || {
            format!("(accepted, ended) = {counts:?}, not {accepted} each")
        })
    }
}

/// C057: a third address that knows queue pair, PSN, key and ids of a connection; and that nobody could know
/// them who was not told.
fn strangers() -> Outcome {
    let attacked = Attacked::new()?;
    let host = &attacked.wire.a;
    let (victim, device) = (c_program("victim")?, host.device());
    let gid = DevInfo::of(host)?.index_of(&host.v4)?.to_string();
    let victim = host.rocebud(&victim, &["-d", &device, "-g", &gid, "-m", "1024"]);
    let mut victim = victim.limit(100).start()?;
    victim.wait_listening(host, 18800)?;
    let mut series = Series::default();
    let third = ["--third", THIRD];
    series.note("packets", attacked.judged("third_address.py", &third));
    series.note("victim", victim.finish().and_then(|v| v.succeeded()));
    let mads = |what: &str| attacked.judged("mads.py", &["--third", THIRD, "--port", "7500", what]);
    series.note("messages", mads("strangers"));
    series.note("ids and first PSNs", mads("numbers"));
    let numbers = host.rocebud(&c_program("numbers")?, &[&device]).limit(60);
    series.note(
        "keys and numbers",
        numbers.run().and_then(|n| n.succeeded()),
    );
    series.note("others", attacked.end(301));
    series.end()
}

/// C026: a peer that died without a word, as far as one can tell that from outside.
fn comes_again() -> Outcome {
    let attacked = Attacked::new()?;
    let mut series = Series::default();
    let judged = attacked.judged("mads.py", &["--port", "7500", "again"]);
    series.note("again", judged);
    series.note("others", attacked.end(2));
    series.end()
}

/// Truncated, inconsistent, repeated and unasked: each is refused or counted.
fn bad_messages() -> Outcome {
    let attacked = Attacked::new()?;
    let mut series = Series::default();
    for what in ["nonsense", "lies", "unasked", "replay"] {
        let judged = attacked.judged("mads.py", &["--port", "7500", what]);
        series.note(what, judged);
    }
    series.note("others", attacked.end(1));
    series.end()
}

/// Kilobytes that the daemon of a host occupies.
fn daemon_kb(host: &Host) -> Result<u64, Failure> {
    let pid = Status::of(host)?.daemon_pid();
    let said = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = said.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kb = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    kb.map_or_else(|| wrong(format!("no VmRSS in:\n{said}")), Ok)
}

/// 100,000 requests of one peer at a program that reads none, twice: they are put off or dropped, and counted,
/// others are served meanwhile, and nothing grows.
fn flood() -> Outcome {
    /// What a daemon's heap may differ by; a word kept of each request would be more.
    const KB_MAX: u64 = 8 << 10;
    let attacked = Attacked::new()?;
    let (host, path) = (&attacked.wire.a, calls()?);
    let deaf = ["sit", "unread", "0.0.0.0", "7600"];
    let mut deaf = host.rocebud(&path, &deaf).limit(160).start()?;
    deaf.wait_for("listening")?;
    let rounds = flooded(&attacked, &path)?;
    // buffers have been used by now
    let kb = daemon_kb(host)?;
    let rounds = rounds + flooded(&attacked, &path)?;
    let grown = daemon_kb(host)?.saturating_sub(kb);
    ensure(grown < KB_MAX, || format!("the daemon grew by {grown} KiB"))?;
    attacked.end(5 * rounds)
}

/// One flood; how often others were served meanwhile.
fn flooded(attacked: &Attacked, path: &str) -> Result<u32, Failure> {
    const REQUESTS: u64 = 100_000;
    /// The backlog of the program that never reads.
    const KEPT: u64 = 4;
    let host = &attacked.wire.a;
    let before = Status::of(host)?;
    let args = ["--port", "7500", "--deaf", "7600", "flood"];
    let mut running = attacked.script("mads.py", &args).start()?;
    let mut rounds = 0;
    while running.alive() || rounds == 0 {
        let call = ["call", host.v4.as_str(), "7500", "5"];
        let said = host.rocebud(path, &call).limit(60).run()?.succeeded()?;
        let longest = said.lines().find_map(|l| l.strip_prefix("longest "));
        let longest = longest.and_then(|l| l.strip_suffix(" ms")?.parse::<u32>().ok());
        // of all waits for an event; a request is given up after eight seconds
        ensure(longest.is_some_and(|ms| ms < 7_000), || said.clone())?;
        rounds += 1;
    }
    let said = running.finish()?.succeeded()?;
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let now = Status::of(host)?;
        let rose = |name: &str| now.counter(name) - before.counter(name);
        // what the socket had no room for was counted, too
        let counted = rose("backlog_full") + rose("socket_overflow");
        let (_, connections) = now.connections();
        if counted + KEPT >= REQUESTS && connections < 100 {
            return Ok(rounds);
        }
        ensure(Instant::now() < end, || {
            format!("{counted} are counted, {connections} connections kept:\n{said}")
        })?;
        std::thread::sleep(Duration::from_millis(50));
    }
}
