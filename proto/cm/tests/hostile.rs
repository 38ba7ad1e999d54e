//! Strangers, nonsense and floods.

mod common;

use std::ops::RangeInclusive;

use common::world::{MS, World, address, request};
use common::{Dice, ends};
use rocebud_cm::ip::{self, IpCm, PortSpace};
use rocebud_cm::limits::{
    ANSWERS_MAX, BACKLOG_DEFAULT, BACKLOG_RESERVE, HALF_OPEN_MAX, PUT_OFFS_A_SECOND, PUT_OFFS_MAX,
};
use rocebud_cm::msg::{Drep, Dreq, Mra, Rej, Req, Rtu};
use rocebud_cm::{Accept, Event, MAD_LEN, Message, State};
use rocebud_wire::{Gid, Qpn};

/// C057: whatever comes from a third address, with the right ids and queue pair, is ignored.
#[test]
fn c057_strangers_cannot_touch_a_connection() {
    let mut world = World::new(1, 3);
    world.listen(1);
    let (mine, theirs, qpn, _) = world.connected(0, 1);
    let (local_id, remote_id) = (theirs.0, mine.0);
    let stranger = address(2);
    let mut dreq = Dreq {
        local_id,
        remote_id,
        remote_qpn: qpn,
        ..Dreq::default()
    };
    let rej = Rej {
        local_id,
        remote_id,
        reason: 4,
        ..Rej::default()
    };
    let mra = Mra {
        local_id,
        remote_id,
        ..Mra::default()
    };
    let messages = [
        Message::from(dreq),
        Message::from(rej),
        Message::from(mra),
        Message::from(Drep {
            local_id,
            remote_id,
            ..Drep::default()
        }),
        Message::from(Rtu {
            local_id,
            remote_id,
            ..Rtu::default()
        }),
    ];
    for message in &messages {
        world.inject(0, stranger, message, 1);
    }
    assert_eq!(world.hosts[0].counters().stranger, messages.len() as u64);
    assert_eq!(world.run(100), []);
    // Nor can the peer, if it names the wrong queue pair.
    dreq.remote_qpn = Qpn::new(qpn.value() + 1);
    world.inject(0, address(1), &Message::from(dreq), 1);
    assert_eq!(world.hosts[0].counters().out_of_place, 1);
    // A stranger that claims to be the peer's device with its queue pair begins nothing stale.
    let req = request_of(0, 1, stranger, qpn, 77);
    world.inject(1, stranger, &Message::from(req), 1);
    request(&world.run(10));
    let both = [(0, mine), (1, theirs)].map(|(h, c)| world.hosts[h].state(c));
    assert_eq!(both, [Some(State::Established); 2]);
}

/// A right REQ that claims host `from`'s device, but comes from `src`.
fn request_of(from: usize, to: usize, src: Gid, qpn: Qpn, id: u32) -> Req {
    let header = IpCm {
        src_port: 1,
        src: src.ip(),
        dst: address(to).ip(),
    };
    let mut req = Req {
        local_id: id,
        local_ca_guid: World::guid(from),
        local_qpn: qpn,
        service_id: World::ask(from, to, qpn).service_id,
        mtu: 3,
        max_cm_retries: 15,
        ..Req::default()
    };
    req.private_data[..36].copy_from_slice(&header.emit());
    req
}

/// REQs of these numbers from a host to host 1.
fn flood(world: &mut World, from: usize, numbers: RangeInclusive<u32>) {
    let req = request_of(from, 1, address(from), Qpn::new(2), 1);
    let mut mad = Message::from(req).emit(1, 0);
    for n in numbers {
        mad[24..28].copy_from_slice(&n.to_be_bytes());
        mad[56..59].copy_from_slice(&n.to_be_bytes()[1..]);
        let at = ends(address(1), address(from));
        world.hosts[1].handle_mad(world.now, at, &mad[..]);
    }
}

/// C057: ids and PSNs are the random numbers that the manager was given, and nothing else.
#[test]
fn c057_ids_and_psns_cannot_be_guessed() {
    let mut world = World::new(2, 2);
    let mut seen = std::collections::BTreeSet::new();
    let mut diffs = std::collections::BTreeSet::new();
    let mut last = 0_u32;
    for _ in 0..1000 {
        let qpn = world.fresh_qpn();
        let id = world.connect(0, 1, qpn).0;
        assert!(seen.insert(id));
        diffs.insert(id.wrapping_sub(last));
        last = id;
    }
    assert!(diffs.len() > 990, "{} different steps", diffs.len());
}

#[test]
fn nonsense_is_counted() {
    let mut world = World::new(3, 1);
    let good = Message::from(request_of(0, 0, address(0), Qpn::new(9), 1)).emit(1, 0);
    let at = ends(address(0), address(1));
    for len in 0..MAD_LEN {
        world.hosts[0].handle_mad(world.now, at, &good[..len]);
    }
    let longer = [&good[..], &[0]].concat();
    world.hosts[0].handle_mad(world.now, at, &longer);
    for (byte, value) in [
        (0, 2),
        (1, 4),
        (2, 1),
        (3, 1),
        (16, 1),
        (17, 0x0f),
        (17, 0x1b),
    ] {
        let mut bad = good.clone();
        bad[byte] = value;
        world.hosts[0].handle_mad(world.now, at, &bad[..]);
    }
    assert_eq!(world.hosts[0].counters().malformed, MAD_LEN as u64 + 8);
    assert_eq!(
        (world.hosts[0].poll_transmit(), world.hosts[0].poll_event()),
        (None, None)
    );
}

#[test]
fn any_bytes_are_survived() {
    let mut dice = Dice::new(4);
    let mut world = World::new(4, 2);
    world.listen(1);
    let (_, theirs, ..) = world.connected(0, 1);
    for round in 0..20_000_u32 {
        let mut mad = [0_u8; MAD_LEN];
        for byte in &mut mad {
            *byte = dice.roll() as u8;
        }
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&(0x10 + (round % 11) as u16).to_be_bytes());
        if round % 3 == 0 {
            mad[28..32].copy_from_slice(&theirs.0.to_be_bytes());
        }
        world.hosts[1].handle_mad(world.now, ends(address(1), address(0)), &mad);
        while world.hosts[1].poll_transmit().is_some() {}
    }
    assert_eq!(world.hosts[1].contradiction(), None);
    assert_eq!(world.hosts[1].state(theirs), Some(State::Established));
}

/// 100,000 REQs from one peer: the backlog is as long as it is, the last places are for others,
/// others are served, and nothing grows.
#[test]
fn a_flood_of_requests_shuts_nobody_out() {
    let mut world = World::new(5, 3);
    world.listen(1);
    let (mine, theirs, ..) = world.connected(0, 1);
    flood(&mut world, 2, 1..=100_000);
    let kept = BACKLOG_DEFAULT - BACKLOG_RESERVE;
    assert_eq!(world.hosts[1].connections(), kept as usize + 1);
    let dropped = world.hosts[1].counters().backlog_full;
    assert_eq!(dropped, u64::from(100_000 - kept));
    // Somebody else is served at once.
    while world.hosts[1].poll_event().is_some() {}
    let qpn = world.fresh_qpn();
    let new = world.connect(0, 1, qpn);
    let events = world.run(10);
    let conn = request(&events);
    world.accept(1, conn);
    let events = world.run(10);
    assert!(matches!(&events[..], [(0, Event::Reply(r))] if r.conn == new));
    let both = [(0, mine), (1, theirs)].map(|(h, c)| world.hosts[h].state(c));
    assert_eq!(both, [Some(State::Established); 2]);
}

/// Who floods is not answered as fast as it asks, but for a burst, and so much a second.
#[test]
fn a_flood_of_requests_is_answered_at_a_bounded_rate() {
    let mut world = World::new(8, 3);
    world.listen(1);
    let mut next = 1;
    let mut answers = |world: &mut World| {
        let mut n = 0;
        for _ in 0..100 {
            flood(world, 2, next..=next + 999);
            next += 1_000;
            while world.hosts[1].poll_transmit().is_some() {
                n += 1;
            }
        }
        n
    };
    assert_eq!(answers(&mut world), PUT_OFFS_MAX);
    world.now = world.now + 1_000 * MS;
    assert_eq!(answers(&mut world), PUT_OFFS_A_SECOND);
    let counters = world.hosts[1].counters();
    let told = PUT_OFFS_MAX + PUT_OFFS_A_SECOND;
    assert_eq!(counters.answers_dropped, counters.backlog_full - told);
    world.now = world.now + 3_600_000 * MS;
    assert_eq!(answers(&mut world), PUT_OFFS_MAX);
}

/// An application that accepts whatever comes has no more than so many of one peer half open.
#[test]
fn a_peer_that_is_never_ready_fills_its_own_share_only() {
    let mut world = World::new(6, 3);
    world.listen(1);
    for n in 0..HALF_OPEN_MAX + 1000 {
        let req = request_of(2, 1, address(2), Qpn::new(n + 2), n + 1);
        let at = ends(address(1), address(2));
        world.hosts[1].handle_mad(world.now, at, &Message::from(req).emit(1, 0)[..]);
        if let Some(Event::Request(request)) = world.hosts[1].poll_event() {
            let answer = Accept::new(World::guid(1), Qpn::new(9));
            let done = world.hosts[1].accept(world.now, request.conn, &answer);
            done.expect("accepted");
        }
        while world.hosts[1].poll_transmit().is_some() {}
    }
    assert_eq!(world.hosts[1].connections(), HALF_OPEN_MAX as usize);
    assert_eq!(world.hosts[1].counters().half_open_full, 1000);
    world.connected(0, 1);
    // They are given up, and room for new ones is there.
    let bob = &mut world.hosts[1];
    let silence = world.now + 20_000 * MS;
    while let Some(at) = bob.poll_timeout().filter(|&at| at < silence) {
        bob.handle_timeout(at);
        while bob.poll_transmit().is_some() {}
    }
    assert_eq!((bob.connections(), bob.contradiction()), (1, None));
}

/// Answers that nobody fetches do not pile up.
#[test]
fn a_flood_of_requests_for_nothing_does_not_pile_up_answers() {
    let mut world = World::new(7, 2);
    flood(&mut world, 0, 1..=100_000);
    let mut answers = 0;
    while world.hosts[1].poll_transmit().is_some() {
        answers += 1;
    }
    assert_eq!(answers, ANSWERS_MAX);
    assert_eq!(world.hosts[1].connections(), 0);
    let counters = world.hosts[1].counters();
    assert_eq!(
        (counters.no_listener, counters.answers_dropped),
        (100_000, 95_904)
    );
}

/// A thousand connections after the other leave nothing behind but their time-waits.
#[test]
fn time_waits_level_off() {
    let mut world = World::new(8, 2);
    world.listen(1);
    let mut most = 0;
    for _ in 0..1000 {
        let qpn = world.fresh_qpn();
        let mine = world.connect(0, 1, qpn);
        let conn = request(&world.run(1));
        world.accept(1, conn);
        world.run(1);
        let both = |m: &mut rocebud_cm::Manager, now| {
            m.establish(now, mine, &[])
                .and_then(|()| m.disconnect(now, mine))
        };
        world.call(0, both).expect("both calls");
        world.run(1);
        most = most.max(world.hosts[1].connections());
    }
    // 512 ms of time-wait, 3 ms each.
    assert!((150..200).contains(&most), "{most}");
    world.run(1000);
    assert_eq!([0, 1].map(|h| world.hosts[h].connections()), [0, 0]);
}

/// A datagram service that nobody offers, and one that is asked for too often.
#[test]
fn questions_are_bounded_too() {
    let mut world = World::new(9, 2);
    let service_id = ip::service_id(PortSpace::Udp, 1);
    let mut req = rocebud_cm::msg::SidrReq {
        service_id,
        ..Default::default()
    };
    world.inject(1, address(0), &Message::from(req), 1);
    assert_eq!(world.hosts[1].counters().no_listener, 1);
    world.hosts[1]
        .listen(rocebud_cm::Listen {
            service_id,
            mask: u64::MAX,
            bind: rocebud_cm::Bind::Any,
            backlog: 8,
        })
        .expect("a listener");
    let header = World::ask(0, 1, Qpn::new(2)).ip.expect("ip").emit();
    req.private_data[..36].copy_from_slice(&header);
    for n in 0..100 {
        req.request_id = n;
        world.inject(1, address(0), &Message::from(req), 1);
    }
    assert_eq!(world.hosts[1].connections(), 7);
    assert_eq!(world.hosts[1].contradiction(), None);
}
