//! Connections by librdmacm: rdma-core's own programs, perftest's `-R`, and a program of ours that
//! connects where nobody is, dies, and loses messages.

use std::time::{Duration, Instant};

use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::{Running, Spec};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::status::{Peer, Status};
use rocebud_peer::tree::c_program_with;
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::places::Series;

/// Name, port, server and client; `@` is the server's address.
const PROGRAMS: &str = "\
rping 7174 rping -s -a @ -v -V -C 10 | rping -c -a @ -v -V -C 10
rping_64k 7174 rping -s -a @ -V -C 5 -S 65000 | rping -c -a @ -V -C 5 -S 65000
ucmatose 7471 ucmatose -b @ -c 4 -C 20 | ucmatose -s @ -c 4 -C 20
udaddy 7174 udaddy -b @ -c 2 -C 10 | udaddy -s @ -c 2 -C 10
rdma_server 7471 rdma_server -s @ | rdma_client -s @
";

/// Those that serve the wildcard address only.
const WILDCARD_PROGRAMS: &str = "\
xrc_as_rc 7471 rdma_xserver -c r | rdma_xclient -s @ -c r
xrc 7471 rdma_xserver -c x | rdma_xclient -s @ -c x
";

/// perftest's programs and options with `-R`.
const PERFTEST: &str = "\
ib_send_bw
ib_write_bw
ib_read_bw
ib_atomic_bw
ib_send_lat
ib_write_lat
ib_read_lat
ib_atomic_lat
ib_send_bw -c UD
ib_send_lat -c UD
ib_write_bw -q 4
ib_send_bw --use-srq -q 8
ib_send_bw -b -e -s 4097
ib_write_bw -b -m 256
ib_read_bw -q 8 -e
ib_atomic_bw -A CMP_AND_SWAP -q 2
ib_send_lat -e -s 243
ib_send_bw -c UD -q 2 -b
ib_write_bw -s 1048575
";

/// What perftest of this release refuses together with `-R`, and its words.
const PERFTEST_REFUSES: &str = "\
ib_send_bw -c UC | UC is not supported in librdmacm
ib_write_lat -c UC | UC is not supported in librdmacm
ib_send_bw -c XRC | XRC does not support RDMA_CM
ib_send_bw --ipv6 @ | Address family for hostname not supported
";

pub(crate) fn cases() -> Vec<Case> {
    let rdmacm = [Need::Root, Need::Build, Need::Program("rping")];
    let perftest = [Need::Root, Need::Build, Need::Program("ib_send_bw")];
    let calls = [
        Need::Root,
        Need::Build,
        Need::Compiler,
        Need::Header("/usr/include/rdma/rdma_cma.h"),
    ];
    let lossy = [&calls[..], &[Need::Nft]].concat();
    type Run = fn() -> Outcome;
    let greeted = [&rdmacm[..], &[Need::Nft]].concat();
    let all: [(&str, &[Need], Run); 10] = [
        ("rdma_cm_programs_between_hosts", &rdmacm, between_hosts),
        ("c031_rdma_cm_programs_on_one_host", &rdmacm, on_one_host),
        ("mckey_two_receivers", &rdmacm, groups),
        ("cmtime_thousand_connections", &rdmacm, thousand),
        ("perftest_through_rdma_cm", &perftest, perftest_dash_r),
        ("c026_clients_come_back_at_once", &lossy, coming_back),
        ("c028_failures_are_told_in_time", &lossy, failures),
        ("connection_messages_lost", &lossy, lost_messages),
        ("connections_end_with_their_process", &calls, deaths),
        ("hosts_of_ours_know_each_other", &greeted, known_peers),
    ];
    let case = |(name, needs, run): (&str, &[Need], Run)| Case::new(name, needs, run);
    all.into_iter().map(case).collect()
}

/// Waits until somebody listens on `port`, as the daemon knows.
pub(crate) fn wait_listening(server: &mut Running, host: &Host, port: &str) -> Outcome {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let ends = |a: &&str| a.rsplit_once(':').is_some_and(|(_, p)| p == port);
        // The daemon comes with the first program.
        if Status::of(host).is_ok_and(|s| s.listeners().iter().any(ends)) {
            return Ok(());
        }
        if !server.alive() || Instant::now() > end {
            return wrong(format!("nobody listens on {port}:\n{}", server.output()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn program(host: &Host, words: &str, address: &str) -> Spec {
    let words = words.replace('@', address);
    let mut words = words.split_whitespace();
    let name = words.next().unwrap_or_default();
    let args: Vec<&str> = words.collect();
    host.rocebud(name, &args).limit(60)
}

/// Both ends of a line of a table; the server's address may be another than the one it is asked at.
fn run_pair((at, from): (&Host, &Host), line: &str, bind: &str, to: &str) -> Outcome {
    let (head, client) = line.split_once('|').unwrap_or((line, ""));
    let mut head = head.splitn(3, ' ');
    let (_, port) = (head.next(), head.next().unwrap_or_default());
    let mut server = program(at, head.next().unwrap_or_default(), bind).start()?;
    let ready = wait_listening(&mut server, at, port);
    let asked = ready.and_then(|()| program(from, client, to).run()?.succeeded().map(drop));
    if let Err(e) = asked {
        let said = server.output();
        server.kill();
        return wrong(format!("{e:?}\nthe server said:\n{said}"));
    }
    server.finish()?.succeeded().map(drop)
}

fn name_of(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or_default()
}

fn between_hosts() -> Outcome {
    let wire = Wire::new(1500)?;
    let ends = (&wire.b, &wire.a);
    let mut series = Series::default();
    for line in PROGRAMS.lines() {
        series.note(name_of(line), run_pair(ends, line, &wire.b.v4, &wire.b.v4));
    }
    for line in WILDCARD_PROGRAMS.lines() {
        series.note(name_of(line), run_pair(ends, line, "", &wire.b.v4));
    }
    for name in ["rping ", "udaddy ", "rdma_server "] {
        let line = PROGRAMS.lines().find(|l| l.starts_with(name));
        let line = line.unwrap_or_default();
        let ran = run_pair(ends, line, &wire.b.v6, &wire.b.v6);
        series.note(&format!("{name}over IPv6"), ran);
    }
    let scoped = link_local(&wire.b)?;
    let rping = PROGRAMS.lines().next().unwrap_or_default();
    // The scope is each host's own; both interfaces have the same name.
    let ran = run_pair(ends, rping, &scoped, &scoped);
    series.note("rping over link-local addresses", ran);
    series.end()
}

/// C031: any pair of the host's addresses, the wildcards too.
fn on_one_host() -> Outcome {
    let wire = Wire::new(1500)?;
    let host = &wire.a;
    let (mut series, rping) = (
        Series::default(),
        PROGRAMS.lines().next().unwrap_or_default(),
    );
    for (bind, to) in [
        (host.v4.as_str(), host.v4.as_str()),
        ("0.0.0.0", &host.v4),
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("::", &host.v6),
        ("::", &host.v4),
        ("::1", "::1"),
        (&host.v6, &host.v6),
    ] {
        let ran = run_pair((host, host), rping, bind, to);
        series.note(&format!("{to} of {bind}"), ran);
    }
    let own = link_local(host)?;
    let ran = run_pair((host, host), rping, &own, &own);
    series.note("link-local", ran);
    series.end()
}

/// The interface's link-local address, with its scope.
fn link_local(host: &Host) -> Result<String, Failure> {
    let show = [
        "-6",
        "-o",
        "addr",
        "show",
        "dev",
        &host.netdev,
        "scope",
        "link",
    ];
    let said = host.plain("ip", &show).run()?.succeeded()?;
    let address = said.split_whitespace().find_map(|w| w.split_once('/'));
    match address {
        Some((address, _)) => Ok(format!("{address}%{}", host.netdev)),
        None => wrong(format!("no link-local address in:\n{said}")),
    }
}

/// One or two receivers and one sender of a group, of either family. (A single member of an IPv4
/// group gets its datagrams another way: see the daemon's slot 0.)
fn groups() -> Outcome {
    let wire = Wire::new(1500)?;
    let mut series = Series::default();
    let (a, b) = (&wire.a, &wire.b);
    for count in [1, 2] {
        let of = |group, to, from| group_of(&wire, group, count, to, from);
        series.note(&format!("IPv4 {count}"), of("239.255.98.1", &b.v4, &a.v4));
        series.note(&format!("IPv6 {count}"), of("ff15::6201", &b.v6, &a.v6));
    }
    series.end()
}

fn group_of(wire: &Wire, group: &str, count: usize, to: &str, from: &str) -> Outcome {
    let receive = format!("mckey -m {group} -b @ -C 10");
    let start = || program(&wire.b, &receive, to).start();
    let receivers = (0..count).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
    // Each is in the group twice: with the daemon's socket, and with its own when its queue pair
    // is attached.
    let show = ["maddr", "show", "dev", &wire.b.netdev];
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let said = wire.b.plain("ip", &show).run()?.succeeded()?;
        let users = format!("users {}", 2 * count);
        let both = |l: &str| l.contains(group) && l.contains(&users);
        if said.lines().any(both) {
            break;
        }
        ensure(Instant::now() < end, || format!("no members:\n{said}"))?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let send = format!("mckey -s -m {group} -b @ -C 10");
    program(&wire.a, &send, from).run()?.succeeded()?;
    for receiver in receivers {
        receiver.finish()?.succeeded()?;
    }
    Ok(())
}

fn thousand() -> Outcome {
    let wire = Wire::new(1500)?;
    for (at, from) in [(&wire.a, &wire.a), (&wire.b, &wire.a)] {
        let mut server = program(at, "cmtime -b @ -c 1000", &at.v4).start()?;
        wait_listening(&mut server, at, "7471")?;
        let called = program(from, "cmtime -s @ -c 1000", &at.v4)
            .run()?
            .succeeded();
        // The server of this release serves for ever.
        server.kill();
        called?;
    }
    Ok(())
}

fn perftest_dash_r() -> Outcome {
    let wire = Wire::new(1500)?;
    let mut series = Series::default();
    for line in PERFTEST.lines() {
        let more = if line.contains(" -n ") {
            "-R"
        } else {
            "-R -n 100"
        };
        let both = format!("perftest 18515 {line} {more} | {line} {more} @");
        let ran = run_pair((&wire.b, &wire.a), &both, "", &wire.b.v4);
        series.note(line, ran);
    }
    for line in PERFTEST_REFUSES.lines() {
        let (line, words) = line.split_once(" | ").unwrap_or((line, ""));
        let ran = program(&wire.a, &format!("{line} -R"), &wire.b.v6).run()?;
        let refused = ran.code != Some(0) && ran.output.contains(words);
        series.note(
            line,
            ensure(refused, || format!("not '{words}':\n{}", ran.output)),
        );
    }
    series.end()
}

pub(crate) fn calls() -> Result<String, Failure> {
    c_program_with("calls", "calls", "cc", &["-lrdmacm", "-libverbs"])
}

pub(crate) fn serve(host: &Host, path: &str) -> Result<Running, Failure> {
    let mut server = host
        .rocebud(path, &["serve", "0.0.0.0", "7500"])
        .limit(170)
        .start()?;
    server.wait_for("listening")?;
    Ok(server)
}

/// Ends a server; what it accepted and what of it has ended.
pub(crate) fn served(server: Running) -> Result<(u32, u32), Failure> {
    // `rocebud run` becomes the program, so the signal reaches it.
    server.signal("TERM")?;
    let said = server.finish()?.succeeded()?;
    let numbers = said.lines().find_map(|l| l.strip_prefix("accepted "));
    let numbers = numbers.and_then(|l| l.split_once(", ended "));
    match numbers.map(|(a, e)| (a.parse(), e.parse())) {
        Some((Ok(accepted), Ok(ended))) => Ok((accepted, ended)),
        _ => wrong(format!("no count in:\n{said}")),
    }
}

pub(crate) fn run(host: &Host, path: &str, args: &[&str]) -> Result<String, Failure> {
    host.rocebud(path, args).limit(120).run()?.succeeded()
}

/// C026.
fn coming_back() -> Outcome {
    let (wire, path) = (Wire::new(1500)?, calls()?);
    let server = serve(&wire.b, &path)?;
    let at = [wire.b.v4.as_str(), "7500"];
    run(&wire.a, &path, &[&["call"], &at[..], &["100"]].concat())?;
    // killed in mid-connection: the daemon tells the peer
    for _ in 0..5 {
        let mut held = wire
            .a
            .rocebud(&path, &[&["hold"], &at[..]].concat())
            .start()?;
        held.wait_for("held")?;
        held.kill();
    }
    // the first REP is lost: it comes again, and no second request reaches the program
    let rep = "@th,352,16 0x13 limit rate 1/hour burst 1 packets";
    wire.a.drop_arriving(rep)?;
    run(&wire.a, &path, &[&["call"], &at[..], &["3"]].concat())?;
    ensure(wire.a.dropped()? == 1, || "no REP was dropped".to_owned())?;
    // every DREQ is lost: the client gives up by itself, and may come back meanwhile
    wire.b.drop_arriving("@th,352,16 0x15")?;
    run(&wire.a, &path, &[&["call"], &at[..], &["1"]].concat())
        .err()
        .map_or_else(
            || wrong("a disconnect that nobody hears cannot succeed"),
            |_| Ok(()),
        )?;
    let (accepted, _) = served(server)?;
    ensure(accepted == 109, || format!("{accepted} of 109 accepted"))
}

/// C028.
fn failures() -> Outcome {
    let (wire, path) = (Wire::new(1500)?, calls()?);
    // Somebody is there: a device that nobody opened has no daemon to refuse.
    let _server = serve(&wire.b, &path)?;
    let host = wire.b.v4.as_str();
    let neighbour = wire
        .b
        .v4
        .rsplit_once('.')
        .map_or_else(String::new, |(net, _)| format!("{net}.77"));
    let expect = |args: [&str; 4], to: &str| {
        let all = [&["expect"], &args[..3], &[to, args[3]]].concat();
        run(&wire.a, &path, &all).map(drop)
    };
    let mut series = Series::default();
    series.note(
        "nobody listens",
        expect(["REJECTED", "8", "10000", "7999"], host),
    );
    series.note(
        "no route",
        expect(["ADDR_ERROR", "-101", "5000", "1"], "198.51.100.9"),
    );
    series.note(
        "no neighbour",
        expect(["ADDR_ERROR", "9999", "20000", "1"], &neighbour),
    );
    wire.b.drop_arriving("")?;
    series.note(
        "silence",
        expect(["UNREACHABLE", "-110", "60000", "7500"], host),
    );
    let gone = run(&wire.a, &path, &["giveup", host, "7500"]).map(drop);
    series.note("destroyed while it asks", gone);
    series.end()
}

/// 2 % of the connection manager's messages are lost, both ways.
fn lost_messages() -> Outcome {
    let (wire, path) = (Wire::new(1500)?, calls()?);
    let server = serve(&wire.b, &path)?;
    for host in [&wire.a, &wire.b] {
        host.drop_arriving("@th,104,24 0x000001 numgen random mod 50 0")?;
    }
    let said = run(&wire.a, &path, &["call", &wire.b.v4, "7500", "200"])?;
    let longest = said.lines().find_map(|l| l.strip_prefix("longest "));
    let longest = longest.and_then(|l| l.strip_suffix(" ms")?.parse::<u32>().ok());
    // of all waits for an event
    ensure(longest.is_some_and(|ms| ms < 10_000), || said.clone())?;
    let (accepted, ended) = served(server)?;
    ensure(accepted == 200 && ended == 200, || {
        format!("{accepted} accepted, {ended} ended, of 200")
    })
}

/// A server that dies: its clients hear of it. A client that dies: the server does, and what it had
/// is nobody's after time-wait.
fn deaths() -> Outcome {
    let (wire, path) = (Wire::new(1500)?, calls()?);
    let server = serve(&wire.b, &path)?;
    let hold = ["hold", wire.b.v4.as_str(), "7500"];
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(wire.a.rocebud(&path, &hold).start()?);
    }
    for client in &mut held {
        client.wait_for("held")?;
        client.kill();
    }
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        // The listener is left.
        let (identifiers, connections) = Status::of(&wire.b)?.connections();
        if (identifiers, connections) == (1, 0) {
            break;
        }
        ensure(Instant::now() < end, || {
            format!("{identifiers} identifiers, {connections} connections are left")
        })?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let (accepted, ended) = served(server)?;
    ensure((accepted, ended) == (3, 3), || {
        format!("{accepted} accepted, {ended} ended, of 3")
    })
}

/// A server that serves one client after the other, and a client: what each host says of the other.
fn acquaintance(wire: &Wire) -> Result<[Option<Peer>; 2], Failure> {
    let serve = |host: &Host| host.rocebud("rping", &["-s", "-P", "-a", &host.v4]).start();
    // One on each host, so that both daemons stay.
    let mut servers = [serve(&wire.a)?, serve(&wire.b)?];
    for (server, host) in servers.iter_mut().zip([&wire.a, &wire.b]) {
        wait_listening(server, host, "7174")?;
    }
    let client = |of: &Host, to: &Host| {
        let args = ["-c", "-a", &to.v4, "-C", "3", "-V"];
        of.rocebud("rping", &args).limit(60).run()?.well()
    };
    client(&wire.b, &wire.a)?;
    // with itself a host has nothing to arrange
    client(&wire.b, &wire.b)?;
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let found = [(&wire.a, &wire.b), (&wire.b, &wire.a)].map(|(of, other)| {
            let peers = Status::of(of)?.peers();
            ensure(peers.len() <= 1, || {
                format!("more peers than one: {peers:?}")
            })?;
            let about = |peer: &Peer| peer.address == other.v4 && !peer.asked;
            Ok::<_, Failure>(peers.into_iter().find(about))
        });
        let [a, b] = found;
        let found = [a?, b?];
        if found.iter().all(Option::is_some) || Instant::now() > end {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Daemons ask each other once per address; where nobody answers nothing else changes.
fn known_peers() -> Outcome {
    let wire = Wire::new(1500)?;
    let found = acquaintance(&wire)?;
    let ours = |peer: &Option<Peer>| {
        let peer = peer.as_ref();
        peer.is_some_and(|p| p.ours && p.id_bound == 64 && p.receive_buffer > 0)
    };
    ensure(found.iter().all(ours), || format!("{found:?}"))?;
    // a vendor's class, of which nothing arrives
    let deaf = Wire::new(1500)?;
    for host in [&deaf.a, &deaf.b] {
        host.drop_arriving("@th,232,8 0x42")?;
    }
    let found = acquaintance(&deaf)?;
    let standard = |peer: &Option<Peer>| peer.as_ref().is_some_and(|p| !p.ours);
    ensure(found.iter().all(standard), || format!("{found:?}"))?;
    let questions = (deaf.a.dropped()?, deaf.b.dropped()?);
    ensure(questions == (3, 3), || {
        format!("{questions:?} questions, not three each")
    })
}
