//! Full rate, and nothing lost: shared buffers, neighbours of one host, mixed batches, programs that have
//! no turn for a while.

use std::time::Duration;

use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::{Running, Spec, duo};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::status::Status;
use rocebud_peer::tree::{c_program, script};
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::machine::build_for_everybody;
use crate::places::Series;

/// What a socket gets on a stock Debian, in bytes; the tests' daemons are root's and would get 128 MiB.
const SMALL_BUFFER: (&str, &str) = ("ROCEBUD_RCVBUF", "212992");

/// Of ten runs, so many may see the scheduler's doing.
const EXCUSED_OF_TEN: usize = 1;

const PERFTEST_PORT: u16 = 18515;

pub(crate) fn cases() -> Vec<Case> {
    let bw = [Need::Root, Need::Build, Need::Program("ib_send_bw")];
    let compiled = [Need::Root, Need::Build, Need::Compiler];
    vec![
        Case::new("ud_ends_by_itself_20_times", &bw, || {
            ends_by_itself("UD", 1500)
        }),
        Case::new("uc_ends_by_itself_20_times", &bw, || {
            ends_by_itself("UC", 4300)
        }),
        Case::new(
            "losses_of_an_ordinary_user_are_counted",
            &compiled,
            losses_are_counted,
        ),
        Case::new("eight_queue_pairs_lose_nothing", &bw, eight_queue_pairs),
        Case::new("one_process_streams_to_two", &compiled, fan_out),
        Case::new(
            "neighbours_with_small_buffers_lose_nothing",
            &bw,
            small_buffers,
        ),
        Case::new(
            "many_neighbours_of_one_small_buffer_lose_nothing",
            &compiled,
            many_to_one,
        ),
        Case::new(
            "killed_neighbours_take_no_room_along",
            &compiled,
            killed_senders,
        ),
        Case::new("sixty_four_processes_at_once", &bw, sixty_four),
        Case::new("mixed_batches_reach_their_owners", &compiled, mixed_batches),
        Case::new("a_stopped_side_is_waited_for", &bw, stopped_for_a_while),
        Case::new("a_side_stopped_for_good_is_an_error", &bw, stopped_for_good),
    ]
}

/// Server and client of a perftest program over a wire.
fn perftest(wire: &Wire, program: &str, options: &[&str]) -> Outcome {
    let server = wire.a.rocebud(program, options).limit(60);
    let to_server = [options, &[wire.a.v4.as_str()]].concat();
    let client = wire.b.rocebud(program, &to_server).limit(60);
    duo((&wire.a, &server), &client, PERFTEST_PORT).map(drop)
}

/// UC and UD have nothing that holds a sender back or sends again: buffers must take it.
fn ends_by_itself(service: &str, mtu: u32) -> Outcome {
    let wire = Wire::new(mtu)?;
    let mut series = Series::default();
    for n in 0..20 {
        let run = perftest(&wire, "ib_send_bw", &["-c", service, "-F"]);
        series.note(&format!("{service} run {n}"), run);
    }
    series.end()
}

/// A sink that is stopped while more comes than its buffer holds. What it gets and what `status` counts
/// make up what was sent.
fn losses_are_counted() -> Outcome {
    const SENT: u64 = 600;
    let wire = Wire::new(1500)?;
    let (bin, _gone) = build_for_everybody()?;
    let flow = copy_for_everybody(&bin, &c_program("flow")?)?;
    let sent = SENT.to_string();
    let args = [
        "run", "--", &flow, "sink", "-d", "rb_ve0", "-n", &sent, "-s", "1000", "-w", "2",
    ];
    let (name, bytes) = SMALL_BUFFER;
    let sink = wire.a.plain(&bin, &args).as_nobody().env(name, bytes);
    let mut sink = sink.limit(60).start()?;
    let qpn = qpn_of(&mut sink)?;
    sink.signal("STOP")?;
    send(&wire, "singles", SENT, "0", &[qpn])?;
    sink.signal("CONT")?;
    let said = sink.finish()?.exited(1)?;
    let got: u64 = number_before(&said, &format!(" of {SENT}\n"))?;
    let status = wire.a.plain(&bin, &["status", "--json"]).as_nobody();
    let status = Status::said_by(&status)?;
    let lost = status.counter("socket_overflow");
    ensure(lost > 0 && got + lost == SENT, || {
        format!("{SENT} sent, {got} received, {lost} counted as lost")
    })
}

/// `path` beside the build that everybody can reach.
fn copy_for_everybody(bin: &str, path: &str) -> Result<String, Failure> {
    let to = std::path::Path::new(bin).with_file_name("flow");
    std::fs::copy(path, &to)?;
    Ok(to.display().to_string())
}

/// Runs ten times; all but [`EXCUSED_OF_TEN`] must send nothing again, and all must succeed.
fn ten_without_retransmission(sender: &Host, run: impl Fn() -> Outcome) -> Outcome {
    let mut again = Vec::new();
    for n in 0..10 {
        let mark = Status::of(sender).map(|s| s.mark()).unwrap_or_default();
        run()?;
        let status = Status::of(sender)?;
        match status.counter_since(&mark, "retransmits") {
            0 => {}
            count => again.push(format!("run {n}: {count}")),
        }
    }
    ensure(again.len() <= EXCUSED_OF_TEN, || {
        format!("retransmissions on a clean link: {again:?}")
    })
}

fn eight_queue_pairs() -> Outcome {
    let wire = Wire::new(4300)?;
    for (program, count) in [
        ("ib_write_bw", "600"),
        ("ib_send_bw", "600"),
        ("ib_read_bw", "600"),
    ] {
        ten_without_retransmission(&wire.b, || {
            perftest(&wire, program, &["-q", "8", "-n", count, "-F"])
        })
        .map_err(|e| named(program, e))?;
    }
    Ok(())
}

fn named(what: &str, failure: Failure) -> Failure {
    match failure {
        Failure::Wrong(why) => Failure::Wrong(format!("{what}: {why}")),
        skip @ Failure::Skip(_) => skip,
    }
}

/// One process streams to two of another host, and to two of its own host whose buffers are small.
fn fan_out() -> Outcome {
    let wire = Wire::new(4300)?;
    ten_without_retransmission(&wire.b, || fan(&wire.a, &wire.b, None))?;
    let wire = Wire::new(4300)?;
    ten_without_retransmission(&wire.a, || fan(&wire.a, &wire.a, Some(SMALL_BUFFER)))
}

fn fan(takers: &Host, sender: &Host, env: Option<(&str, &str)>) -> Outcome {
    const PORTS: [u16; 2] = [18901, 18902];
    let flow = c_program("flow")?;
    let with = |spec: Spec| match env {
        Some((name, value)) => spec.env(name, value).limit(60),
        None => spec.limit(60),
    };
    let mut running = Vec::new();
    for port in PORTS {
        let words = port.to_string();
        let args = ["take", "-d", "rb_ve0", "-p", &words];
        let mut taker = with(takers.rocebud(&flow, &args)).start()?;
        taker.wait_listening(takers, port)?;
        running.push(taker);
    }
    let [first, second] = PORTS.map(|p| p.to_string());
    let args = [
        "fan", "-d", "rb_ve0", "-n", "400", &takers.v4, &first, &second,
    ];
    with(sender.rocebud(&flow, &args)).run()?.succeeded()?;
    for taker in running {
        taker.finish()?.succeeded()?;
    }
    Ok(())
}

/// Neighbours know each other's buffers: even the smallest lose nothing, whatever the service.
fn small_buffers() -> Outcome {
    const RUNS: &[(&str, &[&str])] = &[
        ("ib_send_bw", &["-c", "UC"]),
        ("ib_send_bw", &["-c", "UD"]),
        ("ib_send_bw", &["-q", "4", "-n", "500"]),
        ("ib_write_bw", &["-q", "4", "-n", "500", "-b"]),
        ("ib_write_bw", &["-c", "UC"]),
        ("ib_read_bw", &[]),
    ];
    let wire = Wire::new(4300)?;
    let host = &wire.a;
    let (name, bytes) = SMALL_BUFFER;
    let mut series = Series::default();
    for (program, options) in RUNS {
        let options = [*options, &["-F", "-d", "rb_ve0"]].concat();
        let to_server = [&options[..], &[host.v4.as_str()]].concat();
        let side = |args: &[&str]| host.rocebud(program, args).env(name, bytes).limit(60);
        let (server, client) = (side(&options), side(&to_server));
        let what = format!("{program} {}", options.join(" "));
        series.note(&what, duo((host, &server), &client, PERFTEST_PORT));
    }
    let status = Status::of(host)?;
    for name in ["socket_overflow", "drop_no_receive"] {
        let lost = status.counter(name);
        series.note(name, ensure(lost == 0, || format!("{lost} lost")));
    }
    series.end()
}

/// A sink with a small buffer on a host of its own, and its queue pair's number. `count` datagrams of
/// 4000 bytes.
fn small_sink(wire: &Wire, count: u64, seconds: &str) -> Result<(Running, String), Failure> {
    let (name, bytes) = SMALL_BUFFER;
    let count = count.to_string();
    let args = [
        "sink", "-d", "rb_ve0", "-n", &count, "-s", "4000", "-w", seconds,
    ];
    let sink = wire.a.rocebud(&c_program("flow")?, &args);
    let mut sink = sink.env(name, bytes).limit(120).start()?;
    let qpn = qpn_of(&mut sink)?;
    Ok((sink, qpn))
}

fn streamer(wire: &Wire, qpn: &str, first: u64, count: u64) -> Result<Running, Failure> {
    let (first, count) = (first.to_string(), count.to_string());
    let args = [
        "stream", "-d", "rb_ve0", "-n", &count, "-s", "4000", "-f", &first, qpn,
    ];
    let (name, bytes) = SMALL_BUFFER;
    let stream = wire.a.rocebud(&c_program("flow")?, &args);
    stream.env(name, bytes).limit(120).start()
}

/// Five processes stream datagrams to one whose buffer holds 22 of them: each arrives, once.
fn many_to_one() -> Outcome {
    const SENDERS: u64 = 5;
    const EACH: u64 = 2000;
    let wire = Wire::new(4300)?;
    let (sink, qpn) = small_sink(&wire, SENDERS * EACH, "20")?;
    let senders = (0..SENDERS).map(|n| streamer(&wire, &qpn, n * EACH, EACH));
    let senders: Vec<Running> = senders.collect::<Result<_, _>>()?;
    for sender in senders {
        sender.finish()?.succeeded()?;
    }
    let ended = sink.finish()?.succeeded();
    let lost = Status::of(&wire.a)?.counter("socket_overflow");
    ensure(lost == 0, || format!("{lost} datagrams lost"))?;
    ended.map(drop)
}

/// What a sender has reserved when it is killed is free again, and no more than that.
fn killed_senders() -> Outcome {
    const KILLED: u64 = 12;
    const MOST: u64 = 1200;
    let wire = Wire::new(4300)?;
    let (sink, qpn) = small_sink(&wire, (KILLED + 1) * MOST, "3")?;
    for n in 0..KILLED {
        let mut sender = streamer(&wire, &qpn, n * MOST, MOST)?;
        sender.wait_for("streaming")?;
        std::thread::sleep(Duration::from_millis(3 * n));
        sender.kill();
    }
    let last = streamer(&wire, &qpn, KILLED * MOST, MOST)?;
    last.finish()?.succeeded()?;
    let said = sink.finish()?;
    let got: u64 = number_before(&said.output, &format!(" of {}\n", (KILLED + 1) * MOST))?;
    println!("   {got} datagrams, {MOST} of them after {KILLED} were killed");
    let lost = Status::of(&wire.a)?.counter("socket_overflow");
    ensure(lost == 0 && got >= MOST, || {
        format!("{lost} datagrams lost, {got} received")
    })
}

/// 32 pairs on a machine of few cores, all transferring at once.
fn sixty_four() -> Outcome {
    let wire = Wire::new(4300)?;
    let pair = |n: u16| {
        let port = (19_000 + n).to_string();
        ["-F", "-n", "200", "-p", &port].map(String::from).to_vec()
    };
    let start = |host: &Host, args: &[String]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        host.rocebud("ib_write_bw", &args).limit(150).start()
    };
    let mut servers = Vec::new();
    for n in 0..32 {
        servers.push(start(&wire.a, &pair(n))?);
    }
    for (n, server) in (0..).zip(&mut servers) {
        server.wait_listening(&wire.a, 19_000 + n)?;
    }
    let mut clients = Vec::new();
    for n in 0..32 {
        let mut args = pair(n);
        args.push(wire.a.v4.clone());
        clients.push(start(&wire.b, &args)?);
    }
    let mut series = Series::default();
    for (n, running) in clients.into_iter().chain(servers).enumerate() {
        let ended = running.finish().and_then(|ended| ended.succeeded());
        series.note(&format!("process {n}"), ended);
    }
    series.end()
}

/// Batches that begin with one process's packet and go on with others' come in at the first one's socket.
fn mixed_batches() -> Outcome {
    const EACH: u64 = 900;
    let flow = c_program("flow")?;
    let wire = Wire::new(1500)?;
    let mut series = Series::default();
    for pattern in ["turns", "runs"] {
        let each = EACH.to_string();
        let args = ["sink", "-d", "rb_ve0", "-n", &each, "-s", "1000"];
        let sinks: Result<Vec<Running>, Failure> = (0..3)
            .map(|_| wire.a.rocebud(&flow, &args).limit(60).start())
            .collect();
        let mut sinks = sinks?;
        let qpns: Result<Vec<String>, Failure> = sinks.iter_mut().map(qpn_of).collect();
        let mark = Status::of(&wire.a)?.mark();
        let before = Status::of(&wire.a)?.counter("forwarded");
        let behind = send(&wire, pattern, EACH, "0.001", &qpns?)?;
        for (n, sink) in sinks.into_iter().enumerate() {
            let ended = sink.finish().and_then(|ended| ended.succeeded());
            series.note(&format!("{pattern}: process {n}"), ended);
        }
        let status = Status::of(&wire.a)?;
        let drops = status.drops_since(&mark);
        series.note(pattern, ensure(drops.is_empty(), || format!("{drops:?}")));
        // Counted where a frame came in, and by the daemon.
        let forwarded = status.counter("forwarded") - before;
        let counted = ensure(forwarded >= behind, || {
            format!("{behind} datagrams behind others', {forwarded} counted as handed on")
        });
        series.note(pattern, counted);
    }
    series.end()
}

fn qpn_of(sink: &mut Running) -> Result<String, Failure> {
    let said = sink.wait_for("QPN 0x")?;
    let at = said.find("0x").unwrap_or_default();
    let qpn = said[at..].split_whitespace().next().unwrap_or_default();
    Ok(qpn.to_owned())
}

/// Sends `each` datagrams to each of `qpns` in batches; how many stood behind another process's.
fn send(
    wire: &Wire,
    pattern: &str,
    each: u64,
    pause: &str,
    qpns: &[String],
) -> Result<u64, Failure> {
    let (path, each) = (script("mixed.py"), each.to_string());
    let mut args = vec![path.as_str(), "--src", &wire.b.v4, "--dst", &wire.a.v4];
    args.extend(["--count", &each, "--size", "1000", "--pause", pause]);
    args.extend(["--pattern", pattern]);
    args.extend(qpns.iter().map(String::as_str));
    let said = wire.b.plain("/usr/bin/python3", &args).limit(60);
    let said = said.run()?.succeeded()?;
    match said.trim().rsplit(' ').next().map(str::parse) {
        Some(Ok(behind)) => Ok(behind),
        _ => wrong(format!("mixed.py: {said}")),
    }
}

/// The number that stands before `mark`.
fn number_before(text: &str, mark: &str) -> Result<u64, Failure> {
    let before = text.split(mark).next().unwrap_or_default();
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next();
    match digits.map(str::parse) {
        Some(Ok(number)) => Ok(number),
        _ => wrong(format!("no number before '{mark}' in:\n{text}")),
    }
}

/// A stream of some seconds, with both sides running.
fn stream(wire: &Wire, timeout: &str) -> Result<(Running, Running), Failure> {
    let options = ["-F", "-D", "5", "-u", timeout];
    let mut server = wire.a.rocebud("ib_write_bw", &options).limit(60).start()?;
    server.wait_listening(&wire.a, PERFTEST_PORT)?;
    let to_server = [&options[..], &[wire.a.v4.as_str()]].concat();
    let client = wire
        .b
        .rocebud("ib_write_bw", &to_server)
        .limit(60)
        .start()?;
    std::thread::sleep(Duration::from_millis(2500));
    Ok((server, client))
}

/// Two seconds without a turn are no loss when the timeout is longer (4.3 s).
fn stopped_for_a_while() -> Outcome {
    let wire = Wire::new(4300)?;
    for side in ["receiver", "sender"] {
        let mark = Status::of(&wire.b).map(|s| s.mark()).unwrap_or_default();
        let (server, client) = stream(&wire, "20")?;
        let stopped = if side == "sender" { &client } else { &server };
        stopped.signal("STOP")?;
        std::thread::sleep(Duration::from_secs(2));
        stopped.signal("CONT")?;
        client.finish()?.succeeded().map_err(|e| named(side, e))?;
        server.finish()?.succeeded().map_err(|e| named(side, e))?;
        let again = Status::of(&wire.b)?.counter_since(&mark, "retransmits");
        ensure(again == 0, || format!("{side} stopped: {again} sent again"))?;
    }
    Ok(())
}

/// A receiver that stays away longer than every retry is a receiver that is gone.
fn stopped_for_good() -> Outcome {
    let wire = Wire::new(4300)?;
    let (mut server, client) = stream(&wire, "14")?;
    server.signal("STOP")?;
    let said = client.finish()?.exited(1)?;
    server.kill();
    ensure(said.contains("Failed status 12"), || {
        format!("no status 12 in:\n{said}")
    })
}
