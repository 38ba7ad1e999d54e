//! Hosts that find out about each other while their programs connect queue pairs by hand.

use std::time::{Duration, Instant};

use rocebud_peer::device::DevInfo;
use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::Running;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::status::{Peer, Status};
use rocebud_peer::tree::script;
use rocebud_peer::{Failure, Outcome, ensure};

/// What the general services' queue pair gets of the class by which daemons ask each other.
const HELLO: &str = "@th,104,24 0x000001 @th,232,8 0x42";

const PINGPONG_PORT: u16 = 18515;
const ANOTHER_PORT: u16 = 18516;

pub(crate) fn cases() -> Vec<Case> {
    let needs = [Need::Root, Need::Build, Need::Program("ibv_rc_pingpong")];
    type Run = fn() -> Outcome;
    let all: [(&str, Run); 4] = [
        (
            "hosts_of_hand_connected_programs_know_each_other",
            hand_connected,
        ),
        ("a_host_whose_daemon_is_another_is_asked_again", replaced),
        ("known_identifications_tell_spoiled_packets", spoiled),
        (
            "another_stack_at_a_known_address_loses_nothing",
            other_stack,
        ),
    ];
    let case = |(name, run): (&str, Run)| Case::new(name, &needs, run);
    all.into_iter().map(case).collect()
}

/// A ping-pong of `program` without end.
fn live(wire: &Wire, program: &str, port: u16) -> Result<[Running; 2], Failure> {
    let gid = |h: &Host| DevInfo::of(h)?.index_of(&h.v4).map(|n| n.to_string());
    let (ga, gb) = (gid(&wire.a)?, gid(&wire.b)?);
    let at = port.to_string();
    let common = ["-n", "2000000000", "-s", "256", "-p", &at, "-g"];
    // stdbuf: the queue pair's number is wanted while the program runs
    let server = [&["-oL", program][..], &common, &[&ga]].concat();
    let mut server = wire.a.rocebud("stdbuf", &server).limit(120).start()?;
    server.wait_listening(&wire.a, port)?;
    let client = [&common[..], &[&gb, &wire.a.v4]].concat();
    let client = wire.b.rocebud(program, &client).limit(120).start()?;
    Ok([server, client])
}

/// What `of` knows about `other`, once it `fits`; what it was in the end if it never does.
fn knows(of: &Host, other: &Host, fits: impl Fn(&Peer) -> bool) -> Result<Option<Peer>, Failure> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let peers = Status::of(of)?.peers();
        ensure(peers.len() <= 1, || {
            format!("more peers than one: {peers:?}")
        })?;
        let found = peers.into_iter().find(|p| p.address == other.v4);
        if found.as_ref().is_some_and(&fits) || Instant::now() > end {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn is_ours(peer: &Peer) -> bool {
    !peer.asked && peer.ours && peer.id_bound == 64 && peer.receive_buffer > 0
}

/// Queue pairs taken to RTR by hand, and address handles: one question each way, whatever follows.
fn hand_connected() -> Outcome {
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong"] {
        let wire = Wire::new(1500)?;
        for host in [&wire.a, &wire.b] {
            host.count_arriving_like(HELLO)?;
        }
        let mut programs = Vec::new();
        for port in [PINGPONG_PORT, ANOTHER_PORT] {
            programs.extend(live(&wire, program, port)?);
            for (of, other) in [(&wire.a, &wire.b), (&wire.b, &wire.a)] {
                let found = knows(of, other, is_ours)?;
                ensure(found.as_ref().is_some_and(is_ours), || {
                    format!("{program}: of {} is known {found:?}", other.v4)
                })?;
            }
            ensure(programs.iter_mut().all(Running::alive), || {
                format!("{program} ended: {}", programs[0].output())
            })?;
        }
        let messages = (wire.a.arrived()?, wire.b.arrived()?);
        ensure(messages == (2, 2), || {
            format!("{program}: {messages:?} messages, not a question and an answer each")
        })?;
    }
    Ok(())
}

/// Ends everything that runs in a host.
fn clear(host: &Host) -> Outcome {
    let pids: Vec<String> = host.pids().iter().map(ToString::to_string).collect();
    host.tool(&format!("kill -KILL {}", pids.join(" ")))
}

/// What a new daemon says of itself is known as soon as its programs talk to us.
fn replaced() -> Outcome {
    let wire = Wire::new(1500)?;
    let _first = live(&wire, "ibv_ud_pingpong", PINGPONG_PORT)?;
    let before = knows(&wire.a, &wire.b, is_ours)?.map_or(0, |peer| peer.receive_buffer);
    clear(&wire.b)?;
    // A program that waits for a client keeps the daemon that it has started.
    let waits = ["-p", "18517", "-g", "1"];
    let keeper = wire.b.rocebud("ibv_ud_pingpong", &waits);
    let mut keeper = keeper.env("ROCEBUD_RCVBUF", "65536").limit(120).start()?;
    keeper.wait_listening(&wire.b, 18517)?;
    let _second = live(&wire, "ibv_ud_pingpong", ANOTHER_PORT)?;
    let is_small = |peer: &Peer| is_ours(peer) && peer.receive_buffer < before;
    let found = knows(&wire.a, &wire.b, is_small)?;
    ensure(found.as_ref().is_some_and(is_small), || {
        format!("a buffer of {before} bytes, then {found:?}")
    })
}

/// What became of packets that cannot be right.
#[derive(Debug)]
struct Judged {
    /// Taken for good ones: their queue pair does not exist.
    slipped: u64,
    dropped: u64,
    beyond: u64,
}

/// Lets the other end send to a program of `wire.a`, of which `server` has told the queue pair.
fn spoil(wire: &Wire, server: &mut Running, rounds: u64, spoiled: u64) -> Result<Judged, Failure> {
    let said = server.wait_for("QPN")?;
    let qpn = said.split("QPN 0x").nth(1).and_then(|text| text.get(..6));
    let qpn = u32::from_str_radix(qpn.unwrap_or_default(), 16)?;
    // of the same process, and nobody's
    let qpn = (qpn & 0xff_f000 | 0xffe).to_string();
    let count = || {
        let status = Status::of(&wire.a)?;
        let [slipped, dropped, beyond] = ["drop_no_qp", "rx_icrc_encapsulated", "id_beyond_bound"]
            .map(|name| status.counter(name));
        Ok::<_, Failure>(Judged {
            slipped,
            dropped,
            beyond,
        })
    };
    let before = count()?;
    let (script, rounds_of) = (
        script("spoiler.py"),
        [rounds, spoiled].map(|n| n.to_string()),
    );
    let [rounds_said, spoiled_said] = &rounds_of;
    let ends = ["--src", &wire.b.v4, "--dst", &wire.a.v4, "--qpn", &qpn];
    let how = ["--rounds", rounds_said, "--spoiled", spoiled_said];
    let args = [&[script.as_str()][..], &ends, &how].concat();
    let sender = wire.b.plain("/usr/bin/python3", &args).limit(60);
    sender.run()?.succeeded()?;
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let now = count()?;
        let judged = Judged {
            slipped: now.slipped - before.slipped,
            dropped: now.dropped - before.dropped,
            beyond: now.beyond - before.beyond,
        };
        if judged.slipped + judged.dropped >= rounds * (spoiled + 1) {
            return Ok(judged);
        }
        ensure(Instant::now() < end, || {
            format!("packets are missing: {judged:?}")
        })?;
    }
}

/// A receiver does not see IPv4 identifications, so one in 2^15 spoiled packets looks like one with
/// another. If the sender's host has said which it uses nearly all of those are told.
fn spoiled() -> Outcome {
    let wire = Wire::new(1500)?;
    let [mut server, _client] = live(&wire, "ibv_ud_pingpong", PINGPONG_PORT)?;
    let found = knows(&wire.a, &wire.b, is_ours)?;
    // While the host is asked again, as it is once a second here, the standard's rule holds.
    let judged = spoil(&wire, &mut server, 60, 100)?;
    ensure(judged.slipped <= 30 && judged.beyond == 60, || {
        format!("{found:?}: {judged:?}")
    })?;
    let deaf = Wire::new(1500)?;
    for host in [&deaf.a, &deaf.b] {
        host.drop_arriving(HELLO)?;
    }
    let [mut server, _client] = live(&deaf, "ibv_ud_pingpong", PINGPONG_PORT)?;
    knows(&deaf.a, &deaf.b, |peer| !peer.asked)?;
    let judged = spoil(&deaf, &mut server, 60, 100)?;
    ensure(judged.slipped == 60 && judged.beyond == 0, || {
        format!("nothing is known of the sender: {judged:?}")
    })
}

/// Where a host ran rocebud another stack sends, first beside it, then in its place, and uses whatever
/// identifications it likes.
fn other_stack() -> Outcome {
    let wire = Wire::new(1500)?;
    let [mut server, _client] = live(&wire, "ibv_ud_pingpong", PINGPONG_PORT)?;
    knows(&wire.a, &wire.b, is_ours)?;
    let all = |judged: &Judged| judged.slipped == 1000 && judged.dropped == 0;
    let judged = spoil(&wire, &mut server, 1000, 0)?;
    ensure(all(&judged) && judged.beyond > 0, || {
        format!("beside it: {judged:?}")
    })?;
    clear(&wire.b)?;
    let judged = spoil(&wire, &mut server, 1000, 0)?;
    ensure(all(&judged), || format!("in its place: {judged:?}"))?;
    let standard = |peer: &Peer| !peer.asked && !peer.ours;
    let found = knows(&wire.a, &wire.b, standard)?;
    ensure(found.as_ref().is_some_and(standard), || {
        format!("rocebud has gone, and known is {found:?}")
    })
}
