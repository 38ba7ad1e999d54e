//! Many of everything, ends and new beginnings, shortages, and doing nothing at no cost: C programs
//! whose both ends are in one process, over the device's own address.

use std::time::Duration;

use rocebud_peer::device::DevInfo;
use rocebud_peer::netns::Host;
use rocebud_peer::program::Running;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::status::Status;
use rocebud_peer::tree::{self, c_program};
use rocebud_peer::{Outcome, ensure};

use crate::machine::build_for_everybody;
use crate::places::{Family, Place, Program, Series, Stage};

/// Program, its case.
const RUNS: &[(&str, &str)] = &[
    ("lives", "c013_reset_starts_clean"),
    ("lives", "c015_error_in_mid_stream"),
    ("lives", "c021_destroy_waits_for_acks"),
    ("lives", "c024_srq_events"),
    ("scale", "many_qps_talk_and_idle_ones_are_free"),
    ("scale", "as_many_qps_as_promised"),
    ("scale", "a_hundred_thousand_qps_come_and_go"),
    ("scale", "a_hundred_thousand_regions_come_and_go"),
    ("scale", "others_come_and_go"),
    ("scale", "four_thousand_cqs_with_a_qp_each"),
    ("limits", "promised_numbers_are_given_and_no_more"),
    ("limits", "shortage_is_no_want_of_right"),
    ("threads", "eight_threads_share_one_cq"),
    ("threads", "eight_threads_post_to_one_qp"),
    ("threads", "threads_with_queues_of_their_own"),
    ("threads", "many_wait_at_one_channel"),
    ("threads", "five_thousand_qps_come_and_go_beside_traffic"),
    ("threads", "many_contexts_at_a_time"),
    ("threads", "a_thousand_contexts_come_and_go"),
];

/// Cases that an ordinary user's small socket buffers could harm.
const AS_NOBODY: &[(&str, &str)] = &[
    ("scale", "many_qps_talk_and_idle_ones_are_free"),
    ("lives", "c015_error_in_mid_stream"),
    ("threads", "eight_threads_share_one_cq"),
];

pub(crate) fn cases() -> Vec<Case> {
    let anyone = [Need::Build, Need::Compiler];
    let root = [Need::Root, Need::Build, Need::Compiler];
    let perftest = [
        Need::Root,
        Need::Build,
        Need::Compiler,
        Need::Program("ib_send_bw"),
    ];
    let mut all: Vec<Case> = RUNS
        .iter()
        .enumerate()
        .map(|(i, (program, case))| Case::new(case, &anyone, move || run(program, case, i)))
        .collect();
    all.push(Case::new("scale_as_nobody", &root, as_nobody));
    let shortage = "every_shortage_of_descriptors_is_an_errno";
    all.push(Case::new(shortage, &root, descriptors));
    all.push(Case::new("c037_longest_messages", &anyone, longest));
    all.push(Case::new("idle_costs_no_cpu", &perftest, idle));
    all.push(Case::new(
        "a_thousand_qps_of_perftest",
        &perftest,
        thousand_of_perftest,
    ));
    all.push(Case::new(
        "c024_perftest_on_a_shared_queue",
        &perftest,
        shared_queue,
    ));
    all
}

/// IPv4 and IPv6 take turns.
fn run(program: &str, case: &str, turn: usize) -> Outcome {
    let path = c_program(program)?;
    let host = Host::loopback()?;
    let address = if turn % 2 == 0 { &host.v4 } else { &host.v6 };
    let gid = DevInfo::of(&host)?.index_of(address)?.to_string();
    let args = ["-d", &host.device(), "-g", &gid, "-c", case];
    let said = host.rocebud(&path, &args).limit(120).run()?.succeeded()?;
    tell(&said);
    Ok(())
}

/// The figures that a program gives.
fn tell(said: &str) {
    said.lines()
        .filter(|l| l.starts_with("   "))
        .for_each(|l| println!("{l}"));
}

fn as_nobody() -> Outcome {
    let host = Host::loopback()?;
    let (bin, gone) = build_for_everybody()?;
    for (program, case) in AS_NOBODY {
        let copy = gone.keep(&c_program(program)?)?;
        let args = ["run", "--", &copy, "-d", &host.device(), "-c", case];
        let spec = host.plain(&bin, &args).as_nobody().limit(120);
        tell(&spec.run()?.succeeded()?);
    }
    Ok(())
}

/// C037: exactly `max_msg_sz` arrives, also from two segments and when a thousandth of all packets is lost;
/// one byte more is refused.
fn longest() -> Outcome {
    let host = Host::loopback()?;
    let path = c_program("longest")?;
    let device = host.device();
    let full = std::env::var_os("ROCEBUD_PEER_FULL").is_some();
    let mut plain = vec!["-d", &device, "refused", "write"];
    let mut lossy = vec!["-d", &device, "read2"];
    if full {
        plain.extend(["send", "read", "send2", "write2", "read2"]);
        lossy.extend(["read", "write", "send"]);
    }
    let spec = host.rocebud(&path, &plain).limit(300);
    tell(&spec.run()?.succeeded()?);
    let mark = Status::of(&host)?.mark();
    let spec = host.rocebud(&path, &lossy).limit(300);
    let spec = spec.env("ROCEBUD_FAULT", "drop=rx:0.1%");
    tell(&spec.run()?.succeeded()?);
    let lost = Status::of(&host)?.counter_since(&mark, "drop_fault");
    println!("   {lost} packets lost");
    // Half a million packets at least.
    ensure(lost > 200, || format!("only {lost} packets were lost"))
}

/// With and without a daemon that runs already.
fn descriptors() -> Outcome {
    let host = Host::loopback()?;
    let path = c_program("limits")?;
    let case = "every_shortage_of_descriptors_is_an_errno";
    for _ in 0..2 {
        let args = ["-d", &host.device(), "-c", case];
        let said = host.rocebud(&path, &args).limit(120).run()?.succeeded()?;
        tell(&said);
        let line = said
            .lines()
            .find(|l| l.contains("programs were short of them"));
        let numbers: Vec<u32> = line
            .unwrap_or_default()
            .split_ascii_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let told = matches!(numbers[..], [short, told] if short != 0 && short == told);
        ensure(told, || {
            format!("not each program tells what to raise:\n{said}")
        })?;
    }
    Ok(())
}

fn perftest(stage: &Stage, words: &str) -> Outcome {
    let mut words = words.split(' ');
    let tool = words.next().unwrap_or_default();
    let options: Vec<&str> = words.collect();
    let program = Program::perftest(tool, Family::V4, &options);
    stage.run(&program).map(drop)
}

/// Between two processes. The iterations are a multiple of the depth: with others perftest counts its
/// completions wrong and may wait for ever.
fn thousand_of_perftest() -> Outcome {
    let stage = Place::Veth(4300).open()?;
    let mut series = Series::default();
    for words in [
        "ib_write_bw -F -q 1024 -s 4096 -n 24 -t 8",
        "ib_read_bw -F -q 1024 -s 8192 -n 24 -t 8",
        "ib_send_bw -F -q 1024 -s 1024 -n 24 -t 8 -r 16",
    ] {
        series.note(words, perftest(&stage, words));
    }
    series.end()
}

fn shared_queue() -> Outcome {
    let stage = Place::Veth(4300).open()?;
    perftest(&stage, "ib_send_bw -F --use-srq -q 8 -D 3")
}

/// Nanoseconds that all threads of a process have run.
fn cpu_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let of_task = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(of_task)
        .sum()
}

/// Servers of perftest in event mode before their client comes, and a program with connections that
/// have talked and sleep: less than 10 ms of CPU in 10 s, the daemon and all of them together.
fn idle() -> Outcome {
    let host = Host::loopback()?;
    let gid = DevInfo::of(&host)?.index_of("127.0.0.1")?.to_string();
    let device = host.device();
    let mut running: Vec<Running> = Vec::new();
    for (tool, port) in [("ib_send_bw", "18611"), ("ib_send_lat", "18612")] {
        let args = ["-e", "-d", &device, "-x", &gid, "-p", port];
        let mut server = host.rocebud(tool, &args).start()?;
        server.wait_listening(&host, port.parse()?)?;
        running.push(server);
    }
    let args = ["-d", &device, "-g", &gid];
    let mut sleeper = host.rocebud(&c_program("idle")?, &args).start()?;
    sleeper.wait_for("asleep")?;
    running.push(sleeper);
    std::thread::sleep(Duration::from_millis(500));
    let pids = host.pids();
    let used = || pids.iter().map(|pid| (*pid, cpu_ns(*pid)));
    let before: Vec<(u32, u64)> = used().collect();
    std::thread::sleep(Duration::from_secs(10));
    let spent: Vec<(u32, u64)> = used()
        .zip(&before)
        .map(|((pid, now), (_, then))| (pid, now - then))
        .collect();
    for program in &mut running {
        ensure(program.alive(), || {
            format!("it ended: {}", program.output())
        })?;
    }
    let total_us = spent.iter().map(|(_, ns)| ns / 1000).sum::<u64>();
    println!("   {total_us} us of CPU in 10 s, {} processes", pids.len());
    let all_seen = pids.len() >= 4 && before.iter().all(|(_, ns)| *ns != 0);
    ensure(all_seen, || format!("not all are seen: {before:?}"))?;
    ensure(total_us < 10_000, || {
        let named = |(pid, ns): &(u32, u64)| format!("{} {ns} ns", tree::command_of(*pid));
        let list: Vec<String> = spent.iter().map(named).collect();
        format!("{total_us} us of CPU in 10 s: {}", list.join(", "))
    })
}
