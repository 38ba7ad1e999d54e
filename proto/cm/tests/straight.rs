//! Two managers and a perfect network.

mod common;

use common::{ALICE, BOB, manager, mirrored, path};
use rocebud_cm::ip::{self, IpCm, PortSpace};
use rocebud_cm::{
    Accept, Bind, Connect, Event, Listen, Manager, RejReason, SidrReply, SidrRequest, State,
    sidr_status,
};
use rocebud_objects::Instant;
use rocebud_wire::{QKey, Qpn};

const NOW: Instant = Instant(1_000_000_000);

/// Carries everything to the other side until nothing moves.
fn carry(a: &mut Manager, b: &mut Manager) {
    let mut moved = true;
    while moved {
        moved = false;
        for turn in 0..2 {
            let (from, to) = if turn == 0 {
                (&mut *a, &mut *b)
            } else {
                (&mut *b, &mut *a)
            };
            while let Some(message) = from.poll_transmit() {
                to.handle_mad(NOW, mirrored(message.path.ends), &message.mad[..]);
                moved = true;
            }
        }
    }
}

fn listening(bob: &mut Manager, space: PortSpace, port: u16) {
    bob.listen(Listen {
        service_id: ip::service_id(space, port),
        mask: u64::MAX,
        bind: Bind::Any,
        backlog: 0,
    })
    .expect("a listener");
}

fn ask(port: u16) -> Connect {
    let service_id = ip::service_id(PortSpace::Tcp, port);
    let mut ask = Connect::new(path(ALICE, BOB), 0xa, service_id, Qpn::new(0x1234));
    ask.ip = Some(named());
    ask.private_data = b"hello".to_vec();
    ask
}

fn named() -> IpCm {
    IpCm {
        src_port: 40_000,
        src: ALICE.ip(),
        dst: BOB.ip(),
    }
}

#[test]
fn a_connection_is_made_used_and_ended() {
    let (mut alice, mut bob) = (manager(1), manager(2));
    listening(&mut bob, PortSpace::Tcp, 7174);
    let mine = alice.connect(NOW, &ask(7174)).expect("asked");
    carry(&mut alice, &mut bob);

    let Some(Event::Request(request)) = bob.poll_event() else {
        panic!("a request")
    };
    assert_eq!(request.ip, Some(named()));
    assert_eq!(request.path.ends.remote, ALICE);
    assert_eq!(request.qp.dest_qpn, Qpn::new(0x1234));
    assert_eq!(request.private_data.len(), 56);
    assert_eq!(&request.private_data[..6], b"hello\0");
    let theirs = request.conn;
    let mut answer = Accept::new(0xb, Qpn::new(0x5678));
    answer.private_data = b"welcome".to_vec();
    bob.accept(NOW, theirs, &answer).expect("accepted");
    carry(&mut alice, &mut bob);

    let Some(Event::Reply(reply)) = alice.poll_event() else {
        panic!("a reply")
    };
    assert_eq!(reply.qp.dest_qpn, Qpn::new(0x5678));
    assert_eq!(
        (reply.qp.rq_psn, reply.qp.sq_psn),
        (request.qp.sq_psn, request.qp.rq_psn)
    );
    assert_eq!(reply.qp.timeout, 17);
    assert_eq!(&reply.private_data[..8], b"welcome\0");
    alice.establish(NOW, mine, &[]).expect("established");
    carry(&mut alice, &mut bob);
    assert_eq!(bob.poll_event(), Some(Event::Established { conn: theirs }));
    assert_eq!(alice.poll_timeout(), None);
    assert_eq!(bob.poll_timeout(), None);

    alice.disconnect(NOW, mine).expect("disconnecting");
    carry(&mut alice, &mut bob);
    for (who, conn) in [(&mut alice, mine), (&mut bob, theirs)] {
        let timed_out = false;
        assert_eq!(
            who.poll_event(),
            Some(Event::Disconnected { conn, timed_out })
        );
        assert_eq!(who.state(conn), Some(State::TimeWait));
        who.disconnect(NOW, conn).expect("once more is no matter");
        let over = who.poll_timeout().expect("the end of time-wait");
        who.handle_timeout(over);
        let time_wait = true;
        assert_eq!(who.poll_event(), Some(Event::Gone { conn, time_wait }));
        assert_eq!((who.connections(), who.poll_timeout()), (0, None));
        assert_eq!((who.poll_event(), who.poll_transmit()), (None, None));
    }
}

#[test]
fn nobody_listens() {
    let (mut alice, mut bob) = (manager(1), manager(2));
    let conn = alice.connect(NOW, &ask(7999)).expect("asked");
    carry(&mut alice, &mut bob);
    let Some(Event::Rejected(rejected)) = alice.poll_event() else {
        panic!("rejected")
    };
    assert_eq!(rejected.reason, RejReason::INVALID_SERVICE_ID);
    let time_wait = false;
    assert_eq!(alice.poll_event(), Some(Event::Gone { conn, time_wait }));
    assert_eq!(bob.counters().no_listener, 1);
    assert_eq!((alice.connections(), bob.connections()), (0, 0));
}

#[test]
fn the_application_refuses() {
    let (mut alice, mut bob) = (manager(1), manager(2));
    listening(&mut bob, PortSpace::Tcp, 7174);
    alice.connect(NOW, &ask(7174)).expect("asked");
    carry(&mut alice, &mut bob);
    let theirs = bob.poll_event().expect("a request").conn();
    let reason = RejReason::CONSUMER;
    bob.reject(NOW, theirs, reason, &[], b"no")
        .expect("refused");
    carry(&mut alice, &mut bob);
    let Some(Event::Rejected(rejected)) = alice.poll_event() else {
        panic!("rejected")
    };
    assert_eq!(rejected.reason, reason);
    assert_eq!(&rejected.private_data[..3], b"no\0");
    assert_eq!((alice.connections(), bob.connections()), (0, 0));
}

#[test]
fn a_datagram_service_answers() {
    let (mut alice, mut bob) = (manager(1), manager(2));
    listening(&mut bob, PortSpace::Udp, 7174);
    let ask = SidrRequest {
        path: path(ALICE, BOB),
        service_id: ip::service_id(PortSpace::Udp, 7174),
        ip: Some(named()),
        pkey: Default::default(),
        private_data: b"who?".to_vec(),
    };
    alice.sidr_request(NOW, &ask).expect("asked");
    carry(&mut alice, &mut bob);
    let Some(Event::SidrRequest(question)) = bob.poll_event() else {
        panic!("a question")
    };
    assert_eq!(question.private_data.len(), 180);
    let answer = SidrReply {
        status: sidr_status::VALID,
        qpn: Qpn::new(0x77),
        qkey: QKey(0x0123_4567),
        private_data: b"me".to_vec(),
        ..SidrReply::default()
    };
    bob.sidr_reply(NOW, question.conn, &answer)
        .expect("answered");
    carry(&mut alice, &mut bob);
    let Some(Event::SidrReply(heard)) = alice.poll_event() else {
        panic!("an answer")
    };
    assert_eq!(
        (heard.status, heard.qpn, heard.qkey),
        (0, answer.qpn, answer.qkey)
    );
    assert_eq!((alice.connections(), bob.connections()), (0, 0));
}
