//! Several queue pairs towards one process: how they share its buffer.

use std::collections::BTreeMap;

use rocebud_engine::NodeConfig;
use rocebud_objects::{Counter, SendOp};
use rocebud_wire::{Packet, Qpn};

use crate::pair::{Pair, QPN, START, Setup, gids, moves, path, remote, sge, wr};

const FAR: u64 = START + 0x20_0000;
const MIB: u32 = 1 << 20;

/// The `n`th queue pair of a side.
fn qpn(side: usize, n: u32) -> Qpn {
    Qpn::new(QPN[side].value() + n)
}

/// `count` connected pairs of queue pairs between two nodes.
fn many(count: u32, cfg: NodeConfig) -> Pair {
    let setup = Setup {
        cfg,
        ..Setup::default()
    };
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

fn post(pair: &mut Pair, n: u32, wr: rocebud_objects::SendWr) {
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
        let mut pair = many(8, cfg);
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
        let mut pair = many(8, cfg);
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
