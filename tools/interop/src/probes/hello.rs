//! Our daemon asks each new peer once whether it is one of ours (`rocebud_cm::hello`). Linux's rxe must answer that it
//! knows no such question, count no error, and go on serving others as if nothing was.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rocebud_wire::Packet;
use rocebud_wire::frame::Frame;

use super::{Scene, cells};
use crate::cell::{self, Verdict};
use crate::error::{Error, Result, fail};
use crate::shell::{Place, Running};
use crate::target::Bench;
use crate::wire::{End, Seen, Wire};

/// One cell over IPv4 and one over IPv6.
const CELLS: &str = r#"
[[group]]
name = "a new peer"
types = ["rc"]
ops = ["send"]
sizes = ["3mtu"]
mtus = [1024]
families = ["v4", "v6"]
requesters = ["ours"]
"#;

/// Addresses of the target that nobody has asked before.
const NEW: (&str, &str) = ("10.98.0.77", "fd98:0:0:1::77");

/// The vendor's class in which is asked.
const CLASS: u8 = 0x42;

/// "No such method and attribute": what Linux answers.
const UNKNOWN: u16 = 0x000c;

/// Counters of traffic; all others tell of trouble.
const TRAFFIC: &[&str] = &[
    "sent_pkts",
    "rcvd_pkts",
    "rdma_sends",
    "rdma_recvs",
    "ack_deferred",
];

type Counters = BTreeMap<String, u64>;

/// The probe.
pub(super) fn undisturbed(scene: &mut Scene<'_>) -> Result<()> {
    let bench = scene.bench;
    let place = &bench.theirs.place;
    let netdev = &bench.theirs.netdev;
    must(
        place,
        &format!(
            "ip addr add {}/24 dev {netdev}; ip -6 addr add {}/64 dev {netdev} nodad",
            NEW.0, NEW.1
        ),
    )?;
    let done = asked(scene, place);
    must(
        place,
        &format!(
            "ip addr del {}/24 dev {netdev}; ip -6 addr del {}/64 dev {netdev}",
            NEW.0, NEW.1
        ),
    )?;
    done
}

fn asked(scene: &mut Scene<'_>, place: &Place) -> Result<()> {
    let bench = scene.bench;
    let new = bench.with_target_at(NEW);
    let before = counters(bench)?;
    let said_before = complaints(place)?;
    let mut others = third_party(bench)?;
    for cell in cells(CELLS)? {
        let Some(wire) = new.wire() else {
            return fail("no wire");
        };
        let mut pair = None;
        let (ran, frames) =
            cell::run_with(&new, &mut pair, &cell, scene.target.label(), &mut |_, _| {
                answer(wire)
            });
        scene.packets.packets += ran.packets.packets;
        scene.frames.extend_from_slice(&frames);
        if ran.verdict != Verdict::Ok {
            return fail(format!("{}: {}", ran.name, ran.verdict.why()));
        }
        polite(&frames).map_err(|Error(why)| Error(format!("{}: {why}", ran.name)))?;
    }
    if others.over() {
        return fail("the others had ended before all was asked: nothing is shown");
    }
    let ended = others.finish()?;
    if ended.code != 0 {
        return fail(format!("ib_send_lat of rxe to itself:\n{}", ended.output));
    }
    let trouble: Vec<String> = counters(bench)?
        .into_iter()
        .filter(|(name, now)| before.get(name) != Some(now) && !TRAFFIC.contains(&name.as_str()))
        .map(|(name, now)| format!("{name} {} -> {now}", before.get(&name).unwrap_or(&0)))
        .collect();
    if !trouble.is_empty() {
        return fail(format!("rxe counts trouble: {}", trouble.join(", ")));
    }
    let said = complaints(place)?;
    if said != said_before {
        return fail(format!("the target's kernel complains:\n{said}"));
    }
    Ok(())
}

/// Two others of the same device, in the middle of their work.
fn third_party(bench: &Bench) -> Result<Running> {
    let device = &bench.theirs.device;
    let (_, gid) = bench
        .theirs
        .device_of(bench.theirs.address(false).unwrap_or_default())?;
    let program = format!("ib_send_lat -d {device} -x {gid} -u 18 -F -C -n 300");
    let own = bench.theirs.address(false).unwrap_or_default();
    let place = &bench.theirs.place;
    let begun = sends(bench)?;
    let running = place.start(
        &format!(
            "{program} >/dev/null & \
             while ! ss -Hltn 'sport = :18515' | grep -q .; do sleep 0.1; done; \
             {program} {own} && wait $!"
        ),
        120,
    )?;
    let end = Instant::now() + Duration::from_secs(60);
    while sends(bench)? < begun + 20 {
        if Instant::now() > end {
            return fail(format!(
                "ib_send_lat of rxe to itself does not begin:\n{}",
                running.output()
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(running)
}

/// Waits for the target's answer to our daemon's question.
fn answer(wire: &Wire) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        let answered = |seen: &Seen| seen.from == End::Theirs && mad(seen).is_some();
        if wire.any(answered) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    fail("our daemon asked nothing, or the target answered nothing")
}

/// One question, and the answer that it is not understood.
fn polite(frames: &[Seen]) -> Result<()> {
    let of = |end| frames.iter().filter(move |f| f.from == end).filter_map(mad);
    let questions = of(End::Ours).count();
    // where the answer is late it is asked again, twice at most
    if !(1..=3).contains(&questions) {
        return fail(format!("{questions} questions of our daemon"));
    }
    let answers: Vec<u16> = of(End::Theirs).collect();
    if answers.iter().any(|status| *status != UNKNOWN) {
        return fail(format!("answered with status {answers:#x?}"));
    }
    Ok(())
}

/// The status in a datagram of the class, question or answer.
pub(crate) fn mad(seen: &Seen) -> Option<u16> {
    let frame = Frame::parse(&seen.bytes).ok()?;
    let packet = Packet::parse(frame.ib).ok()?;
    if packet.bth.dest_qp.value() != 1 || packet.payload.get(1) != Some(&CLASS) {
        return None;
    }
    let status = packet.payload.get(4..6)?;
    Some(u16::from_be_bytes([status[0], status[1]]))
}

fn counters(bench: &Bench) -> Result<Counters> {
    let device = &bench.theirs.device;
    let said = must(
        &bench.theirs.place,
        &format!("cd /sys/class/infiniband/{device}/ports/1/hw_counters && grep . *"),
    )?;
    let pairs = said.lines().filter_map(|line| line.split_once(':'));
    let all: Counters = pairs
        .filter_map(|(name, n)| Some((name.to_owned(), n.trim().parse().ok()?)))
        .collect();
    if all.len() > TRAFFIC.len() {
        return Ok(all);
    }
    fail(format!("these are no counters of rxe:\n{said}"))
}

fn sends(bench: &Bench) -> Result<u64> {
    Ok(counters(bench)?.get("rdma_sends").copied().unwrap_or(0))
}

/// What its kernel has said of RDMA.
fn complaints(place: &Place) -> Result<String> {
    must(
        place,
        "dmesg | grep -iE 'rxe|infiniband|ib_|rdma|BUG|WARN' || true",
    )
}

fn must(place: &Place, command: &str) -> Result<String> {
    let ended = place.run(command, 60)?;
    if ended.code == 0 {
        return Ok(ended.output);
    }
    fail(format!("{command}: {}", ended.output.trim()))
}
