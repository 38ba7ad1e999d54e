//! The harness itself: it moves bytes between hosts, sees failures, and cleans up.

use std::time::{Duration, Instant};

use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::{Failure, Outcome, ensure, wrong};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "harness_sees_a_failing_program",
            &[],
            sees_a_failing_program,
        ),
        Case::new(
            "harness_ends_a_program_at_its_limit",
            &[],
            ends_a_program_at_its_limit,
        ),
        Case::new(
            "harness_wire_carries_both_families",
            &[Need::Root],
            wire_carries_both_families,
        ),
        Case::new(
            "harness_drops_what_a_rule_names",
            &[Need::Root, Need::Nft],
            drops_what_a_rule_names,
        ),
        Case::new(
            "harness_leaves_no_namespace_behind",
            &[Need::Root],
            leaves_no_namespace_behind,
        ),
    ]
}

fn sees_a_failing_program() -> Outcome {
    let host = Host::loopback()?;
    host.plain("sh", &["-c", "echo said; exit 3"])
        .run()?
        .exited(3)?;
    match host
        .plain("sh", &["-c", "echo said; exit 3"])
        .run()?
        .succeeded()
    {
        Err(Failure::Wrong(why)) => ensure(
            why.contains("said") && why.contains("exit status 3"),
            || why.clone(),
        ),
        _ => wrong("exit status 3 counted as success"),
    }
}

fn ends_a_program_at_its_limit() -> Outcome {
    let host = Host::loopback()?;
    let start = Instant::now();
    let ended = host.plain("sleep", &["60"]).limit(1).run();
    ensure(
        ended.is_err() && start.elapsed() < Duration::from_secs(5),
        || "it was not ended".into(),
    )
}

/// Sends one datagram, from Python, and wants it back.
fn echo(from: &Host, to: &Host, address: &str) -> Outcome {
    let serve = "import socket,sys\na=sys.argv[1]\n\
                 s=socket.socket(socket.AF_INET6 if ':' in a else socket.AF_INET,socket.SOCK_DGRAM)\n\
                 s.bind((a,4791))\nprint('ready',flush=True)\nd,p=s.recvfrom(99)\ns.sendto(d,p)";
    let ask = "import socket,sys\na=sys.argv[1]\n\
               s=socket.socket(socket.AF_INET6 if ':' in a else socket.AF_INET,socket.SOCK_DGRAM)\n\
               s.settimeout(1)\ns.sendto(b'hi',(a,4791))\nassert s.recv(99)==b'hi'";
    let mut server = to
        .plain("/usr/bin/python3", &["-c", serve, address])
        .limit(10)
        .start()?;
    server.wait_for("ready")?;
    from.plain("/usr/bin/python3", &["-c", ask, address])
        .limit(10)
        .run()?
        .succeeded()?;
    server.finish()?.succeeded().map(drop)
}

fn wire_carries_both_families() -> Outcome {
    let wire = Wire::new(9000)?;
    echo(&wire.a, &wire.b, &wire.b.v4)?;
    echo(&wire.b, &wire.a, &wire.a.v6)
}

fn drops_what_a_rule_names() -> Outcome {
    let wire = Wire::new(1500)?;
    wire.true_frames()?;
    wire.b.drop_arriving("@th,64,8 0x12 numgen inc mod 2 1")?; // not our bytes
    echo(&wire.a, &wire.b, &wire.b.v4)?;
    wire.b.drop_arriving("@th,64,8 0x68")?; // 'h'
    ensure(echo(&wire.a, &wire.b, &wire.b.v4).is_err(), || {
        "the rule dropped nothing".into()
    })?;
    let dropped = wire.b.dropped()?;
    ensure(dropped == 1, || {
        format!("{dropped} packets counted as dropped")
    })
}

fn leaves_no_namespace_behind() -> Outcome {
    let name = {
        let wire = Wire::new(1500)?;
        let _left = wire.a.plain("sleep", &["30"]).start()?;
        wire.a.namespace().unwrap_or_default().to_owned()
    };
    let list = Host::loopback()?
        .plain("ip", &["netns", "list"])
        .run()?
        .succeeded()?;
    ensure(!list.split_whitespace().any(|w| w == name), || {
        format!("{name} is still there")
    })
}
