//! Clients that live, die, lie and speak to each other.

use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rocebud_ctl::forward::{self, Bundle, Header};
use rocebud_ctl::messages::{Hello, Role, VERSION};
use rocebud_ctl::page::QpIdentity;
use rocebud_ctl::{
    Client, ErrorKind, SlotGrant, SocketName, Unreachable, channel, control_socket,
    user_socket_name,
};
use rocebud_objects::{Note, NoteKind};
use rocebud_wire::{Gid, Psn, Qpn};

use crate::sys;
use crate::world::{
    NOBODY, SystemDaemon, actor as start_actor, as_nobody, connect, enter, output, rocebud, status,
    wait,
};

/// Not a test: what [`start_actor`] runs.
#[test]
#[ignore = "run by other tests"]
#[allow(
    clippy::zombie_processes,
    reason = "it is killed before its child ends"
)]
fn actor() {
    let Ok(role) = std::env::var("ACTOR") else {
        return;
    };
    let until_killed = || {
        let _ = std::io::stdin().read(&mut [0]);
    };
    if let Some(rest) = role.strip_prefix("forwards ") {
        let (qpn, path) = rest.split_once(' ').expect("QPN and path");
        let name = SocketName::parse(path.as_ref());
        let client = Client::connect(&name, Role::Library).expect("connect");
        let grant = client.take_slot().expect("slot");
        let qpn = qpn.parse().expect("QPN");
        let bundle = bundle(&frame(qpn));
        forward::send(&grant.forward, bundle.message()).expect("send");
        println!("ready {}", grant.slot);
        return until_killed();
    }
    if let Some(path) = role.strip_prefix("crowds ") {
        let name = SocketName::parse(path.as_ref());
        let _held = crowds(&name);
        return until_killed();
    }
    if role == "port" {
        let _socket = UdpSocket::bind("0.0.0.0:4791").expect("bind");
        println!("ready {}", std::process::id());
        return until_killed();
    }
    let client = Client::connect_or_start().unwrap_or_else(|e| panic!("{e}"));
    let grant = client.take_slot().unwrap_or_else(|e| panic!("{e}"));
    let qpn = Qpn::new(u32::from(grant.slot) << 12 | 3);
    let pages = client.page_set().expect("page-set");
    let record = pages.qp_record(qpn).expect("record");
    record.begin(
        qpn,
        rocebud_objects::Instant(1),
        &QpIdentity {
            qp_type: 2,
            dest_qpn: Qpn::new(0x11),
            sgid: Gid::from_v4([127, 0, 0, 1]),
            dgid: Gid::from_v4([127, 0, 0, 1]),
        },
    );
    if role == "failed" {
        let note = Note {
            kind: NoteKind::ErrorCompletion,
            psn: Psn::new(7),
            arg: 12 << 16 | 60,
        };
        pages.note(qpn, rocebud_objects::Instant(2), note);
    }
    if role == "leaves a child" {
        client.raw_fds().into_iter().for_each(sys::inherit);
        std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .expect("sleep");
    }
    println!("ready {} {}", grant.slot, client.daemon_pid());
    until_killed();
}

/// Takes all that one user may have of the daemon, and says what that was.
fn crowds(name: &SocketName) -> (Vec<Client>, Vec<SlotGrant>) {
    let (clients, refused) = crowd(name);
    let mut slots = Vec::new();
    let limit = clients
        .iter()
        .cycle()
        .find_map(|c| c.take_slot().map(|slot| slots.push(slot)).err());
    let limit = limit.expect("a limit");
    println!(
        "ready {} {} {} {:?} {limit}",
        clients.len(),
        refused == ErrorKind::Limit,
        slots.len(),
        limit.kind
    );
    (clients, slots)
}

/// As many connections as there may be, and why there is not one more.
fn crowd(name: &SocketName) -> (Vec<Client>, ErrorKind) {
    let mut clients = Vec::new();
    loop {
        match Client::connect(name, Role::Library) {
            Ok(client) => clients.push(client),
            Err(Unreachable::Refused(error)) => return (clients, error.kind),
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn slot_of(ready: &str) -> u16 {
    ready
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("slot")
}

/// A BTH with `qpn` as its destination, and some payload.
fn frame(qpn: u32) -> Vec<u8> {
    let mut frame = vec![0; 40];
    frame[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
    frame
}

fn header() -> Header {
    Header {
        src: "10.1.1.1:49999".parse().expect("address"),
        dst: "10.1.1.2".parse().expect("address"),
        ifindex: 1,
        traffic_class: 2,
        hop_limit: 64,
        batch_len: 9,
    }
}

fn bundle(frame: &[u8]) -> Bundle {
    let slot = u16::from_be_bytes([frame[5], frame[6]]) >> 4;
    Bundle::new(slot, &header(), 0, frame).expect("bundle")
}

#[test]
fn a_killed_process_frees_its_slot_after_time_wait_and_leaves_its_story() {
    if !enter() {
        return;
    }
    let keeper = connect();
    let (mut process, ready) = start_actor("failed", None);
    let slot = slot_of(&ready);
    process.0.kill().expect("kill");
    process.0.wait().expect("wait");
    let killed = Instant::now();
    let report = wait(2, "the death is noticed", || {
        let report = status();
        report
            .processes
            .iter()
            .any(|p| p.dead_ms.is_some())
            .then_some(report)
    });
    let entry = report
        .slots
        .iter()
        .find(|s| s.slot == slot)
        .expect("in time-wait");
    assert_eq!(entry.owner, None);
    assert!(entry.time_wait_ms > 7_000, "{entry:?}");
    let dead = report
        .processes
        .iter()
        .find(|p| p.dead_ms.is_some())
        .expect("dead");
    assert_eq!(dead.pid, process.0.id());
    let pages = keeper.pages_of(dead.key).expect("its page-set is kept");
    let qp = pages.qps().next().expect("its queue pair");
    assert_eq!(qp.error().expect("its error").arg, 12 << 16 | 60);
    wait(30, "time-wait ends", || {
        status().slots.is_empty().then_some(())
    });
    assert!(killed.elapsed() >= Duration::from_secs(9));
}

#[test]
fn a_child_that_holds_the_socket_does_not_keep_a_dead_process_alive() {
    if !enter() {
        return;
    }
    let _keeper = connect();
    let (mut process, ready) = start_actor("leaves a child", None);
    let slot = slot_of(&ready);
    process.0.kill().expect("kill");
    wait(2, "the death is noticed", || {
        let report = status();
        let entry = report.slots.into_iter().find(|s| s.slot == slot)?;
        entry.owner.is_none().then_some(())
    });
}

#[test]
fn frames_arrive_at_the_slot_that_their_qpn_names() {
    if !enter() {
        return;
    }
    let client = connect();
    let grants: Vec<SlotGrant> = (0..3).map(|_| client.take_slot().expect("slot")).collect();
    for (wanted, source) in [("127.0.0.1:4791", "127.0.0.1:0"), ("[::1]:4791", "[::1]:0")] {
        let sender = UdpSocket::bind(source).expect("sender");
        for grant in &grants {
            let sent = frame(u32::from(grant.slot) << 12 | 0xabc);
            sender.send_to(&sent, wanted).expect("send");
            let socket = match wanted.starts_with('[') {
                true => grant.recv_v6.as_ref().expect("IPv6"),
                false => &grant.recv_v4,
            };
            let deadline = Instant::now() + Duration::from_secs(2);
            assert!(
                channel::wait_readable(socket, deadline),
                "slot {:#x}",
                grant.slot
            );
            let mut buf = [0; 100];
            let got = channel::recv(socket, &mut buf).expect("recv");
            assert_eq!(buf[..got.bytes], sent);
        }
        sender.send_to(&frame(0x123), wanted).expect("send");
    }
    wait(2, "frames for nobody are counted", || {
        let counters = status().counters;
        counters
            .iter()
            .any(|(name, n)| name == "drop_no_qp" && *n == 2)
            .then_some(())
    });
}

#[test]
fn a_frame_at_the_wrong_slot_reaches_its_owner_through_the_daemon() {
    if !enter() {
        return;
    }
    let (a, b) = (connect(), connect());
    let (from, to) = (a.take_slot().expect("slot"), b.take_slot().expect("slot"));
    let sent = frame(u32::from(to.slot) << 12 | 1);
    forward::send(&from.forward, bundle(&sent).message()).expect("send");
    let deadline = Instant::now() + Duration::from_secs(2);
    assert!(channel::wait_readable(&to.forward, deadline));
    let mut buf = vec![0; forward::MESSAGE_BYTES_MAX];
    let got = forward::recv(&to.forward, &mut buf).expect("recv");
    let (told, mut frames) = got.expect("frames");
    assert_eq!(told, header());
    assert_eq!(frames.next(), Some((0, &sent[..])));
    assert_eq!(frames.next(), None);
}

/// A process that has no turn for a while loses nothing of what others hand on to it.
#[test]
fn frames_wait_for_an_owner_that_is_slow() {
    if !enter() {
        return;
    }
    let (a, b) = (connect(), connect());
    let (from, to) = (a.take_slot().expect("slot"), b.take_slot().expect("slot"));
    let mut sent = frame(u32::from(to.slot) << 12 | 1);
    sent.resize(4000, 7);
    let bundles = 300;
    for _ in 0..bundles {
        wait(2, "the daemon takes it", || {
            forward::send(&from.forward, bundle(&sent).message()).ok()
        });
    }
    let mut buf = vec![0; forward::MESSAGE_BYTES_MAX];
    for n in 0..bundles {
        let deadline = Instant::now() + Duration::from_secs(2);
        assert!(channel::wait_readable(&to.forward, deadline), "{n}");
        let got = forward::recv(&to.forward, &mut buf).expect("recv");
        let (_, frames) = got.expect("frames");
        assert!(frames.eq([(0, &sent[..])]));
    }
}

#[test]
fn nobody_speaks_to_another_users_queue_pairs_with_a_made_up_source() {
    if !enter() {
        return;
    }
    let daemon = SystemDaemon::start("forward");
    let root = daemon.connect();
    let to = root.take_slot().expect("slot");
    let qpn = u32::from(to.slot) << 12 | 1;
    let role = format!("forwards {qpn} {}", daemon.path);
    let (_process, _) = start_actor(&role, Some(NOBODY));
    wait(2, "the frame is counted", || {
        let counters = root.status().expect("status").counters;
        counters
            .iter()
            .any(|(name, n)| name == "drop_no_qp" && *n == 1)
            .then_some(())
    });
    let mut buf = vec![0; forward::MESSAGE_BYTES_MAX];
    let got = forward::recv(&to.forward, &mut buf).expect("recv");
    assert!(got.is_none());
}

#[test]
fn sockets_serve_again_when_their_process_is_gone_and_numbers_rest() {
    if !enter() {
        return;
    }
    let keeper = connect();
    let mut numbers = Vec::new();
    for _ in 0..10 {
        let client = connect();
        let grant = client.take_slot().expect("slot");
        let report = keeper.status().expect("status");
        let entry = report
            .slots
            .iter()
            .find(|s| s.slot == grant.slot)
            .expect("listed");
        assert_eq!(entry.position, 1, "the group does not grow");
        numbers.push(grant.slot);
        drop((client, grant));
        wait(2, "it is free", || {
            let owned = |report: rocebud_ctl::status::StatusReport| {
                report.slots.iter().any(|s| s.owner.is_some())
            };
            (!owned(keeper.status().expect("status"))).then_some(())
        });
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(
        numbers.len(),
        10,
        "no number comes back within its time-wait"
    );
}

#[test]
fn slots_of_one_process_are_bounded_and_differ() {
    if !enter() {
        return;
    }
    let client = connect();
    let mut slots: Vec<u16> = (0..4)
        .map(|_| client.take_slot().expect("slot").slot)
        .collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 4);
    let error = client.take_slot().expect_err("a fifth");
    assert_eq!(error.kind, ErrorKind::Limit);
    // The page-set knows them all, whenever it is asked for.
    let pages = client.page_set().expect("page-set");
    let mut known: Vec<u16> = pages.slots().collect();
    known.sort_unstable();
    assert_eq!(known, slots);
}

#[test]
fn one_user_leaves_connections_and_slots_to_the_others() {
    if !enter() {
        return;
    }
    let daemon = SystemDaemon::start("crowd");
    let root = daemon.connect();
    let (_process, said) = start_actor(&format!("crowds {}", daemon.path), Some(NOBODY));
    assert!(said.starts_with("160 true 256 Limit "), "{said}");
    assert!(said.contains("has as many slots as one user may"), "{said}");
    root.take_slot().expect("a slot for root");
    let (crowd, refused) = crowd(&SocketName::parse(daemon.path.as_ref()));
    assert_eq!((crowd.len(), refused), (256 - 161, ErrorKind::Limit));
    drop(crowd);
    wait(2, "there is room again", || {
        let name = SocketName::parse(daemon.path.as_ref());
        Client::connect(&name, Role::Library).ok()
    });
}

#[test]
fn garbage_from_a_client_costs_it_its_connection_and_nobody_else_anything() {
    if !enter() {
        return;
    }
    let honest = connect();
    let address = user_socket_name().address().expect("name");
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..300_u64 {
        let socket = control_socket().expect("socket");
        rustix::net::connect(&socket, &address).expect("connect");
        if round % 3 != 0 {
            let role = if round % 2 == 0 {
                Role::Library
            } else {
                Role::Command
            };
            let hello = Hello {
                version: VERSION,
                role,
            };
            channel::send(&socket, &hello.encode(), &[]).expect("hello");
        }
        for _ in 0..next() % 5 {
            let length = (next() % 400) as usize;
            let bytes: Vec<u8> = (0..length).map(|_| next() as u8 & 0x1f).collect();
            let with_fd = next() % 4 == 0;
            let fds = [socket.as_fd()];
            let _ = channel::send(&socket, &bytes, if with_fd { &fds } else { &[] });
        }
    }
    assert!(!honest.devices().expect("still answers").is_empty());
    wait(3, "their slots are gone", || {
        let report = status();
        let honest_ones = report
            .processes
            .iter()
            .filter(|p| p.dead_ms.is_none())
            .count();
        (honest_ones == 1).then_some(())
    });
}

#[test]
fn a_client_that_says_nothing_is_dropped_after_some_seconds() {
    if !enter() {
        return;
    }
    let honest = connect();
    let address = user_socket_name().address().expect("name");
    let socket = control_socket().expect("socket");
    rustix::net::connect(&socket, &address).expect("connect");
    let deadline = Instant::now() + Duration::from_secs(8);
    assert!(channel::wait_readable(&socket, deadline));
    let got = channel::recv(&socket, &mut [0; 8]).expect("recv");
    assert_eq!(got.bytes, 0);
    assert!(honest.devices().is_ok());
}

#[test]
fn a_user_does_not_see_the_page_set_of_another() {
    if !enter() {
        return;
    }
    let daemon = SystemDaemon::start("pages");
    daemon.connect().page_set().expect("page-set");
    let mut look = rocebud(&["status"]);
    look.env("ROCEBUD_SOCKET", &daemon.path);
    let (ok, out, err) = output(as_nobody(&mut look));
    assert!(ok, "{err}");
    assert!(
        out.contains("belongs to user 0: look as that user or as root"),
        "{out}"
    );
}
