//! What requests say, who is asked by them, and which are refused.

mod common;

use common::golden;
use common::world::{PORT, World, address, request};
use common::{ends, mirrored, path};
use rocebud_cm::ip::{self, IpCm, PortSpace};
use rocebud_cm::{
    Accept, Bind, CmQpType, Config, Connect, Ece, Event, Listen, ListenerId, Manager, Message,
    RejReason, Request,
};
use rocebud_objects::{Errno, Instant};
use rocebud_wire::{Gid, Mtu, Qpn};

const NOW: Instant = Instant(1);

/// Hands out these numbers, then others.
fn loaded(numbers: &[u32]) -> Manager {
    let mut numbers = numbers.to_vec();
    numbers.reverse();
    let mut spare = 1_000;
    let next = move || {
        spare += 1;
        numbers.pop().unwrap_or(spare)
    };
    Manager::new(Config::default(), Box::new(next))
}

/// Given the same names and numbers, our REQ and REP are the kernel's, byte for byte but for the
/// transaction id.
#[test]
fn our_messages_are_those_of_the_kernel() {
    for name in ["cm-rping", "cm-rping-ipv6", "cm-rdma-server"] {
        let captured = golden::of(name);
        let parse = |i: usize| Message::parse(&captured[i].mad).expect("a message").1;
        let (Message::Req(req), Message::Rep(rep)) = (parse(0), parse(1)) else {
            panic!("{name}")
        };
        let numbers = [req.local_id, 7, req.starting_psn.value()];
        let mut active = loaded(&numbers);
        let mut way = path(captured[0].src, captured[0].dst);
        way.flow_label = req.primary.flow_label;
        let mut ask = Connect::new(way, req.local_ca_guid, req.service_id, req.local_qpn);
        ask.ip = IpCm::parse(&req.private_data).ok();
        ask.packet_life = 18;
        ask.responder_resources = req.responder_resources;
        ask.initiator_depth = req.initiator_depth;
        ask.rnr_retry_count = req.rnr_retry_count;
        active.connect(NOW, &ask).expect("asked");
        let sent = active.poll_transmit().expect("a REQ").mad;
        assert_eq!(sent[24..], captured[0].mad[24..], "{name}: REQ");

        let mut passive = loaded(&[rep.local_id, rep.starting_psn.value()]);
        listen(&mut passive, req.service_id, Bind::Any).expect("a listener");
        let at = ends(captured[0].dst, captured[0].src);
        passive.handle_mad(NOW, at, &captured[0].mad);
        let Some(Event::Request(request)) = passive.poll_event() else {
            panic!("{name}")
        };
        let mut answer = Accept::new(rep.local_ca_guid, rep.local_qpn);
        answer.responder_resources = rep.responder_resources;
        answer.initiator_depth = rep.initiator_depth;
        answer.rnr_retry_count = rep.rnr_retry_count;
        let done = passive.accept(NOW, request.conn, &answer);
        done.expect("accepted");
        let sent = passive.poll_transmit().expect("a REP").mad;
        assert_eq!(sent[8..], captured[1].mad[8..], "{name}: REP");
    }
}

fn listen(
    manager: &mut Manager,
    service_id: u64,
    bind: Bind,
) -> Result<ListenerId, rocebud_objects::Misuse> {
    manager.listen(Listen {
        service_id,
        mask: u64::MAX,
        bind,
        backlog: 0,
    })
}

/// What becomes of a request: the one that is heard, or the refusal.
fn ask(passive: &mut Manager, at: rocebud_cm::Ends, ask: &Connect) -> Result<Request, RejReason> {
    let mut active = common::manager(ask.qpn.value().into());
    active.connect(NOW, ask).expect("asked");
    let req = active.poll_transmit().expect("a REQ");
    passive.handle_mad(NOW, at, &req.mad[..]);
    if let Some(Event::Request(request)) = passive.poll_event() {
        return Ok(*request);
    }
    let answer = passive.poll_transmit().expect("a REJ");
    match Message::parse(&answer.mad[..]).expect("a message").1 {
        Message::Rej(rej) => Err(RejReason(rej.reason)),
        other => panic!("{other:?}"),
    }
}

fn v6(last: u8) -> Gid {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xfd, 0x98, last);
    Gid(gid)
}

fn link_local(last: u8) -> Gid {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xfe, 0x80, last);
    Gid(gid)
}

fn from_to(src: Gid, dst: Gid, service_id: u64) -> Connect {
    let mut ask = Connect::new(path(src, dst), 1, service_id, Qpn::new(5));
    ask.ip = Some(IpCm {
        src_port: 1,
        src: src.ip(),
        dst: dst.ip(),
    });
    ask
}

/// The most specific listener is asked: port and address, address, family, all.
#[test]
fn the_most_specific_listener_is_asked() {
    let service = ip::service_id(PortSpace::Tcp, PORT);
    let mut bob = common::manager(2);
    let mut on = |bind| listen(&mut bob, service, bind).expect("a listener");
    let any = on(Bind::Any);
    let any_v4 = on(Bind::AnyV4);
    let any_v6 = on(Bind::AnyV6);
    let gid = address(1);
    let one = on(Bind::Addr { gid, port: None });
    let gid = link_local(1);
    let port = Some(2);
    let scoped = on(Bind::Addr { gid, port });

    let mut who = |src, dst, port| {
        let mut at = ends(dst, src);
        at.port = port;
        ask(&mut bob, at, &from_to(src, dst, service)).map(|r| r.listener)
    };
    assert_eq!(who(address(0), address(1), 1), Ok(one));
    assert_eq!(who(address(3), address(2), 1), Ok(any_v4));
    assert_eq!(who(v6(3), v6(2), 1), Ok(any_v6));
    assert_eq!(who(link_local(9), link_local(1), 2), Ok(scoped));
    assert_eq!(who(link_local(8), link_local(1), 1), Ok(any_v6));
    for listener in [any_v4, any_v6, one, scoped] {
        bob.unlisten(NOW, listener);
    }
    let at = ends(v6(7), v6(8));
    let heard = ask(&mut bob, at, &from_to(v6(8), v6(7), service));
    assert_eq!(heard.map(|r| r.listener), Ok(any));
}

#[test]
fn the_same_listener_twice_is_refused() {
    let mut bob = common::manager(2);
    let service = ip::service_id(PortSpace::Tcp, PORT);
    let first = listen(&mut bob, service, Bind::Any).expect("a listener");
    let second = listen(&mut bob, service, Bind::Any).expect_err("taken");
    assert_eq!(second.errno, Errno::EADDRINUSE);
    listen(&mut bob, service + 1, Bind::Any).expect("another port");
    bob.unlisten(NOW, first);
    listen(&mut bob, service, Bind::Any).expect("free again");
}

/// What is wrong with a request's addresses is rdma_cm's to find: consumer reject.
#[test]
fn addresses_that_are_not_true_are_refused() {
    let service = ip::service_id(PortSpace::Tcp, PORT);
    let mut bob = common::manager(2);
    let gid = address(1);
    listen(&mut bob, service, Bind::Addr { gid, port: None }).expect("a listener");
    let at = ends(address(1), address(0));
    let good = from_to(address(0), address(1), service);
    let mut other_dst = good.clone();
    other_dst.ip = from_to(address(0), address(7), service).ip;
    let mut other_src = good.clone();
    other_src.ip = from_to(address(7), address(1), service).ip;
    let mut none = good.clone();
    none.ip = None;
    let mut newer = none.clone();
    newer.private_data = vec![0x10, 0x40];
    for bad in [other_dst, other_src, none, newer] {
        assert_eq!(ask(&mut bob, at, &bad), Err(RejReason::CONSUMER));
    }
    let elsewhere = from_to(address(0), address(2), service);
    let at_2 = ends(address(2), address(0));
    assert_eq!(ask(&mut bob, at_2, &elsewhere), Err(RejReason::CONSUMER));
    assert_eq!(bob.counters().bad_address, 5);
    ask(&mut bob, at, &good).expect("heard");
}

/// Service ids beside those of ports: a mask, no header, all 92 bytes for the application.
#[test]
fn a_service_of_ones_own_has_no_ip_header() {
    let mut bob = common::manager(2);
    let wide = bob
        .listen(Listen {
            service_id: 0x1000_0000_0000_0000,
            mask: 0xff00_0000_0000_0000,
            bind: Bind::Any,
            backlog: 0,
        })
        .expect("a listener");
    let exact = listen(&mut bob, 0x1000_0000_0000_0005, Bind::Any).expect("a listener");
    let at = ends(address(1), address(0));
    let with = |service_id, qpn| {
        let mut ask = Connect::new(path(address(0), address(1)), 1, service_id, Qpn::new(qpn));
        ask.private_data = vec![7; 92];
        ask
    };
    let heard = ask(&mut bob, at, &with(0x1000_0000_0000_0004, 5)).expect("heard");
    assert_eq!((heard.listener, heard.ip), (wide, None));
    assert_eq!(heard.private_data, [7; 92]);
    bob.forget(NOW, heard.conn);
    while bob.poll_transmit().is_some() {}
    let heard = ask(&mut bob, at, &with(0x1000_0000_0000_0005, 6)).expect("heard");
    assert_eq!(heard.listener, exact);
    let no = ask(&mut bob, at, &with(0x2000_0000_0000_0005, 7));
    assert_eq!(no, Err(RejReason::INVALID_SERVICE_ID));
}

/// What a REQ asks for that does not exist.
#[test]
fn kinds_and_mtus_that_do_not_exist_are_refused() {
    let service = ip::service_id(PortSpace::Tcp, PORT);
    let good = from_to(address(0), address(1), service);
    for (byte, value, expected) in [
        (43, 0b10 << 1, RejReason::INVALID_TRANSPORT_TYPE), // RD
        (43, 0b11 << 1, RejReason::INVALID_TRANSPORT_TYPE), // extended, but not XRC
        (50, 0x07, RejReason::INVALID_MTU),
        (50, 0x67, RejReason::INVALID_MTU),
        (50, 0xf7, RejReason::INVALID_MTU),
    ] {
        let mut bob = common::manager(2);
        listen(&mut bob, service, Bind::Any).expect("a listener");
        let mut active = common::manager(1);
        active.connect(NOW, &good).expect("asked");
        let mut req = active.poll_transmit().expect("a REQ");
        req.mad[24 + byte] = value;
        bob.handle_mad(NOW, mirrored(req.path.ends), &req.mad[..]);
        let answer = bob.poll_transmit().expect("a REJ");
        let Message::Rej(rej) = Message::parse(&answer.mad[..]).expect("a message").1 else {
            panic!("no REJ")
        };
        assert_eq!(RejReason(rej.reason), expected);
        assert_eq!((rej.local_id, rej.message), (0, 0));
        assert_eq!(bob.connections(), 0);
    }
}

/// Every parameter of both sides comes out at the other one, in the other one's view.
#[test]
fn parameters_come_out_in_the_others_view() {
    for qp_type in [CmQpType::Rc, CmQpType::Uc, CmQpType::Xrc] {
        let mut world = World::new(1, 2);
        world.listen(1);
        let mut ask = World::ask(0, 1, Qpn::new(0x77));
        ask.qp_type = qp_type;
        (ask.responder_resources, ask.initiator_depth) = (3, 4);
        (ask.retry_count, ask.rnr_retry_count) = (200, 5);
        (ask.srq, ask.flow_control) = (true, true);
        ask.mtu = Mtu::M4096;
        ask.path.traffic_class = 0x68;
        ask.path.flow_label = 0xabcde;
        ask.ece = Ece {
            vendor_id: 0x15b3,
            options: 0x1000_0001,
        };
        let mine = world.call(0, |m, now| m.connect(now, &ask)).expect("asked");
        let heard = world.run(10);
        let [(1, Event::Request(r))] = &heard[..] else {
            panic!("{heard:?}")
        };
        assert_eq!((r.qp_type, r.srq, r.flow_control), (qp_type, true, true));
        assert_eq!((r.responder_resources, r.initiator_depth), (4, 3));
        assert_eq!(
            (r.qp.retry_cnt, r.qp.rnr_retry, r.qp.path_mtu),
            (7, 5, Mtu::M4096)
        );
        assert_eq!((r.qp.timeout, r.ece), (17, ask.ece));
        assert_eq!((r.path.traffic_class, r.path.flow_label), (0x68, 0xabcde));
        assert_eq!(r.path.ends.remote, address(0));
        assert_eq!(world.hosts[1].qp_params(r.conn), Some(r.qp));
        let mut answer = Accept::new(World::guid(1), Qpn::new(0x88));
        (answer.responder_resources, answer.initiator_depth) = (2, 1);
        answer.rnr_retry_count = 6;
        answer.ca_ack_delay = 18;
        answer.ece = Ece {
            vendor_id: 0xab_cdef,
            options: 9,
        };
        let conn = r.conn;
        let done = world.call(1, |m, now| m.accept(now, conn, &answer));
        done.expect("accepted");
        let qp = world.hosts[1].qp_params(conn).expect("known");
        assert_eq!((qp.max_rd_atomic, qp.max_dest_rd_atomic), (1, 2));
        let heard = world.run(10);
        let [(0, Event::Reply(reply))] = &heard[..] else {
            panic!("{heard:?}")
        };
        assert_eq!(reply.conn, mine);
        assert_eq!(reply.qp.dest_qpn, Qpn::new(0x88));
        assert_eq!(
            (reply.qp.max_rd_atomic, reply.qp.max_dest_rd_atomic),
            (2, 1)
        );
        assert_eq!((reply.qp.retry_cnt, reply.qp.rnr_retry), (7, 6));
        assert_eq!((reply.qp.timeout, reply.qp.path_mtu), (19, Mtu::M4096));
        assert_eq!(
            (reply.ece, reply.srq),
            (answer.ece, qp_type == CmQpType::Xrc)
        );
        assert_eq!(world.hosts[0].qp_params(mine), Some(reply.qp));
    }
}

/// Requests that wait when their listener goes are refused; connections stay.
#[test]
fn a_listener_that_goes_refuses_what_waits() {
    let mut world = World::new(2, 2);
    let listener = world.listen(1);
    let (mine, theirs, ..) = world.connected(0, 1);
    let qpn = world.fresh_qpn();
    let waiting = world.connect(0, 1, qpn);
    request(&world.run(10));
    let qpn = world.fresh_qpn();
    let taken = world.connect(0, 1, qpn);
    let in_hand = request(&world.run(10));
    world.hosts[1].taken(in_hand);
    world.call(1, |m, now| m.unlisten(now, listener));
    let events = world.run(10);
    assert!(
        matches!(&events[..], [(0, Event::Rejected(e)), (0, Event::Gone { .. })]
        if e.conn == waiting && e.reason == RejReason::CONSUMER)
    );
    world.accept(1, in_hand);
    let events = world.run(10);
    assert!(matches!(&events[..], [(0, Event::Reply(r))] if r.conn == taken));
    assert!(world.hosts[0].state(mine).is_some() && world.hosts[1].state(theirs).is_some());
}

fn listen_with_backlog(world: &mut World, backlog: u32) {
    let what = Listen {
        service_id: ip::service_id(PortSpace::Tcp, PORT),
        mask: u64::MAX,
        bind: Bind::Any,
        backlog,
    };
    world.hosts[1].listen(what).expect("a listener");
}

/// A backlog of one: the second request is put off, and comes again when there is room.
#[test]
fn a_full_backlog_puts_a_request_off() {
    let mut world = World::new(3, 2);
    listen_with_backlog(&mut world, 1);
    let [one, two] = [1, 2].map(|_| world.fresh_qpn());
    world.connect(0, 1, one);
    world.connect(0, 1, two);
    let first = request(&world.run(10));
    assert_eq!(world.run(100), []);
    world.accept(1, first);
    let events = world.run(2_000);
    let heard = |(_, e): &(usize, Event)| matches!(e, Event::Request(r) if r.qp.dest_qpn == two);
    assert!(events.iter().any(heard), "{events:?}");
}

/// A thousand requests at once, an application that takes a hundred a second and has room for
/// a hundred: the others are put off, and none is lost.
#[test]
fn a_burst_beyond_the_backlog_is_put_off_and_served() {
    let mut world = World::new(4, 2);
    listen_with_backlog(&mut world, 100);
    for _ in 0..1_000 {
        let qpn = world.fresh_qpn();
        world.connect(0, 1, qpn);
    }
    let mut waiting = std::collections::VecDeque::new();
    let (mut replies, mut rounds) = (0, 0);
    while replies < 1_000 {
        for (_, event) in world.run(100) {
            match event {
                Event::Request(request) => waiting.push_back(request.conn),
                Event::Reply(reply) => {
                    let conn = reply.conn;
                    let done = world.call(0, |m, now| m.establish(now, conn, &[]));
                    done.expect("established");
                    replies += 1;
                }
                Event::Established { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        for _ in 0..10 {
            if let Some(conn) = waiting.pop_front() {
                world.accept(1, conn);
            }
        }
        rounds += 1;
    }
    assert!(rounds < 150, "{rounds} times 100 ms");
    assert!(world.hosts[1].counters().backlog_full > 1_000);
}
