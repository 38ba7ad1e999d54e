//! Devices as tools see them, the daemon that starts by itself, and what people read when it cannot.

use std::time::{Duration, Instant};

use rocebud_peer::device::DevInfo;
use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::{Finished, Spec};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::{self, c_program, script};
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::status::Status;

pub(crate) fn cases() -> Vec<Case> {
    let root = [Need::Root, Need::Build, Need::Program("ibv_devinfo")];
    let anyone = [Need::Build, Need::Program("ibv_devinfo")];
    let compiled = [Need::Root, Need::Build, Need::Compiler];
    let pyverbs = [Need::Root, Need::Build, Need::Pyverbs];
    vec![
        Case::new("devices_loopback", &anyone, devices_loopback),
        Case::new("devices_as_root", &root, devices_as_root),
        Case::new("devices_as_nobody_without_home", &root, devices_as_nobody),
        Case::new(
            "devices_follow_mtu_link_and_addresses",
            &root,
            devices_follow,
        ),
        Case::new("starts_once_when_ten_start_together", &root, ten_together),
        Case::new(
            "output_of_a_first_start_can_be_captured",
            &root,
            captured_output,
        ),
        Case::new("daemon_leaves_after_its_last_client", &root, daemon_leaves),
        Case::new("status_names_what_runs", &root, status_names),
        Case::new(
            "status_says_of_destroyed_queue_pairs_what_failed",
            &compiled,
            status_of_destroyed,
        ),
        Case::new(
            "port_taken_by_a_socket_is_explained",
            &root,
            port_taken_by_socket,
        ),
        Case::new(
            "port_taken_by_another_user_is_explained",
            &root,
            port_taken_by_user,
        ),
        Case::new("missing_daemon_is_explained", &root, missing_daemon),
        Case::new("no_usable_address_is_explained", &root, no_usable_address),
        Case::new("pyverbs_queries_and_moves_data", &pyverbs, pyverbs_script),
    ]
}

fn devices_loopback() -> Outcome {
    let host = Host::loopback()?;
    let info = DevInfo::of(&host)?;
    ensure(info.index_of("127.0.0.1").is_ok(), || info.text.clone())?;
    true_attributes(&info, "PORT_ACTIVE")
}

/// What `ibv_devinfo -v` must say of any device of ours.
fn true_attributes(info: &DevInfo, state: &str) -> Outcome {
    for (name, value) in [
        ("transport", "InfiniBand"),
        ("link_layer", "Ethernet"),
        ("phys_port_cnt", "1"),
        ("state", state),
    ] {
        let got = info.field(name).unwrap_or_default();
        ensure(got.starts_with(value), || {
            format!("{name}: '{got}', expected {value}\n{}", info.text)
        })?;
    }
    let guid = info.field("node_guid").unwrap_or_default();
    ensure(
        guid.chars().any(|c| c.is_ascii_hexdigit() && c != '0'),
        || format!("node_guid {guid}"),
    )?;
    let number = |name: &str| -> Option<u64> {
        let text = info.field(name)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.split_whitespace().next()?.parse().ok(),
        }
    };
    for (name, least) in [
        ("max_qp", 16),
        ("max_cqe", 1024),
        ("max_mr_size", 4097),
        ("max_pkeys", 1),
        ("max_msg_sz", 1 << 24),
    ] {
        let got = number(name).unwrap_or(0);
        ensure(got >= least, || {
            format!("{name} {got}, at least {least} expected\n{}", info.text)
        })?;
    }
    Ok(())
}

fn list_devices(host: &Host, spec: impl Fn(&str, &[&str]) -> Spec) -> Outcome {
    let said = spec("ibv_devices", &[]).run()?.succeeded()?;
    ensure(said.contains(&host.device()), || {
        format!("ibv_devices: {said}")
    })?;
    let said = spec("ibv_devinfo", &["-v"]).run()?.succeeded()?;
    for word in [
        host.device(),
        format!("::ffff:{}", host.v4),
        "PORT_ACTIVE".into(),
    ] {
        ensure(said.contains(&word), || {
            format!("ibv_devinfo -v: no {word} in\n{said}")
        })?;
    }
    Ok(())
}

fn devices_as_root() -> Outcome {
    let wire = Wire::new(1500)?;
    list_devices(&wire.a, |p, a| wire.a.rocebud(p, a))?;
    let info = DevInfo::of(&wire.a)?;
    true_attributes(&info, "PORT_ACTIVE")?;
    ensure(info.field("active_mtu") == Some("1024 (3)"), || {
        info.text.clone()
    })?;
    for address in [&wire.a.v4, &wire.a.v6] {
        info.index_of(address)?;
    }
    let bin = tree::rocebud().display().to_string();
    let said = wire.a.plain(&bin, &["devices"]).run()?.succeeded()?;
    for word in [
        "rb_ve0",
        "ve0",
        wire.a.v4.as_str(),
        wire.a.v6.as_str(),
        "1024",
    ] {
        ensure(said.contains(word), || {
            format!("rocebud devices: no {word} in\n{said}")
        })?;
    }
    Ok(())
}

/// A directory that any user can reach, wherever the tree lies; removed on drop.
pub(crate) struct ForEverybody(std::path::PathBuf);

impl ForEverybody {
    /// A copy of a file, to be run by anybody.
    pub(crate) fn keep(&self, path: &str) -> Result<String, Failure> {
        use std::os::unix::fs::PermissionsExt;
        let name = std::path::Path::new(path).file_name().unwrap_or_default();
        let copy = self.0.join(name);
        std::fs::copy(path, &copy)?;
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755))?;
        Ok(copy.display().to_string())
    }
}

impl Drop for ForEverybody {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A copy of the build that any user can reach.
pub(crate) fn build_for_everybody() -> Result<(String, ForEverybody), Failure> {
    let dir = std::env::temp_dir().join(format!("rocebud-build-{}", std::process::id()));
    let gone = ForEverybody(dir.clone());
    std::fs::create_dir_all(&dir)?;
    let bin = tree::rocebud();
    let build = bin
        .parent()
        .and_then(std::path::Path::parent)
        .unwrap_or(&bin);
    for part in ["bin", "lib"] {
        let status = std::process::Command::new("cp")
            .arg("-rL")
            .arg(build.join(part))
            .arg(&dir)
            .status()?;
        ensure(status.success(), || "cp of the build".into())?;
    }
    std::process::Command::new("chmod")
        .args(["-R", "a+rX"])
        .arg(&dir)
        .status()?;
    Ok((dir.join("bin/rocebud").display().to_string(), gone))
}

fn devices_as_nobody() -> Outcome {
    let wire = Wire::new(1500)?;
    let (bin, _gone) = build_for_everybody()?;
    list_devices(&wire.a, |p, args| {
        let mut all = vec!["run", "--", p];
        all.extend(args);
        wire.a.plain(&bin, &all).as_nobody()
    })?;
    // and data moves
    let gid = |h: &Host| DevInfo::of(h)?.index_of(&h.v4).map(|n| n.to_string());
    let gc = gid(&wire.b)?;
    let server = wire
        .a
        .plain(&bin, &["run", "--", "ib_write_bw", "-F"])
        .as_nobody();
    let client = wire
        .b
        .rocebud("ib_write_bw", &["-F", "-x", &gc, &wire.a.v4]);
    rocebud_peer::program::duo((&wire.a, &server), &client, 18515).map(drop)
}

/// What netlink says reaches the tools: MTU, link state, addresses.
fn devices_follow() -> Outcome {
    let wire = Wire::new(1500)?;
    let has = |what: &str, holds: &dyn Fn(&DevInfo) -> bool| -> Outcome {
        let end = Instant::now() + Duration::from_secs(3);
        loop {
            let info = DevInfo::of(&wire.a)?;
            if holds(&info) {
                return Ok(());
            }
            if Instant::now() > end {
                return wrong(format!("{what}: not seen after 3 s in\n{}", info.text));
            }
        }
    };
    let mtu = |value: &'static str| move |i: &DevInfo| i.field("active_mtu") == Some(value);
    has("MTU 1500", &mtu("1024 (3)"))?;
    for (netdev, active) in [
        ("4200", "4096 (5)"),
        ("2200", "2048 (4)"),
        ("9000", "4096 (5)"),
        ("1500", "1024 (3)"),
    ] {
        wire.a.ip(&format!("link set ve0 mtu {netdev}"))?;
        has(&format!("MTU {netdev}"), &mtu(active))?;
    }
    wire.a.ip("addr add 10.78.0.1/24 dev ve0")?;
    has("a new address", &|i| i.index_of("10.78.0.1").is_ok())?;
    let kept = DevInfo::of(&wire.a)?.index_of("10.78.0.1")?;
    wire.a.ip(&format!("addr del {}/24 dev ve0", wire.a.v4))?;
    has("a removed address", &|i| i.index_of("10.77.0.1").is_err())?;
    has("the other address stays where it was", &|i| {
        i.index_of("10.78.0.1").ok() == Some(kept)
    })?;
    wire.b.ip("link set ve0 down")?;
    has("carrier lost", &|i| {
        i.field("state").is_some_and(|s| s.starts_with("PORT_DOWN"))
    })?;
    wire.b.ip("link set ve0 up")?;
    has("carrier back", &|i| {
        i.field("state")
            .is_some_and(|s| s.starts_with("PORT_ACTIVE"))
    })
}

/// Simultaneous first programs settle on one daemon.
fn ten_together() -> Outcome {
    let host = Host::loopback()?;
    for _ in 0..3 {
        let started: Result<Vec<_>, _> = (0..10)
            .map(|_| host.rocebud("ibv_devinfo", &[]).limit(20).start())
            .collect();
        for program in started? {
            let said = program.finish()?.succeeded()?;
            ensure(said.contains("rb_lo"), || format!("ibv_devinfo: {said}"))?;
        }
        let daemons = daemons(&host);
        ensure(daemons.len() == 1, || format!("daemons: {daemons:?}"))?;
    }
    Ok(())
}

/// Processes in the host that are `rocebud daemon`.
pub(crate) fn daemons(host: &Host) -> Vec<u32> {
    let is_daemon = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        words.len() > 1 && words[0].ends_with(b"rocebud") && words[1] == b"daemon"
    };
    host.pids().into_iter().filter(is_daemon).collect()
}

/// `$(rocebud run -- …)` ends although a daemon was started behind it.
fn captured_output() -> Outcome {
    let host = Host::loopback()?;
    let bin = tree::rocebud().display().to_string();
    let shell = format!("x=$('{bin}' run -- ibv_devices); echo \"got $x\"");
    let start = Instant::now();
    let said = host
        .plain("sh", &["-c", &shell])
        .limit(15)
        .run()?
        .succeeded()?;
    ensure(said.contains("rb_lo"), || said.clone())?;
    ensure(start.elapsed() < Duration::from_secs(4), || {
        format!("it took {:?}", start.elapsed())
    })
}

fn daemon_leaves() -> Outcome {
    let host = Host::loopback()?;
    host.rocebud("ibv_devices", &[]).run()?.succeeded()?;
    ensure(!daemons(&host).is_empty(), || {
        "no daemon was started".into()
    })?;
    let end = Instant::now() + Duration::from_secs(40);
    while !daemons(&host).is_empty() {
        if Instant::now() > end {
            return wrong("the daemon is still there 40 s after its last client");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    // and the next program simply works
    host.rocebud("ibv_devices", &[])
        .run()?
        .succeeded()
        .map(drop)
}

fn status_names() -> Outcome {
    let host = Host::loopback()?;
    let bin = tree::rocebud().display().to_string();
    let gid = DevInfo::of(&host)?.index_of("127.0.0.1")?.to_string();
    let args = ["-n", "500", "-g", &gid];
    let server = host.rocebud("ibv_rc_pingpong", &args);
    let client = host.rocebud("ibv_rc_pingpong", &["-n", "500", "-g", &gid, "127.0.0.1"]);
    rocebud_peer::program::duo((&host, &server), &client, 18515)?;
    let status = Status::of(&host)?;
    let mut waiting = host
        .rocebud("ibv_rc_pingpong", &["-e", "-g", &gid])
        .limit(30)
        .start()?;
    waiting.wait_listening(&host, 18515)?;
    let said = host.plain(&bin, &["status"]).run()?.succeeded()?;
    ensure(said.contains("pingpong"), || {
        format!("rocebud status does not name the program:\n{said}")
    })?;
    ensure(status.counter("drop_malformed") == 0, || {
        "malformed packets counted".into()
    })?;
    let help = host.plain(&bin, &["--help"]).run()?.succeeded()?;
    for word in ["run", "daemon", "devices", "status"] {
        ensure(help.contains(word), || {
            format!("rocebud --help: no {word} in\n{help}")
        })?;
    }
    Ok(())
}

/// A queue pair that ended well shows no event; one that failed says why, though it was destroyed.
fn status_of_destroyed() -> Outcome {
    let host = Host::loopback()?;
    let bin = tree::rocebud().display().to_string();
    let gid = DevInfo::of(&host)?.index_of(&host.v4)?.to_string();
    for (program, case, failed) in [
        ("edges", "c041_inline", false),
        ("badargs", "invalidation_refused", true),
    ] {
        let args = ["-d", &host.device(), "-g", &gid, "-c", case];
        let path = c_program(program)?;
        host.rocebud(&path, &args).limit(30).run()?.succeeded()?;
        let said = host.plain(&bin, &["status"]).run()?.succeeded()?;
        let (_, ended) = said.split_once(program).unwrap_or_default();
        let has = |words: &str| ended.contains(words);
        let right = has("destroyed") && !has("entered") && has(" failed ") == failed;
        ensure(right, || format!("{program}: {said}"))?;
    }
    Ok(())
}

/// A failure that people can act on: the words are there, in one line, and no panic.
fn explained(ran: &Finished, words: &[&str]) -> Outcome {
    let lower = ran.output.to_lowercase();
    let line = lower.lines().find(|l| words.iter().all(|w| l.contains(w)));
    ensure(!lower.contains("panicked"), || {
        format!("a panic:\n{}", ran.output)
    })?;
    ensure(line.is_some(), || {
        format!("no line with {words:?} in:\n{}", ran.output)
    })
}

fn port_taken_by_socket() -> Outcome {
    let host = Host::loopback()?;
    let hold = "import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
                s.bind(('0.0.0.0',4791))\nprint('bound',flush=True)\ntime.sleep(60)";
    let mut holder = host.plain("/usr/bin/python3", &["-c", hold]).start()?;
    holder.wait_for("bound")?;
    let ran = host.rocebud("ibv_devices", &[]).limit(20).run()?;
    explained(&ran, &["4791", "python3"])?;
    let bin = tree::rocebud().display().to_string();
    let ran = host.plain(&bin, &["devices"]).limit(20).run()?;
    ensure(ran.code != Some(0), || "rocebud devices succeeded".into())?;
    explained(&ran, &["4791"])
}

fn port_taken_by_user() -> Outcome {
    let host = Host::loopback()?;
    let (bin, _gone) = build_for_everybody()?;
    // nobody's daemon, kept alive by a program of nobody's
    let args = ["run", "--", "ibv_rc_pingpong", "-e", "-g", "0"];
    let mut theirs = host.plain(&bin, &args).as_nobody().limit(60).start()?;
    theirs.wait_listening(&host, 18515)?;
    let ran = host.rocebud("ibv_devices", &[]).limit(20).run()?;
    explained(&ran, &["4791", "65534"])
}

fn missing_daemon() -> Outcome {
    let host = Host::loopback()?;
    let ran = host
        .rocebud("ibv_devices", &[])
        .env("ROCEBUD_DAEMON", "/nonexistent/rocebud")
        .limit(20)
        .run()?;
    explained(&ran, &["/nonexistent/rocebud"])?;
    let ran = host
        .rocebud("ibv_devices", &[])
        .env("ROCEBUD_SOCKET", "/nonexistent/sock")
        .limit(20)
        .run()?;
    explained(&ran, &["rocebud_socket"])
}

fn no_usable_address() -> Outcome {
    let host = Host::loopback()?;
    host.ip("link set lo down")?;
    let bin = tree::rocebud().display().to_string();
    let ran = host.plain(&bin, &["devices"]).limit(20).run()?;
    ensure(!ran.output.to_lowercase().contains("panicked"), || {
        ran.output.clone()
    })?;
    // either it lists the device as down, or it says that there is no usable address
    let lower = ran.output.to_lowercase();
    ensure(lower.contains("down") || lower.contains("address"), || {
        format!("it says: {}", ran.output)
    })?;
    let ran = host.rocebud("ib_write_bw", &["-F"]).limit(20).run()?;
    ensure(ran.signal.is_none() && ran.code != Some(0), || {
        format!("{:?}: {}", ran.code, ran.output)
    })
}

fn pyverbs_script() -> Outcome {
    let wire = Wire::new(1500)?;
    let gid = DevInfo::of(&wire.a)?.index_of(&wire.a.v4)?.to_string();
    let device = wire.a.device();
    let path = script("pyverbs_smoke.py");
    let said = wire
        .a
        .rocebud("/usr/bin/python3", &[&path, &device, &gid])
        .limit(60)
        .run()?
        .succeeded()?;
    ensure(said.contains("pyverbs ok"), || said.clone())
}
