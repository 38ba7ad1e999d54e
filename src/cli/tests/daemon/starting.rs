//! Who starts a daemon, who gets to be one, and when it leaves.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rocebud_ctl::Client;
use rocebud_ctl::messages::Role;

use crate::world::{
    NOBODY, ROCEBUD, SystemDaemon, actor, as_nobody, connect, enter, one_line, output, rocebud,
    status, text, wait,
};

#[test]
fn twenty_starters_give_one_daemon() {
    if !enter() {
        return;
    }
    let mut starters: Vec<_> = (0..20)
        .map(|_| {
            let mut command = rocebud(&["devices"]);
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("spawn")
        })
        .collect();
    for starter in starters.drain(..) {
        let out = starter.wait_with_output().expect("wait");
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert!(text(&out.stdout).contains("rb_lo"));
    }
    let (_, sockets, _) = output(std::process::Command::new("ss").args(["-Hulnp"]));
    let mut pids: Vec<&str> = sockets.split("pid=").skip(1).collect();
    pids.iter_mut()
        .for_each(|p| *p = p.split(',').next().unwrap_or(""));
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 1, "{sockets}");
}

#[test]
fn an_automatic_daemon_leaves_some_seconds_after_its_last_client() {
    if !enter() {
        return;
    }
    let client = connect();
    std::thread::sleep(Duration::from_secs(4));
    assert!(client.devices().is_ok(), "it stays while somebody is there");
    drop(client);
    let start = Instant::now();
    wait(8, "it leaves", || {
        Client::connect_running(Role::Command)
            .expect("connect")
            .is_none()
            .then_some(())
    });
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(2), "{waited:?}");
    std::net::UdpSocket::bind("0.0.0.0:4791").expect("the port is free");
}

#[test]
fn a_daemon_stays_longer_to_explain_an_error() {
    if !enter() {
        return;
    }
    let (mut process, _) = actor("failed", None);
    process.0.kill().expect("kill");
    process.0.wait().expect("wait");
    std::thread::sleep(Duration::from_secs(6));
    let (ok, out, err) = output(&mut rocebud(&["status"]));
    assert!(ok, "{err}");
    assert!(
        one_line(&out).contains("IBV_WC_RETRY_EXC_ERR: no answer after retry_cnt retries"),
        "{out}"
    );
}

#[test]
fn a_user_without_rights_or_home_has_devices_and_slots() {
    if !enter() {
        return;
    }
    let (ok, out, err) = output(as_nobody(&mut rocebud(&["devices"])));
    assert!(ok, "{err}");
    assert!(out.contains("rb_lo") && out.contains("ACTIVE"), "{out}");
    let (_process, ready) = actor("lives", Some(NOBODY));
    assert!(!ready.is_empty());
}

#[test]
fn whoever_holds_the_port_is_named_with_user_and_command() {
    if !enter() {
        return;
    }
    let (_holder, ready) = actor("port", Some(NOBODY));
    let (ok, _, err) = output(&mut rocebud(&["devices"]));
    assert!(!ok);
    let expected = format!("rocebud: UDP port 4791 is held by process {ready} (user 65534");
    assert!(err.starts_with(&expected), "{err}");
    assert!(
        err.contains("command daemon") && err.lines().count() == 1,
        "{err}"
    );
}

#[test]
fn a_user_is_told_of_the_daemon_of_another() {
    if !enter() {
        return;
    }
    let _mine = connect();
    let pid = status().pid;
    let (ok, _, err) = output(as_nobody(&mut rocebud(&["devices"])));
    assert!(!ok);
    let expected = format!("UDP port 4791 is held by process {pid} (user 0");
    assert!(err.contains(&expected), "{err}");
    assert!(
        err.contains("run `rocebud daemon` as root to serve all users"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
}

/// A daemon that nobody uses any more rests for seconds; whoever comes then is not told that it holds the
/// port, but served.
#[test]
fn a_daemon_of_another_user_that_only_rests_makes_way() {
    if !enter() {
        return;
    }
    let devices = |nobody: bool| {
        let mut command = rocebud(&["devices"]);
        let command = if nobody {
            as_nobody(&mut command)
        } else {
            &mut command
        };
        let (ok, out, err) = output(command);
        assert!(ok && out.contains("rb_lo"), "{err}");
    };
    // Only commands came, and went.
    devices(false);
    devices(true);
    devices(false);
    // A program did, with an error that the daemon would stay on for to explain.
    let (mut process, _) = actor("failed", None);
    process.0.kill().expect("kill");
    process.0.wait().expect("wait");
    wait(3, "its end is seen", || {
        status()
            .processes
            .iter()
            .all(|p| p.dead_ms.is_some())
            .then_some(())
    });
    // Who merely asks who has the port is no reason to leave.
    let pid = status().pid;
    knock_at_lock();
    assert_eq!(status().pid, pid);
    devices(true);
    let (_process, ready) = actor("lives", None);
    assert!(!ready.is_empty());
    let (ok, _, err) = output(as_nobody(&mut rocebud(&["devices"])));
    assert!(!ok && err.contains("(user 0"), "{err}");
}

#[test]
fn a_user_who_asks_again_and_again_is_told_each_time() {
    if !enter() {
        return;
    }
    let _mine = connect();
    // Clients that asked the lock who has it, and went: more than its queue takes at a time.
    for _ in 0..300 {
        knock_at_lock();
    }
    let (ok, _, err) = output(as_nobody(&mut rocebud(&["devices"])));
    assert!(!ok);
    assert!(err.contains("UDP port 4791 is held by"), "{err}");
}

/// Connects to the abstract socket that says who is this namespace's daemon, without waiting.
fn knock_at_lock() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let address = SocketAddrUnix::new_abstract_name(b"rocebud-port-4791");
    if let (Ok(socket), Ok(address)) = (socket, address) {
        let _ = rustix::net::connect(&socket, &address);
    }
}

#[test]
fn a_system_daemon_serves_every_user_at_its_socket_and_survives_being_killed() {
    if !enter() {
        return;
    }
    let mut daemon = SystemDaemon::start("system");
    let path = daemon.path.clone();
    let path = path.as_str();
    let list = || {
        let mut command = rocebud(&["devices"]);
        command.env("ROCEBUD_SOCKET", path);
        output(as_nobody(&mut command))
    };
    let (ok, out, err) = list();
    assert!(ok && out.contains("rb_lo"), "{err}");
    // A second one is told about the first, by socket and by namespace.
    let (ok, _, err) = output(&mut rocebud(&["daemon", "--socket", path]));
    assert!(
        !ok && err.contains("listens at") && err.lines().count() == 1,
        "{err}"
    );
    let (ok, _, err) = output(&mut rocebud(&["daemon", "--socket", "@rocebud-test-other"]));
    assert!(
        !ok && err.contains("UDP port 4791 is held by process"),
        "{err}"
    );
    // A killed one leaves its socket file; the next takes it over.
    daemon.process.0.kill().expect("kill");
    daemon.process.0.wait().expect("wait");
    let (ok, _, err) = list();
    assert!(!ok && err.contains("no rocebud daemon answers at"), "{err}");
    assert!(Path::new(path).exists());
    let next = SystemDaemon::start_at(path);
    assert!(next.connect().devices().is_ok());
}

#[test]
fn a_daemon_ends_on_a_signal_and_its_clients_are_told() {
    if !enter() {
        return;
    }
    let client = connect();
    let pid = status().pid;
    let kill = std::process::Command::new("kill")
        .arg(pid.to_string())
        .status();
    assert!(kill.expect("kill").success());
    wait(3, "the end is told", || {
        client
            .poll_notices()
            .contains(&rocebud_ctl::Notice::Closed)
            .then_some(())
    });
    assert!(client.take_slot().is_err());
    // The next program starts the next daemon.
    assert!(connect().devices().is_ok());
}

/// A daemon inherits what its starter may have. Whose limit it is, how much is needed, and what to do.
#[test]
fn a_limit_of_open_files_that_is_too_small_for_a_daemon_is_told() {
    if !enter() {
        return;
    }
    for (limit, run) in [
        (6, "devices"),
        (12, "devices"),
        (18, "devices"),
        (40, "devices"),
        (12, "daemon"),
        (40, "daemon"),
    ] {
        let mut command = std::process::Command::new("prlimit");
        command
            .arg(format!("--nofile={limit}:{limit}"))
            .args([ROCEBUD, run]);
        let (ok, _, err) = output(&mut command);
        let told = err.contains(&format!("limit of open files, {limit}"))
            && err.contains("needs 64")
            && err.contains("ulimit -Hn");
        assert!(!ok && told && err.lines().count() == 1, "{limit}: {err}");
    }
    // Only the soft limit is small: the daemon raises its own, and the program says how much itself needs.
    let mut command = std::process::Command::new("prlimit");
    command.args(["--nofile=4:", ROCEBUD, "devices"]);
    let (ok, _, err) = output(&mut command);
    assert!(!ok && err.contains("limit of open files is 4"), "{err}");
    assert!(
        err.contains("about 20") && err.contains("`ulimit -n`"),
        "{err}"
    );
}

#[test]
fn a_missing_daemon_program_is_named() {
    if !enter() {
        return;
    }
    let mut command = rocebud(&["devices"]);
    let (ok, _, err) = output(command.env("ROCEBUD_DAEMON", "/no/such/rocebud"));
    assert!(!ok);
    assert_eq!(
        err,
        "rocebud: ROCEBUD_DAEMON names /no/such/rocebud, which is no file\n"
    );
    let mut command = rocebud(&["devices"]);
    let (ok, _, err) = output(command.env("ROCEBUD_DAEMON", "/bin/true"));
    assert!(!ok);
    assert!(
        err.contains("/bin/true was started as a daemon but said nothing"),
        "{err}"
    );
}

#[test]
fn a_daemon_that_started_by_itself_logs_where_it_is_told() {
    if !enter() {
        return;
    }
    let name = format!("rocebud-log-{}", std::process::id());
    let (file, link) = (
        std::env::temp_dir().join(&name),
        std::env::temp_dir().join(name + "-link"),
    );
    std::os::unix::fs::symlink(&file, &link).expect("symlink");
    for (path, expected) in [(&link, false), (&file, true)] {
        let mut command = rocebud(&["devices"]);
        let (ok, _, err) = output(command.env("ROCEBUD_DAEMON_LOG", path));
        assert!(ok, "{err}");
        let said = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(said.contains("rocebud daemon: serves "), expected, "{said}");
        wait(8, "it leaves", || {
            Client::connect_running(Role::Command)
                .expect("connect")
                .is_none()
                .then_some(())
        });
    }
    let _ = (std::fs::remove_file(&file), std::fs::remove_file(&link));
}
