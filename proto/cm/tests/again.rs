//! Messages that come twice, or not at all; peers that come again.

mod common;

use common::world::{World, request};
use rocebud_cm::{ConnId, Event, Message, RejReason, State};
use rocebud_wire::Qpn;

/// Loses the first `n` messages of a kind.
fn lose(world: &mut World, kind: &'static str, mut n: u32) {
    world.filter = Box::new(move |_, message| {
        let hit = message.name() == kind && n > 0;
        n -= u32::from(hit);
        hit
    });
}

fn rejection(events: &[(usize, Event)]) -> Option<(usize, ConnId, RejReason)> {
    events.iter().find_map(|(host, event)| match event {
        Event::Rejected(e) => Some((*host, e.conn, e.reason)),
        _ => None,
    })
}

fn disconnected(conn: ConnId) -> Event {
    let timed_out = false;
    Event::Disconnected { conn, timed_out }
}

/// C026: a lost REP comes again when the REQ does; the application hears of the request once.
#[test]
fn c026_a_lost_rep_comes_again_and_the_request_does_not() {
    let mut world = World::new(1, 2);
    world.listen(1);
    lose(&mut world, "REP", 1);
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(10));
    world.accept(1, theirs);
    let events = world.run(400);
    assert!(matches!(&events[..], [(0, Event::Reply(r))] if r.conn == mine));
    // Since the requester's application takes its time, its side has asked for patience.
    assert_eq!(world.hosts[1].state(theirs), Some(State::MraRepRcvd));
}

#[test]
fn a_lost_rtu_comes_again_when_the_rep_does() {
    let mut world = World::new(2, 2);
    world.listen(1);
    lose(&mut world, "RTU", 1);
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(10));
    world.accept(1, theirs);
    world.run(10);
    let data = b"a word for the road";
    world
        .call(0, |m, now| m.establish(now, mine, data))
        .expect("established");
    let conn = theirs;
    assert_eq!(world.run(400), [(1, Event::Established { conn })]);
    assert_eq!(world.hosts[0].counters().duplicate, 1);
}

/// The first data of the peer say as much as its RTU.
#[test]
fn data_count_as_an_rtu() {
    let mut world = World::new(3, 2);
    world.listen(1);
    lose(&mut world, "RTU", 100);
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(10));
    world.accept(1, theirs);
    world.run(10);
    for _ in 0..2 {
        let done = world.call(1, |m, now| m.comm_established(now, theirs));
        done.expect("data came");
    }
    let conn = theirs;
    assert_eq!(world.run(1000), [(1, Event::Established { conn })]);
    let done = world.call(0, |m, now| m.establish(now, mine, &[]));
    done.expect("established");
    assert_eq!(world.run(1000), []);
}

#[test]
fn a_lost_drep_comes_again_in_time_wait() {
    let mut world = World::new(4, 2);
    world.listen(1);
    let (mine, theirs, ..) = world.connected(0, 1);
    lose(&mut world, "DREP", 1);
    let done = world.call(0, |m, now| m.disconnect(now, mine));
    done.expect("disconnecting");
    let events = world.run(300);
    assert_eq!(events, [(1, disconnected(theirs)), (0, disconnected(mine))]);
    let both = [(0, mine), (1, theirs)].map(|(h, c)| world.hosts[h].state(c));
    assert_eq!(both, [Some(State::TimeWait); 2]);
    // A DREQ after that is about nobody, and agreed to.
    let events = world.run(1000);
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(world.hosts[1].connections(), 0);
}

#[test]
fn both_sides_disconnect_at_once() {
    let mut world = World::new(5, 2);
    world.listen(1);
    let (mine, theirs, ..) = world.connected(0, 1);
    for (host, conn) in [(0, mine), (1, theirs)] {
        let done = world.call(host, |m, now| m.disconnect(now, conn));
        done.expect("disconnecting");
    }
    let mut events = world.run(300);
    events.sort_by_key(|(host, _)| *host);
    assert_eq!(events, [(0, disconnected(mine)), (1, disconnected(theirs))]);
}

/// What is ended already is agreed to once more, with the ids that the asker gave.
#[test]
fn a_dreq_about_nobody_is_agreed_to() {
    let mut world = World::new(6, 2);
    let dreq = Message::from(rocebud_cm::msg::Dreq {
        local_id: 0x11,
        remote_id: 0x22,
        remote_qpn: Qpn::new(5),
        ..Default::default()
    });
    world.hosts[0].handle_mad(
        world.now,
        common::ends(common::BOB, common::ALICE),
        &dreq.emit(0x77, 0)[..],
    );
    let answer = world.hosts[0].poll_transmit().expect("a DREP");
    assert_eq!(answer.path.ends, common::ends(common::BOB, common::ALICE));
    let (header, message) = Message::parse(&answer.mad[..]).expect("a message");
    let Message::Drep(drep) = message else {
        panic!("{message:?}")
    };
    assert_eq!(
        (header.tid, drep.local_id, drep.remote_id),
        (0x77, 0x22, 0x11)
    );
}

/// C026: a peer that died without a word, and begins anew with the same queue pair: the old
/// connection ends, the new one is refused as stale once, and comes about on the next try.
#[test]
fn c026_a_peer_that_comes_again_with_its_queue_pair_is_stale_once() {
    let mut world = World::new(7, 3);
    world.listen(1);
    let (old, theirs, qpn, _) = world.connected(0, 1);
    // Its host has lost its memory.
    world.hosts[0] = common::manager(99);
    let new = world.connect(0, 1, qpn);
    let events = world.run(10);
    assert_eq!(rejection(&events), Some((0, new, RejReason::STALE_CONN)));
    assert!(events.contains(&(1, disconnected(theirs))), "{events:?}");
    assert_ne!(old, new);

    world.connect(0, 1, qpn);
    let again = request(&world.run(10));
    world.accept(1, again);
    assert_eq!(world.hosts[1].counters().stale, 1);
}

/// The same before the first connection was in use, or even accepted.
#[test]
fn a_peer_that_comes_again_while_its_request_waits_is_stale_once() {
    for accepted in [false, true] {
        let mut world = World::new(8, 2);
        world.listen(1);
        let qpn = world.fresh_qpn();
        world.connect(0, 1, qpn);
        let theirs = request(&world.run(10));
        if accepted {
            world.accept(1, theirs);
            world.run(10);
        }
        world.hosts[0] = common::manager(99);
        world.connect(0, 1, qpn);
        let events = world.run(10);
        assert!(rejection(&events).is_some(), "{events:?}");
        let gone = events.iter().any(|(h, e)| (*h, e.conn()) == (1, theirs));
        assert!(gone, "{events:?}");
        world.connect(0, 1, qpn);
        request(&world.run(10));
    }
}

/// C026: connect, disconnect, connect at once, a hundred times, with messages lost.
#[test]
fn c026_a_client_reconnects_at_once() {
    for kind in ["-", "DREQ", "DREP", "REP", "RTU"] {
        let mut world = World::new(9, 2);
        world.listen(1);
        for _ in 0..100 {
            lose(&mut world, kind, 1);
            let qpn = world.fresh_qpn();
            let mine = world.connect(0, 1, qpn);
            let mut done = false;
            for _ in 0..100 {
                for (host, event) in world.run(10) {
                    match event {
                        Event::Request(request) => drop(world.accept(host, request.conn)),
                        Event::Reply(reply) => {
                            assert_eq!(reply.conn, mine);
                            let both = |m: &mut rocebud_cm::Manager, now| {
                                m.establish(now, mine, &[])
                                    .and_then(|()| m.disconnect(now, mine))
                            };
                            world.call(0, both).expect("both calls");
                        }
                        Event::Rejected(e) => panic!("{kind}: {:?}", e.reason),
                        _ => {}
                    }
                }
                done |= world.hosts[0].state(mine) != Some(State::ReqSent);
                if done {
                    break;
                }
            }
            assert!(done);
        }
        world.run(20_000);
        for host in &world.hosts {
            assert_eq!(
                (host.connections(), host.counters().stale),
                (0, 0),
                "{kind}"
            );
        }
    }
}

/// A late copy of a REQ whose connection is over is no new request.
#[test]
fn a_req_that_comes_again_in_time_wait_is_stale() {
    let mut world = World::new(10, 2);
    world.listen(1);
    let (mine, theirs, ..) = world.connected(0, 1);
    let done = world.call(1, |m, now| m.disconnect(now, theirs));
    done.expect("disconnecting");
    world.run(10);
    let req = Message::from(rocebud_cm::msg::Req {
        local_id: mine.0,
        local_ca_guid: World::guid(0),
        ..Default::default()
    });
    world.inject(1, common::world::address(0), &req, 1);
    assert_eq!(world.hosts[1].poll_event(), None);
    let rejs = world.hosts[1].counters().tx[2];
    assert_eq!((rejs, world.hosts[1].counters().duplicate), (1, 1));
}

#[test]
fn a_question_that_comes_again_is_asked_once() {
    let mut world = World::new(11, 2);
    world.listen(1);
    let ask = Message::from(rocebud_cm::msg::SidrReq {
        request_id: 7,
        service_id: World::ask(0, 1, Qpn::new(2)).service_id,
        private_data: {
            let mut data = [0; 216];
            let header = World::ask(0, 1, Qpn::new(2)).ip.expect("ip").emit();
            data[..36].copy_from_slice(&header);
            data
        },
        ..Default::default()
    });
    for _ in 0..3 {
        world.inject(1, common::world::address(0), &ask, 1);
    }
    let Some(Event::SidrRequest(question)) = world.hosts[1].poll_event() else {
        panic!("a question")
    };
    assert_eq!(world.hosts[1].poll_event(), None);
    let conn = question.conn;
    let answered = world.call(1, |m, now| m.sidr_reply(now, conn, &Default::default()));
    answered.expect("answered");
    assert!(matches!(
        world.hosts[1].poll_event(),
        Some(Event::Gone { .. })
    ));
    // Once answered, it is a new question: the answer may have been lost.
    world.inject(1, common::world::address(0), &ask, 1);
    assert!(matches!(
        world.hosts[1].poll_event(),
        Some(Event::SidrRequest(_))
    ));
}
