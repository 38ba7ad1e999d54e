//! Windows, room, rates and turns that change all the time: all that was posted completes. On a network
//! that loses nothing no retry may be needed, and nothing is sent twice.

use rocebud_engine::NodeConfig;
use rocebud_objects::{
    AttrMask, Counter, QpAttr, QpState, RateLimit, RecvWr, SendFlags, SendOp, SendWr, WcStatus,
};

use crate::dice::Dice;
use crate::pair::{Fate, Pair, QPN, START, Setup, Side, gids, remote, sge, wr};
use crate::sharing::{many, qpn};

const FAR: u64 = START + 0x20_0000;
const QPS: u32 = 4;
/// Requests and receives of a queue pair.
const DEPTH: u64 = 12;
/// Their identifiers begin here.
const RECEIVES: u64 = 1000;

fn any_request(dice: &mut Dice, id: u64) -> SendWr {
    let to = remote(FAR + 8 * dice.below(1000));
    let op = match dice.below(8) {
        0 | 1 => SendOp::Send,
        2 | 3 => SendOp::Write { remote: to },
        4 => SendOp::WriteImm {
            remote: to,
            imm: [1; 4],
        },
        5 | 6 => SendOp::Read { remote: to },
        _ => SendOp::FetchAdd { remote: to, add: 1 },
    };
    let len = [0, 8, 1024, 1025, 5000, 60_000, 300_000][dice.below(7) as usize];
    let len = match op {
        SendOp::FetchAdd { .. } => 8,
        _ => len,
    };
    let mut request = wr(id, op, &[sge(START, len)]);
    request.flags.set(SendFlags::FENCE, dice.below(5) == 0);
    request
}

/// Windows, turns and room change.
fn tune(dice: &mut Dice, pair: &mut Pair, at: usize) {
    let bytes = [0, 1, 1536, 5000, 20_000, 200_000][dice.below(6) as usize];
    let packets = [0, 1, 2, 7, 16, 128][dice.below(6) as usize];
    let Side { node, world } = &mut pair.side[at];
    match dice.below(8) {
        0 | 1 => node.set_peer_window(gids()[1 - at], QPN[1 - at].slot(), bytes),
        2 => node.set_read_window(bytes),
        3 => node.config_mut().window_packets = packets,
        4 => node.config_mut().quantum_packets = packets,
        5 => {
            let config = node.config_mut();
            config.ack_request_every_packets = packets;
            config.ack_every_packets = 1 + dice.below(40) as u32;
            config.read_chunk_packets = packets;
        }
        6 => world.room = Some(u64::from(bytes)),
        _ => {
            world.room = None;
            node.retry_held();
        }
    }
}

/// A queue pair drains, goes on, gets another timeout or rate.
fn modify(dice: &mut Dice, pair: &mut Pair, at: usize, n: u32) {
    let mut attr = QpAttr {
        timeout: match pair.setup.retry_cnt {
            0 => [0, 14][dice.below(2) as usize],
            _ => 10 + dice.below(5) as u8,
        },
        max_rd_atomic: dice.below(4) as u8,
        ..QpAttr::default()
    };
    let begun = AttrMask::TIMEOUT | AttrMask::MAX_QP_RD_ATOMIC;
    let now = pair.now;
    let Side { node, world } = &mut pair.side[at];
    let mut modify = |attr: &QpAttr, mask| {
        let _ = node.modify_qp(now, qpn(at, n), attr, mask, None, world);
    };
    match dice.below(4) {
        0 => {
            attr.qp_state = QpState::Sqd;
            modify(&attr, AttrMask::STATE);
            modify(&attr, begun);
        }
        1 | 2 => resume(pair, at, n),
        _ => {
            let limit = RateLimit {
                rate_kbps: [0, 10_000, 1_000_000][dice.below(3) as usize],
                ..RateLimit::default()
            };
            let _ = node.set_rate_limit(now, qpn(at, n), limit, world);
        }
    }
}

/// Goes on, if it has drained.
fn resume(pair: &mut Pair, at: usize, n: u32) {
    let attr = QpAttr {
        qp_state: QpState::Rts,
        max_rd_atomic: 2,
        ..QpAttr::default()
    };
    let Side { node, world } = &mut pair.side[at];
    for mask in [AttrMask::MAX_QP_RD_ATOMIC, AttrMask::STATE] {
        let _ = node.modify_qp(pair.now, qpn(at, n), &attr, mask, None, world);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Net {
    Clean,
    /// One frame in twenty is lost, as many come twice or late.
    Bad,
}

/// Queue pairs with receives for all that may come.
fn begin(dice: &mut Dice, net: Net) -> Pair {
    // On a clean network a timer that runs out would cost a retry, and there is none.
    let (timeout, retry_cnt) = match net {
        Net::Clean => ([0, 14][dice.below(2) as usize], 0),
        Net::Bad => (10 + dice.below(5) as u8, 7),
    };
    let setup = Setup {
        timeout,
        retry_cnt,
        rnr_retry: 0,
        rd_atomic: 1 + dice.below(4) as u8,
        cfg: NodeConfig {
            peer_window_bytes: 1 + dice.below(60_000) as u32,
            ..NodeConfig::default()
        },
        ..Setup::default()
    };
    let mut pair = many(QPS, setup);
    if net == Net::Bad {
        let mut luck = Dice(dice.roll() | 1);
        pair.rule(move |_| match luck.below(20) {
            0 => Fate::Drop,
            1 => Fate::Twice,
            2 => Fate::Delay(luck.below(10_000)),
            _ => Fate::Deliver,
        });
    }
    for (at, n) in everybody() {
        for id in 0..DEPTH {
            let receive = RecvWr {
                wr_id: RECEIVES + id,
                sges: [sge(FAR + 0x10_0000, 300_000)].into_iter().collect(),
            };
            let Side { node, world } = &mut pair.side[at];
            node.post_recv(pair.now, qpn(at, n), receive, world)
                .unwrap();
        }
    }
    pair
}

fn everybody() -> impl Iterator<Item = (usize, u32)> {
    (0..2).flat_map(|at| (0..QPS).map(move |n| (at, n)))
}

fn one_life(seed: u64, net: Net) {
    let mut dice = Dice(seed);
    let mut pair = begin(&mut dice, net);
    let mut posted = [[0; QPS as usize]; 2];
    for _ in 0..200 {
        let (at, n) = (dice.below(2) as usize, dice.below(QPS.into()) as u32);
        let ids = &mut posted[at][n as usize];
        match dice.below(7) {
            0 | 1 if *ids < DEPTH => {
                let request = any_request(&mut dice, *ids);
                *ids += 1;
                let Side { node, world } = &mut pair.side[at];
                node.post_send(pair.now, qpn(at, n), request, world)
                    .unwrap();
            }
            2 | 3 => tune(&mut dice, &mut pair, at),
            4 => modify(&mut dice, &mut pair, at, n),
            5 => {
                pair.transmit_some(at, dice.below(20) as usize);
            }
            _ => {
                pair.step();
            }
        }
    }
    for Side { node, world } in &mut pair.side {
        world.room = None;
        while node.has_held() {
            node.retry_held();
        }
    }
    pair.run();
    for (at, n) in everybody() {
        resume(&mut pair, at, n);
    }
    pair.run();
    judge(seed, net, &mut pair, posted);
}

/// Everything has completed in its order, and on a clean network no packet left twice.
fn judge(seed: u64, net: Net, pair: &mut Pair, posted: [[u64; QPS as usize]; 2]) {
    for at in 0..2 {
        let wcs = pair.wcs(at);
        for n in 0..QPS {
            let sends = wcs.iter().filter(|wc| wc.qp_num == qpn(at, n));
            let done: Vec<_> = sends
                .filter(|wc| wc.wr_id < RECEIVES)
                .map(|wc| (wc.wr_id, wc.status))
                .collect();
            let all: Vec<_> = (0..posted[at][n as usize])
                .map(|id| (id, WcStatus::Success))
                .collect();
            assert_eq!(done, all, "seed {seed}: {} of side {at}", qpn(at, n));
        }
        let again = pair.side[at].world.counter(Counter::Retransmits);
        assert!(net == Net::Bad || again == 0, "seed {seed}");
        assert_eq!(pair.side[at].node.charged(), (0, 0), "seed {seed}");
    }
}

#[test]
fn all_completes_and_nothing_is_sent_twice_whatever_windows_and_turns_do() {
    for seed in 1..=150 {
        one_life(seed, Net::Clean);
    }
}

#[test]
fn all_completes_whatever_windows_and_turns_do_besides_losses() {
    for seed in 1..=50 {
        one_life(seed, Net::Bad);
    }
}
