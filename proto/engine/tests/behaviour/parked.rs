//! UC and UD messages that come before their receives.

use rocebud_engine::{NodeConfig, limits::PARKED_COST_BYTES};
use rocebud_objects::{
    AttrMask, Counter, QpAttr, QpState, QpType, SendOp, SendWr, SrqAttr, SrqId, SrqInit, WcStatus,
};
use rocebud_wire::{Mtu, QKey};

use crate::pair::{KEY, PD, Pair, QPN, START, Setup, remote, sge, wr};

const FAR: u64 = START + 0x10_0000;
const OK: WcStatus = WcStatus::Success;
const SECOND: u64 = 1_000_000_000;

fn pair(qp_type: QpType) -> Pair {
    Pair::new(Setup {
        qp_type,
        ..Setup::default()
    })
}

fn send(pair: &Pair, wr_id: u64, bytes: u32) -> SendWr {
    let mut wr = wr(wr_id, SendOp::Send, &[sge(START, bytes)]);
    if pair.setup.qp_type == QpType::Ud {
        wr.ud = Some(pair.ud(0));
    }
    wr
}

/// Sends that arrive now.
fn deliver(pair: &mut Pair, sends: impl IntoIterator<Item = SendWr>) {
    for wr in sends {
        pair.post(0, wr).unwrap();
    }
    pair.step();
}

fn dropped(pair: &Pair) -> u64 {
    pair.side[1].world.counter(Counter::DropNoReceive)
}

#[test]
fn messages_wait_for_their_receives_in_order() {
    for (qp_type, grh, bytes) in [(QpType::Ud, 40, 1000), (QpType::Uc, 0, 5000)] {
        let mut pair = pair(qp_type);
        let sent = pair.pattern(0, START, 5000, 3);
        let sends: Vec<_> = (0..3).map(|i| send(&pair, i, bytes - i as u32)).collect();
        deliver(&mut pair, sends);
        assert_eq!(pair.results(0), [(0, OK), (1, OK), (2, OK)]);
        assert_eq!(pair.results(1), []);
        for i in 0..3 {
            pair.recv(1, i, &[sge(FAR, 5100)]).unwrap();
            let wcs = pair.wcs(1);
            assert_eq!(wcs.len(), 1, "{qp_type:?}");
            assert_eq!((wcs[0].wr_id, wcs[0].status), (i, OK));
            let n = bytes as usize - i as usize;
            assert_eq!(wcs[0].byte_len as usize, grh + n);
            let got = pair.side[1].world.peek(KEY, FAR + grh as u64, n);
            assert_eq!(got, &sent[..n]);
        }
        assert_eq!(dropped(&pair), 0);
    }
}

#[test]
fn what_comes_behind_a_waiting_message_waits_too() {
    let mut pair = pair(QpType::Uc);
    let bytes = pair.pattern(0, START, 64, 3);
    let first = send(&pair, 0, 64);
    let op = SendOp::Write {
        remote: remote(FAR),
    };
    deliver(&mut pair, [first, wr(1, op, &[sge(START, 64)])]);
    assert_eq!(pair.side[1].world.peek(KEY, FAR, 64), [0; 64]);
    pair.recv(1, 7, &[sge(FAR + 4096, 64)]).unwrap();
    assert_eq!(pair.results(1), [(7, OK)]);
    assert_eq!(pair.side[1].world.peek(KEY, FAR, 64), bytes);
}

#[test]
fn after_a_second_they_are_dropped_and_counted() {
    for qp_type in [QpType::Ud, QpType::Uc] {
        let mut pair = pair(qp_type);
        let sends: Vec<_> = (0..2).map(|i| send(&pair, i, 64)).collect();
        deliver(&mut pair, sends);
        let late = pair.now + SECOND / 2;
        pair.now = late;
        let last = send(&pair, 2, 64);
        deliver(&mut pair, [last]);
        assert_eq!(dropped(&pair), 0);
        pair.now = late + SECOND / 2;
        let tick = |pair: &mut Pair| {
            let now = pair.now;
            let side = &mut pair.side[1];
            side.node.on_timeout(now, &mut side.world);
        };
        tick(&mut pair);
        assert_eq!(dropped(&pair), 2, "{qp_type:?}");
        pair.run();
        assert_eq!(dropped(&pair), 3);
        pair.recv(1, 1, &[sge(FAR, 200)]).unwrap();
        assert_eq!(pair.results(1), []);
        let fresh = send(&pair, 3, 64);
        deliver(&mut pair, [fresh]);
        assert_eq!(pair.results(1), [(1, OK)]);
    }
}

#[test]
fn the_bytes_that_wait_are_bounded_and_given_back() {
    let cost = 64 + PARKED_COST_BYTES;
    let setup = Setup {
        qp_type: QpType::Ud,
        cfg: NodeConfig {
            park_bytes_max: 4 * cost,
            ..NodeConfig::default()
        },
        ..Setup::default()
    };
    let mut pair = Pair::new(setup);
    let reset = |pair: &mut Pair| {
        pair.set_state(1, QpState::Reset).unwrap();
        pair.connect(1);
    };
    let fail = |pair: &mut Pair| {
        pair.set_state(1, QpState::Err).unwrap();
        reset(pair);
    };
    let take = |pair: &mut Pair| (0..4).for_each(|i| pair.recv(1, i, &[sge(FAR, 200)]).unwrap());
    let mut lost = 0;
    for (given_back, by) in [(0, &take as &dyn Fn(&mut Pair)), (4, &reset), (4, &fail)] {
        let sends: Vec<_> = (0..6).map(|i| send(&pair, i, 64)).collect();
        deliver(&mut pair, sends);
        lost += 2;
        assert_eq!(dropped(&pair), lost, "two too many");
        by(&mut pair);
        lost += given_back;
        assert_eq!(dropped(&pair), lost);
        pair.wcs(1);
    }
}

/// Datagram queue pairs that have shared receives.
fn sharing() -> Pair {
    let setup = Setup {
        qp_type: QpType::Ud,
        srq: Some(SrqId(5)),
        ..Setup::default()
    };
    let mut pair = Pair::bare(setup);
    let attr = SrqAttr {
        max_wr: 16,
        max_sge: 1,
        srq_limit: 0,
    };
    let node = &mut pair.side[1].node;
    node.create_srq(
        SrqId(5),
        SrqInit {
            pd: PD,
            attr,
            xrc: None,
        },
    )
    .unwrap();
    for side in 0..2 {
        pair.create(side, QPN[side]);
        pair.connect(side);
    }
    pair
}

fn share(pair: &mut Pair, wr_id: u64) {
    let wr = rocebud_objects::RecvWr {
        wr_id,
        sges: [sge(FAR, 200)].into_iter().collect(),
    };
    pair.side[1].node.post_srq_recv(SrqId(5), wr).unwrap();
}

#[test]
fn who_loses_its_completion_queue_takes_no_more_shared_receives() {
    let mut pair = sharing();
    let sends: Vec<_> = (0..6).map(|i| send(&pair, i, 64)).collect();
    deliver(&mut pair, sends);
    pair.side[1].world.cq_room = Some(2);
    (0..6).for_each(|i| share(&mut pair, i));
    pair.transmit(1);
    assert_eq!(pair.state(1), QpState::Err);
    assert_eq!(pair.results(1), [(0, OK), (1, OK)]);
    // One is lost with its completion, three are still there for others.
    pair.side[1].world.cq_room = None;
    pair.set_state(1, QpState::Reset).unwrap();
    pair.connect(1);
    let sends: Vec<_> = (0..4).map(|i| send(&pair, i, 64)).collect();
    deliver(&mut pair, sends);
    assert_eq!(pair.results(1), [(3, OK), (4, OK), (5, OK)]);
}

#[test]
fn a_shared_queue_serves_who_waits() {
    let mut pair = sharing();
    let sends: Vec<_> = (0..2).map(|i| send(&pair, i, 64)).collect();
    deliver(&mut pair, sends);
    for i in 0..2 {
        share(&mut pair, i);
        assert!(pair.side[1].node.wants_transmit(), "it asks for a turn");
        pair.transmit(1);
        assert_eq!(pair.results(1), [(i, OK)]);
    }
}

#[test]
fn what_no_receive_could_help_does_not_wait() {
    let mut pair = pair(QpType::Ud);
    let mut wrong = send(&pair, 0, 64);
    wrong.ud.as_mut().unwrap().remote_qkey = QKey(5);
    let mut long = send(&pair, 1, 1024);
    long.payload = wr(1, SendOp::Send, &[sge(START, 1024)]).payload;
    deliver(&mut pair, [wrong]);
    let mtu = pair.side[1].node.set_port_mtu(QPN[1], Mtu::M512);
    mtu.unwrap();
    deliver(&mut pair, [long]);
    let world = &pair.side[1].world;
    assert_eq!(world.counter(Counter::DropBadQkey), 1);
    assert_eq!(world.counter(Counter::DropRefused), 1);
    pair.recv(1, 0, &[sge(FAR, 2000)]).unwrap();
    assert_eq!(pair.results(1), []);
}

#[test]
fn a_reliable_sender_is_told_to_wait_instead() {
    let mut pair = pair(QpType::Rc);
    let first = send(&pair, 0, 64);
    deliver(&mut pair, [first]);
    assert_eq!(pair.side[1].world.counter(Counter::SendRnrErr), 1);
    let attr = QpAttr {
        qp_state: QpState::Err,
        ..QpAttr::default()
    };
    pair.modify(1, &attr, AttrMask::STATE).unwrap();
    assert_eq!(dropped(&pair), 0);
}
