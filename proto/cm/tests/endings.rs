//! Slow applications, dead ones, and peers that say no.

mod common;

use common::world::{MS, World, address, request};
use rocebud_cm::msg::{Lap, Mra, Rej, Rep};
use rocebud_cm::{Event, Message, RejReason, State, Transmit};
use rocebud_wire::Qpn;

/// An application may think for a minute: its side says so, and nobody gives up.
#[test]
fn an_application_thinks_for_a_minute() {
    let mut world = World::new(1, 2);
    world.listen(1);
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(10));
    assert_eq!(world.run(60_000), []);
    let both = [(0, mine), (1, theirs)].map(|(h, c)| world.hosts[h].state(c));
    assert_eq!(both, [Some(State::MraReqRcvd), Some(State::MraReqSent)]);
    world.accept(1, theirs);
    // And so may the one that asked.
    assert!(matches!(world.run(10)[..], [(0, Event::Reply(_))]));
    assert_eq!(world.run(60_000), []);
    let both = [(0, mine), (1, theirs)].map(|(h, c)| world.hosts[h].state(c));
    assert_eq!(both, [Some(State::MraRepSent), Some(State::MraRepRcvd)]);
    let done = world.call(0, |m, now| m.establish(now, mine, &[]));
    done.expect("established");
    let conn = theirs;
    assert_eq!(world.run(10), [(1, Event::Established { conn })]);
    let again = world.hosts[0].counters().resent + world.hosts[1].counters().resent;
    assert!(again < 20, "{again} repetitions");
}

/// An MRA that promises hours is not believed for ever.
#[test]
fn an_mra_cannot_pin_a_connection() {
    let mut world = World::new(2, 2);
    let qpn = world.fresh_qpn();
    world.dead.insert(1);
    let mine = world.connect(0, 1, qpn);
    let mra = Message::from(Mra {
        local_id: 5,
        remote_id: mine.0,
        service_timeout: 31,
        ..Mra::default()
    });
    world.inject(0, address(1), &mra, 1);
    let events = world.run(600_000);
    assert!(matches!(
        events[..],
        [(0, Event::Unreachable { .. }), (0, Event::Gone { .. })]
    ));
}

/// C028: whoever destroys its id while it connects says nothing about an id that the peer has
/// not named; the peer's REP finds nobody, and is told so at once.
#[test]
fn c028_a_connection_forgotten_while_it_is_made_says_nothing() {
    let mut world = World::new(3, 2);
    world.listen(1);
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(10));
    world.call(0, |m, now| m.forget(now, mine));
    assert_eq!(world.run(10_000), []);
    assert_eq!(world.hosts[0].counters().tx[2], 0, "no REJ");
    world.accept(1, theirs);
    let events = world.run(10);
    let [(1, Event::Rejected(rejected)), (1, Event::Gone { .. })] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        (rejected.conn, rejected.reason),
        (theirs, RejReason::INVALID_COMM_ID)
    );
}

/// After an MRA the peer's id is known, and it is told.
#[test]
fn a_connection_forgotten_while_the_peer_thinks_is_refused() {
    let mut world = World::new(4, 2);
    world.listen(1);
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(1000));
    world.call(0, |m, now| m.forget(now, mine));
    let events = world.run(10);
    let [(1, Event::Rejected(rejected)), (1, Event::Gone { .. })] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        (rejected.conn, rejected.reason),
        (theirs, RejReason::TIMEOUT)
    );
    assert_eq!(rejected.ari, World::guid(0).to_be_bytes());
}

/// A process dies in the middle of everything: each of its peers hears of it within a second,
/// and nobody hears of it on its own side.
#[test]
fn a_dead_process_is_ended_on_the_wire() {
    let mut world = World::new(5, 2);
    world.listen(1);
    let (mine, theirs, ..) = world.connected(0, 1);
    world.call(0, |m, now| m.forget(now, mine));
    let events = world.run(200);
    let (conn, timed_out) = (theirs, false);
    assert_eq!(events, [(1, Event::Disconnected { conn, timed_out })]);

    // Asked, but it has not answered.
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(10));
    world.call(1, |m, now| m.forget(now, theirs));
    let events = world.run(10);
    assert!(
        matches!(&events[..], [(0, Event::Rejected(e)), (0, Event::Gone { .. })]
        if e.conn == mine && e.reason == RejReason::CONSUMER)
    );

    // It has answered, but the peer is not ready.
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(10));
    world.accept(1, theirs);
    world.run(10);
    world.call(1, |m, now| m.forget(now, theirs));
    let events = world.run(10);
    assert!(
        matches!(&events[..], [(0, Event::Rejected(e))] if e.conn == mine),
        "{events:?}"
    );

    // It has a reply, and does nothing with it.
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(10));
    world.accept(1, theirs);
    world.run(10);
    world.call(0, |m, now| m.forget(now, mine));
    let events = world.run(10);
    assert!(
        matches!(&events[..], [(1, Event::Rejected(e)), (1, Event::Gone { .. })]
        if e.conn == theirs && e.reason == RejReason::CONSUMER)
    );
    world.run(30_000);
    assert_eq!([0, 1].map(|h| world.hosts[h].connections()), [0, 0]);
}

/// A DREQ that nobody answers ends in a disconnection that says so.
#[test]
fn a_peer_that_does_not_answer_a_dreq_is_disconnected() {
    let mut world = World::new(6, 2);
    world.listen(1);
    let (mine, ..) = world.connected(0, 1);
    world.dead.insert(1);
    let done = world.call(0, |m, now| m.disconnect(now, mine));
    done.expect("disconnecting");
    let (conn, timed_out, time_wait) = (mine, true, true);
    let both = [
        (0, Event::Disconnected { conn, timed_out }),
        (0, Event::Gone { conn, time_wait }),
    ];
    assert_eq!(world.run(10_000), both);
}

/// A peer that was never ready is given up, and told.
#[test]
fn a_peer_that_is_never_ready_is_given_up_and_told() {
    let mut world = World::new(7, 2);
    world.listen(1);
    world.filter = Box::new(|_, message| message.name() == "RTU");
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(10));
    world.accept(1, theirs);
    world.run(10);
    let done = world.call(0, |m, now| m.establish(now, mine, &[]));
    done.expect("established");
    let events = world.run(7_900);
    let unreachable = Event::Unreachable { conn: theirs };
    assert!(events.contains(&(1, unreachable)), "{events:?}");
    let told = |(host, e): &(usize, Event)| matches!(e, Event::Rejected(e) if *host == 0 && e.conn == mine && e.reason == RejReason::TIMEOUT);
    assert!(events.iter().any(told), "{events:?}");
}

/// A kernel that gives up a request of its own names no id of ours, but its own and its device.
#[test]
fn a_rej_by_device_and_id_finds_its_request() {
    let mut world = World::new(8, 2);
    world.listen(1);
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let theirs = request(&world.run(10));
    let mut rej = Rej {
        local_id: mine.0,
        reason: RejReason::TIMEOUT.code(),
        ari_len: 8,
        ..Rej::default()
    };
    rej.ari[..8].copy_from_slice(&World::guid(0).to_be_bytes());
    world.inject(1, address(0), &Message::from(rej), 1);
    assert_eq!(world.hosts[1].state(theirs), None);
}

/// A REJ without an id of its sender's, as the kernel sends it when it kept no state; one with
/// something else there too, as it does for requests with a vendor.
#[test]
fn a_rej_that_names_no_sender_is_understood() {
    for local_id in [0, 0x15b3] {
        let mut world = World::new(9, 2);
        let qpn = world.fresh_qpn();
        let mine = world.connect(0, 1, qpn);
        world.filter = Box::new(|_, _| true);
        let rej = Message::from(Rej {
            local_id,
            remote_id: mine.0,
            reason: RejReason::INVALID_SERVICE_ID.code(),
            ..Rej::default()
        });
        world.inject(0, address(1), &rej, 1);
        assert!(matches!(
            world.hosts[0].poll_event(),
            Some(Event::Rejected(_))
        ));
    }
}

/// Every reason that exists, and some that do not, comes to the application as it is.
#[test]
fn every_reason_is_told() {
    for reason in 0..40 {
        let mut world = World::new(10, 2);
        let qpn = world.fresh_qpn();
        let mine = world.connect(0, 1, qpn);
        let rej = Message::from(Rej {
            remote_id: mine.0,
            reason,
            ari_len: 127,
            ..Rej::default()
        });
        world.inject(0, address(1), &rej, 1);
        let Some(Event::Rejected(told)) = world.hosts[0].poll_event() else {
            panic!("{reason}")
        };
        assert_eq!((told.reason, told.ari.len()), (RejReason(reason), 72));
    }
}

/// A REJ ends a connection in use: the other side lost it.
#[test]
fn a_rej_ends_a_connection_in_use() {
    let mut world = World::new(11, 2);
    world.listen(1);
    let (mine, theirs, ..) = world.connected(0, 1);
    let rej = Message::from(Rej {
        local_id: theirs.0,
        remote_id: mine.0,
        message: 2,
        reason: RejReason::TIMEOUT.code(),
        ..Rej::default()
    });
    world.inject(0, address(1), &rej, 1);
    assert!(matches!(
        world.hosts[0].poll_event(),
        Some(Event::Rejected(_))
    ));
    assert_eq!(world.hosts[0].state(mine), Some(State::TimeWait));
}

#[test]
fn another_path_is_refused() {
    let mut world = World::new(12, 2);
    world.listen(1);
    let (mine, theirs, ..) = world.connected(0, 1);
    let lap = Message::from(Lap {
        local_id: mine.0,
        remote_id: theirs.0,
        ..Lap::default()
    });
    let ends = common::ends(address(1), address(0));
    world.hosts[1].handle_mad(world.now, ends, &lap.emit(9, 0)[..]);
    let Transmit { mad, .. } = world.hosts[1].poll_transmit().expect("an APR");
    let (header, message) = Message::parse(&mad[..]).expect("a message");
    assert!(matches!(message, Message::Apr(apr) if apr.status == 2));
    assert_eq!(header.tid, 9);
    assert_eq!(world.hosts[1].state(theirs), Some(State::Established));
}

/// Calls in states in which they cannot be are refused, and change nothing.
#[test]
fn calls_out_of_place_are_refused() {
    let mut world = World::new(13, 2);
    world.listen(1);
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    let now = world.now;
    let active = &mut world.hosts[0];
    let accept = rocebud_cm::Accept::new(1, Qpn::new(9));
    assert!(active.accept(now, mine, &accept).is_err());
    assert!(active.establish(now, mine, &[]).is_err());
    assert!(active.disconnect(now, mine).is_err());
    assert!(active.comm_established(now, mine).is_err());
    assert!(
        active
            .reject(now, mine, RejReason::CONSUMER, &[], &[])
            .is_err()
    );
    assert!(active.sidr_reply(now, mine, &Default::default()).is_err());
    assert_eq!(active.qp_params(mine), None);
    assert_eq!(active.state(mine), Some(State::ReqSent));
    let theirs = request(&world.run(10));
    let passive = &mut world.hosts[1];
    let mut long = accept.clone();
    long.private_data = vec![0; 197];
    assert!(passive.accept(now, theirs, &long).is_err());
    let data = [0; 149];
    assert!(
        passive
            .reject(now, theirs, RejReason::CONSUMER, &data[..73], &[])
            .is_err()
    );
    assert!(
        passive
            .reject(now, theirs, RejReason::CONSUMER, &[], &data)
            .is_err()
    );
    assert!(passive.establish(now, theirs, &[]).is_err());
    assert!(passive.disconnect(now, theirs).is_err());
    assert_eq!(passive.state(theirs), Some(State::ReqRcvd));
    passive.accept(now, theirs, &accept).expect("accepted");
    assert!(passive.accept(now, theirs, &accept).is_err());
    let mut ask = World::ask(0, 1, qpn);
    ask.private_data = vec![0; 57];
    assert!(world.hosts[0].connect(now, &ask).is_err());
    ask.ip = None;
    world.hosts[0].connect(now, &ask).expect("room for 92");
    assert_eq!(world.hosts[0].contradiction(), None);
}

/// A REP nobody asked for is refused; one for somebody else's request too.
#[test]
fn a_rep_nobody_asked_for_is_refused() {
    let mut world = World::new(14, 3);
    let rep = |remote_id| {
        Message::from(Rep {
            local_id: 1,
            remote_id,
            local_ca_guid: 7,
            local_qpn: Qpn::new(3),
            ..Rep::default()
        })
    };
    world.inject(0, address(1), &rep(0x1234), 1);
    assert_eq!(world.hosts[0].counters().tx[2], 1, "a REJ");
    let qpn = world.fresh_qpn();
    let mine = world.connect(0, 1, qpn);
    world.inject(0, address(2), &rep(mine.0), 1);
    assert_eq!(world.hosts[0].counters().stranger, 1);
    assert_eq!(world.hosts[0].state(mine), Some(State::ReqSent));
    assert_eq!(world.hosts[0].poll_event(), None);
    assert!(world.hosts[0].poll_timeout() <= Some(world.now + 250 * MS));
}
