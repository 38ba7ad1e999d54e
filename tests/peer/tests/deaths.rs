//! Processes that die: a peer, a parent whose child lives on, the daemon.

use std::time::{Duration, Instant};

use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::{Finished, Running, Spec, duo};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::{self, c_program};
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::machine::daemons;
use rocebud_peer::status::Status;

pub(crate) fn cases() -> Vec<Case> {
    let compiled = [Need::Root, Need::Build, Need::Compiler];
    let perftest = [Need::Root, Need::Build, Need::Program("ib_write_bw")];
    let deaf = [Need::Root, Need::Build, Need::Program("unshare")];
    type Run = fn() -> Outcome;
    let all: [(&str, &[Need], Run); 8] = [
        ("kill_9_of_a_target_in_mid_transfer", &compiled, target_dies),
        (
            "kill_9_of_a_requester_in_mid_transfer",
            &perftest,
            requester_dies,
        ),
        (
            "kill_9_of_a_parent_whose_child_lives_on",
            &compiled,
            parent_dies,
        ),
        ("daemon_killed_under_traffic", &compiled, daemon_dies),
        (
            "daemon_killed_under_perftest",
            &perftest,
            daemon_dies_under_perftest,
        ),
        (
            "a_stopped_program_of_a_dead_daemon_is_named",
            &compiled,
            stopped_holder,
        ),
        ("a_daemon_that_never_answers_is_named", &deaf, deaf_daemon),
        (
            "a_hundred_runs_leave_nothing_behind",
            &compiled,
            hundred_runs,
        ),
    ];
    let case = |(name, needs, run): (&str, &[Need], Run)| Case::new(name, needs, run);
    all.into_iter().map(case).collect()
}

/// Two ends of `stream` (see `c/stream.c`) on a wire; the client streams already.
pub(crate) struct Stream {
    pub(crate) server: Running,
    pub(crate) client: Running,
}

impl Stream {
    /// Server on `a`, client on `b`, with options of their own.
    pub(crate) fn start(wire: &Wire, server: &[&str], client: &[&str]) -> Result<Self, Failure> {
        Self::between(&wire.a, &wire.b, server, client)
    }

    pub(crate) fn between(
        s: &Host,
        c: &Host,
        server: &[&str],
        client: &[&str],
    ) -> Result<Self, Failure> {
        let port = server.iter().skip_while(|a| **a != "-p").nth(1);
        let port: u16 = port.unwrap_or(&"18900").parse()?;
        let mut server = stream(s, server)?.start()?;
        server.wait_listening(s, port)?;
        let to = [client, &[s.v4.as_str()]].concat();
        let mut client = stream(c, &to)?.start()?;
        client.wait_for("streaming")?;
        server.wait_for("serving")?;
        Ok(Self { server, client })
    }
}

/// `stream` on the host's device.
pub(crate) fn stream(host: &Host, args: &[&str]) -> Result<Spec, Failure> {
    let program = c_program("stream")?;
    let device = host.device();
    let all = [&["-d", device.as_str()], args].concat();
    Ok(host.rocebud(&program, &all).limit(60))
}

/// A short stream from `c` to `s` that must simply work.
pub(crate) fn works(s: &Host, c: &Host) -> Outcome {
    // a port of its own: a child that lives on may hold the other
    let server = stream(s, &["-p", "18902"])?;
    let client = stream(c, &["-p", "18902", "-n", "500", &s.v4])?;
    duo((s, &server), &client, 18902).map(drop)
}

/// Status, silence and nominal wait of "ended status N (…) after X ms of silence, Y ms of timeout
/// times R tries".
fn ending(said: &str) -> Result<(u32, f64, f64), Failure> {
    let line = said.lines().find(|l| l.starts_with("ended status"));
    let numbers: Vec<f64> = line
        .unwrap_or_default()
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .filter_map(|w| w.parse().ok())
        .collect();
    match numbers[..] {
        [status, silence, timeout, tries] => Ok((status as u32, silence, timeout * tries)),
        _ => wrong(format!("no ending in:\n{said}")),
    }
}

/// The client's request ran into the void: RETRY_EXC_ERR after one to four times what it asked for.
/// (Half a second more for a busy machine; too early there is no excuse for.)
fn ended_by_silence(client: Finished) -> Outcome {
    let said = client.exited(1)?;
    let (status, silence, nominal) = ending(&said)?;
    ensure(status == 12, || format!("status {status}:\n{said}"))?;
    let right = silence >= nominal * 0.99 && silence <= nominal * 4.0 + 500.0;
    ensure(right, || {
        format!("{silence} ms of silence, nominal {nominal} ms:\n{said}")
    })?;
    ensure(said.contains("\ndestroyed\n"), || said.clone())
}

fn target_dies() -> Outcome {
    let wire = Wire::new(1500)?;
    let runs: [&[&str]; 4] = [
        &["-o", "write"],
        &["-o", "read", "-e", "-t", "12"],
        &["-o", "send", "-t", "13", "-r", "3"],
        &["-o", "write", "-t", "15", "-r", "1"],
    ];
    for args in runs {
        let Stream { mut server, client } = Stream::start(&wire, &args[..2], args)?;
        server.kill();
        ended_by_silence(client.finish()?)?;
        // at once, while the slots of both rest
        works(&wire.a, &wire.b)?;
        ensure(!Status::of(&wire.a)?.time_waits().is_empty(), || {
            "no slot in time-wait".into()
        })?;
    }
    Ok(())
}

/// With traffic in both directions the server has requests outstanding, too.
fn requester_dies() -> Outcome {
    let wire = Wire::new(1500)?;
    let args = ["-D", "60", "-s", "65536", "-F", "-b"];
    let mut server = wire.a.rocebud("ib_write_bw", &args).limit(90).start()?;
    server.wait_listening(&wire.a, 18515)?;
    let to = [&args[..], &[wire.a.v4.as_str()]].concat();
    let mut client = wire.b.rocebud("ib_write_bw", &to).limit(90).start()?;
    wait_for_traffic(&wire.a)?;
    client.kill();
    let start = Instant::now();
    let server = server.finish()?;
    ensure(
        server.code == Some(1) && server.output.contains("Failed status 12"),
        || format!("server: {:?}\n{}", server.code, server.output),
    )?;
    ensure(start.elapsed() < Duration::from_secs(10), || {
        format!("it took {:?}", start.elapsed())
    })?;
    let quick = ["-F", "-n", "200"];
    let server = wire.a.rocebud("ib_write_bw", &quick);
    let client = wire
        .b
        .rocebud("ib_write_bw", &["-F", "-n", "200", &wire.a.v4]);
    duo((&wire.a, &server), &client, 18515).map(drop)
}

/// Waits until data packets arrive in `host`.
pub(crate) fn wait_for_traffic(host: &Host) -> Outcome {
    let end = Instant::now() + Duration::from_secs(30);
    // Until its first program has started it, there is no daemon either.
    while !Status::of(host).is_ok_and(|status| status.counter("rcvd_pkts") >= 1000) {
        ensure(Instant::now() < end, || "no traffic after 30 s".into())?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The child holds every descriptor of its parent's that the library left it; made past the C
/// library, even all. The QPNs are the daemon's within a second all the same.
fn parent_dies() -> Outcome {
    let wire = Wire::new(1500)?;
    for child in ["-f", "-F"] {
        let Stream { mut server, client } = Stream::start(&wire, &[child], &["-t", "15"])?;
        let said = server.wait_for("child ")?;
        let number = said.split("child ").nth(1).unwrap_or_default();
        let orphan: u32 = number.lines().next().unwrap_or_default().trim().parse()?;
        let before = Status::of(&wire.a)?;
        server.signal("KILL")?;
        std::thread::sleep(Duration::from_secs(1));
        let after = Status::of(&wire.a)?;
        let left = after.time_waits();
        ensure(left.len() > before.time_waits().len(), || {
            format!("{child}: no slot rests one second after the death")
        })?;
        ensure(left.iter().all(|ms| *ms <= 10_000), || format!("{left:?}"))?;
        let alive = std::path::Path::new(&format!("/proc/{orphan}/status")).exists();
        ensure(alive, || "the child is gone".into())?;
        // the client tries again and again, and slot 0 answers (with silence)
        let dropped = |s: &Status| s.counter("drop_no_qp");
        let end = Instant::now() + Duration::from_secs(5);
        while dropped(&Status::of(&wire.a)?) <= dropped(&before) {
            ensure(Instant::now() < end, || {
                format!("{child}: nothing arrives at slot 0")
            })?;
        }
        let bin = tree::rocebud().display().to_string();
        let said = wire.a.plain(&bin, &["status"]).run()?.succeeded()?;
        ensure(said.contains("time-wait, "), || said.clone())?;
        works(&wire.a, &wire.b)?;
        ended_by_silence(client.finish()?)?;
        server.kill();
    }
    Ok(())
}

/// What a program says whose daemon died or whose device went (see `stream.c`): the event, flushed
/// requests, errors from calls, and everything can be destroyed.
pub(crate) fn told_of_the_end(client: Finished, errnos: &[i32]) -> Outcome {
    let said = client.output.clone();
    // a flushed request is the first sign, or a call that is refused
    if client.code == Some(3) {
        let refused = |e: &i32| said.contains(&format!("call ibv_post_send errno {e}\n"));
        ensure(errnos.iter().any(refused), || said.clone())?;
    } else {
        let said = client.exited(1)?;
        let (status, ..) = ending(&said)?;
        ensure(status == 5, || format!("status {status}:\n{said}"))?;
    }
    for words in [
        "event 8 (",
        "no more events: errno 5\n",
        "\nflushed ",
        "port state 1 errno 0\n",
        "\ndestroyed\n",
    ] {
        ensure(said.contains(words), || format!("no '{words}' in:\n{said}"))?;
    }
    // what was posted is flushed before polling fails
    let early = said.contains("call ibv_poll_cq") || said.contains("flushed 0");
    ensure(!early, || said.clone())?;
    for call in ["ibv_create_cq", "ibv_reg_mr", "ibv_modify_qp"] {
        let right = |e: &i32| said.contains(&format!("call {call} errno {e}\n"));
        ensure(errnos.iter().any(right), || format!("{call} in:\n{said}"))?;
    }
    Ok(())
}

pub(crate) fn kill_daemon(host: &Host, signal: &str) -> Outcome {
    for pid in daemons(host) {
        host.tool(&format!("kill -s {signal} {pid}"))?;
    }
    Ok(())
}

/// Within seconds, though no program did anything about it.
fn ends_soon(program: Running) -> Result<Finished, Failure> {
    let start = Instant::now();
    let ended = program.finish()?;
    ensure(start.elapsed() < Duration::from_secs(8), || {
        format!("it took {:?}:\n{}", start.elapsed(), ended.output)
    })?;
    Ok(ended)
}

fn daemon_dies() -> Outcome {
    const EIO: i32 = 5;
    let wire = Wire::new(1500)?;
    for (signal, args) in [("KILL", &["-t", "18"][..]), ("TERM", &["-e", "-o", "read"])] {
        // the requester's daemon
        let Stream { server, client } = Stream::start(&wire, &[], args)?;
        kill_daemon(&wire.b, signal)?;
        told_of_the_end(ends_soon(client)?, &[EIO])?;
        server.finish()?.succeeded()?;
        // the target's: it sleeps, calls no verb, and must not be in the next one's way
        let Stream {
            server: mut sleeper,
            client,
        } = Stream::start(&wire, &["-w"], args)?;
        kill_daemon(&wire.a, signal)?;
        works(&wire.a, &wire.b)?;
        ensure(sleeper.output().contains("event 8 ("), || sleeper.output())?;
        sleeper.kill();
        drop(client);
    }
    // a process that only waits in read() for its peer, and three generations of daemons
    let mut old = Vec::new();
    for _ in 0..3 {
        let mut program = stream(&wire.a, &["-p", &format!("1891{}", old.len())])?.start()?;
        program.wait_listening(&wire.a, 18910 + old.len() as u16)?;
        old.push(program);
        kill_daemon(&wire.a, "KILL")?;
    }
    works(&wire.a, &wire.b)?;
    ensure(old.iter_mut().all(Running::alive), || {
        "one has ended".into()
    })
}

fn daemon_dies_under_perftest() -> Outcome {
    let wire = Wire::new(1500)?;
    for events in [&[][..], &["-e"]] {
        let args = [&["-n", "2000000", "-s", "4096", "-F"], events].concat();
        let mut server = wire.a.rocebud("ib_send_bw", &args).limit(60).start()?;
        server.wait_listening(&wire.a, 18515)?;
        let to = [&args[..], &[wire.a.v4.as_str()]].concat();
        let client = wire.b.rocebud("ib_send_bw", &to).limit(60).start()?;
        wait_for_traffic(&wire.a)?;
        kill_daemon(&wire.a, "KILL")?;
        kill_daemon(&wire.b, "KILL")?;
        for (side, program) in [("server", server), ("client", client)] {
            let ended = ends_soon(program)?;
            let failed = ended.code.is_some_and(|c| c != 0);
            ensure(failed, || {
                format!("{side}: {:?}\n{}", ended.code, ended.output)
            })?;
        }
    }
    works(&wire.a, &wire.b)
}

/// A stopped process cannot let go of the port. Whoever needs it is told who that is.
fn stopped_holder() -> Outcome {
    let host = Host::loopback()?;
    let mut old = stream(&host, &[])?.start()?;
    old.wait_listening(&host, 18900)?;
    let pair = Stream::between(&host, &host, &["-p", "18901"], &["-p", "18901"]);
    let Stream { server, client } = pair?;
    server.signal("STOP")?;
    kill_daemon(&host, "KILL")?;
    let ran = host.rocebud("ibv_devices", &[]).limit(20).run()?;
    let words = format!("4791 is held by process {} ", server.pid());
    ensure(ran.output.contains(&words), || {
        format!("no '{words}' in:\n{}", ran.output)
    })?;
    server.signal("CONT")?;
    told_of_the_end(client.finish()?, &[5])?;
    let said = host
        .rocebud("ibv_devices", &[])
        .limit(20)
        .run()?
        .succeeded()?;
    ensure(said.contains("rb_lo"), || said.clone())?;
    ensure(old.alive(), || old.output())
}

/// Who listens at the system's socket and never answers costs the programs of its namespace two
/// seconds and a line that names it, and those of another namespace next to nothing.
fn deaf_daemon() -> Outcome {
    let (here, other) = (Host::loopback()?, Host::loopback()?);
    let [h, o] = [&here, &other].map(|h| h.namespace().unwrap_or_default());
    let bin = tree::rocebud().display().to_string();
    let script = tree::script("deaf_daemon.sh");
    let all = ["-m", "/bin/sh", &script, &bin, h, o];
    let said = Host::outside("unshare", &all)
        .limit(60)
        .run()?
        .succeeded()?;
    let deaf = said.lines().find_map(|l| l.strip_prefix("listener "));
    let words = format!("(process {}, user 0) does not answer", deaf.unwrap_or("?"));
    for (namespace, command, status, limit_ms) in [
        (o, "devices", 0, 4000),
        (o, "status", 0, 2000),
        (h, "status", 1, 5000),
        (h, "devices", 1, 5000),
        (h, "run", 1, 5000),
    ] {
        let begins = format!("== {namespace} {command}: status {status} after ");
        let line = said.lines().find_map(|l| l.strip_prefix(&begins));
        let ms = line.and_then(|l| l.split(' ').next()?.parse::<u64>().ok());
        ensure(ms.is_some_and(|ms| ms < limit_ms), || {
            format!("{namespace} {command}: not {status} within {limit_ms} ms:\n{said}")
        })?;
    }
    ensure(said.matches(&words).count() == 3, || {
        format!("not three times '{words}' in:\n{said}")
    })
}

/// What a host has that must not pile up.
#[derive(Debug, PartialEq, Eq)]
struct Belongings {
    daemon_fds: usize,
    udp_sockets: usize,
    unix_sockets: usize,
    processes: usize,
}

impl Belongings {
    fn of(host: &Host) -> Result<Self, Failure> {
        let daemon = daemons(host);
        let fds = daemon
            .iter()
            .map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count))
            .sum::<Result<usize, _>>()?;
        let lines = |args: &[&str]| -> Result<usize, Failure> {
            Ok(host.plain("ss", args).run()?.succeeded()?.lines().count())
        };
        Ok(Self {
            daemon_fds: fds,
            udp_sockets: lines(&["-Huan"])?,
            unix_sockets: lines(&["-Hxa"])?,
            processes: host.pids().len(),
        })
    }

    /// The same as soon as everything has settled.
    fn settled(host: &Host) -> Result<Self, Failure> {
        let end = Instant::now() + Duration::from_secs(5);
        let mut before = Self::of(host)?;
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let now = Self::of(host)?;
            if now == before || Instant::now() > end {
                return Ok(now);
            }
            before = now;
        }
    }
}

/// A directory in place of the user's, so that what is left in it is ours; removed at the end.
struct RuntimeDir(std::path::PathBuf);

impl RuntimeDir {
    fn new() -> Result<Self, Failure> {
        let dir = std::env::temp_dir().join(format!("rocebud-peer-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

    fn of(&self, spec: Spec) -> Spec {
        spec.env("XDG_RUNTIME_DIR", &self.0.display().to_string())
    }

    /// Trees that `rocebud run` made and nobody has removed.
    fn trees(&self) -> Result<Vec<String>, Failure> {
        let entries = std::fs::read_dir(self.0.join("rocebud"))?;
        let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
        Ok(names.collect())
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn hundred_runs() -> Outcome {
    let host = Host::loopback()?;
    let dir = RuntimeDir::new()?;
    let own = |args: &[&str]| stream(&host, args).map(|spec| dir.of(spec));
    let server_spec = own(&[])?;
    let client_spec = own(&["-n", "50", "127.0.0.1"])?;
    let endless = own(&["127.0.0.1"])?;
    // keeps the daemon alive, so that it is one and the same
    let mut keeper = own(&["-p", "18901"])?.start()?;
    keeper.wait_listening(&host, 18901)?;
    let mut after_ten = None;
    for run in 0..100 {
        let mut server = server_spec.start()?;
        server.wait_listening(&host, 18900)?;
        if run % 3 == 2 {
            let mut client = endless.start()?;
            client.wait_for("streaming")?;
            if run % 2 == 0 {
                server.kill();
            }
            client.kill();
            server.kill();
        } else {
            client_spec.run()?.succeeded()?;
            server.finish()?.succeeded()?;
        }
        if run == 9 {
            after_ten = Some(Belongings::settled(&host)?);
        }
    }
    let after_all = Belongings::settled(&host)?;
    ensure(after_ten.as_ref() == Some(&after_all), || {
        format!("after 10 runs {after_ten:?}, after 100 {after_all:?}")
    })?;
    let resting = Status::of(&host)?.time_waits().len();
    ensure(resting > 10, || format!("only {resting} slots rest"))?;
    let end = Instant::now() + Duration::from_secs(20);
    while !Status::of(&host)?.time_waits().is_empty() {
        ensure(Instant::now() < end, || {
            "slots still rest after 20 s".into()
        })?;
        std::thread::sleep(Duration::from_millis(200));
    }
    keeper.kill();
    let end = Instant::now() + Duration::from_secs(40);
    while !host.pids().is_empty() {
        ensure(Instant::now() < end, || format!("left: {:?}", host.pids()))?;
        std::thread::sleep(Duration::from_millis(200));
    }
    let left = dir.trees()?;
    ensure(left.is_empty(), || format!("trees are left: {left:?}"))
}
