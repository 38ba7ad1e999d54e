//! Packets that come past the socket, between two hosts.

use super::{ifindex, in_own_network, sh, sys};
use rocebud_nic::udp::{
    ROCE_PORT, Ring, Rings, SlotSockets, UdpLink, free_send_socket, receive_socket,
    set_receive_buffer,
};
use rocebud_nic::{PacketIo, RxFrame, TxBatch};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What a test waits at most for a packet that must come.
const SOON: Duration = Duration::from_secs(2);

/// A link with rings, and one on another host that sends to it.
struct Pair {
    near: UdpLink,
    far: UdpLink,
    ring: Ring,
    /// Index of the far end's interface.
    far_index: u32,
}

/// Addresses of the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    V4,
    V6,
    LinkLocal,
}

impl Ends {
    fn of(self) -> [IpAddr; 2] {
        let words = match self {
            Self::V4 => ["10.9.0.1", "10.9.0.2"],
            Self::V6 => ["fd09::1", "fd09::2"],
            Self::LinkLocal => ["fe80::a", "fe80::b"],
        };
        words.map(|word| word.parse().expect("an address"))
    }
}

/// Runs a test with a pair whose receive socket has so large a buffer, or says what is missing.
fn with_pair(buffer: Option<u32>, test: impl FnOnce(Pair) + Send) {
    in_own_network(|| {
        let (tell, path) = mpsc::channel();
        let (ready, go) = mpsc::channel();
        let host = std::thread::spawn(move || {
            sys::own_network().expect("a network namespace");
            tell.send(sys::network_path()).expect("told");
            go.recv().expect("go");
            sh("ip addr add 10.9.0.2/24 dev far");
            sh("ip addr add fd09::2/64 dev far nodad");
            sh("ip addr add fe80::b/64 dev far nodad");
            sh("ip link set far up");
            (link(None).0, ifindex("far"))
        });
        let path = path.recv().expect("path");
        sh(&format!(
            "ip link add name near mtu 9000 type veth peer name far mtu 9000 netns {path}"
        ));
        sh("ip addr add 10.9.0.1/24 dev near");
        sh("ip addr add fd09::1/64 dev near nodad");
        sh("ip addr add fe80::a/64 dev near nodad");
        sh("ip link set near up");
        ready.send(()).expect("ready");
        let (far, far_index) = host.join().expect("the other host");
        match link(Some(buffer)) {
            (near, Some(ring)) => test(Pair {
                near,
                far,
                ring,
                far_index,
            }),
            (_, None) => eprintln!("skipped: no rings without CAP_BPF"),
        }
    });
}

/// A link; with rings if there is a buffer to set.
fn link(with: Option<Option<u32>>) -> (UdpLink, Option<Ring>) {
    let v4 = receive_socket(false, ROCE_PORT, true).expect("IPv4");
    let v6 = receive_socket(true, ROCE_PORT, true).expect("IPv6");
    let mut rings = Rings::default();
    if let Some(buffer) = with {
        let attach = |fd, v6| Ring::attach(fd, v6).ok().map(|(ring, _)| ring);
        rings.v4 = attach(v4.as_fd(), false);
        rings.v6 = attach(v6.as_fd(), true);
        if let Some(bytes) = buffer {
            set_receive_buffer(v4.as_fd(), bytes).expect("a buffer");
        }
    }
    let ring = rings.v4.clone();
    let sockets = SlotSockets {
        recv_v4: v4,
        recv_v6: Some(v6),
        send_v4: vec![free_send_socket(false, 0xC001).expect("IPv4")],
        send_v6: vec![free_send_socket(true, 0xC001).expect("IPv6")],
        rings,
    };
    (UdpLink::new(sockets).expect("a link"), ring)
}

thread_local! {
    /// Tells the threads that send, which must not move.
    static STAYS: () = sys::stay_on_this_processor();
}

fn send(far: &mut UdpLink, (ends, ifindex): (Ends, u32), segment: u16, data: &[u8]) {
    STAYS.with(|()| ());
    let [dst, src] = ends.of();
    let report = far.send(&[TxBatch {
        singly: false,
        src,
        dst,
        ifindex,
        sport: 0xC001,
        traffic_class: 0x6A,
        hop_limit: 33,
        segment,
        data,
    }]);
    assert_eq!((report.sent, report.failed), (1, 0));
}

/// A message of at least four bytes that says its number.
fn send_number(far: &mut UdpLink, number: u32, len: usize) {
    let mut data = vec![0x5a; len.max(4)];
    data[..4].copy_from_slice(&number.to_be_bytes());
    send(far, (Ends::V4, 0), 0, &data);
}

impl Pair {
    /// Receives until `n` frames are there or none comes any more.
    fn receive<T>(&mut self, n: usize, read: impl Fn(&RxFrame<'_>) -> T) -> Vec<T> {
        let mut got = Vec::new();
        let mut last = Instant::now();
        while got.len() < n && last.elapsed() < SOON {
            let sink = &mut |frame: RxFrame<'_>| got.push(read(&frame));
            if self.near.recv(4, sink).expect("recv") != 0 {
                last = Instant::now();
            }
        }
        got
    }

    fn numbers(&mut self, n: usize) -> Vec<u32> {
        let number = |frame: &RxFrame<'_>| {
            let first = frame.data.first_chunk().expect("four bytes");
            u32::from_be_bytes(*first)
        };
        self.receive(n, number)
    }
}

/// All that a frame tells.
#[derive(PartialEq, Eq, Debug)]
struct All {
    data: Vec<u8>,
    src: SocketAddr,
    dst: IpAddr,
    ifindex: u32,
    traffic_class: u8,
    hop_limit: u8,
    place: (u16, u16),
}

impl All {
    fn of(frame: &RxFrame<'_>) -> Self {
        Self {
            data: frame.data.to_vec(),
            src: frame.src,
            dst: frame.dst,
            ifindex: frame.ifindex,
            traffic_class: frame.traffic_class,
            hop_limit: frame.hop_limit,
            place: (frame.seg_index, frame.batch_len),
        }
    }
}

#[test]
fn a_packet_tells_the_same_whichever_way_it_comes() {
    with_pair(None, |mut pair| {
        let data: Vec<u8> = (0..600u32).map(|i| (i * 7) as u8).collect();
        let shapes = [
            (0u16, 0usize),
            (0, 1),
            (0, 20),
            (0, 504),
            (80, 100),
            (20, 200),
            (100, 500),
        ];
        let mut by_ring = 0;
        for ends in [Ends::V4, Ends::V6, Ends::LinkLocal] {
            for (segment, len) in shapes {
                let frames = len.div_ceil(usize::from(segment).max(1));
                let frames = if segment == 0 { 1 } else { frames };
                let mut told = Vec::new();
                for open in [false, true] {
                    let closed = (!open).then(|| pair.near.rings());
                    let _sleeps = closed.map(|rings| {
                        let rings = rings.into_iter().flatten();
                        rings.map(|ring| ring.sleep()).collect::<Vec<_>>()
                    });
                    pair.near.open_rings();
                    send(&mut pair.far, (ends, pair.far_index), segment, &data[..len]);
                    told.push(pair.receive(frames, All::of));
                    if open && ends == Ends::V4 {
                        by_ring += 1;
                        assert_eq!(pair.ring.taken(), by_ring, "{segment} {len}");
                    }
                }
                assert_eq!(told[0].len(), frames, "{segment} {len}");
                assert_eq!(told[0], told[1]);
            }
        }
        pair.near.look_for_losses();
        assert_eq!(pair.near.rx_lost(), 0);
    });
}

#[test]
fn order_is_kept_between_ring_and_socket() {
    with_pair(None, |mut pair| {
        let mut chance = 88_172_645_463_325_252u64;
        let mut draw = |n: u64| {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            chance % n
        };
        let (mut sent, mut got) = (0, Vec::new());
        for _ in 0..3000 {
            let _asleep = (draw(4) == 0).then(|| pair.ring.sleep());
            for _ in 0..draw(12) {
                if draw(3) == 0 {
                    pair.near.open_rings();
                }
                let len = if draw(3) == 0 { 3000 } else { 30 };
                send_number(&mut pair.far, sent, len);
                sent += 1;
            }
            let some = draw(12) as usize;
            let missing = sent as usize - got.len();
            got.extend(pair.numbers(some.min(missing)));
        }
        got.extend(pair.numbers(sent as usize - got.len()));
        assert_eq!(got, (0..sent).collect::<Vec<u32>>());
        let taken = pair.ring.taken();
        assert!(taken > u64::from(sent) / 4, "{taken} of {sent} by the ring");
        assert!(
            taken < u64::from(sent) * 3 / 4,
            "{taken} of {sent} by the ring"
        );
        pair.near.look_for_losses();
        assert_eq!(pair.near.rx_lost(), 0);
    });
}

#[test]
fn what_finds_no_room_in_the_ring_comes_by_the_socket() {
    with_pair(None, |mut pair| {
        pair.near.open_rings();
        for number in 0..1000 {
            send_number(&mut pair.far, number, 60);
        }
        assert_eq!(pair.numbers(1000), (0..1000).collect::<Vec<u32>>());
        let taken = pair.ring.taken();
        assert!((100..900).contains(&taken), "{taken} by the ring");
        pair.near.look_for_losses();
        assert_eq!(pair.near.rx_lost(), 0);
    });
}

#[test]
fn losses_are_counted_and_nothing_waits_for_them() {
    with_pair(Some(32 << 10), |mut pair| {
        pair.near.open_rings();
        let (rounds, large, small) = (20, 30, 10);
        let mut received = 0;
        for round in 0..rounds {
            for i in 0..large {
                send_number(&mut pair.far, 1_000_000 + i, 5000);
            }
            for i in 0..small {
                send_number(&mut pair.far, round * small + i, 60);
            }
            let mut got = Vec::new();
            while got.len() < small as usize {
                let next = pair.numbers(1);
                assert!(!next.is_empty(), "round {round}: {got:?}");
                received += next.len() as u64;
                got.extend(next.into_iter().filter(|number| *number < 1_000_000));
            }
            let due: Vec<u32> = (round * small..(round + 1) * small).collect();
            assert_eq!(got, due);
        }
        pair.near.look_for_losses();
        let sent = u64::from(rounds * (large + small));
        // On a busy machine some may come late.
        let late = (sent - received).saturating_sub(pair.near.rx_lost());
        received += pair.numbers(late as usize).len() as u64;
        let lost = sent - received;
        assert!(lost > 0, "the buffer was large enough");
        assert_eq!(pair.near.rx_lost(), lost);
    });
}

#[test]
fn who_sleeps_on_the_socket_is_woken() {
    with_pair(None, |pair| {
        let (ask, asked) = mpsc::channel::<(u32, u32)>();
        let Pair {
            mut near,
            mut far,
            ring,
            ..
        } = pair;
        let sender = std::thread::spawn(move || {
            while let Ok((number, spins)) = asked.recv() {
                (0..spins).for_each(|_| std::hint::spin_loop());
                send_number(&mut far, number, 40);
            }
        });
        let fds = near.poll_fds();
        let (mut slept, mut seen) = (0, 0);
        for number in 0..4000 {
            near.open_rings();
            ask.send((number, number * 37 % 400)).expect("asked");
            (0..number * 91 % 4000).for_each(|_| std::hint::spin_loop());
            let asleep = ring.sleep();
            if asleep.has_packets() {
                seen += 1;
            } else {
                slept += 1;
                assert!(
                    sys::is_readable(fds[0], SOON),
                    "packet {number} wakes nobody"
                );
            }
            let mut got = Vec::new();
            while got.is_empty() {
                let sink = &mut |frame: RxFrame<'_>| got.push(frame.data.to_vec());
                near.recv(4, sink).expect("recv");
            }
            assert_eq!(got.len(), 1);
            assert_eq!(got[0].first_chunk(), Some(&number.to_be_bytes()));
            drop(asleep);
        }
        assert!(slept > 10 && seen > 10, "{slept} slept, {seen} not");
        drop(ask);
        sender.join().expect("the sender");
        near.look_for_losses();
        assert_eq!(near.rx_lost(), 0);
    });
}

#[test]
fn order_is_kept_while_packets_come() {
    with_pair(None, |pair| {
        let Pair {
            mut near, mut far, ..
        } = pair;
        let count = 100_000u32;
        // Too few in flight for a buffer to overflow.
        let (read, in_flight) = (AtomicU32::new(0), 64);
        let (mut due, mut wrong) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..count {
                    while number.wrapping_sub(read.load(Ordering::Relaxed)) >= in_flight {
                        std::thread::yield_now();
                    }
                    send_number(&mut far, number, [600, 30][number as usize % 2]);
                }
            });
            let mut last = Instant::now();
            while due < count {
                near.open_rings();
                let sink = &mut |frame: RxFrame<'_>| {
                    let first = frame.data.first_chunk().expect("four bytes");
                    wrong += u32::from(u32::from_be_bytes(*first) != due);
                    due += 1;
                };
                if near.recv(4, sink).expect("recv") != 0 {
                    last = Instant::now();
                }
                let silent = last.elapsed() > SOON;
                read.store(if silent { count } else { due }, Ordering::Relaxed);
                if silent {
                    break;
                }
            }
        });
        assert_eq!((due, wrong), (count, 0), "received, out of order");
        near.look_for_losses();
        assert_eq!(near.rx_lost(), 0);
    });
}

#[test]
fn who_reads_after_another_finds_all_that_was_left() {
    with_pair(None, |mut pair| {
        let sockets = pair.near.poll_fds();
        let again = |at: usize| sys::duplicate(sockets[at]).expect("a descriptor");
        let rest = SlotSockets {
            recv_v4: again(0),
            recv_v6: Some(again(1)),
            send_v4: Vec::new(),
            send_v6: Vec::new(),
            rings: Rings {
                v4: Some(pair.ring.clone()),
                v6: None,
            },
        };
        let send_some = |pair: &mut Pair, numbers: std::ops::Range<u32>| {
            pair.near.open_rings();
            for number in numbers {
                send_number(&mut pair.far, number, [600, 30][number as usize % 2]);
            }
        };
        send_some(&mut pair, 0..50);
        assert_eq!(pair.numbers(50).len(), 50);
        send_some(&mut pair, 50..90);
        pair.near = UdpLink::new(rest).expect("a link");
        let mut got = Vec::new();
        loop {
            pair.near.look_everywhere();
            let sink = &mut |frame: RxFrame<'_>| {
                let first = frame.data.first_chunk().expect("four bytes");
                got.push(u32::from_be_bytes(*first));
            };
            if pair.near.recv(4, sink).expect("recv") == 0 {
                break;
            }
        }
        got.sort_unstable();
        assert_eq!(got, (50..90).collect::<Vec<u32>>());
    });
}
