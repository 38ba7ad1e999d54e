//! Several queue pairs towards one process: how they share its buffer.

use std::collections::BTreeMap;

use rocebud_engine::NodeConfig;
use rocebud_objects::{Counter, QpType, SendOp, WcStatus};
use rocebud_wire::{Packet, Qpn};

use crate::pair::{Fate, Pair, QPN, START, Setup, gids, moves, path, remote, sge, wr};

const FAR: u64 = START + 0x20_0000;
const MIB: u32 = 1 << 20;

/// The `n`th queue pair of a side.
pub fn qpn(side: usize, n: u32) -> Qpn {
    Qpn::new(QPN[side].value() + n)
}

/// `count` connected pairs of queue pairs between two nodes.
pub fn many(count: u32, setup: Setup) -> Pair {
    let mut pair = Pair::bare(setup);
    for side in 0..2 {
        for n in 0..count {
            pair.create(side, qpn(side, n));
            for (mut attr, mask) in moves(&setup, side) {
                attr.dest_qp_num = qpn(1 - side, n);
                let path = mask
                    .contains(rocebud_objects::AttrMask::AV)
                    .then(|| path(gids()[side], gids()[1 - side]));
                let now = pair.now;
                let s = &mut pair.side[side];
                s.node
                    .modify_qp(now, qpn(side, n), &attr, mask, path, &mut s.world)
                    .unwrap();
            }
        }
    }
    pair
}

pub fn post(pair: &mut Pair, n: u32, wr: rocebud_objects::SendWr) {
    let now = pair.now;
    let side = &mut pair.side[0];
    side.node
        .post_send(now, qpn(0, n), wr, &mut side.world)
        .unwrap();
}

/// Packets of requests by destination among the first `among` of them.
fn shares(pair: &Pair, among: usize, from: usize) -> BTreeMap<u32, usize> {
    let mut shares = BTreeMap::new();
    let data = |f: &&crate::pair::Frame| f.from == from && f.bytes.len() > 100;
    for frame in pair.log.iter().filter(data).take(among) {
        let dest = Packet::parse(&frame.bytes).unwrap().bth.dest_qp.value();
        *shares.entry(dest).or_default() += 1;
    }
    shares
}

fn assert_fair(window: u32, shares: &BTreeMap<u32, usize>, count: usize, among: usize) {
    let fair = among / count;
    assert_eq!(shares.len(), count, "{shares:?}");
    for (qpn, packets) in shares {
        assert!(
            (fair / 2..=fair * 2).contains(packets),
            "window of {window}: {qpn:#x} had {packets}, fair were {fair}: {shares:?}"
        );
    }
}

#[test]
fn writers_to_one_process_take_turns_at_its_buffer() {
    // Windows that end in the middle of a queue pair's turn, and such that hold several.
    for window in [8, 23, 64, 400] {
        let cfg = NodeConfig {
            peer_window_bytes: window * 1536,
            ..NodeConfig::default()
        };
        let setup = Setup {
            cfg,
            ..Setup::default()
        };
        let mut pair = many(8, setup);
        for n in 0..8 {
            let op = SendOp::Write {
                remote: remote(FAR),
            };
            post(&mut pair, n, wr(u64::from(n), op, &[sge(START, MIB)]));
        }
        pair.run();
        assert_eq!(pair.results(0).len(), 8);
        assert_fair(window, &shares(&pair, 2400, 0), 8, 2400);
        let timeouts = pair.side[0].world.counter(Counter::LocalAckTimeoutErr);
        assert_eq!(timeouts, 0, "window of {window}");
    }
}

#[test]
fn readers_take_turns_at_their_own_buffer() {
    for window in [16, 40, 200] {
        let cfg = NodeConfig {
            read_window_bytes: window * 1536,
            ..NodeConfig::default()
        };
        let setup = Setup {
            cfg,
            ..Setup::default()
        };
        let mut pair = many(8, setup);
        for n in 0..8 {
            let op = SendOp::Read {
                remote: remote(FAR),
            };
            post(&mut pair, n, wr(u64::from(n), op, &[sge(START, MIB)]));
        }
        pair.run();
        assert_eq!(pair.results(0).len(), 8);
        assert_fair(window, &shares(&pair, 2400, 1), 8, 2400);
    }
}

/// Each service sends as much as there is room for, and goes on when there is more.
#[test]
fn a_queue_pair_is_held_while_the_peer_has_no_room() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let mut pair = Pair::new(Setup {
            qp_type,
            ..Setup::default()
        });
        // RC's first packet goes in any case: there would be no timer else.
        let free = usize::from(qp_type == QpType::Rc);
        pair.side[0].world.room = Some(3 * 1024);
        for i in 0..10 {
            pair.recv(1, i, &[sge(FAR, 2000)]).unwrap();
            let mut wr = wr(i, SendOp::Send, &[sge(START, 1024)]);
            wr.ud = (qp_type == QpType::Ud).then(|| pair.ud(0));
            pair.post(0, wr).unwrap();
        }
        assert_eq!(pair.transmit(0), 3 + free, "{qp_type:?}");
        let node = &mut pair.side[0].node;
        assert!(node.has_held() && !node.wants_transmit());
        node.retry_held();
        assert_eq!(pair.transmit(0), 0, "still no room");
        pair.side[0].world.room = Some(1024);
        pair.side[0].node.retry_held();
        assert_eq!(pair.transmit(0), 1);
        pair.side[0].world.room = None;
        pair.side[0].node.retry_held();
        pair.run();
        assert_eq!(pair.results(0).len(), 10);
        assert_eq!(pair.results(1).len(), 10);
        assert!(!pair.side[0].node.has_held());
        let timeouts = pair.side[0].world.counter(Counter::LocalAckTimeoutErr);
        assert_eq!(timeouts, 0);
    }
}

/// A peer that has not read what it got cannot answer: it is given the four timeouts that the
/// specification allows, and no more.
#[test]
fn a_peer_that_is_known_to_be_behind_is_waited_for() {
    let nominal = 4096_u64 << 14;
    let mut pair = Pair::rc();
    pair.side[0].world.behind = true;
    pair.rule(|f| match f.from {
        0 => Fate::Drop,
        _ => Fate::Deliver,
    });
    let start = pair.now;
    post_to_the_first(&mut pair);
    pair.run();
    let sent: Vec<u64> = pair
        .log
        .iter()
        .map(|f| (f.at.ns_since(start)) / nominal)
        .collect();
    assert_eq!(sent, [0, 4, 8, 12, 16, 20, 24, 28]);
    assert_eq!(pair.results(0)[0], (0, WcStatus::RetryExcErr));
}

fn post_to_the_first(pair: &mut Pair) {
    pair.post(0, wr(0, SendOp::Send, &[sge(START, 8)])).unwrap();
}

/// Without a timeout a dead connection holds its share of a buffer for ever.
#[test]
fn a_dead_neighbour_holds_up_nobody_for_ever() {
    let write = SendOp::Write {
        remote: remote(FAR),
    };
    let read = SendOp::Read {
        remote: remote(FAR),
    };
    for op in [write, read] {
        let cfg = NodeConfig {
            peer_window_bytes: 1,
            read_window_bytes: 1,
            read_chunk_packets: 1,
            ..NodeConfig::default()
        };
        let setup = Setup {
            timeout: 0,
            cfg,
            ..Setup::default()
        };
        let mut pair = many(2, setup);
        pair.rule(|frame| match frame.packet().bth.dest_qp {
            to if to == qpn(1, 1) => Fate::Drop,
            _ => Fate::Deliver,
        });
        post(&mut pair, 1, wr(1, op, &[sge(START, 1024)]));
        post(&mut pair, 0, wr(0, op, &[sge(START, 10 * 1024)]));
        pair.run();
        assert_eq!(pair.results(0), [(0, WcStatus::Success)], "{op:?}");
    }
}

/// A message that is to be sent again after RNR waits in line behind a dead connection's share; what was
/// sent before it is answered, and no timer runs that could wake it.
#[test]
fn a_dead_neighbour_does_not_hold_up_what_is_sent_again() {
    let mut setup = Setup {
        timeout: 0,
        rnr_retry: 7,
        ..Setup::default()
    };
    setup.cfg.peer_window_bytes = 2 * (setup.mtu.bytes() + 512);
    let mut pair = many(2, setup);
    pair.rule(|frame| match frame.packet().bth.dest_qp {
        to if to == qpn(1, 1) => Fate::Drop,
        _ => Fate::Deliver,
    });
    post(&mut pair, 0, wr(0, SendOp::Send, &[]));
    post(&mut pair, 0, wr(1, SendOp::Send, &[]));
    while pair.side[0].world.counter(Counter::RcvdRnrErr) == 0 {
        assert!(pair.step());
    }
    let write = SendOp::Write {
        remote: remote(FAR),
    };
    post(&mut pair, 1, wr(2, write, &[sge(START, 64 * 1024)]));
    for wr_id in 0..2 {
        pair.recv(1, wr_id, &[]).unwrap();
    }
    pair.run();
    let done = [(0, WcStatus::Success), (1, WcStatus::Success)];
    assert_eq!(pair.results(0), done);
}
