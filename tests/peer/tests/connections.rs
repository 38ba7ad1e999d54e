//! Connections by librdmacm: rdma-core's own programs, perftest's `-R`, and a program of ours that
//! connects where nobody is, dies, and loses messages.

use std::time::{Duration, Instant};

use rocebud_peer::device::DevInfo;
use rocebud_peer::netns::{Addresses, Host, Wire};
use rocebud_peer::program::{Running, Spec};
use rocebud_peer::runner::{Case, Need};
pub(crate) use rocebud_peer::status::wait_listening;
use rocebud_peer::status::{Peer, Status};
use rocebud_peer::tree::c_program_with;
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::places::Series;

/// Name, port, server and client; `@` is the server's address.
const PROGRAMS: &str = "\
rping_64k 7174 rping -s -a @ -V -C 5 -S 65000 | rping -c -a @ -V -C 5 -S 65000
ucmatose 7471 ucmatose -b @ -c 4 -C 20 | ucmatose -s @ -c 4 -C 20
udaddy 7174 udaddy -b @ -c 2 -C 10 | udaddy -s @ -c 2 -C 10
rdma_server 7471 rdma_server -s @ | rdma_client -s @
";

const RPING: &str = "rping 7174 rping -s -a @ -v -V -C 10 | rping -c -a @ -v -V -C 10";

/// Kinds of addresses that an interface can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    V4Only,
    V6Only,
    Dual,
    StablePrivacy,
}

/// Those that serve the IPv4 wildcard only.
const WILDCARD_PROGRAMS: &str = "\
xrc_as_rc 7471 rdma_xserver -c r | rdma_xclient -s @ -c r
xrc 7471 rdma_xserver -c x | rdma_xclient -s @ -c x
";

/// What perftest of this release refuses together with `-R` besides what the matrix has, and its words: an
/// IPv6 address above all, with `--ipv6` too, which chooses a GID and not the family of addresses.
const PERFTEST_REFUSES: &str = "\
ib_send_bw -c XRC @4 | XRC does not support RDMA_CM
ib_send_bw @6 | Address family for hostname not supported
ib_send_bw --ipv6 @6 | Address family for hostname not supported
ib_send_bw -O @4 | Perftest still doesn't support Dual Port with rdma_cm
ib_send_bw -c UD -g @4 | Perftest still doesn't support Multicast with rdma_cm
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
    let all: [(&str, &[Need], Run); 11] = [
        ("rdma_cm_programs_between_hosts", &rdmacm, between_hosts),
        ("rdma_cm_programs_within_a_host", &rdmacm, within_a_host),
        ("c031_rdma_cm_programs_on_one_host", &greeted, on_one_host),
        ("mckey_two_receivers", &rdmacm, groups),
        ("cmtime_thousand_connections", &rdmacm, thousand),
        ("perftest_refuses_by_rdma_cm", &perftest, perftest_refuses),
        ("c026_clients_come_back_at_once", &lossy, coming_back),
        ("c028_failures_are_told_in_time", &lossy, failures),
        ("connection_messages_lost", &lossy, lost_messages),
        ("connections_end_with_their_process", &calls, deaths),
        ("hosts_of_ours_know_each_other", &greeted, known_peers),
    ];
    let case = |(name, needs, run): (&str, &[Need], Run)| Case::new(name, needs, run);
    let kinds = [
        ("ipv4_only", Kind::V4Only),
        ("ipv6_only", Kind::V6Only),
        ("dual", Kind::Dual),
        ("stable_privacy", Kind::StablePrivacy),
    ];
    let addresses = kinds.map(|(name, kind)| {
        let name = format!("c030_rdma_cm_every_address_{name}");
        Case::new(&name, &rdmacm, move || every_address(kind))
    });
    all.into_iter().map(case).chain(addresses).collect()
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
    let mut series = Series::default();
    programs((&wire.b, &wire.a), &mut series);
    let scoped = wire.b.link_local()?;
    // The scope is each host's own; both interfaces have the same name.
    let ran = run_pair((&wire.b, &wire.a), RPING, &scoped, &scoped);
    series.note("rping over link-local addresses", ran);
    series.end()
}

fn within_a_host() -> Outcome {
    let wire = Wire::new(1500)?;
    let mut series = Series::default();
    programs((&wire.b, &wire.b), &mut series);
    series.end()
}

/// Every program, over both families as far as it knows them.
fn programs(ends: (&Host, &Host), series: &mut Series) {
    let (at, _) = ends;
    for line in [RPING].into_iter().chain(PROGRAMS.lines()) {
        for address in [&at.v4, &at.v6] {
            let ran = run_pair(ends, line, address, address);
            series.note(&format!("{} {address}", name_of(line)), ran);
        }
    }
    for line in WILDCARD_PROGRAMS.lines() {
        series.note(name_of(line), run_pair(ends, line, "", &at.v4));
    }
}

/// C031: any pair of the host's addresses, the wildcards too; whoever names its own address calls from
/// there; and nothing leaves the host.
fn on_one_host() -> Outcome {
    let wire = Wire::new(1500)?;
    let host = &wire.a;
    host.ip("link add ve1 type veth peer name ve2")?;
    host.ip("link set ve1 up")?;
    host.ip("link set ve2 up")?;
    host.ip(&format!("addr add {SECOND}/24 dev ve1"))?;
    wire.b.count_arriving()?;
    let mut series = Series::default();
    for (bind, to) in [
        (host.v4.as_str(), host.v4.as_str()),
        ("0.0.0.0", &host.v4),
        ("0.0.0.0", SECOND),
        (SECOND, SECOND),
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("::", &host.v6),
        ("::", &host.v4),
        ("::1", "::1"),
        (&host.v6, &host.v6),
    ] {
        let ran = run_pair((host, host), RPING, bind, to);
        series.note(&format!("{to} of {bind}"), ran);
    }
    let own = host.link_local()?;
    let ran = run_pair((host, host), RPING, &own, &own);
    series.note("link-local", ran);
    let perftest = "ib_send_bw 18515 ib_send_bw -R -n 100 | ib_send_bw -R -n 100 localhost";
    series.note("localhost", run_pair((host, host), perftest, "", ""));
    for (from, to) in [(host.v4.as_str(), SECOND), (SECOND, host.v4.as_str())] {
        series.note(
            &format!("from {from} to {to}"),
            from_another(host, from, to),
        );
    }
    let left = wire.b.arrived()?;
    series.note(
        "nothing leaves the host",
        ensure(left == 0, || format!("{left} packets did")),
    );
    series.end()
}

/// An address of the host's second interface.
const SECOND: &str = "10.78.0.1";

/// A client that names its own address: all packets are between that and the server's.
fn from_another(host: &Host, from: &str, to: &str) -> Outcome {
    let pair = format!("{{ {from}, {to} }}");
    for words in [
        "add table inet seen".to_owned(),
        "flush table inet seen".to_owned(),
        "add chain inet seen arriving { type filter hook input priority -1; }".to_owned(),
        format!(
            "add rule inet seen arriving ip saddr {pair} ip daddr {pair} udp dport 4791 accept"
        ),
        "add rule inet seen arriving udp dport 4791 counter".to_owned(),
    ] {
        host.plain("nft", &[&words]).run()?.succeeded()?;
    }
    let before = settled(host)?;
    let line = RPING.replace("rping -c", &format!("rping -c -I {from}"));
    run_pair((host, host), &line, "0.0.0.0", to)?;
    let others = host.arrived()? - before;
    ensure(others == 0, || {
        format!("{others} packets between other addresses")
    })
}

/// What has arrived when the end of earlier connections, which is said again after 250 ms, has.
fn settled(host: &Host) -> Result<u64, Failure> {
    let mut seen = host.arrived()?;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(600));
        let now = host.arrived()?;
        if now == seen {
            break;
        }
        seen = now;
    }
    Ok(seen)
}

/// C030: every address that the device lists can be called, whatever kinds the interface has.
fn every_address(kind: Kind) -> Outcome {
    let addresses = match kind {
        Kind::V4Only => Addresses::V4Only,
        Kind::V6Only => Addresses::V6Only,
        Kind::Dual | Kind::StablePrivacy => Addresses::Dual,
    };
    let wire = Wire::with(1500, addresses)?;
    if kind == Kind::StablePrivacy {
        for host in [&wire.a, &wire.b] {
            stable_privacy(host)?;
        }
    }
    let listed = DevInfo::of(&wire.b)?.gids;
    let wanted = match kind {
        Kind::V4Only => 1,
        Kind::V6Only => 2,
        Kind::Dual | Kind::StablePrivacy => 3,
    };
    ensure(listed.len() == wanted, || {
        format!("{listed:?}, not {wanted} addresses")
    })?;
    let mut series = Series::default();
    for address in listed.into_iter().map(|(_, address)| address) {
        let address = match address.to_ipv4_mapped() {
            Some(v4) => v4.to_string(),
            None if address.is_unicast_link_local() => wire.b.link_local()?,
            None => address.to_string(),
        };
        let ran = run_pair((&wire.b, &wire.a), RPING, &address, &address);
        series.note(&address, ran);
    }
    series.end()
}

/// Gives the interface a link-local address that says nothing of its MAC address.
fn stable_privacy(host: &Host) -> Outcome {
    let before = host.link_local()?;
    // each its own: they are made of it and of what both ends of a veth pair have in common
    let secret = format!("sysctl -qw net.ipv6.conf.ve0.stable_secret={}", host.v6);
    host.tool(&secret)?;
    host.ip("link set ve0 down")?;
    host.ip("link set ve0 up")?;
    host.ip(&format!("-6 addr replace {}/64 dev ve0 nodad", host.v6))?;
    let end = Instant::now() + Duration::from_secs(10);
    while host.link_local().is_ok_and(|now| now == before) || host.link_local().is_err() {
        ensure(Instant::now() < end, || {
            "no other link-local address".into()
        })?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
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

fn perftest_refuses() -> Outcome {
    let wire = Wire::new(1500)?;
    let mut series = Series::default();
    for line in PERFTEST_REFUSES.lines() {
        let (line, words) = line.split_once(" | ").unwrap_or((line, ""));
        let line = line.replace("@4", &wire.b.v4).replace("@6", &wire.b.v6);
        let ran = program(&wire.a, &format!("{line} -R"), "").run()?;
        let refused = ran.code != Some(0) && ran.output.contains(words);
        series.note(
            &line,
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
    at_once(&run(
        &wire.a,
        &path,
        &[&["call"], &at[..], &["100"]].concat(),
    )?)?;
    // killed in mid-connection: the daemon tells the peer, and the next connection is made at once
    for _ in 0..20 {
        let mut held = wire
            .a
            .rocebud(&path, &[&["hold"], &at[..]].concat())
            .start()?;
        held.wait_for("held")?;
        held.kill();
        at_once(&run(
            &wire.a,
            &path,
            &[&["call"], &at[..], &["1"]].concat(),
        )?)?;
    }
    // the first REP is lost: it comes again, and no second request reaches the program
    let rep = "@th,352,16 0x13 limit rate 1/hour burst 1 packets";
    wire.a.drop_arriving(rep)?;
    run(&wire.a, &path, &[&["call"], &at[..], &["3"]].concat())?;
    ensure(wire.a.dropped()? == 1, || "no REP was dropped".to_owned())?;
    // every DREP is lost, too: whoever hung up comes back all the same
    wire.a.drop_arriving("@th,352,16 0x16")?;
    let hang_up = ["fickle", &wire.b.v4, "7500", "10"];
    at_once(&run(&wire.a, &path, &hang_up)?)?;
    // every DREQ is lost: the client gives up by itself, and may come back meanwhile
    wire.b.drop_arriving("@th,352,16 0x15")?;
    run(&wire.a, &path, &[&["call"], &at[..], &["1"]].concat())
        .err()
        .map_or_else(
            || wrong("a disconnect that nobody hears cannot succeed"),
            |_| Ok(()),
        )?;
    let (accepted, _) = served(server)?;
    ensure(accepted == 154, || format!("{accepted} of 154 accepted"))
}

/// No wait for an event was longer than what a connection takes that nothing hinders.
fn at_once(said: &str) -> Outcome {
    let longest = said.lines().find_map(|l| l.strip_prefix("longest "));
    let longest = longest.and_then(|l| l.strip_suffix(" ms")?.parse::<u32>().ok());
    ensure(longest.is_some_and(|ms| ms < 2_000), || {
        format!("it is not let in at once:\n{said}")
    })
}

/// C028: in one round trip where somebody is there to say so, in documented seconds where nobody is; an
/// identifier can be destroyed at any moment, and nothing is said of it to a peer that has not answered.
fn failures() -> Outcome {
    let (wire, path) = (Wire::new(1500)?, calls()?);
    // Somebody is there: a device that nobody opened has no daemon to refuse.
    let _server = serve(&wire.b, &path)?;
    for rule in [
        "add table inet seen",
        "add chain inet seen arriving { type filter hook prerouting priority -300; }",
        "add rule inet seen arriving udp dport 4791 @th,352,16 0x12 counter",
    ] {
        wire.b.plain("nft", &[rule]).run()?.succeeded()?;
    }
    // a route that leads nowhere: its gateway does not forward
    let black_hole = "203.0.113.5";
    wire.b.tool("sysctl -qw net.ipv4.ip_forward=0")?;
    wire.a
        .ip(&format!("route add 203.0.113.0/24 via {}", wire.b.v4))?;
    let host = wire.b.v4.as_str();
    let neighbour = host.rsplit_once('.');
    let neighbour = neighbour.map_or_else(String::new, |(net, _)| format!("{net}.77"));
    let mut series = Series::default();
    let mut expect = |what: &str, [event, status, ms]: [&str; 3], to: [&str; 2]| {
        let args = [&["expect", event, status, ms], &to[..]].concat();
        series.note(what, run(&wire.a, &path, &args));
        let args = [&["giveup"], &to[..]].concat();
        let gone = run(&wire.a, &path, &args);
        series.note(&format!("{what}, destroyed meanwhile"), gone);
    };
    expect("nobody listens", ["REJECTED", "8", "3000"], [host, "7999"]);
    let unreachable = ["UNREACHABLE", "-110", "20000"];
    expect(
        "no route",
        ["ADDR_ERROR", "-101", "3000"],
        ["198.51.100.9", "1"],
    );
    expect(
        "no neighbour",
        ["ADDR_ERROR", "9999", "6000"],
        [&neighbour, "1"],
    );
    expect("a black hole", unreachable, [black_hole, "7500"]);
    wire.b.drop_arriving("")?;
    expect("silence", unreachable, [host, "7500"]);
    let refusals = wire.b.arrived()?;
    series.note(
        "nothing is said of what is unknown to the peer",
        ensure(refusals == 0, || format!("{refusals} REJs")),
    );
    series.end()
}

/// 2 % of the connection manager's messages are lost, both ways.
fn lost_messages() -> Outcome {
    let (wire, path) = (Wire::new(1500)?, calls()?);
    let server = serve(&wire.b, &path)?;
    for host in [&wire.a, &wire.b] {
        host.drop_arriving("@th,104,24 0x000001 numgen random mod 50 0")?;
    }
    let said = run(&wire.a, &path, &["call", &wire.b.v4, "7500", "1000"])?;
    let longest = said.lines().find_map(|l| l.strip_prefix("longest "));
    let longest = longest.and_then(|l| l.strip_suffix(" ms")?.parse::<u32>().ok());
    // of all waits for an event
    ensure(longest.is_some_and(|ms| ms < 10_000), || said.clone())?;
    let (accepted, ended) = served(server)?;
    ensure(accepted == 1000 && ended == 1000, || {
        format!("{accepted} accepted, {ended} ended, of 1000")
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
