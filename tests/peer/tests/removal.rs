//! C044: a device goes while programs use it. Whoever removes it never waits for them, they hear of it,
//! and everybody else goes on.

use std::time::{Duration, Instant};

use rocebud_peer::netns::{Addresses, Host, Wire};
use rocebud_peer::program::{Finished, Running};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::status::wait_listening;
use rocebud_peer::tree::c_program;
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::connections::{calls, run, serve};
use crate::deaths::{Stream, kill_daemon, told_of_the_end, wait_for_traffic, works};

const ENODEV: i32 = 19;

pub(crate) fn cases() -> Vec<Case> {
    let compiled = [Need::Root, Need::Build, Need::Compiler];
    let perftest = [Need::Root, Need::Build, Need::Program("ib_send_bw")];
    let header = Need::Header("/usr/include/rdma/rdma_cma.h");
    let connected = [&compiled[..], &[header]].concat();
    vec![
        Case::new("c044_device_removed_under_traffic", &compiled, removed),
        Case::new("c044_removed_device_gives_nothing", &compiled, opened),
        Case::new(
            "c044_device_removed_under_perftest",
            &perftest,
            under_perftest,
        ),
        Case::new(
            "c044_address_removed_under_traffic",
            &compiled,
            address_removed,
        ),
        Case::new(
            "c044_identifiers_hear_of_removal",
            &connected,
            identifiers_hear,
        ),
        Case::new(
            "c044_device_removed_under_rping",
            &[Need::Root, Need::Build, Need::Program("rping")],
            under_rping,
        ),
        Case::new(
            "asyncwatch_sees_the_link_and_the_end",
            &[Need::Root, Need::Build, Need::Program("ibv_asyncwatch")],
            asyncwatch,
        ),
    ]
}

/// Runs `ip` and wants it back soon, whoever has the device open.
fn promptly(host: &Host, words: &str) -> Outcome {
    let start = Instant::now();
    host.ip(words)?;
    ensure(start.elapsed() < Duration::from_secs(5), || {
        format!("ip {words} took {:?}", start.elapsed())
    })
}

/// A program that lives on the same host's loopback device, and must not notice.
fn neighbour(host: &Host) -> Result<Stream, Failure> {
    let lo = ["-d", "rb_lo", "-p", "18903"];
    let client = [&lo[..], &["127.0.0.1"]].concat();
    Stream::between(host, host, &lo, &client)
}

fn asyncwatch() -> Outcome {
    let wire = Wire::new(1500)?;
    let device = wire.a.device();
    let watch = wire.a.rocebud("ibv_asyncwatch", &["-d", &device]);
    let mut watch = watch.limit(30).start()?;
    watch.wait_for("async event FD")?;
    for (host, words, event) in [
        (&wire.b, "link set ve0 down", "IBV_EVENT_PORT_ERR"),
        (&wire.b, "link set ve0 up", "IBV_EVENT_PORT_ACTIVE"),
        (&wire.a, "link del ve0", "IBV_EVENT_DEVICE_FATAL"),
    ] {
        promptly(host, words)?;
        watch.wait_for(event)?;
    }
    Ok(())
}

fn removed() -> Outcome {
    let mut wire = Wire::new(1500)?;
    let elsewhere = Host::loopback()?;
    let mut other = neighbour(&wire.b)?;
    let away = format!(
        "link set ve0 netns {}",
        elsewhere.namespace().unwrap_or_default()
    );
    for (words, args) in [
        ("link del ve0", &["-t", "18"][..]),
        (&away, &["-e", "-o", "read", "-t", "18"]),
    ] {
        // one server waits for events, one process has the device open and sleeps
        let Stream { server, client } = Stream::start(&wire, &["-w"], args)?;
        let mut sleeper = crate::deaths::stream(&wire.b, &["-p", "18904"])?.start()?;
        sleeper.wait_listening(&wire.b, 18904)?;
        promptly(&wire.b, words)?;
        let start = Instant::now();
        told_of_the_end(client.finish()?, &[ENODEV])?;
        ensure(start.elapsed() < Duration::from_secs(5), || {
            format!("{words}: the client ended after {:?}", start.elapsed())
        })?;
        ensure(
            sleeper.alive() && other.server.alive() && other.client.alive(),
            || format!("{words}: somebody else ended:\n{}", other.client.output()),
        )?;
        if words.starts_with("link del") {
            // the other end of a veth pair goes with it
            let said = server.finish()?.exited(1)?;
            ensure(said.contains("event 8 ("), || {
                format!("{words}: server:\n{said}")
            })?;
        } else {
            port_error(server)?;
            elsewhere.ip("link del ve0")?;
        }
        wire.plug(1500, Addresses::Dual)?;
        works(&wire.a, &wire.b)?;
    }
    ensure(other.client.alive(), || "the neighbour has ended".into())
}

/// RDMA_CM_EVENT_DEVICE_REMOVAL comes to each identifier that has a device, once, whether the
/// interface or the daemon has gone; posted requests are flushed, destroying succeeds, and the same
/// process connects again.
fn identifiers_hear() -> Outcome {
    let (mut wire, path) = (Wire::new(1500)?, calls()?);
    let server = serve(&wire.b, &path)?;
    let at = [wire.b.v4.clone(), "7500".to_owned()];
    let watch = |host: &Host| {
        let watch = host.rocebud(&path, &["watch", &at[0], &at[1]]);
        let mut watch = watch.limit(100).start()?;
        watch.wait_for("held").map(|_| watch)
    };
    // the server, which listens on the wildcard, stays
    let client = watch(&wire.a)?;
    promptly(&wire.a, "link del ve0")?;
    wire.plug(1500, Addresses::Dual)?;
    client.finish()?.succeeded()?;
    // the client's daemon, and a new one
    let client = watch(&wire.a)?;
    kill_daemon(&wire.a, "KILL")?;
    let said = client.finish()?.succeeded()?;
    ensure(said.contains("channel: errno 5"), || said)?;
    run(&wire.a, &path, &["call", &at[0], &at[1], "1"])?;
    // the server's
    let mut held = wire.a.rocebud(&path, &["hold", &at[0], &at[1]]).start()?;
    held.wait_for("held")?;
    kill_daemon(&wire.b, "KILL")?;
    let said = server.finish()?.succeeded()?;
    let told = said.ends_with("removed\nchannel: errno 5\naccepted 6, ended 6\nok\n");
    held.kill();
    ensure(told, || format!("the server said:\n{said}"))
}

/// A list of devices may be older than the removal of one, and so may a context.
fn opened() -> Outcome {
    let wire = Wire::new(1500)?;
    let (path, device) = (c_program("gone")?, wire.a.device());
    let program = wire.a.rocebud(&path, &["-d", &device]);
    let mut program = program.limit(30).start()?;
    program.wait_for("open")?;
    promptly(&wire.a, "link del ve0")?;
    let said = program.finish()?.succeeded()?;
    let told = format!("errno {ENODEV}\nerrno {ENODEV}\n");
    ensure(said.ends_with(&told), || format!("not ENODEV:\n{said}"))
}

/// The other end of the wire has lost its carrier.
fn port_error(mut server: Running) -> Outcome {
    server.wait_for("event 10 (").map(drop)
}

/// Both programs end within 10 s, each as it should.
fn both_end(server: Running, client: Running, right: impl Fn(&Finished) -> bool) -> Outcome {
    let start = Instant::now();
    for (side, program) in [("server", server), ("client", client)] {
        let ended = program.finish()?;
        ensure(right(&ended), || {
            format!("{side}: {:?}\n{}", ended.code, ended.output)
        })?;
    }
    ensure(start.elapsed() < Duration::from_secs(10), || {
        format!("it took {:?}", start.elapsed())
    })
}

fn under_perftest() -> Outcome {
    let mut wire = Wire::new(1500)?;
    let args = ["-D", "60", "-s", "65536", "-F"];
    let mut server = wire.a.rocebud("ib_send_bw", &args).limit(90).start()?;
    server.wait_listening(&wire.a, 18515)?;
    let to = [&args[..], &[wire.a.v4.as_str()]].concat();
    let client = wire.b.rocebud("ib_send_bw", &to).limit(90).start()?;
    wait_for_traffic(&wire.a)?;
    promptly(&wire.a, "link del ve0")?;
    both_end(server, client, |ended| ended.code.is_some_and(|c| c != 0))?;
    wire.plug(1500, Addresses::Dual)?;
    works(&wire.a, &wire.b)
}

/// Both ends of rping hear of the removal and end; a new pair works.
fn under_rping() -> Outcome {
    let mut wire = Wire::new(1500)?;
    let at = wire.b.v4.clone();
    let serve = wire.b.rocebud("rping", &["-s", "-a", &at]);
    let mut server = serve.limit(60).start()?;
    wait_listening(&mut server, &wire.b, "7174")?;
    let ask = ["-c", "-a", &at, "-C", "1000000000"];
    let client = wire.a.rocebud("rping", &ask).limit(60).start()?;
    wait_for_traffic(&wire.a)?;
    // the other end of the pair goes with it: both have no device any more
    promptly(&wire.b, "link del ve0")?;
    // Of its two threads the one that takes completions may be told first, and then ends the program.
    both_end(server, client, |ended| {
        let heard = ["device removal", "poll error -19"];
        ended.code != Some(0) && heard.iter().any(|words| ended.output.contains(words))
    })?;
    wire.plug(1500, Addresses::Dual)?;
    let serve = wire.b.rocebud("rping", &["-s", "-a", &at, "-C", "3"]);
    let mut server = serve.limit(60).start()?;
    wait_listening(&mut server, &wire.b, "7174")?;
    let ask = ["-c", "-a", &at, "-C", "3", "-V"];
    wire.a.rocebud("rping", &ask).limit(60).run()?.succeeded()?;
    server.finish()?.succeeded().map(drop)
}

/// The device stays, and so do its other addresses; requests from the one that went run out of
/// retries, unless it comes back in time.
fn address_removed() -> Outcome {
    let wire = Wire::new(1500)?;
    let v4 = format!("{}/24 dev ve0", wire.b.v4);
    let Stream { server, client } = Stream::start(&wire, &[], &["-t", "14"])?;
    wire.b.ip(&format!("addr del {v4}"))?;
    let said = client.finish()?.exited(1)?;
    for words in [
        "ended status 12 ",
        "event 18 (",
        "port state 4 errno 0",
        "\ndestroyed\n",
    ] {
        ensure(said.contains(words), || format!("no '{words}' in:\n{said}"))?;
    }
    if said.contains("event 8 (") {
        return wrong(format!("the device is said to be gone:\n{said}"));
    }
    drop(server);
    wire.b.ip(&format!("addr add {v4}"))?;
    works(&wire.a, &wire.b)?;
    // half a second without it is no more than a loss
    let mut pair = Stream::start(&wire, &[], &["-t", "18"])?;
    wire.b.ip(&format!("addr del {v4}"))?;
    std::thread::sleep(Duration::from_millis(500));
    wire.b.ip(&format!("addr add {v4}"))?;
    let before = rocebud_peer::status::Status::of(&wire.a)?.counter("rcvd_pkts");
    std::thread::sleep(Duration::from_secs(5));
    let after = rocebud_peer::status::Status::of(&wire.a)?.counter("rcvd_pkts");
    ensure(pair.client.alive() && after > before + 1000, || {
        format!(
            "{before} packets, then {after}; client:\n{}",
            pair.client.output()
        )
    })
}
