//! Ordinary machines: every pair of a host's addresses, containers without any right, networks without
//! IPv6, interfaces of all kinds.

use rocebud_peer::device::DevInfo;
use rocebud_peer::netns::{Addresses, Host, Wire};
use rocebud_peer::program::{Finished, Spec, duo};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::status::Status;
use rocebud_peer::tree::{c_program, rocebud, script};
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::machine::{ForEverybody, build_for_everybody, daemons};
use crate::places::Series;

const PORT: u16 = 18515;

pub(crate) fn cases() -> Vec<Case> {
    let bw = [Need::Root, Need::Build, Need::Program("ib_send_bw")];
    let filtered = [&bw[..], &[Need::Nft]].concat();
    let compiled = [&bw[..], &[Need::Compiler]].concat();
    vec![
        Case::new(
            "c031_any_pair_of_a_hosts_addresses",
            &filtered,
            address_pairs,
        ),
        Case::new("c058_in_a_container_without_rights", &filtered, container),
        Case::new("c058_blocked_port_is_named", &filtered, blocked_port),
        Case::new("c058_missing_daemon_is_named", &bw, daemon_missing),
        Case::new("c059_without_ipv6", &compiled, without_ipv6),
        Case::new("c059_interfaces_of_all_kinds", &bw, interfaces),
        Case::new(
            "names_of_others_steer_no_terminal",
            &[Need::Root, Need::Build, Need::Program("ibv_devinfo")],
            steering_names,
        ),
    ]
}

/// Server and client with the same options, over IPv4's side channel to `to`.
fn send_bw(server: (&Host, &[&str]), client: (&Host, &[&str]), to: &str) -> Outcome {
    let common = ["-F", "-n", "100"];
    let to_client = [client.1, &common, &[to]].concat();
    let on_server = server
        .0
        .rocebud("ib_send_bw", &[server.1, &common].concat());
    let on_client = client.0.rocebud("ib_send_bw", &to_client);
    duo((server.0, &on_server), &on_client, PORT).map(drop)
}

// ---- C031

/// An address of a host: its device, its index there, and which others can be reached from it.
struct Place {
    device: String,
    index: String,
    kind: Kind,
    address: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    V4,
    V6,
    /// Reaches its own interface alone.
    LinkLocal(String),
}

fn places(host: &Host, netdevs: &[&str]) -> Result<Vec<Place>, Failure> {
    let mut all = Vec::new();
    for netdev in netdevs {
        let device = format!("rb_{netdev}");
        for (index, ip) in DevInfo::of_device(host, &device)?.gids {
            let (kind, address) = match ip.to_ipv4_mapped() {
                Some(v4) => (Kind::V4, v4.to_string()),
                None if ip.is_unicast_link_local() => {
                    (Kind::LinkLocal(device.clone()), ip.to_string())
                }
                None => (Kind::V6, ip.to_string()),
            };
            all.push(Place {
                device: device.clone(),
                index: index.to_string(),
                kind,
                address,
            });
        }
    }
    Ok(all)
}

/// C031, as far as it needs no connection manager. A queue pair that is connected to itself is in `edges`.
fn address_pairs() -> Outcome {
    let wire = Wire::new(4300)?;
    second_interface(&wire)?;
    wire.b.count_arriving()?;
    let host = &wire.a;
    let all = places(host, &["ve0", "ve1", "lo"])?;
    let kinds = |wanted: &dyn Fn(&Kind) -> bool| all.iter().filter(|p| wanted(&p.kind)).count();
    let found = [
        kinds(&|k| *k == Kind::V4),
        kinds(&|k| *k == Kind::V6),
        kinds(&|k| matches!(k, Kind::LinkLocal(_))),
    ];
    ensure(found == [3, 3, 2], || {
        format!("{found:?} addresses of IPv4, IPv6 and link-local")
    })?;
    let mut series = Series::default();
    for (n, one) in all.iter().enumerate() {
        for (m, other) in (n..)
            .zip(all[n..].iter())
            .filter(|(_, o)| o.kind == one.kind)
        {
            // Either is the server now and then.
            let (server, client) = if (n + m) % 2 == 0 {
                (one, other)
            } else {
                (other, one)
            };
            let [s, c] = [server, client].map(|p| ["-d", &p.device, "-x", &p.index]);
            let to = match server.kind {
                Kind::V4 => server.address.as_str(),
                _ => "127.0.0.1",
            };
            let what = format!("{} to {}", client.address, server.address);
            series.note(&what, send_bw((host, &s), (host, &c), to));
        }
    }
    for to in ["localhost", "10.79.0.1"] {
        let ran = send_bw((host, &[]), (host, &[]), to);
        series.note(&format!("ib_send_bw {to}"), ran);
    }
    let left = wire.b.arrived()?;
    series.note(
        "what left the host",
        ensure(left == 0, || format!("{left} packets")),
    );
    series.end()
}

/// One more interface for each host, with addresses of its own.
fn second_interface(wire: &Wire) -> Outcome {
    let other = wire.b.namespace().unwrap_or_default();
    wire.a.ip(&format!(
        "link add name ve1 type veth peer name ve1 netns {other}"
    ))?;
    for (host, n) in [(&wire.a, 1), (&wire.b, 2)] {
        host.tool("sysctl -qw net.ipv6.conf.ve1.accept_dad=0")?;
        host.ip("link set ve1 mtu 4300 up")?;
        host.ip(&format!("addr add 10.79.0.{n}/24 dev ve1"))?;
        host.ip(&format!("-6 addr add fd79::{n}/64 dev ve1 nodad"))?;
    }
    Ok(())
}

// ---- C058

/// Programs of an ordinary user, in user and mount namespaces of their own where all files are read-only.
struct Container {
    bin: String,
    script: String,
    users: bool,
    _files: ForEverybody,
}

impl Container {
    fn new(host: &Host) -> Result<Self, Failure> {
        let (bin, files) = build_for_everybody()?;
        let words = ["--user", "--map-root-user", "--mount", "true"];
        let users = host.plain("unshare", &words).as_nobody().run()?.code == Some(0);
        if !users {
            println!("   this machine gives ordinary users no user namespaces: without them");
        }
        Ok(Self {
            bin,
            script: files.keep(&script("container.sh"))?,
            users,
            _files: files,
        })
    }

    /// `rocebud run -- WORDS…` in such a container on `host`.
    fn run(&self, host: &Host, words: &[&str]) -> Spec {
        let program = [&[self.bin.as_str(), "run", "--"], words].concat();
        let script = self.script.as_str();
        if self.users {
            let outer = ["--user", "--map-root-user", "--mount", script];
            let inner = ["unshare", "--user", "--map-user=1000", "--map-group=1000"];
            let all = [&outer[..], &inner, &program].concat();
            return host.plain("unshare", &all).as_nobody();
        }
        let nobody = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ];
        let all = [&["--mount", script][..], &nobody, &program].concat();
        host.plain("unshare", &all)
    }
}

/// No complaint of a provider that looks for a device of the kernel's.
fn undisturbed(said: &str) -> Outcome {
    let lower = said.to_lowercase();
    let words = [
        "warning",
        "does not support",
        "no userspace",
        "memlock",
        "panicked",
    ];
    let word = words.into_iter().find(|w| lower.contains(w));
    ensure(word.is_none(), || format!("'{word:?}' in:\n{said}"))
}

fn container() -> Outcome {
    let wire = Wire::new(4300)?;
    let container = Container::new(&wire.a)?;
    for program in ["ibv_devices", "ibv_devinfo"] {
        let said = container.run(&wire.a, &[program]).run()?.succeeded()?;
        ensure(said.contains("rb_ve0") && said.contains("rb_lo"), || {
            format!("{program}: {said}")
        })?;
        undisturbed(&said)?;
    }
    let mut series = Series::default();
    for (tool, options) in [
        ("ib_send_bw", "-F -n 100"),
        ("ib_write_lat", "-F -n 100"),
        ("ib_send_bw", "-F -n 100 -c UD -e"),
        ("ib_read_bw", "-F -n 100 -q 4"),
    ] {
        let mut words = vec![tool];
        words.extend(options.split(' '));
        let server = container.run(&wire.a, &words);
        words.push(&wire.a.v4);
        let client = container.run(&wire.b, &words);
        let ran = duo((&wire.a, &server), &client, PORT);
        if let Some((server, client)) = series.note(&words.join(" "), ran) {
            series.note("what a server says", undisturbed(&server));
            series.note("what a client says", undisturbed(&client));
        }
    }
    series.end()
}

/// One line has all the words.
fn told(ran: &Finished, words: &[&str]) -> Outcome {
    let line = |l: &str| l.starts_with("rocebud: ") && words.iter().all(|w| l.contains(w));
    ensure(ran.code != Some(0) && ran.output.lines().any(line), || {
        format!("{:?}, no line with {words:?} in:\n{}", ran.code, ran.output)
    })
}

/// A firewall at the receiver, and one that refuses what the sender sends: the client's error names the port
/// and the peer, once.
fn blocked_port() -> Outcome {
    for (side, hook) in [("server", "input"), ("client", "output")] {
        let wire = Wire::new(4300)?;
        let container = Container::new(&wire.a)?;
        let host = if side == "server" { &wire.a } else { &wire.b };
        for words in [
            "add table inet wall".to_owned(),
            format!("add chain inet wall it {{ type filter hook {hook} priority 0; }}"),
            "add rule inet wall it udp dport 4791 drop".to_owned(),
        ] {
            host.plain("nft", &[&words]).run()?.succeeded()?;
        }
        let options = ["ib_write_bw", "-F", "-q", "4", "-u", "10"];
        let mut server = container.run(&wire.a, &options).start()?;
        server.wait_listening(&wire.a, PORT)?;
        let to = [&options[..], &[wire.a.v4.as_str()]].concat();
        let ran = container.run(&wire.b, &to).run()?;
        server.kill();
        told(&ran, &["4791", &wire.a.v4])?;
        let lines = ran.output.lines().filter(|l| l.contains("4791")).count();
        ensure(lines == 1, || {
            format!("{side}: {lines} lines name the port:\n{}", ran.output)
        })?;
    }
    Ok(())
}

/// The daemon is stopped, or its socket is not in the container.
fn daemon_missing() -> Outcome {
    let host = Host::loopback()?;
    let container = Container::new(&host)?;
    let ask = || container.run(&host, &["ibv_devices"]).limit(30);
    let nowhere = "/run/rocebud/not-mounted";
    let mut words = vec!["env"];
    let variable = format!("ROCEBUD_SOCKET={nowhere}");
    words.extend([variable.as_str(), "ibv_devinfo"]);
    let ran = container.run(&host, &words).limit(30).run()?;
    told(&ran, &[nowhere])?;
    ask().run()?.succeeded()?;
    let [daemon] = daemons(&host)[..] else {
        return wrong("not one daemon");
    };
    let signal = |name: &str| {
        let pid = daemon.to_string();
        Host::outside("kill", &["-s", name, &pid])
            .run()?
            .succeeded()
    };
    signal("STOP")?;
    let ran = ask().run();
    signal("CONT")?;
    let ran = ran?;
    let line = |l: &str| l.contains("does not answer") && l.contains(&daemon.to_string());
    ensure(ran.output.lines().any(line), || {
        format!("the stopped daemon is not named:\n{}", ran.output)
    })
}

// ---- C059

fn without_ipv6() -> Outcome {
    let mut series = Series::default();
    // The interfaces have no IPv6, and neither has loopback.
    let wire = Wire::with(4300, Addresses::V4Only)?;
    for host in [&wire.a, &wire.b] {
        host.tool("sysctl -qw net.ipv6.conf.all.disable_ipv6=1")?;
    }
    let ran = send_bw((&wire.a, &[]), (&wire.b, &[]), &wire.a.v4);
    series.note("disable_ipv6", ran);
    series.note(
        "disable_ipv6",
        only_ipv4(&wire.a, |p, a| wire.a.rocebud(p, a)),
    );

    // There are no IPv6 sockets at all, for the daemon neither.
    let wire = Wire::new(4300)?;
    let without = c_program("no_inet6")?;
    let bin = rocebud().display().to_string();
    let run = |host: &Host, program: &str, args: &[&str]| {
        let words = [&[bin.as_str(), "run", "--", program], args].concat();
        host.plain(&without, &words)
    };
    let server = run(&wire.a, "ib_send_bw", &["-F", "-n", "100"]);
    let client = run(&wire.b, "ib_send_bw", &["-F", "-n", "100", &wire.a.v4]);
    series.note("no sockets", duo((&wire.a, &server), &client, PORT));
    series.note("no sockets", only_ipv4(&wire.a, |p, a| run(&wire.a, p, a)));
    let said = wire.a.plain(&bin, &["status"]).run()?.succeeded()?;
    let lines = said.lines().filter(|l| l.contains("IPv6 is not available"));
    let right = ensure(lines.count() == 1, || {
        format!("status does not say in one line that IPv6 is left out:\n{said}")
    });
    series.note("status", right);
    series.end()
}

/// Devices are there, and all their addresses are IPv4.
fn only_ipv4(host: &Host, run: impl Fn(&str, &[&str]) -> Spec) -> Outcome {
    for device in [host.device(), "rb_lo".into()] {
        let said = run("ibv_devinfo", &["-v", "-d", &device]).run()?;
        let said = said.succeeded()?;
        let gids = || said.lines().filter(|l| l.contains("GID["));
        let right = gids().count() != 0 && gids().all(|l| l.contains("::ffff:"));
        ensure(right && said.contains("PORT_ACTIVE"), || said.clone())?;
    }
    Ok(())
}

/// Anybody may call his program what he likes, and root looks at `rocebud status`; interfaces may have such
/// names, too.
fn steering_names() -> Outcome {
    const NETDEV: &str = "v\u{1b}[31me";
    const PROGRAM: &str = "\u{1b}[2J\n\u{9b}x";
    let mut wire = Wire::new(1500)?;
    let host = &mut wire.a;
    host.ip("link set ve0 down")?;
    host.ip(&format!("link set ve0 name {NETDEV} up"))?;
    host.netdev = NETDEV.into();
    let dir = std::env::temp_dir().join(format!("rocebud-names-{}", std::process::id()));
    let program = dir.join(PROGRAM);
    std::fs::create_dir_all(&dir)?;
    std::fs::copy("/usr/bin/ibv_devinfo", &program)?;
    let ran = host.rocebud(&program.display().to_string(), &[]).run();
    std::fs::remove_dir_all(&dir)?;
    ran?.succeeded()?;
    let bin = rocebud().display().to_string();
    for (command, name) in [("status", "(?[2J??x)"), ("devices", "v?[31me")] {
        for json in [&[][..], &["--json"]] {
            let args = [&[command][..], json].concat();
            let said = host.plain(&bin, &args).run()?.succeeded()?;
            let bad = |c: char| c.is_control() && c != '\n';
            ensure(!said.contains(bad), || format!("{args:?}: {said:?}"))?;
            ensure(!json.is_empty() || said.contains(name), || {
                format!("{args:?}: no {name} in {said}")
            })?;
        }
    }
    Ok(())
}

/// A name of 15 characters; a link that is down; a tun interface, which has no hardware address; whatever of
/// bonds, dummies and macvlans the kernel can make.
fn interfaces() -> Outcome {
    const LONG: &str = "enp0s29u1u7u3c2";
    let mut wire = Wire::new(4300)?;
    for host in [&mut wire.a, &mut wire.b] {
        host.ip("link set ve0 down")?;
        host.ip(&format!("link set ve0 name {LONG} up"))?;
        host.netdev = LONG.into();
    }
    let device = wire.a.device();
    send_bw(
        (&wire.a, &["-d", &device]),
        (&wire.b, &["-d", &device]),
        &wire.a.v4,
    )?;
    wire.a.tool("ip tuntap add dev tn1 mode tun")?;
    let mut kinds = vec!["tn1"];
    for (name, what) in [
        ("bo1", "type bond"),
        ("du1", "type dummy"),
        ("mv1", &format!("link {LONG} type macvlan")),
    ] {
        match wire.a.add_link(name, what) {
            Ok(()) => kinds.push(name),
            Err(Failure::Skip(why)) => println!("   not tried: {why}"),
            Err(wrong) => return Err(wrong),
        }
    }
    for (n, netdev) in kinds.iter().enumerate() {
        wire.a.ip(&format!("link set {netdev} up"))?;
        wire.a
            .ip(&format!("addr add 10.80.{n}.1/24 dev {netdev}"))?;
        let info = DevInfo::of_device(&wire.a, &format!("rb_{netdev}"))?;
        let guid = info.field("node_guid").unwrap_or_default();
        ensure(
            guid.contains(|c| matches!(c, '1'..='9' | 'a'..='f')),
            || format!("{netdev}: node_guid {guid}"),
        )?;
        let up = wire
            .a
            .plain("cat", &[&format!("/sys/class/net/{netdev}/carrier")]);
        let carrier = up.run()?.output.trim() == "1";
        let wanted = if carrier { "PORT_ACTIVE" } else { "PORT_DOWN" };
        let state = info.field("state").unwrap_or_default();
        ensure(state.starts_with(wanted), || {
            format!("{netdev}: {state}, carrier {carrier}")
        })?;
    }
    wire.a.ip(&format!("link set {LONG} down"))?;
    let state = DevInfo::of(&wire.a)?;
    ensure(
        state
            .field("state")
            .is_some_and(|s| s.starts_with("PORT_DOWN")),
        || state.text.clone(),
    )?;
    let args = ["-F", "-d", device.as_str(), &wire.b.v4];
    let ran = wire.a.rocebud("ib_send_bw", &args).limit(30).run()?;
    ensure(ran.code.is_some_and(|c| c != 0), || {
        format!(
            "ib_send_bw on a link that is down: {:?}\n{}",
            ran.code, ran.output
        )
    })?;
    ensure(Status::of(&wire.a)?.counter("drop_malformed") == 0, || {
        "malformed packets".into()
    })
}
