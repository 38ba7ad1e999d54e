//! Small packets past the socket: whether they come that way, and what is left of it.

use std::time::{Duration, Instant};

use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::duo;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::status::Status;
use rocebud_peer::tree::{self, c_program, script};
use rocebud_peer::{Failure, Outcome, ensure};

use crate::machine::build_for_everybody;
use crate::places::{FAMILIES, Place, Program, Series};

const MESSAGES: u64 = 5000;
const PERFTEST_PORT: u16 = 18515;

pub(crate) fn cases() -> Vec<Case> {
    let lat = [Need::Root, Need::Build, Need::Program("ib_send_lat")];
    let compiled = [Need::Root, Need::Build, Need::Compiler];
    vec![
        Case::new("small_packets_come_past_the_socket", &lat, past_the_socket),
        Case::new(
            "ordinary_users_of_a_root_daemon_have_rings",
            &lat,
            ordinary_user,
        ),
        Case::new("rings_can_be_turned_off", &lat, turned_off),
        Case::new(
            "programs_that_wait_in_changing_ways",
            &compiled,
            changing_ways,
        ),
        Case::new("rings_end_with_their_processes", &lat, end_with_processes),
    ]
}

/// A program that polls gets nearly all its messages through the ring, and no counter of losses moves.
fn past_the_socket() -> Outcome {
    let stage = Place::Veth(4300).open()?;
    let messages = MESSAGES.to_string();
    let mut series = Series::default();
    for family in FAMILIES {
        for service in ["RC", "UC", "UD"] {
            let args = ["-F", "-n", &messages, "-s", "64", "-c", service];
            let before = Status::of(stage.server())
                .map(|s| s.mark())
                .unwrap_or_default();
            let what = format!("{service} {family:?}");
            let ran = stage.run(&Program::perftest("ib_send_lat", *family, &args));
            if series.note(&what, ran).is_none() {
                continue;
            }
            let status = Status::of(stage.server())?;
            let since = |name| status.counter_since(&before, name);
            let (ring, all) = (since("ring_batches"), since("rcvd_batches"));
            let right = all >= MESSAGES && ring > all / 2;
            let right = ensure(right, || format!("{ring} of {all} batches by the ring"));
            series.note(&what, right);
            let lost = since("socket_overflow") + since("retransmits");
            series.note(
                &what,
                ensure(lost == 0, || format!("{lost} lost or resent")),
            );
        }
    }
    series.end()
}

/// The daemon has the right; the process that reads a ring needs none.
fn ordinary_user() -> Outcome {
    let wire = Wire::new(4300)?;
    let (bin, _gone) = build_for_everybody()?;
    let socket = std::env::temp_dir().join(format!("rocebud-rings-{}", std::process::id()));
    let socket = socket.display().to_string();
    let mut daemon = wire
        .a
        .plain(&bin, &["daemon", "--socket", &socket])
        .limit(120)
        .start()?;
    daemon.wait_for("serves")?;
    let messages = MESSAGES.to_string();
    let args = ["-F", "-n", &messages, "-s", "64"];
    let run = [&["run", "--", "ib_send_lat"], &args[..]].concat();
    let server = wire.a.plain(&bin, &run).as_nobody();
    let server = server.env("ROCEBUD_SOCKET", &socket).limit(60);
    let to_server = [&args[..], &[wire.a.v4.as_str()]].concat();
    let client = wire.b.rocebud("ib_send_lat", &to_server).limit(60);
    duo((&wire.a, &server), &client, PERFTEST_PORT)?;
    let status = wire.a.plain(&bin, &["status", "--json"]);
    let status = Status::said_by(&status.env("ROCEBUD_SOCKET", &socket))?;
    daemon.kill();
    let _ = std::fs::remove_file(&socket);
    let (ring, lost) = (
        status.counter("ring_batches"),
        status.counter("socket_overflow"),
    );
    ensure(ring > MESSAGES / 2 && lost == 0, || {
        format!("{ring} by the ring, {lost} lost")
    })
}

fn turned_off() -> Outcome {
    let wire = Wire::new(4300)?;
    let messages = MESSAGES.to_string();
    let args = ["-F", "-n", &messages, "-s", "64"];
    let off = |host: &Host, args: &[&str]| {
        let spec = host.rocebud("ib_send_lat", args).limit(60);
        spec.env("ROCEBUD_RING", "off")
    };
    let to_server = [&args[..], &[wire.a.v4.as_str()]].concat();
    duo(
        (&wire.a, &off(&wire.a, &args)),
        &off(&wire.b, &to_server),
        PERFTEST_PORT,
    )?;
    let status = Status::of(&wire.a)?;
    ensure(status.counter("ring_batches") == 0, || {
        "the ring was used".into()
    })?;
    ensure(status.counter("rcvd_batches") >= MESSAGES, || {
        "few came".into()
    })?;
    let bin = tree::rocebud().display().to_string();
    let said = wire.a.plain(&bin, &["status"]).run()?.succeeded()?;
    ensure(said.contains("no, ROCEBUD_RING is off"), || said.clone())
}

/// A ring is open while its program polls, and closed while anybody sleeps; no packet may be overtaken by
/// another, or lie there unseen, whatever the program does next.
fn changing_ways() -> Outcome {
    let wire = Wire::new(4300)?;
    let path = c_program("waits")?;
    let mut series = Series::default();
    for service in ["rc", "uc"] {
        for seed in ["1", "2", "3"] {
            let both = ["-d", "rb_ve0", "-T", service, "-S", seed, "-n", "4000"];
            let to_server = [&both[..], &[wire.a.v4.as_str()]].concat();
            let server = wire.a.rocebud(&path, &both).limit(60);
            let client = wire.b.rocebud(&path, &to_server).limit(60);
            let what = format!("{service}, seed {seed}");
            series.note(&what, duo((&wire.a, &server), &client, 18960));
        }
    }
    series.end()?;
    let ring = Status::of(&wire.a)?.counter("ring_batches");
    ensure(ring > 1000, || format!("only {ring} batches by the ring"))
}

/// Programs that are killed while the ring is in use, and such that end by themselves: filters go with
/// them, while the daemon lives on.
fn end_with_processes() -> Outcome {
    let wire = Wire::new(4300)?;
    // It keeps both daemons.
    let mut keepers = Vec::new();
    for host in [&wire.a, &wire.b] {
        let mut keeper = host
            .rocebud("ib_send_lat", &["-p", "18900"])
            .limit(120)
            .start()?;
        keeper.wait_listening(host, 18900)?;
        keepers.push(keeper);
    }
    let before = filters(&wire)?;
    for run in 0..10 {
        let messages = if run % 2 == 0 { "1000" } else { "5000000" };
        let args = ["-F", "-n", messages, "-s", "64"];
        let to_server = [&args[..], &[wire.a.v4.as_str()]].concat();
        let mut server = wire.a.rocebud("ib_send_lat", &args).limit(60).start()?;
        server.wait_listening(&wire.a, PERFTEST_PORT)?;
        let mut client = wire
            .b
            .rocebud("ib_send_lat", &to_server)
            .limit(60)
            .start()?;
        if run % 2 == 0 {
            client.finish()?.succeeded()?;
            server.finish()?.succeeded()?;
            continue;
        }
        busy(&wire.a)?;
        if run == 1 {
            let during = filters(&wire)?;
            ensure(during > before, || {
                format!("{during} filters in use, as {before} before")
            })?;
        }
        server.kill();
        client.kill();
    }
    let end = Instant::now() + Duration::from_secs(20);
    while filters(&wire)? != before {
        ensure(Instant::now() < end, || {
            format!("filters are left: {:?}, {before} before", filters(&wire))
        })?;
        std::thread::sleep(Duration::from_millis(200));
    }
    keepers.iter_mut().for_each(|keeper| keeper.kill());
    Ok(())
}

/// Waits until the host's programs are in the middle of it.
fn busy(host: &Host) -> Outcome {
    let end = Instant::now() + Duration::from_secs(10);
    let before = Status::of(host)?.counter("ring_batches");
    while Status::of(host)?.counter("ring_batches") < before + 100 {
        ensure(Instant::now() < end, || {
            "nothing comes through a ring".into()
        })?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Filters of the rings that the daemons of both hosts made.
fn filters(wire: &Wire) -> Result<u64, Failure> {
    let mut words = vec![script("bpf_named.py")];
    for host in [&wire.a, &wire.b] {
        words.push(format!("rb_ring_{}", Status::of(host)?.daemon_pid()));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = Host::outside("/usr/bin/python3", &words)
        .run()?
        .succeeded()?;
    said.trim()
        .parse()
        .map_err(|_| Failure::Wrong(said.clone()))
}
