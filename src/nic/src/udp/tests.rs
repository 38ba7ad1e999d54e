//! Round trips over loopback, on a port of the system's choice.

use super::*;
use crate::TxBatch;
use crate::sys;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A frame as it arrived, kept.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Got {
    data: Vec<u8>,
    src: SocketAddr,
    dst: IpAddr,
    ifindex: u32,
    traffic_class: u8,
    hop_limit: u8,
    seg_index: u16,
    batch_len: u16,
}

fn keep(frame: RxFrame<'_>) -> Got {
    Got {
        data: frame.data.to_vec(),
        src: frame.src,
        dst: frame.dst,
        ifindex: frame.ifindex,
        traffic_class: frame.traffic_class,
        hop_limit: frame.hop_limit,
        seg_index: frame.seg_index,
        batch_len: frame.batch_len,
    }
}

/// Reads until `n` frames came or half a second went by.
fn collect(link: &mut UdpLink, n: usize) -> Vec<Got> {
    let mut got = Vec::new();
    let end = Instant::now() + Duration::from_millis(500);
    while got.len() < n && Instant::now() < end {
        link.recv(64, &mut |frame| got.push(keep(frame)))
            .expect("recv");
    }
    got
}

fn localhost(v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::LOCALHOST.into()
    }
}

fn senders(v6: bool, n: usize) -> Vec<(u16, OwnedFd)> {
    (0..n)
        .map(|i| free_send_socket(v6, 0xC000 + (i as u16) * 513).expect("a send socket"))
        .collect()
}

/// A link that receives on `v4` and `v6` and sends to `port`.
fn link(v4: OwnedFd, v6: Option<OwnedFd>, port: u16) -> UdpLink {
    let sockets = SlotSockets {
        recv_v4: v4,
        recv_v6: v6,
        send_v4: senders(false, 3),
        send_v6: senders(true, 3),
        rings: Rings::default(),
    };
    let mut link = UdpLink::new(sockets).expect("a link");
    link.set_peer_port(port);
    link
}

/// A link that sends to itself over both families.
fn looped() -> UdpLink {
    loop {
        let v4 = receive_socket(false, 0, true).expect("IPv4 socket");
        let port = bound_port(v4.as_fd()).expect("port");
        // Somebody else may hold the same port for IPv6: try another one.
        if let Ok(v6) = receive_socket(true, port, true) {
            return link(v4, Some(v6), port);
        }
    }
}

fn batch(v6: bool, segment: u16, data: &[u8]) -> TxBatch<'_> {
    TxBatch {
        singly: false,
        src: localhost(v6),
        dst: localhost(v6),
        ifindex: 0,
        sport: 0xC123,
        traffic_class: 0,
        hop_limit: 64,
        segment,
        data,
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn every_batch_shape_arrives_as_it_left() {
    let mut link = looped();
    let shapes: &[(u16, usize)] = &[
        (4096, 1),
        (4096, 64),
        (4096, 4096),
        (0, 300),
        (64, 64 * 64),
        (64, 64 * 63 + 1),
        (1, 64),
        (4140, 4140 * 15),
        (4140, 4140 * 14 + 20),
        (1068, 1068 * 61),
        (1068, 1068 * 2),
        // As long as the loopback's MTU takes over IPv6.
        (u16::MAX, 65_488),
    ];
    for v6 in [false, true] {
        for &(segment, len) in shapes {
            let data = pattern(len);
            let batch = batch(v6, segment, &data);
            let report = link.send(&[batch]);
            assert_eq!(
                report,
                SendReport {
                    sent: 1,
                    ..SendReport::default()
                },
                "{batch:?}"
            );
            let got = collect(&mut link, batch.segments());
            let joined: Vec<u8> = got.iter().flat_map(|g| g.data.clone()).collect();
            assert_eq!(joined, data, "v6 {v6} segment {segment} of {len}");
            assert_eq!(got.len(), batch.segments());
            for (i, frame) in got.iter().enumerate() {
                assert_eq!(usize::from(frame.seg_index), i);
                assert_eq!(usize::from(frame.batch_len), got.len());
                assert_eq!(frame.src.port(), link.real_sport(v6, 0xC123));
                assert_eq!((frame.src.ip(), frame.dst), (localhost(v6), localhost(v6)));
                assert_eq!(frame.ifindex, 1, "loopback");
            }
        }
    }
}

#[test]
fn an_empty_datagram_is_a_frame() {
    let mut link = looped();
    for v6 in [false, true] {
        assert_eq!(link.send(&[batch(v6, 0, &[])]).sent, 1);
        let got = collect(&mut link, 1);
        assert_eq!(
            got.iter()
                .map(|g| (g.data.len(), g.batch_len))
                .collect::<Vec<_>>(),
            [(0, 1)]
        );
    }
}

#[test]
fn traffic_class_and_hop_limit_arrive() {
    let mut link = looped();
    for v6 in [false, true] {
        for (traffic_class, hop_limit) in [(0, 64), (0x02, 1), (0xfd, 255), (0xb8, 254)] {
            let data = pattern(200);
            let sent = TxBatch {
                traffic_class,
                hop_limit,
                ..batch(v6, 100, &data)
            };
            assert_eq!(link.send(&[sent]).failed, 0);
            let got = collect(&mut link, 2);
            assert_eq!(got.len(), 2);
            assert!(
                got.iter().all(|g| g.traffic_class == traffic_class),
                "{got:?}"
            );
            assert!(got.iter().all(|g| g.hop_limit == hop_limit), "{got:?}");
        }
    }
}

#[test]
fn many_batches_of_one_call_keep_their_order_per_flow() {
    let mut link = looped();
    let payloads: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; 96]).collect();
    let batches: Vec<_> = payloads
        .iter()
        .zip(0u16..)
        .map(|(data, i)| TxBatch {
            sport: 0xC000 + i % 5,
            ..batch(i % 7 == 3, 32, data)
        })
        .collect();
    let report = link.send(&batches);
    assert_eq!((report.sent, report.failed), (40, 0));
    let got = collect(&mut link, 120);
    assert_eq!(got.len(), 120);
    let mut flows = std::collections::HashMap::new();
    for frame in got {
        let last = flows.entry(frame.src).or_insert(0u8);
        assert!(frame.data[0] >= *last, "reordered");
        *last = frame.data[0];
    }
}

#[test]
fn a_wanted_port_always_maps_to_the_same_bound_one() {
    let link = looped();
    let mut seen = std::collections::HashSet::new();
    for wanted in 0xC000..=0xFFFF {
        let real = link.real_sport(false, wanted);
        assert!(real >= SEND_PORT_MIN);
        assert_eq!(real, link.real_sport(false, wanted));
        seen.insert(real);
    }
    assert_eq!(seen.len(), 3, "all send sockets are used");
}

/// A BTH-like payload for a slot.
fn for_slot(slot: u16, len: usize) -> Vec<u8> {
    let mut data = pattern(len);
    data[5..8].copy_from_slice(&(u32::from(slot) << 12 | 0x321).to_be_bytes()[1..]);
    data
}

#[test]
fn the_group_steers_by_slot_also_after_a_member_left() {
    for v6 in [false, true] {
        let first = receive_socket(v6, 0, true).expect("socket");
        let port = bound_port(first.as_fd()).expect("port");
        let mut members: Vec<OwnedFd> = vec![first];
        members.extend((1..5).map(|_| receive_socket(v6, port, true).expect("member")));
        let mut slots: Vec<u16> = vec![0, 9, 4, 5, 0xfff];
        attach_steering(members[0].as_fd(), &slots).expect("steering");

        let spare = receive_socket(false, 0, false).expect("socket");
        let mut sender = link(spare, None, port);
        check_steering(&mut sender, v6, &members, &slots);

        // The kernel moves the last member into the hole; the owner of the group keeps the list.
        drop(members.swap_remove(1));
        slots.swap_remove(1);
        attach_steering(members[0].as_fd(), &slots).expect("steering");
        check_steering(&mut sender, v6, &members, &slots);
    }
}

fn check_steering(sender: &mut UdpLink, v6: bool, members: &[OwnedFd], slots: &[u16]) {
    for slot in [0, 1, 3, 4, 5, 6, 9, 0x800, 0xfff] {
        let want = slots.iter().position(|s| *s == slot).unwrap_or(0);
        for len in [12, 400] {
            let data = for_slot(slot, len);
            assert_eq!(sender.send(&[batch(v6, 100, &data)]).failed, 0);
        }
        for (i, member) in members.iter().enumerate() {
            let used = queue_state(member.as_fd()).expect("meminfo").used_bytes;
            assert_eq!(used > 0, i == want, "slot {slot:#x} at member {i}");
        }
        let member = members[want].try_clone().expect("dup");
        let mut receivers = Receivers::new();
        receivers.add(Receiver::new(member, v6, None));
        while receivers
            .recv(8, sys::monotonic_ns(), &mut |_| {})
            .expect("recv")
            > 0
        {}
    }
}

#[test]
fn what_does_not_fit_the_buffer_is_counted() {
    let v4 = receive_socket(false, 0, true).expect("socket");
    let port = bound_port(v4.as_fd()).expect("port");
    sys::set_option(
        v4.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_RCVBUF,
        &8192i32.to_ne_bytes(),
    )
    .expect("small buffer");
    let mut link = link(v4, None, port);
    let data = pattern(4000);
    let sent = 50;
    for _ in 0..sent {
        assert_eq!(link.send(&[batch(false, 0, &data)]).sent, 1);
    }
    let arrived = collect(&mut link, sent).len();
    assert!(arrived < sent, "the buffer held all");
    assert_eq!(link.queues()[0].drops as usize, sent - arrived);
    // The count travels with the next datagram.
    assert_eq!(link.send(&[batch(false, 0, &data)]).sent, 1);
    assert_eq!(collect(&mut link, 1).len(), 1);
    assert_eq!(link.rx_lost() as usize, sent - arrived);
}

#[test]
fn an_idle_family_is_still_heard() {
    let mut link = looped();
    let data = pattern(20);
    for _ in 0..300 {
        link.recv(8, &mut |_| panic!("nothing was sent"))
            .expect("recv");
    }
    link.send(&[batch(false, 0, &data)]);
    assert_eq!(collect(&mut link, 1).len(), 1);
    for _ in 0..300 {
        link.recv(8, &mut |_| panic!("nothing was sent"))
            .expect("recv");
    }
    // While IPv4 is the favourite, an explicit look finds IPv6 at once.
    link.send(&[batch(true, 0, &data)]);
    link.look_everywhere();
    assert_eq!(link.recv(8, &mut |_| {}).expect("recv"), 1);
}

#[test]
fn a_destination_that_refused_batches_gets_single_packets() {
    let mut link = looped();
    let data = pattern(1000);
    for v6 in [false, true] {
        link.set_gso(localhost(v6), false);
        assert_eq!(link.caps(localhost(v6)).segments_max, 1);
        let mut many = batch(v6, 90, &data);
        assert_eq!(link.send(&[many]).seal_singly, !v6);
        many.singly = true;
        let sent = if v6 { 12 } else { 0 };
        assert_eq!(collect(&mut link, sent).len(), sent);
        let report = link.send(&[many, batch(v6, 0, &data)]);
        assert_eq!((report.sent, report.failed, report.gso_lost), (2, 0, 0));
        let got = collect(&mut link, 13);
        let joined: Vec<u8> = got.iter().flat_map(|g| g.data.clone()).collect();
        assert_eq!(joined, [data.clone(), data.clone()].concat());
        assert_eq!(got.len(), 13);
    }
}

#[test]
fn a_batch_the_kernel_refuses_falls_back_and_is_remembered() {
    let mut link = looped();
    // More segments than the kernel takes in one batch (128 since Linux 6.9): EINVAL.
    let data = pattern(200 * 10);
    for v6 in [false, true] {
        let mut batches = [batch(v6, 10, &data), batch(v6, 0, &data)];
        let mut report = link.send(&batches);
        if !v6 {
            // its packets are sealed for places in a batch that there will not be
            assert!(report.seal_singly);
            assert_eq!((report.sent, report.failed, report.gso_lost), (0, 0, 0));
            batches[0].singly = true;
            report = link.send(&batches);
        }
        assert!(!report.seal_singly);
        assert_eq!((report.sent, report.failed, report.gso_lost), (2, 0, 1));
        assert_eq!(collect(&mut link, 201).len(), 201);
        assert_eq!(link.caps(localhost(v6)).segments_max, 1);
    }
    assert_eq!(link.gso_refused().len(), 2);
}

#[test]
fn an_impossible_batch_is_reported_and_the_next_one_leaves() {
    let mut link = looped();
    let data = pattern(100);
    let stranger: IpAddr = "203.0.113.7".parse().expect("address");
    let bad = TxBatch {
        src: stranger,
        ..batch(false, 0, &data)
    };
    let too_long = pattern(65_530);
    let report = link.send(&[
        bad,
        batch(false, 0, &data),
        batch(false, 0, &too_long),
        batch(false, 0, &data),
    ]);
    assert_eq!((report.sent, report.failed), (4, 2));
    assert_eq!(report.errno, libc::EMSGSIZE);
    assert_eq!(collect(&mut link, 2).len(), 2);
    // A refusal that has nothing to do with segments costs the destination nothing.
    let bad_batch = TxBatch {
        src: stranger,
        ..batch(false, 10, &data)
    };
    assert_eq!(link.send(&[bad_batch]).failed, 1);
    assert_eq!(link.caps(localhost(false)).segments_max, SEGMENTS_MAX);
    // Nor does one of packets that cannot leave one by one either.
    let huge = pattern(66_000);
    let batches = [batch(false, 65_520, &huge)];
    assert!(link.send(&batches).seal_singly);
    let singly = batches.map(|b| TxBatch { singly: true, ..b });
    assert_eq!(link.send(&singly).failed, 1);
    assert_eq!(link.caps(localhost(false)).segments_max, SEGMENTS_MAX);
}

#[test]
fn what_a_flow_keeps_asking_for_changes_nothing_for_others() {
    let mut link = looped();
    let data = pattern(3000);
    // (segment, bytes, traffic class, hop limit), each long enough to become the socket's options.
    let flows = [
        (80, 100, 0, 255),
        (0, 3000, 0, 255),
        (80, 100, 0x20, 64),
        (0, 40, 0x20, 64),
        (1000, 3000, 0x08, 1),
        (0, 1001, 0x08, 0),
        (60, 900, 0, 0),
        (0, 900, 0, 64),
    ];
    for v6 in [false, true] {
        for (n, &(segment, len, traffic_class, hop_limit)) in flows.iter().enumerate() {
            let of_flow = TxBatch {
                traffic_class,
                hop_limit,
                ..batch(v6, segment, &data[..len])
            };
            // One of another kind comes along now and then, also in the same call.
            let other = batch(v6, if n % 2 == 0 { 0 } else { 500 }, &data);
            for round in 0..40 {
                let batches = [of_flow, other];
                let count = if round % 20 == 19 { 2 } else { 1 };
                let report = link.send(&batches[..count]);
                assert_eq!((report.sent, report.failed), (count, 0));
                let segments = batches[..count].iter().map(TxBatch::segments).sum();
                let mut got = collect(&mut link, segments).into_iter();
                for sent in &batches[..count] {
                    let parts: Vec<Got> = got.by_ref().take(sent.segments()).collect();
                    let bytes: Vec<u8> = parts.iter().flat_map(|p| p.data.clone()).collect();
                    assert!(bytes == sent.data, "flow {n} round {round}: other bytes");
                    let hops = if sent.hop_limit == 0 {
                        64
                    } else {
                        sent.hop_limit
                    };
                    let told = (parts[0].traffic_class, parts[0].hop_limit);
                    assert_eq!(told, (sent.traffic_class, hops), "flow {n} round {round}");
                }
                assert!(got.next().is_none(), "flow {n} round {round}: more packets");
            }
        }
    }
}

#[test]
fn a_send_socket_hears_nothing() {
    let link = looped();
    let socket = &link.send_sockets.v4[0];
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").expect("socket");
    stranger
        .send_to(b"hello", ("127.0.0.1", socket.port))
        .expect("send");
    assert_eq!(
        queue_state(socket.fd.as_fd()).expect("meminfo").used_bytes,
        0
    );
}

#[test]
fn a_datagram_without_checksum_is_taken() {
    let mut link = looped();
    let port = link.sender.peer_port;
    // SO_NO_CHECK (11) for IPv4, UDP_NO_CHECK6_TX (101) for IPv6.
    for (v6, level, name) in [(false, libc::SOL_SOCKET, 11), (true, libc::SOL_UDP, 101)] {
        let bind: IpAddr = if v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let peer = std::net::UdpSocket::bind((bind, 0)).expect("socket");
        sys::set_option(peer.as_fd(), level, name, &1i32.to_ne_bytes()).expect("no checksum");
        peer.send_to(&[7; 48], (localhost(v6), port)).expect("send");
        assert_eq!(collect(&mut link, 1).len(), 1, "v6 {v6}");
    }
}

#[test]
fn a_multicast_group_reaches_only_who_joined() {
    let first = receive_socket(false, 0, true).expect("socket");
    let port = bound_port(first.as_fd()).expect("port");
    let second = receive_socket(false, port, true).expect("socket");
    let (mut deaf, mut member) = (link(first, None, port), link(second, None, port));
    let group: IpAddr = "239.4.4.4".parse().expect("address");
    member.join(group, 1).expect("join");
    let data = pattern(40);
    let sent = TxBatch {
        dst: group,
        ifindex: 1,
        ..batch(false, 0, &data)
    };
    assert_eq!(member.send(&[sent]).failed, 0);
    let got = collect(&mut member, 1);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].dst, group);
    deaf.look_everywhere();
    assert_eq!(deaf.recv(8, &mut |_| {}).expect("recv"), 0);
    member.leave(group, 1).expect("leave");
}
