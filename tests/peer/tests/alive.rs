//! Programs that do odd things and live on: memory that vanishes, signals, other users, children, and
//! registrations that end while the peer works on them.

use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::{Spec, duo};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::c_program;
use rocebud_peer::{Failure, Outcome, ensure, wrong};

pub(crate) fn cases() -> Vec<Case> {
    let anyone = [Need::Build, Need::Compiler];
    let wire = [Need::Root, Need::Build, Need::Compiler];
    let shaped = [&wire[..], &[Need::Nft, Need::Program("tc")]].concat();
    let mut all = vec![
        Case::new("vanishing_memory_loopback", &anyone, || {
            on(&Host::loopback()?, "vanish", &[])
        }),
        Case::new("vanishing_memory_veth_1500", &wire, || {
            on(&Wire::new(1500)?.a, "vanish", &[])
        }),
        Case::new("signals_and_users", &anyone, signals),
        Case::new("c048_children_beside_traffic", &anyone, || {
            on(&Host::loopback()?, "forks", &[])
        }),
        Case::new("programs_that_end_at_once", &anyone, || {
            on(&Host::loopback()?, "hasty", &[])
        }),
        Case::new("c020_dereg_is_a_hard_fence", &wire, reused_memory),
    ];
    for what in ["dereg", "munmap"] {
        all.push(Case::new(
            &format!("c010_read_cut_short_by_{what}"),
            &shaped,
            move || cut_short(what),
        ));
    }
    all
}

fn full() -> bool {
    std::env::var_os("ROCEBUD_PEER_FULL").is_some()
}

fn compiled(host: &Host, program: &str, args: &[&str]) -> Result<Spec, Failure> {
    let (path, device) = (c_program(program)?, host.device());
    let all = [&["-d", device.as_str()], args].concat();
    let spec = host.rocebud(&path, &all).limit(180);
    Ok(if full() {
        spec.env("ROCEBUD_TEST_FULL", "1")
    } else {
        spec
    })
}

/// A program that talks to itself over the host's device.
fn on(host: &Host, program: &str, args: &[&str]) -> Outcome {
    passed(compiled(host, program, args)?)
}

fn passed(spec: Spec) -> Outcome {
    let ran = spec.run()?;
    let bad = |l: &&str| l.starts_with("FAIL") || !l.starts_with("ok ");
    let lines: Vec<&str> = ran.output.lines().filter(bad).collect();
    match (ran.code, ran.signal) {
        (Some(0), _) => Ok(()),
        (code, signal) => wrong(format!(
            "status {code:?}, signal {signal:?}\n{}",
            lines.join("\n")
        )),
    }
}

fn signals() -> Outcome {
    let host = Host::loopback()?;
    on(&host, "signals", &[])?;
    // blocked from before the library's first thread exists; alarms would never come
    let cases = "everything_blocked,every_thread_drops,drops_privileges";
    let blocked = compiled(&host, "signals", &["-c", cases])?;
    passed(blocked.env("ROCEBUD_TEST_BLOCK", "1"))
}

/// C020, between two hosts.
fn reused_memory() -> Outcome {
    let wire = Wire::new(1500)?;
    let rounds = if full() { "1000" } else { "200" };
    let server = compiled(&wire.a, "fence", &["-n", rounds, "reuse"])?;
    let client = compiled(&wire.b, "fence", &["-n", rounds, "reuse", &wire.a.v4])?;
    duo((&wire.a, &server), &client, 18950).map(drop)
}

/// C010: a READ of 256 MiB over a link that needs seconds for it loses its source half way.
fn cut_short(what: &str) -> Outcome {
    let wire = Wire::new(1500)?;
    let rate = if full() { "100mbit" } else { "1gbit" };
    wire.a.tool(&format!(
        "tc qdisc add dev ve0 root tbf rate {rate} burst 256k latency 500ms"
    ))?;
    wire.a.count_arriving()?;
    let mut server = compiled(&wire.a, "fence", &[what])?.start()?;
    server.wait_listening(&wire.a, 18950)?;
    let mut client = compiled(&wire.b, "fence", &[what, &wire.a.v4])?.start()?;
    client.wait_for("quiet")?;
    let before = wire.a.arrived()?;
    let client = client.finish()?.succeeded()?;
    server.finish()?.succeeded()?;
    let after = wire.a.arrived()?;
    ensure(after == before && before > 0, || {
        format!(
            "{} packets after the end (of {before}):\n{client}",
            after - before
        )
    })
}
