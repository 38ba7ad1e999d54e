//! What a wire sees of the link, on veth pairs in namespaces that the tests make and lose again.
//! They need root and iproute2; without, each says so and passes.

mod ring;
mod sys;

use rocebud_nic::udp::{ROCE_PORT, Rings, SlotSockets, UdpLink, free_send_socket, receive_socket};
use rocebud_nic::{PacketIo, TxBatch};
use std::net::IpAddr;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use sys::Capture;

/// Runs a test in a thread with a network of its own.
fn in_own_network(test: impl FnOnce() + Send) {
    if !sys::is_root() {
        eprintln!("skipped: making a network namespace needs root");
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sys::own_network().expect("a network namespace");
            sh("ip link set lo up");
            test();
        });
    });
}

/// Runs a command in this thread's network; it must succeed.
fn sh(command: &str) {
    assert!(try_sh(command), "{command}");
}

fn try_sh(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a program");
    Command::new(program)
        .args(words)
        .status()
        .is_ok_and(|status| status.success())
}

fn ifindex(name: &str) -> u32 {
    let out = Command::new("ip")
        .args(["-o", "link", "show", name])
        .output()
        .expect("ip");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.split(':')
        .next()
        .and_then(|n| n.trim().parse().ok())
        .expect("an index")
}

fn link() -> UdpLink {
    UdpLink::new(SlotSockets {
        recv_v4: receive_socket(false, ROCE_PORT, true).expect("IPv4"),
        recv_v6: Some(receive_socket(true, ROCE_PORT, true).expect("IPv6")),
        send_v4: vec![free_send_socket(false, 0xC001).expect("IPv4")],
        send_v6: vec![free_send_socket(true, 0xC001).expect("IPv6")],
        rings: Rings::default(),
    })
    .expect("a link")
}

/// A veth pair whose far end nobody answers at; the near end does segmentation in software, so
/// that the far end sees what a wire would.
fn deaf_neighbour(mtu: u32) {
    sh(&format!(
        "ip link add name near mtu {mtu} type veth peer name far mtu {mtu}"
    ));
    sh("ip link set far address 02:00:00:00:00:0b");
    sh("ip addr add 10.9.0.1/24 dev near");
    sh("ip addr add fd09::1/64 dev near nodad");
    sh("ip link set near up");
    sh("ip link set far up");
    sh("ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:0b dev near");
    sh("ip neigh add fd09::2 lladdr 02:00:00:00:00:0b dev near");
    sh("ethtool -K near tx-udp-segmentation off");
}

fn to_neighbour(v6: bool, segment: u16, data: &[u8]) -> TxBatch<'_> {
    let ip = |v4: &str, v6_: &str| -> IpAddr {
        if v6 {
            v6_.parse().expect("address")
        } else {
            v4.parse().expect("address")
        }
    };
    TxBatch {
        singly: false,
        src: ip("10.9.0.1", "fd09::1"),
        dst: ip("10.9.0.2", "fd09::2"),
        ifindex: 0,
        sport: 0xC777,
        traffic_class: 0x6A,
        hop_limit: 33,
        segment,
        data,
    }
}

/// RoCE frames, without Ethernet header.
fn roce_frames(capture: &Capture, v6: bool, n: usize) -> Vec<Vec<u8>> {
    let (ethertype, port_at) = if v6 {
        ([0x86, 0xdd], 42)
    } else {
        ([0x08, 0x00], 22)
    };
    let mut frames = Vec::new();
    while frames.len() < n {
        let frame = capture.next(Duration::from_millis(500)).expect("a frame");
        let ip = frame.get(14..).unwrap_or(&[]);
        if frame.get(12..14) == Some(&ethertype)
            && ip.get(port_at..port_at + 2) == Some(&ROCE_PORT.to_be_bytes())
        {
            frames.push(ip.to_vec());
        }
    }
    frames
}

#[test]
fn segments_of_a_batch_are_identified_0_1_2_with_df() {
    in_own_network(|| {
        deaf_neighbour(9000);
        let capture = Capture::on(ifindex("far")).expect("capture");
        let mut link = link();
        let data: Vec<u8> = (0..4140 * 6 + 500u32).map(|i| (i * 3) as u8).collect();
        let (long, short) = (&data[..4140 * 6 + 500], &data[..60]);
        let batches = [
            to_neighbour(false, 4140, long),
            to_neighbour(false, 4140, short),
            to_neighbour(false, 10, short),
            to_neighbour(false, 0, short),
        ];
        assert_eq!(link.send(&batches).sent, 4);
        let frames = roce_frames(&capture, false, 7 + 1 + 6 + 1);
        let ids: Vec<u16> = frames
            .iter()
            .map(|f| u16::from_be_bytes([f[4], f[5]]))
            .collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 2, 3, 4, 5, 0]);
        let real = link.real_sport(false, 0xC777).to_be_bytes();
        for frame in &frames {
            assert_eq!(frame[0], 0x45, "no options");
            assert_eq!(frame[1], 0x6A, "TOS");
            assert_eq!(frame[6..8], [0x40, 0], "DF, not a fragment");
            assert_eq!(frame[8], 33, "TTL");
            assert_eq!(frame[20..22], real, "source port");
        }
        let bytes: Vec<u8> = frames.iter().flat_map(|f| f[28..].to_vec()).collect();
        assert_eq!(bytes, [long, short, short, short].concat());
    });
}

#[test]
fn ipv6_segments_leave_without_extension_headers() {
    in_own_network(|| {
        deaf_neighbour(1500);
        let capture = Capture::on(ifindex("far")).expect("capture");
        let mut link = link();
        let data: Vec<u8> = (0..1068 * 9 + 20u32).map(|i| (i * 5) as u8).collect();
        assert_eq!(link.send(&[to_neighbour(true, 1068, &data)]).sent, 1);
        let frames = roce_frames(&capture, true, 10);
        for frame in &frames {
            assert_eq!(frame[6], 17, "UDP follows at once");
            assert_eq!(frame[7], 33, "hop limit");
            assert_eq!((frame[0] & 0xf) << 4 | frame[1] >> 4, 0x6A, "traffic class");
        }
        let bytes: Vec<u8> = frames.iter().flat_map(|f| f[48..].to_vec()).collect();
        assert_eq!(bytes, data);
    });
}

#[test]
fn a_packet_too_long_for_the_wire_is_lost_and_batches_stay_allowed() {
    in_own_network(|| {
        deaf_neighbour(1500);
        let mut link = link();
        let data = vec![7; 9000];
        for v6 in [false, true] {
            for segment in [0, 3000] {
                let mut batch = to_neighbour(v6, segment, &data);
                if segment > 0 && !v6 {
                    assert!(link.send(&[batch]).seal_singly);
                    batch.singly = true;
                }
                let report = link.send(&[batch, to_neighbour(v6, 1000, &data)]);
                assert_eq!((report.sent, report.failed), (2, 1), "{batch:?}");
                assert_eq!(report.errno, libc::EMSGSIZE);
            }
            let peer = to_neighbour(v6, 0, &[]).dst;
            assert_eq!(link.caps(peer).segments_max, 64);
        }
    });
}

#[test]
fn a_full_device_leaves_the_rest_to_the_caller() {
    in_own_network(|| {
        deaf_neighbour(9000);
        if !try_sh("tc qdisc add dev near root tbf rate 8mbit burst 20kb limit 10mb") {
            eprintln!("skipped: no tbf queueing discipline in this kernel");
            return;
        }
        let (port, fd) = free_send_socket(false, 0xC001).expect("IPv4");
        sys::shrink_send_buffer(&fd);
        let mut link = UdpLink::new(SlotSockets {
            recv_v4: receive_socket(false, ROCE_PORT, true).expect("IPv4"),
            recv_v6: None,
            send_v4: vec![(port, fd)],
            send_v6: Vec::new(),
            rings: Rings::default(),
        })
        .expect("a link");
        let data = vec![7; 2000];
        let batches = vec![to_neighbour(false, 0, &data); 60];
        let report = link.send(&batches);
        assert!(report.sent < 60, "{report:?}");
        assert_eq!(report.failed, 0);
        let end = Instant::now() + Duration::from_secs(5);
        let mut sent = report.sent;
        while sent < 60 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
            sent += link.send(&batches[sent..]).sent;
        }
        assert_eq!(sent, 60, "it drains");
    });
}

#[test]
fn two_hosts_talk_over_link_local_addresses() {
    in_own_network(|| {
        std::thread::scope(|scope| {
            // In here, so that a failure on one side lets the other go.
            let (tell, path) = mpsc::channel();
            let (ready, go) = mpsc::channel();
            scope.spawn(move || {
                sys::own_network().expect("a network namespace");
                tell.send(sys::network_path()).expect("told");
                go.recv().expect("go");
                sh("ip addr add fe80::b/64 dev far nodad");
                sh("ip link set far up");
                echo_link_local();
            });
            let path = path.recv().expect("path");
            sh(&format!(
                "ip link add name near mtu 9000 type veth peer name far mtu 9000 netns {path}"
            ));
            sh("ip addr add fe80::a/64 dev near nodad");
            sh("ip link set near up");
            ready.send(()).expect("ready");
            ask_link_local();
        });
    });
}

fn link_local<'a>(from: &str, to: &str, ifindex: u32, data: &'a [u8]) -> TxBatch<'a> {
    TxBatch {
        singly: false,
        src: from.parse().expect("address"),
        dst: to.parse().expect("address"),
        ifindex,
        sport: 0xC001,
        traffic_class: 0,
        hop_limit: 64,
        segment: 900,
        data,
    }
}

/// Sends back what it gets, once, and checks who sent it.
fn echo_link_local() {
    let mut link = link();
    let mut got = Vec::new();
    let end = Instant::now() + Duration::from_secs(5);
    while got.len() < 2000 && Instant::now() < end {
        link.recv(8, &mut |frame| {
            let std::net::SocketAddr::V6(src) = frame.src else {
                panic!("{frame:?}")
            };
            assert_eq!(
                (src.scope_id(), frame.ifindex),
                (ifindex("far"), ifindex("far"))
            );
            got.extend_from_slice(frame.data);
        })
        .expect("recv");
    }
    // Questions asked while the neighbour was still looked for may come all at once.
    got.truncate(2000);
    assert_eq!(
        link.send(&[link_local("fe80::b", "fe80::a", ifindex("far"), &got)])
            .failed,
        0
    );
    // The namespace must outlive the answer.
    std::thread::sleep(Duration::from_millis(200));
}

fn ask_link_local() {
    let mut link = link();
    let data: Vec<u8> = (0..2000u32).map(|i| (i * 11) as u8).collect();
    let batch = link_local("fe80::a", "fe80::b", ifindex("near"), &data);
    let end = Instant::now() + Duration::from_secs(5);
    let mut got = Vec::new();
    let mut asked = Instant::now();
    link.send(&[batch]);
    while got.is_empty() && Instant::now() < end {
        if asked.elapsed() > Duration::from_millis(400) {
            // The other end may not have been listening yet.
            asked = Instant::now();
            link.send(&[batch]);
        }
        link.recv(8, &mut |frame| {
            got.push((frame.seg_index, frame.data.to_vec()))
        })
        .expect("recv");
    }
    while got.len() < 3 && Instant::now() < end {
        link.recv(8, &mut |frame| {
            got.push((frame.seg_index, frame.data.to_vec()))
        })
        .expect("recv");
    }
    assert_eq!(
        got.iter().map(|g| g.0).collect::<Vec<_>>(),
        [0, 1, 2],
        "merged on the way"
    );
    assert_eq!(got.into_iter().flat_map(|g| g.1).collect::<Vec<_>>(), data);
}
