//! Connections in numbers: many at once, thousands one after the other, with messages lost; and ends
//! that are killed at every stage.

use std::time::{Duration, Instant};

use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::Running;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::status::Status;
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::connections::{calls, run, serve, served};
use crate::machine::daemons;
use crate::places::Series;

pub(crate) fn cases() -> Vec<Case> {
    let header = Need::Header("/usr/include/rdma/rdma_cma.h");
    let needs = [Need::Root, Need::Build, Need::Compiler, header];
    type Run = fn() -> Outcome;
    let all: [(&str, Run); 3] = [
        ("connections_many_at_once", many),
        ("a_busy_server_levels_off", levels_off),
        ("connections_killed_at_every_stage", killed),
    ];
    let case = |(name, run): (&str, Run)| Case::new(name, &needs, run);
    all.into_iter().map(case).collect()
}

/// All are there at the same time, on one host and between two; none is lost.
fn many() -> Outcome {
    const COUNTS: [u32; 2] = [1_000, 10_000];
    let (wire, path) = (Wire::new(1500)?, calls()?);
    let server = serve(&wire.b, &path)?;
    for (host, count) in [&wire.a, &wire.b].into_iter().zip(COUNTS) {
        let count = count.to_string();
        run(host, &path, &["many", &wire.b.v4, "7500", &count])?;
    }
    let (accepted, ended) = served(server)?;
    let all: u32 = COUNTS.iter().sum();
    ensure((accepted, ended) == (all, all), || {
        format!("{accepted} accepted, {ended} ended, of {all}")
    })
}

/// What a process holds: KiB of memory, descriptors.
fn held(pid: u32) -> Result<(u64, usize), Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    match kib {
        Some(kib) => Ok((kib, fds)),
        None => wrong(format!("no VmRSS in:\n{status}")),
    }
}

/// After the first time-wait a server and its daemon hold no more than before, however many have
/// come and gone.
fn levels_off() -> Outcome {
    let (wire, path) = (Wire::new(1500)?, calls()?);
    let server = serve(&wire.b, &path)?;
    let at = [wire.b.v4.as_str(), "7500"];
    let call = |n: &str| run(&wire.a, &path, &["call", at[0], at[1], n]).map(drop);
    // `rocebud run` becomes the program
    let mut pids = vec![("the server", server.pid())];
    call("600")?;
    pids.extend(daemons(&wire.b).into_iter().map(|pid| ("its daemon", pid)));
    let slots = |host: &Host| Status::of(host).map(|s| s.time_waits().len());
    let before = pids.iter().map(|(_, pid)| held(*pid));
    let before = before.collect::<Result<Vec<_>, _>>()?;
    let resting = slots(&wire.b)?;
    call("5400")?;
    let mut series = Series::default();
    for ((name, pid), (kib, fds)) in pids.iter().zip(before) {
        let (kib_now, fds_now) = held(*pid)?;
        // a page here and there is the allocator's
        let level = kib_now <= kib + 1024 && fds_now <= fds;
        series.note(
            name,
            ensure(level, || {
                format!("{kib} KiB and {fds} descriptors, then {kib_now} KiB and {fds_now}")
            }),
        );
    }
    let now = slots(&wire.b)?;
    series.note(
        "slots",
        ensure(now <= resting, || format!("{resting} rest, then {now}")),
    );
    series.note("connections", nothing_left(&wire.a, 0));
    series.note("the server's connections", nothing_left(&wire.b, 1));
    let (accepted, ended) = served(server)?;
    let all = (accepted, ended) == (6000, 6000);
    series.note(
        "all",
        ensure(all, || format!("{accepted} accepted, {ended} ended")),
    );
    series.end()
}

/// In the end a host's daemon knows so many identifiers (listeners), and no connection.
fn nothing_left(host: &Host, identifiers: u64) -> Outcome {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let left = Status::of(host)?.connections();
        if left == (identifiers, 0) {
            return Ok(());
        }
        ensure(Instant::now() < end, || {
            format!("{} identifiers and {} connections are left", left.0, left.1)
        })?;
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whoever is killed, the other side is told, and nothing is left.
fn killed() -> Outcome {
    let (wire, path) = (Wire::new(1500)?, calls()?);
    let at = [wire.b.v4.as_str(), "7500"];
    let start = |host: &Host, args: &[&str]| -> Result<Running, Failure> {
        host.rocebud(&path, args).limit(100).start()
    };
    let mut series = Series::default();
    // clients, whose server goes on
    let server = serve(&wire.b, &path)?;
    for stage in ["resolved", "asked"] {
        let mut client = start(&wire.a, &["stop", stage, at[0], at[1]])?;
        client.wait_for(&format!("at {stage}"))?;
        client.kill();
        series.note(
            &format!("a client that had {stage}"),
            nothing_left(&wire.a, 0),
        );
        series.note(
            &format!("server of one that had {stage}"),
            nothing_left(&wire.b, 1),
        );
        run(&wire.a, &path, &["call", at[0], at[1], "1"])?;
    }
    let (accepted, ended) = served(server)?;
    series.note(
        "all ended",
        ensure(accepted == ended, || {
            format!("{accepted} accepted, {ended} ended")
        }),
    );
    // a client whose server has not answered yet, killed; then the server
    for stage in ["unread", "read"] {
        let sit = || -> Result<Running, Failure> {
            let mut server = start(&wire.b, &["sit", stage, at[0], at[1]])?;
            server.wait_for("listening").map(|_| server)
        };
        let mut server = sit()?;
        let mut client = start(&wire.a, &["stop", "asked", at[0], at[1]])?;
        server.wait_for(&format!("at {stage}"))?;
        client.kill();
        series.note(
            &format!("a client whose request is {stage}"),
            nothing_left(&wire.a, 0),
        );
        server.kill();
        series.note(
            &format!("a server that left it {stage}"),
            nothing_left(&wire.b, 0),
        );
        let mut server = sit()?;
        let expect = ["expect", "REJECTED", "9999", "30000", at[0], at[1]];
        let client = start(&wire.a, &expect)?;
        server.wait_for(&format!("at {stage}"))?;
        server.kill();
        let told = client.finish().and_then(|c| c.succeeded());
        series.note(&format!("a client whose server left it {stage}"), told);
        series.note("its host", nothing_left(&wire.b, 0));
    }
    series.end()
}
