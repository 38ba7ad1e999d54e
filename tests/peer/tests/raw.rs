//! Raw packets: every call and every frame (`raw` of tests/peer/c), and perftest's raw Ethernet programs
//! between two hosts.

use std::time::{Duration, Instant};

use rocebud_peer::netns::Host;
use rocebud_peer::program::Running;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::{c_program, rocebud};
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::places::{Family, Place, Program, Series, Stage};

/// Frames a run: fewer than a CPU's queue of received packets holds, so that none is lost on a machine
/// that is busy.
const FRAMES: &str = "500";

/// A server that is not ready after this long is stuck.
const READY_MAX: Duration = Duration::from_secs(60);

pub(crate) fn cases() -> Vec<Case> {
    let calls = [Need::Root, Need::Build, Need::Compiler];
    let perftest = [Need::Root, Need::Build, Need::Program("raw_ethernet_bw")];
    vec![
        Case::new("raw_packets_loopback", &calls, || calls_on(Place::Loopback)),
        Case::new("raw_packets_veth_1500", &calls, || {
            calls_on(Place::Veth(1500))
        }),
        Case::new("raw_packets_without_the_right", &calls, without_the_right),
        Case::new("raw_ethernet_veth_1500", &perftest, raw_ethernet),
        Case::new("raw_ethernet_multicast", &perftest, multicast),
    ]
}

fn calls_on(place: Place) -> Outcome {
    let path = c_program("raw")?;
    let stage = place.open()?;
    let device = stage.server().device();
    let program = stage.server().rocebud(&path, &["-d", &device]);
    program.limit(180).run()?.succeeded().map(drop)
}

/// For an ordinary user the device has none of it, and everything else. Nor has it for anybody in another
/// network namespace: what is right here gives no right there.
fn without_the_right() -> Outcome {
    const EPERM: &str = "1";
    const EOPNOTSUPP: &str = "95";
    let path = c_program("raw")?;
    let host = Host::loopback()?;
    let args = ["-u", EPERM, "-d", "rb_lo"];
    let nobody = host.rocebud(&path, &args).as_nobody().limit(60);
    nobody.run()?.succeeded()?;

    let elsewhere = Host::loopback()?;
    let socket = std::env::temp_dir().join(format!("rocebud-raw-{}", std::process::id()));
    let socket = socket.display().to_string();
    let bin = rocebud().display().to_string();
    let daemon = elsewhere.plain(&bin, &["daemon", "--socket", &socket]);
    let mut daemon = daemon.limit(120).start()?;
    daemon.wait_for("serves")?;
    let args = ["-u", EOPNOTSUPP, "-d", "rb_lo"];
    let program = host.rocebud(&path, &args).env("ROCEBUD_SOCKET", &socket);
    let ran = program.limit(60).run();
    daemon.kill();
    let _ = std::fs::remove_file(&socket);
    ran?.succeeded().map(drop)
}

fn raw_ethernet() -> Outcome {
    let stage = Place::Veth(1500).open()?;
    let ipv4 = ["-J", &stage.server().v4, "-j", &stage.client().v4];
    let ipv6 = ["-J", &stage.server().v6, "-j", &stage.client().v6];
    let ports = ["-K", "7000", "-k", "8000"];
    let (v4, v6) = ([ipv4, ports].concat(), [ipv6, ports].concat());
    let runs: [(&str, &str, &[&str], &[&str]); 5] = [
        ("plain", "raw_ethernet_bw", &["-s", "1400"], &[]),
        ("VLAN", "raw_ethernet_bw", &["-s", "512", "--vlan_en"], &[]),
        (
            "UDP over IPv4",
            "raw_ethernet_bw",
            &["-s", "512", "-q", "2"],
            &v4,
        ),
        (
            "TCP over IPv6",
            "raw_ethernet_bw",
            &["-s", "512", "--raw_ipv6", "--tcp"],
            &v6,
        ),
        ("latency", "raw_ethernet_lat", &["-s", "64"], &[]),
    ];
    let mut series = Series::default();
    for (name, program, args, more) in runs {
        let args = [args, more].concat();
        series.note(name, pair(&stage, program, &args, &[], || Ok(())));
    }
    // What a queue pair takes is a copy: the kernel's stack and other queue pairs go on.
    let others = || {
        let pingpong = Program::pingpong("ibv_rc_pingpong", Family::V4, &["-c", "-n", "10"]);
        stage.run(&pingpong).map(drop)
    };
    let promiscuous = pair(
        &stage,
        "raw_ethernet_bw",
        &["-s", "512"],
        &["--promiscuous"],
        others,
    );
    series.note("promiscuous", promiscuous);
    series.end()
}

/// Server and client of a raw Ethernet program, which have no other channel than the wire. `meanwhile`
/// runs when the server is ready.
fn pair(
    stage: &Stage,
    program: &str,
    both: &[&str],
    server_only: &[&str],
    meanwhile: impl FnOnce() -> Outcome,
) -> Outcome {
    let (server, client) = (stage.server(), stage.client());
    let (here, there) = (mac(server)?, mac(client)?);
    let (ds, dc) = (server.device(), client.device());
    let common = ["-F", "-n", FRAMES];
    let of_server = ["--server", "-d", &ds, "-B", &here, "-E", &there];
    let of_client = ["--client", "-d", &dc, "-B", &there, "-E", &here];
    let args = [&of_server[..], &common, both, server_only].concat();
    let mut running = server.rocebud(program, &args).limit(120).start()?;
    wait_ready(server, &mut running)?;
    meanwhile()?;
    let args = [&of_client[..], &common, both].concat();
    let said = client
        .rocebud(program, &args)
        .limit(90)
        .run()?
        .succeeded()?;
    ensure(said.contains("#iterations"), || {
        format!("no result of the client:\n{said}")
    })?;
    running.finish()?.succeeded().map(drop)
}

/// `--raw_mcast`: the server attaches its queue pair to the Ethernet group of the address that the client
/// sends to, and makes no rule. Without an address the group is 01:00:5e:00:00:00.
fn multicast() -> Outcome {
    let stage = Place::Veth(1500).open()?;
    let client = stage.client().v4.clone();
    let addressed = ["-J", "239.1.2.3", "-j", &client];
    let mut series = Series::default();
    for (name, group, more) in [
        ("no address", "01:00:5E:00:00:00", &[][..]),
        ("an address", "01:00:5E:01:02:03", &addressed[..]),
    ] {
        series.note(name, to_group(&stage, group, more));
    }
    series.end()
}

fn to_group(stage: &Stage, group: &str, more: &[&str]) -> Outcome {
    let (server, client) = (stage.server(), stage.client());
    let (here, there) = (mac(server)?, mac(client)?);
    let (ds, dc) = (server.device(), client.device());
    let name = "raw_ethernet_bw";
    let common = [&["--raw_mcast", "-F", "-n", FRAMES, "-s", "512"], more].concat();
    // stdbuf: its word that it is attached is wanted while it runs
    let of_server = ["-oL", name, "--server", "-d", &ds, "-B", &here];
    let of_server = [&of_server[..], &common[..]].concat();
    let of_client = [&["--client", "-d", &dc, "-B", &there], &common[..]].concat();
    let mut running = server.rocebud("stdbuf", &of_server).limit(60).start()?;
    running.wait_for("MGID")?;
    let sent = client.rocebud(name, &of_client).limit(60).run()?;
    let sent = sent.succeeded()?;
    ensure(sent.contains("#iterations"), || sent.clone())?;
    // After its report this release destroys rules that it never made.
    let got = running.finish()?.output;
    let all = |line: &str| line.split_whitespace().nth(1) == Some(FRAMES);
    ensure(got.lines().any(all), || {
        format!("not all frames to {group} came:\n{got}")
    })
}

/// Frames that come before the queue pair is up reach nobody.
fn wait_ready(host: &Host, server: &mut Running) -> Outcome {
    let start = Instant::now();
    let bin = rocebud().display().to_string();
    loop {
        let status = host.plain(&bin, &["status"]).limit(30).run()?.output;
        let up = |line: &str| {
            line.contains(" RAW ") && (line.contains(" RTR ") || line.contains(" RTS "))
        };
        if status.lines().any(up) {
            return Ok(());
        }
        if !server.alive() || start.elapsed() > READY_MAX {
            return wrong(format!(
                "no raw packet queue pair came up:\n{}",
                server.output()
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn mac(host: &Host) -> Result<String, Failure> {
    let link = host.plain("ip", &["-br", "link", "show", "dev", &host.netdev]);
    let said = link.run()?.succeeded()?;
    let mac = said
        .split_whitespace()
        .find(|word| word.matches(':').count() == 5);
    mac.map_or_else(
        || wrong(format!("no MAC address in: {said}")),
        |m| Ok(m.to_owned()),
    )
}
