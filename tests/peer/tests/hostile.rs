//! Packets that nobody should send: strangers at a live queue pair, a scripted peer that lies, a peer
//! that dies.

use std::time::{Duration, Instant};

use rocebud_peer::device::DevInfo;
use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::Running;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::{c_program, script};
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::status::{Drops, Status};

const PYTHON: &str = "/usr/bin/python3";

pub(crate) fn cases() -> Vec<Case> {
    let needs = [Need::Root, Need::Build, Need::Program("ibv_rc_pingpong")];
    let compiled = [Need::Root, Need::Build, Need::Compiler];
    let mut all: Vec<Case> = ["opcodes", "lengths", "lying", "noise"]
        .into_iter()
        .map(|what| {
            Case::new(&format!("c001_stranger_{what}"), &needs, move || {
                stranger(what)
            })
        })
        .collect();
    all.push(Case::new("c002_scripted_peer", &compiled, scripted_peer));
    all.push(Case::new("killed_peer_is_noticed", &needs, killed_peer));
    all.push(Case::new(
        "killed_client_frees_its_slot",
        &needs,
        killed_client,
    ));
    all
}

/// A ping-pong that goes on for long, and what the server said of its queue pair.
struct Live {
    server: Running,
    client: Running,
    qpn: String,
    psn: String,
}

fn live_pingpong(wire: &Wire, iterations: &str) -> Result<Live, Failure> {
    let gid = |h: &Host| DevInfo::of(h)?.index_of(&h.v4).map(|n| n.to_string());
    let (gs, gc) = (gid(&wire.a)?, gid(&wire.b)?);
    let common = [
        "-oL",
        "ibv_rc_pingpong",
        "-c",
        "-n",
        iterations,
        "-s",
        "256",
        "-g",
    ];
    let mut sa = common.to_vec();
    sa.push(&gs);
    let mut ca = common.to_vec();
    ca.extend([gc.as_str(), wire.a.v4.as_str()]);
    // stdbuf: the QPN is wanted while the program runs
    let mut server = wire.a.rocebud("stdbuf", &sa).limit(120).start()?;
    server.wait_listening(&wire.a, 18515)?;
    let client = wire.b.rocebud("stdbuf", &ca).limit(120).start()?;
    let said = server.wait_for("remote address")?;
    let field = |name: &str| {
        let at = said.find(name).map(|i| i + name.len()).unwrap_or_default();
        said[at..]
            .split(',')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let (qpn, psn) = (field("QPN"), field("PSN"));
    Ok(Live {
        server,
        client,
        qpn,
        psn,
    })
}

/// C001: whatever a third address sends costs a counter and nothing else.
fn stranger(what: &'static str) -> Outcome {
    let wire = Wire::new(1500)?;
    wire.b.ip("addr add 10.77.0.9/24 dev ve0")?;
    let mut live = live_pingpong(&wire, "2000000000")?;
    let before = Drops::of(&wire.a)?;
    let args = [
        &script("stranger.py"),
        "--src",
        "10.77.0.9",
        "--dst",
        &wire.a.v4,
        "--qpn",
        &live.qpn,
        "--psn",
        &live.psn,
        what,
    ];
    let args: Vec<&str> = args.iter().map(|a| a.as_ref()).collect();
    let said = wire.b.plain(PYTHON, &args).limit(60).run()?.succeeded()?;
    let sent: u64 = said.trim().trim_start_matches("sent ").parse()?;
    let mut counted = Drops::of(&wire.a)?.since(&before);
    let end = Instant::now() + Duration::from_secs(5);
    while counted.total() < sent && Instant::now() < end {
        counted = Drops::of(&wire.a)?.since(&before);
    }
    ensure(live.server.alive() && live.client.alive(), || {
        format!(
            "the ping-pong ended:\n{}\n{}",
            live.server.output(),
            live.client.output()
        )
    })?;
    // of what lies about its length the kernel keeps back the inconsistent and cuts the rest
    let right = if what == "lying" {
        counted.total() <= sent
    } else {
        counted.total() == sent
    };
    ensure(right, || {
        format!("sent {sent} packets, the drop counters rose by {counted:?}")
    })?;
    still_ticking(&wire.a)?;
    Ok(())
}

/// Data packets are still being exchanged.
fn still_ticking(host: &Host) -> Outcome {
    let first = Status::of(host)?.counter("rcvd_pkts");
    std::thread::sleep(Duration::from_millis(300));
    let second = Status::of(host)?.counter("rcvd_pkts");
    ensure(second > first, || {
        format!("no packet accepted in 300 ms (rcvd_pkts {first}, {second})")
    })
}

/// C002, C007, C054 and the responder's rules, by a peer that writes its packets itself.
fn scripted_peer() -> Outcome {
    let wire = Wire::new(1500)?;
    let gid = DevInfo::of(&wire.a)?.index_of(&wire.a.v4)?.to_string();
    let (victim, device) = (c_program("victim")?, wire.a.device());
    let mut server = wire
        .a
        .rocebud(&victim, &["-d", &device, "-g", &gid, "-m", "1024"])
        .limit(180)
        .start()?;
    server.wait_listening(&wire.a, 18800)?;
    let path = script("scripted_peer.py");
    let said = wire
        .b
        .plain(PYTHON, &[&path, "--src", &wire.b.v4, "--dst", &wire.a.v4])
        .limit(170)
        .run()?;
    if said.code != Some(0) {
        let bad: Vec<&str> = said
            .output
            .lines()
            .filter(|l| !l.starts_with("ok "))
            .collect();
        return wrong(format!("{}\nvictim: {}", bad.join("\n"), server.output()));
    }
    server.finish()?.succeeded().map(drop)
}

/// kill -9 of a peer: the other side's requests fail with status 12 (RETRY_EXC_ERR), in seconds.
/// A stream, so that requests are outstanding at any moment: a side that only waits for the peer's
/// next SEND learns nothing of its death, on any RNIC.
fn killed_peer() -> Outcome {
    let wire = Wire::new(1500)?;
    let stream = ["-D", "60", "-s", "65536", "-F"];
    let mut server = wire.a.rocebud("ib_write_bw", &stream).limit(120).start()?;
    server.wait_listening(&wire.a, 18515)?;
    let mut to_server = stream.to_vec();
    to_server.push(&wire.a.v4);
    let client = wire.b.rocebud("ib_write_bw", &to_server);
    let client = client.limit(120).start()?;
    std::thread::sleep(Duration::from_secs(3));
    let start = Instant::now();
    server.kill();
    let client = client.finish()?;
    let took = start.elapsed();
    ensure(client.code == Some(1), || {
        format!("client: {:?}\n{}", client.code, client.output)
    })?;
    ensure(client.output.contains("Failed status 12"), || {
        format!("no status 12 in:\n{}", client.output)
    })?;
    ensure(took < Duration::from_secs(10), || {
        format!("it took {took:?}")
    })
}

/// The daemon notices a client's death and serves the next ones.
fn killed_client() -> Outcome {
    let wire = Wire::new(1500)?;
    for _ in 0..3 {
        let mut live = live_pingpong(&wire, "2000000000")?;
        live.server.kill();
        live.client.kill();
        std::thread::sleep(Duration::from_millis(200));
    }
    let live = live_pingpong(&wire, "200")?;
    live.client.finish()?.succeeded()?;
    live.server.finish()?.succeeded().map(drop)
}
