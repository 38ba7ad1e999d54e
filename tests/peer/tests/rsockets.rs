//! Sockets over RDMA: every call by a program of our own, rdma-core's programs, and unchanged
//! programs with librspreload in front of them.

use std::path::Path;
use std::time::Duration;

use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::{Finished, Spec};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::c_program_with;
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::places::Series;

/// A program of rdma-core that is both ends, its options, and whether it runs over IPv6 too.
const PROGRAMS: &str = "\
rstream -S 1000 -C 50
rstream -T v -S 65536 -C 20
rstream -T a -S 4096 -C 20
rstream -T b -S 100000 -C 20
rstream -T n -S 64 -C 50 -k 1
riostream -T v -S 65536 -C 20
riostream -T b -S 3000 -C 20
";

/// Options of udpong: waiting, polling and only trying, with and without an echo. The longest
/// datagram that fits 1024 bytes of a packet over IPv6. Echoes are few: udpong asks again after 1 ms, and
/// on a busy machine goes on with answers that come late to all it asked before.
const UDPONG: &str = "\
-T b -S 1000 -C 500
-T e -S 64 -C 20
-T a -T e -S 1000 -C 20
-T b -T e -S 500 -C 20
";

pub(crate) fn cases() -> Vec<Case> {
    let anyone = [
        Need::Build,
        Need::Compiler,
        Need::Header("/usr/include/rdma/rsocket.h"),
    ];
    let programs = [Need::Root, Need::Build, Need::Program("rstream")];
    let netcat = [&programs[..], &[Need::Program("nc.traditional")]].concat();
    let iperf = [&programs[..], &[Need::Program("iperf3")]].concat();
    vec![
        Case::new("rsockets_call_by_call", &anyone, call_by_call),
        Case::new("rsockets_cancelled_while_they_wait", &anyone, cancelled),
        Case::new("rsockets_programs", &programs, programs_of_rdma_core),
        Case::new("rsockets_rcopy", &programs, rcopy),
        Case::new("rsockets_datagrams", &anyone, datagrams),
        Case::new("rsockets_udpong", &programs, udpong),
        Case::new("librspreload_netcat", &netcat, librspreload),
        Case::new("librspreload_iperf3", &iperf, iperf3),
    ]
}

fn call_by_call() -> Outcome {
    let host = Host::loopback()?;
    let libraries = ["-libverbs", "-lrdmacm"];
    let program = c_program_with("rsock", "rsock", "cc", &libraries)?;
    for address in [&host.v4, &host.v6] {
        all_ok(&host.rocebud(&program, &[address]).limit(120))?;
    }
    Ok(())
}

/// As the distribution's, calls that wait are cancellation points, and leave nothing locked.
fn cancelled() -> Outcome {
    let host = Host::loopback()?;
    let libraries = ["-lrdmacm", "-ldl"];
    let program = c_program_with("rscancel", "rscancel", "cc", &libraries)?;
    for address in [&host.v4, &host.v6] {
        all_ok(&host.rocebud(&program, &[address]).limit(120))?;
    }
    Ok(())
}

/// A program of our own that says "ok" of every case; what it says else is wrong.
fn all_ok(spec: &Spec) -> Outcome {
    let ran = spec.run()?;
    if ran.code == Some(0) {
        return Ok(());
    }
    let bad = |l: &&str| !l.starts_with("ok ");
    let lines: Vec<&str> = ran.output.lines().filter(bad).collect();
    let (code, signal) = (ran.code, ran.signal);
    wrong(format!(
        "status {code:?}, signal {signal:?}\n{}",
        lines.join("\n")
    ))
}

/// Datagrams and sets of sockets, within one process.
fn datagrams() -> Outcome {
    let host = Host::loopback()?;
    let program = c_program_with("rsdgram", "rsdgram", "cc", &["-libverbs", "-lrdmacm"])?;
    for address in [&host.v4, &host.v6] {
        all_ok(&host.rocebud(&program, &[address]).limit(120))?;
    }
    Ok(())
}

/// udpong within a host and between two; then hosts with two addresses each, every byte checked.
fn udpong() -> Outcome {
    let wire = Wire::new(1500)?;
    let mut series = Series::default();
    for (server, client) in [(&wire.a, &wire.a), (&wire.a, &wire.b), (&wire.b, &wire.a)] {
        for address in [&server.v4, &server.v6] {
            let mut running = server
                .rocebud("udpong", &["-b", address])
                .limit(120)
                .start()?;
            for line in UDPONG.lines() {
                let options = line.split_whitespace();
                let options: Vec<&str> = ["-s", address].into_iter().chain(options).collect();
                // A client that finds nobody yet asks again by itself.
                let ran = client.rocebud("udpong", &options).limit(60).run()?.well();
                let done = ran
                    .and_then(|ran| ensure(ran.output.contains("custom"), || ran.output.clone()));
                series.note(&format!("{address} {line}"), done);
            }
            series.note(
                address,
                ensure(running.alive(), || "the server ended".to_owned()),
            );
            running.kill();
        }
    }
    series.end()
}

/// `POLLERR | POLLHUP`
const ERR_AND_HUP: i32 = 24;

/// Starts a server that says nothing when it listens, and a client again and again until it does.
fn pair(server: &Spec, client: &Spec) -> Result<Finished, Failure> {
    let mut s = server.start()?;
    for _ in 0..200 {
        let ran = client.run()?;
        // where rstream connects without waiting it says the bits that rpoll found instead
        let early = ran.output.contains("Connection refused") || ran.code == Some(ERR_AND_HUP);
        if !early {
            let ran = ran.well()?;
            s.finish()?.succeeded()?;
            return Ok(ran);
        }
        if !s.alive() {
            s.finish()?.succeeded()?;
            return wrong("the server ended before its client came");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    wrong(format!("the server never listened: {}", s.output()))
}

fn programs_of_rdma_core() -> Outcome {
    let wire = Wire::new(1500)?;
    let mut series = Series::default();
    for line in PROGRAMS.lines() {
        for (family, address) in [("v4", &wire.a.v4), ("v6", &wire.a.v6)] {
            let mut words = line.split_whitespace();
            let program = words.next().unwrap_or_default();
            let options: Vec<&str> = words.collect();
            let server = [&["-b", address.as_str()], &options[..]].concat();
            let client = [&["-s", address.as_str()], &options[..]].concat();
            let done = pair(
                &wire.a.rocebud(program, &server).limit(60),
                &wire.b.rocebud(program, &client).limit(60),
            );
            series.note(&format!("{line} {family}"), done.map(drop));
        }
    }
    series.end()
}

fn scratch(name: &str) -> String {
    let of = format!("rocebud-{}-{name}", std::process::id());
    std::env::temp_dir().join(of).display().to_string()
}

/// A file whose bytes do not repeat.
fn write_file(path: &str, len: usize) -> Outcome {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    });
    let bytes: Vec<u8> = words.take(len.div_ceil(8)).flatten().take(len).collect();
    Ok(std::fs::write(path, bytes)?)
}

fn same(a: &str, b: &str) -> Outcome {
    let (left, right) = (std::fs::read(a)?, std::fs::read(b)?);
    ensure(left == right, || {
        format!("{} bytes became {}", left.len(), right.len())
    })
}

/// Files that go when the case ends.
struct Files([String; 2]);

impl Drop for Files {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// rcopy with one server for two files.
fn rcopy() -> Outcome {
    let wire = Wire::new(9000)?;
    let files = Files([scratch("rcopy-in"), scratch("rcopy-out")]);
    let [from, to] = &files.0;
    let mut server = wire.a.rocebud("rcopy", &[]).limit(90).start()?;
    for len in [30_000_000, 12_345] {
        write_file(from, len)?;
        let target = format!("{}:{to}", wire.a.v4);
        let client = wire.b.rocebud("rcopy", &[from, &target]).limit(60);
        let mut tries = 0;
        loop {
            let ran = client.run()?;
            if ran.code == Some(0) {
                break;
            }
            tries += 1;
            if tries > 100 || !server.alive() || !ran.output.contains("refused") {
                return ran.succeeded().map(drop);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        same(from, to)?;
    }
    server.kill();
    Ok(())
}

/// A program with librspreload in front of it.
fn preloaded(host: &Host, script: &str) -> Result<Spec, Failure> {
    let found = ["x86_64", "aarch64"]
        .map(|cpu| format!("/usr/lib/{cpu}-linux-gnu/rsocket/librspreload.so"))
        .into_iter()
        .find(|path| Path::new(path).exists());
    let Some(preload) = found else {
        return wrong("librspreload.so is not where the distribution puts it");
    };
    let all = format!("export LD_PRELOAD={preload}; exec {script}");
    Ok(host.rocebud("sh", &["-c", &all]).limit(100))
}

/// A connection that controls and one that carries, four that carry, and the other way round.
fn iperf3() -> Outcome {
    let wire = Wire::new(9000)?;
    let mut series = Series::default();
    for address in [&wire.a.v4, &wire.a.v6] {
        for options in ["", "-R", "-P 4"] {
            let run = || {
                let script = format!("iperf3 -s -1 --forceflush -B {address}");
                let mut server = preloaded(&wire.a, &script)?.start()?;
                server.wait_for("listening")?;
                let script = format!("iperf3 -c {address} -n 64M {options}");
                let ran = preloaded(&wire.b, &script)?.run()?.well()?;
                ensure(ran.output.contains("iperf Done."), || ran.output.clone())?;
                server.finish()?.succeeded().map(drop)
            };
            series.note(&format!("{address} {options}"), run());
        }
    }
    series.end()
}

/// 100 MiB through netcat, once in each direction.
fn librspreload() -> Outcome {
    let wire = Wire::new(9000)?;
    let files = Files([scratch("nc-in"), scratch("nc-out")]);
    let [from, to] = &files.0;
    write_file(from, 100 << 20)?;
    let address = &wire.a.v4;
    for (listener, caller) in [
        (
            format!("</dev/null >{to}"),
            format!("-q 0 {address} 7000 <{from}"),
        ),
        (
            format!("-q 0 <{from}"),
            format!("{address} 7000 </dev/null >{to}"),
        ),
    ] {
        let script = format!("nc.traditional -v -n -l -p 7000 -s {address} {listener}");
        let mut server = preloaded(&wire.a, &script)?.start()?;
        server.wait_for("listening on")?;
        let script = format!("nc.traditional -n {caller}");
        preloaded(&wire.b, &script)?.run()?.succeeded()?;
        server.finish()?.succeeded()?;
        same(from, to)?;
        std::fs::remove_file(to)?;
    }
    Ok(())
}
