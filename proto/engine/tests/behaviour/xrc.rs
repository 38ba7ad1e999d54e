//! Extended reliable connections: packets name the receive queue, and everything hangs on it.

use rocebud_engine::NodeConfig;
use rocebud_objects::{
    Access, AttrMask, CqId, EventKind, PdId, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr,
    SendOp, SendWr, Sge, SrqAttr, SrqId, SrqInit, Wc, WcFlags, WcStatus, XrcSrq, XrcdId,
};
use rocebud_wire::{LKey, Opcode, RKey};

use crate::pair::{
    CQ, Fate, PD, Pair, QPN, START, Setup, everything, gids, region, remote, sge, wr,
};

const FAR: u64 = START + 0x10_0000;
const OK: WcStatus = WcStatus::Success;
const DOMAIN: XrcdId = XrcdId(3);
/// The receive queue's own protection domain, completion queue and region.
const SRQ_PD: PdId = PdId(8);
const SRQ_CQ: CqId = CqId(5);
const SRQ_KEY: u32 = 0x700;
const SRQ: SrqId = SrqId(0x0a_bcde);

fn srq_init(xrcd: XrcdId) -> SrqInit {
    SrqInit {
        pd: SRQ_PD,
        attr: SrqAttr {
            max_wr: 64,
            max_sge: 4,
            srq_limit: 0,
        },
        xrc: Some(XrcSrq { xrcd, cq: SRQ_CQ }),
    }
}

fn target_init() -> QpInit {
    QpInit {
        qp_type: QpType::XrcRecv,
        pd: PdId(99),
        send_cq: CqId::NONE,
        recv_cq: CqId::NONE,
        srq: None,
        xrcd: Some(DOMAIN),
        cap: QpCap::default(),
        sq_sig_all: false,
    }
}

/// Side 0 requests, side 1 serves.
fn xrc(setup: Setup) -> Pair {
    let mut pair = Pair::bare(Setup {
        qp_type: QpType::XrcSend,
        ..setup
    });
    pair.create(0, QPN[0]);
    let side = &mut pair.side[1];
    side.node.create_qp(QPN[1], target_init()).unwrap();
    side.node.create_srq(SRQ, srq_init(DOMAIN)).unwrap();
    let mut memory = region(everything());
    memory.pd = SRQ_PD;
    side.world.regions.insert(SRQ_KEY, memory);
    pair.connect(0);
    pair.connect(1);
    pair
}

fn recv(pair: &mut Pair, srq: SrqId, wr_id: u64, length: u32) {
    let piece = Sge {
        addr: FAR,
        length,
        lkey: LKey(SRQ_KEY),
    };
    let wr = RecvWr {
        wr_id,
        sges: [piece].into_iter().collect(),
    };
    pair.side[1].node.post_srq_recv(srq, wr).unwrap();
}

fn to(srq: SrqId, request: SendWr) -> SendWr {
    SendWr {
        xrc_srqn: srq.0,
        ..request
    }
}

fn post(pair: &mut Pair, wr_id: u64, op: SendOp, length: u32) {
    pair.post(0, to(SRQ, wr(wr_id, op, &[sge(START, length)])))
        .unwrap();
}

fn there(addr: u64) -> rocebud_objects::Remote {
    rocebud_objects::Remote {
        addr,
        rkey: RKey(SRQ_KEY),
    }
}

fn received(pair: &mut Pair) -> Vec<Wc> {
    pair.side[1].world.wcs.remove(&SRQ_CQ).unwrap_or_default()
}

#[test]
fn sends_land_in_the_queue_that_every_packet_names() {
    let mut pair = xrc(Setup::default());
    let bytes = pair.pattern(0, START, 3000, 1);
    recv(&mut pair, SRQ, 70, 4000);
    recv(&mut pair, SRQ, 71, 4000);
    post(&mut pair, 0, SendOp::Send, 3000);
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
    assert_eq!(pair.side[1].world.peek(SRQ_KEY, FAR, 3000), bytes);
    let sent: Vec<_> = pair.log.iter().filter(|f| f.from == 0).collect();
    assert_eq!(sent.len(), 3);
    for frame in sent {
        assert_eq!(frame.packet().ext.xrceth.unwrap().srqn, SRQ.0);
    }
    post(&mut pair, 1, SendOp::SendImm { imm: [1, 2, 3, 4] }, 8);
    pair.run();
    let wcs = received(&mut pair);
    assert_eq!((wcs[0].wr_id, wcs[0].byte_len), (70, 3000));
    assert_eq!(wcs[0].qp_num, QPN[1], "the serving queue pair");
    assert_eq!((wcs[1].wr_id, wcs[1].imm), (71, [1, 2, 3, 4]));
    assert_eq!(wcs[1].wc_flags, WcFlags::WITH_IMM);
    let answers: Vec<_> = pair.log.iter().filter(|f| f.from == 1).collect();
    assert!(answers.iter().all(|f| f.is(Opcode::XRC_ACKNOWLEDGE)));
}

#[test]
fn requests_keep_to_the_windows_and_wait_for_no_timer() {
    for (window_packets, peer_window_bytes, at_once) in [
        (128, 10 * (1024 + 512), 10),
        (7, 1 << 20, 7),
        (128, 0, 1), // the only packet always goes
    ] {
        let cfg = NodeConfig {
            window_packets,
            peer_window_bytes,
            ..NodeConfig::default()
        };
        // Without a timeout nothing but an answer moves it.
        let mut pair = xrc(Setup {
            cfg,
            timeout: 0,
            ..Setup::default()
        });
        let remote = there(FAR);
        post(&mut pair, 0, SendOp::Write { remote }, 200 * 1024);
        assert_eq!(pair.transmit(0), at_once);
        pair.run();
        assert_eq!(pair.results(0), [(0, OK)]);
    }
    let mut pair = xrc(Setup {
        timeout: 0,
        ..Setup::default()
    });
    let remote = there(FAR);
    post(&mut pair, 0, SendOp::Write { remote }, 200 * 1024);
    pair.transmit_some(0, 3);
    let slot = QPN[1].slot();
    pair.side[0].node.set_peer_window(gids()[1], slot, 0);
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
}

#[test]
fn one_sided_requests_use_the_keys_of_the_queues_domain() {
    let mut pair = xrc(Setup::default());
    let bytes = pair.pattern(0, START, 5000, 1);
    let add = SendOp::FetchAdd {
        remote: there(FAR + 8000),
        add: 7,
    };
    post(&mut pair, 0, SendOp::Write { remote: there(FAR) }, 5000);
    post(&mut pair, 1, add, 8);
    let back = wr(
        2,
        SendOp::Read { remote: there(FAR) },
        &[sge(START + 0x8000, 5000)],
    );
    pair.post(0, to(SRQ, back)).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, OK), (1, OK), (2, OK)]);
    assert_eq!(pair.side[1].world.peek(SRQ_KEY, FAR, 5000), bytes);
    let read = pair.side[0]
        .world
        .peek(crate::pair::KEY, START + 0x8000, 5000);
    assert_eq!(
        read[8..],
        bytes[8..],
        "the atomic's result took the first eight"
    );
    let word = pair.side[1].world.peek(SRQ_KEY, FAR + 8000, 8);
    assert_eq!(word, 7_u64.to_ne_bytes());
    // A key of another domain than the queue's.
    post(
        &mut pair,
        3,
        SendOp::Write {
            remote: remote(FAR),
        },
        8,
    );
    pair.run();
    assert_eq!(pair.results(0), [(3, WcStatus::RemAccessErr)]);
    assert_eq!(pair.events(1, EventKind::QpAccessErr), 1);
}

#[test]
fn losses_are_made_good_for_every_operation() {
    let mut pair = xrc(Setup::default());
    let mut n = 0;
    pair.rule(move |_| {
        n += 1;
        if n % 5 == 2 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    for i in 0..20_u64 {
        recv(&mut pair, SRQ, 100 + i, 5000);
        let op = match i % 4 {
            0 => SendOp::Send,
            1 => SendOp::Write { remote: there(FAR) },
            2 => SendOp::Read { remote: there(FAR) },
            _ => SendOp::FetchAdd {
                remote: there(FAR + 8000),
                add: 1,
            },
        };
        post(&mut pair, i, op, if i % 4 == 3 { 8 } else { 4000 });
    }
    pair.run();
    let expected: Vec<_> = (0..20).map(|i| (i, OK)).collect();
    assert_eq!(pair.results(0), expected);
    let ids: Vec<u64> = received(&mut pair).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [100, 101, 102, 103, 104], "once each, in order");
    let word = pair.side[1].world.peek(SRQ_KEY, FAR + 8000, 8);
    assert_eq!(word, 5_u64.to_ne_bytes());
}

#[test]
fn an_empty_queue_is_receiver_not_ready() {
    let mut pair = xrc(Setup::default());
    post(&mut pair, 0, SendOp::Send, 100);
    pair.transmit(0);
    for _ in 0..4 {
        pair.step();
    }
    assert_eq!(pair.results(0), []);
    recv(&mut pair, SRQ, 70, 100);
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
    assert_eq!(received(&mut pair).len(), 1);
}

#[test]
fn queues_that_are_not_there_or_not_of_the_domain_are_refused() {
    let foreign = SrqId(0x11);
    let ordinary = SrqId(0x12);
    let nobody = SrqId(0x13);
    for srq in [foreign, ordinary, nobody] {
        let mut pair = xrc(Setup::default());
        let node = &mut pair.side[1].node;
        node.create_srq(foreign, srq_init(XrcdId(4))).unwrap();
        let basic = SrqInit {
            xrc: None,
            ..srq_init(DOMAIN)
        };
        node.create_srq(ordinary, basic).unwrap();
        for op in [SendOp::Send, SendOp::Write { remote: there(FAR) }] {
            pair.post(0, to(srq, wr(0, op, &[sge(START, 8)]))).unwrap();
            pair.run();
            assert_eq!(pair.results(0), [(0, WcStatus::RemInvReqErr)], "{srq:?}");
            assert_eq!(pair.events(1, EventKind::QpAccessErr), 1);
            pair.side[1].world.events.clear();
            for side in 0..2 {
                pair.set_state(side, QpState::Reset).unwrap();
            }
            pair.connect(0);
            pair.connect(1);
        }
    }
}

#[test]
fn a_message_stays_with_one_queue() {
    let mut pair = xrc(Setup::default());
    let other = SrqId(0x21);
    let node = &mut pair.side[1].node;
    node.create_srq(other, srq_init(DOMAIN)).unwrap();
    recv(&mut pair, SRQ, 70, 4000);
    recv(&mut pair, other, 71, 4000);
    let mut seen = 0;
    pair.rule(move |f| {
        seen += u32::from(f.from == 0);
        if f.from == 0 && seen > 1 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    post(&mut pair, 0, SendOp::Send, 2000);
    pair.transmit(0);
    pair.step();
    let mut last = pair.log.last().unwrap().bytes.clone();
    assert_eq!(last[12..16], [0, 0x0a, 0xbc, 0xde]);
    last[12..16].copy_from_slice(&[0, 0, 0, 0x21]);
    pair.inject(1, &last);
    let wc = received(&mut pair)[0];
    assert_eq!((wc.wr_id, wc.status), (70, WcStatus::WrFlushErr));
    assert_eq!(pair.state(1), QpState::Err);
}

#[test]
fn a_queue_may_go_in_the_middle_of_a_message() {
    let mut pair = xrc(Setup::default());
    recv(&mut pair, SRQ, 70, 4000);
    post(&mut pair, 0, SendOp::Send, 3000);
    let mut seen = 0;
    pair.rule(move |f| {
        seen += u32::from(f.from == 0);
        if f.from == 0 && seen > 1 && seen < 4 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.transmit(0);
    pair.step();
    pair.side[1].node.destroy_srq(SRQ).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, WcStatus::RemInvReqErr)]);
    assert_eq!(received(&mut pair).len(), 0, "it went with the queue");
}

#[test]
fn an_overrun_completion_queue_takes_the_serving_queue_pair_down() {
    let mut pair = xrc(Setup::default());
    pair.side[1].world.cq_room = Some(1);
    for i in 0..3 {
        recv(&mut pair, SRQ, 70 + i, 100);
        post(&mut pair, i, SendOp::Send, 8);
    }
    pair.run();
    assert_eq!(pair.state(1), QpState::Err);
    assert_eq!(pair.events(1, EventKind::CqErr), 1);
    assert_eq!(pair.events(1, EventKind::QpFatal), 1);
}

#[test]
fn each_end_does_its_half_alone() {
    let mut pair = xrc(Setup::default());
    let request = to(SRQ, wr(0, SendOp::Send, &[]));
    assert!(pair.post(1, request).is_err(), "it serves");
    assert!(pair.recv(1, 0, &[]).is_err());
    assert!(pair.recv(0, 0, &[]).is_err(), "it requests");
    let write = SendOp::AtomicWrite { remote: there(FAR) };
    let request = to(SRQ, wr(0, write, &[sge(START, 8)]));
    assert!(
        pair.post(0, request).is_err(),
        "the wire has no opcode for it"
    );

    let node = &mut pair.side[1].node;
    let homeless = QpInit {
        xrcd: None,
        ..target_init()
    };
    let ordinary = QpInit {
        qp_type: QpType::Rc,
        ..target_init()
    };
    let with_xrc_srq = QpInit {
        qp_type: QpType::Rc,
        xrcd: None,
        srq: Some(SRQ),
        ..target_init()
    };
    for init in [homeless, ordinary, with_xrc_srq] {
        assert!(node.create_qp(rocebud_wire::Qpn::new(77), init).is_err());
    }
}

#[test]
fn masks_of_rc_fit_and_queries_tell_the_rest() {
    // `connect` gives the masks of RC to both ends; what they lack is ignored, what they need is
    // needed.
    let mut pair = xrc(Setup::default());
    for side in 0..2 {
        let (attr, _) = pair.side[side].node.query_qp(QPN[side]).unwrap();
        assert_eq!(attr.qp_state, QpState::Rts);
        assert_eq!(attr.qp_access_flags, everything_remote());
    }
    pair.set_state(1, QpState::Reset).unwrap();
    let attr = QpAttr {
        qp_state: QpState::Init,
        port_num: 1,
        ..QpAttr::default()
    };
    let refused = pair.modify(1, &attr, AttrMask::STATE | AttrMask::PORT);
    assert!(refused.is_err(), "access flags and P_Key are missing");
}

fn everything_remote() -> Access {
    Setup::default().access
}

#[test]
fn other_classes_are_dropped() {
    let mut pair = xrc(Setup::default());
    let mut rc = Pair::rc();
    rc.post(0, wr(0, SendOp::Send, &[])).unwrap();
    rc.transmit(0);
    let frame = rc.log[0].bytes.clone();
    pair.inject(1, &frame);
    let dropped = rocebud_objects::Counter::DropWrongClass;
    assert_eq!(pair.side[1].world.counter(dropped), 1);
    assert_eq!(pair.side[1].world.wcs.get(&CQ), None);
    assert_eq!(PD, PdId(1));
}
