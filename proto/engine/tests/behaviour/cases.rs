//! Cases by their numbers: behaviours that users of RDMA stacks have tripped over.

use std::cell::Cell;
use std::rc::Rc;

use rocebud_engine::{NodeConfig, SrqMask};
use rocebud_objects::{
    Counter, EventKind, Payload, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, SrqAttr,
    SrqId, SrqInit, WcStatus,
};
use rocebud_wire::{LKey, Opcode, Packet, Psn, RKey};

use crate::dice::Dice;
use crate::pair::{Fate, KEY, PD, Pair, QPN, SIZE, START, Setup, region, remote, sge, wr};

const FAR: u64 = START + 0x10_0000;
const OK: WcStatus = WcStatus::Success;

/// Frames with an opcode, a PSN and so many random bytes after the BTH.
fn raw(dice: &mut Dice, opcode: u8, psn: u32, len: usize, pad: u8) -> Vec<u8> {
    let [_, q0, q1, q2] = QPN[1].value().to_be_bytes();
    let [_, p0, p1, p2] = psn.to_be_bytes();
    let mut bytes = vec![
        opcode,
        pad << 4,
        0xff,
        0xff,
        0,
        q0,
        q1,
        q2,
        0x80,
        p0,
        p1,
        p2,
    ];
    bytes.extend((0..len).map(|_| dice.roll() as u8));
    bytes
}

fn ping_pong(pair: &mut Pair, id: u64) {
    for side in 0..2 {
        pair.recv(1 - side, id, &[sge(FAR, 2000)]).unwrap();
        pair.post(side, wr(id, SendOp::Send, &[sge(START, 2000)]))
            .unwrap();
    }
    pair.run();
    for side in 0..2 {
        assert_eq!(pair.results(side), [(id, OK), (id, OK)]);
    }
}

#[test]
fn c001_every_opcode_and_length_that_is_not_next_costs_nothing_but_a_counter() {
    let mut pair = Pair::rc();
    let mut dice = Dice(1);
    let stranger = rocebud_engine::RxMeta {
        src: crate::pair::gids()[1],
        ..pair.meta(0)
    };
    for opcode in 0..=255_u8 {
        for len in 0..=68 {
            let next = pair.side[1].node.query_qp(QPN[1]).unwrap().0.rq_psn;
            let pad = (dice.below(8) as u8).saturating_sub(4);
            // From the peer but long ago; from a stranger, in sequence.
            let old = raw(&mut dice, opcode, next.sub(1000).value(), len, pad);
            pair.inject(1, &old);
            let own = raw(&mut dice, opcode, next.value(), len, pad);
            pair.inject_from(1, &stranger, &own);
        }
        if opcode % 16 == 0 {
            ping_pong(&mut pair, u64::from(opcode));
        }
    }
    assert!(pair.side[1].world.counter(Counter::DropWrongPeer) > 100);
    assert!(pair.side[1].world.counter(Counter::DropWrongClass) > 100);
    assert_eq!(pair.state(1), QpState::Rts);
}

#[test]
fn c001_any_bytes_in_sequence_from_the_peer_end_in_a_defined_state() {
    let mut dice = Dice(7);
    for round in 0..3000 {
        let mut pair = Pair::rc();
        pair.recv(1, 1, &[sge(FAR, 3000)]).unwrap();
        pair.post(
            1,
            wr(
                2,
                SendOp::Read {
                    remote: remote(FAR),
                },
                &[sge(START, 3000)],
            ),
        )
        .unwrap();
        pair.transmit(1);
        for _ in 0..4 {
            let opcode = (dice.below(0x20)) as u8;
            let len = [0, 4, 8, 16, 20, 24, 28, 32, 1028, 1044][dice.below(10) as usize];
            let next = pair.side[1].node.query_qp(QPN[1]).unwrap().0.rq_psn;
            let psn = if dice.below(3) == 0 {
                Psn::new(0x100)
            } else {
                next
            };
            let bytes = raw(&mut dice, opcode, psn.value(), len, 0);
            pair.inject(1, &bytes);
            pair.transmit(1);
        }
        let wcs = pair.wcs(1);
        assert!(
            wcs.iter().all(|wc| wc.byte_len <= 3000),
            "round {round}: {wcs:?}"
        );
        assert!(wcs.iter().filter(|wc| wc.wr_id == 1).count() <= 1);
    }
}

#[test]
fn c002_lying_lengths_place_nothing_and_complete_nothing() {
    let mut dice = Dice(3);
    let mut frames = Vec::new();
    for payload in 0..4 {
        frames.push(raw(&mut dice, 0x04, 0x100, payload + 4, 3));
    }
    for runt in 8..16 {
        let mut frame = raw(&mut dice, 0x04, 0x100, 8, 0);
        frame.truncate(runt);
        frames.push(frame);
    }
    frames.push(raw(&mut dice, 0x0a, 0x100, 15 + 4, 1));
    let mut atomic_write = raw(&mut dice, 0x1d, 0x100, 16 + 8 + 4, 0);
    atomic_write[24..28].fill(0);
    frames.push(atomic_write);
    // A First that is not full, a Last that is empty, a message longer than its RETH says.
    frames.push(raw(&mut dice, 0x00, 0x100, 100 + 4, 0));
    frames.push(raw(&mut dice, 0x02, 0x100, 4, 0));
    let mut write = raw(&mut dice, 0x0a, 0x100, 16 + 64 + 4, 0);
    write[12..20].copy_from_slice(&FAR.to_be_bytes());
    write[20..24].copy_from_slice(&KEY.to_be_bytes());
    write[24..28].copy_from_slice(&32_u32.to_be_bytes());
    frames.push(write);
    for frame in frames {
        let mut pair = Pair::rc();
        pair.recv(1, 1, &[sge(FAR, 4096)]).unwrap();
        let before = pair.side[1].world.peek(KEY, START, SIZE).to_vec();
        pair.inject(1, &frame);
        pair.transmit(1);
        let len = frame.len() - 16.min(frame.len());
        assert!(
            pair.side[1].world.peek(KEY, START, SIZE) == before,
            "{frame:x?}"
        );
        for wc in pair.wcs(1) {
            assert_ne!(wc.status, OK, "{len} {frame:x?}");
        }
        assert!(Packet::parse(&frame).is_err() || pair.state(1) == QpState::Err);
    }
}

fn any_operation(dice: &mut Dice, id: u64) -> (SendOp, Sge) {
    let len = match dice.below(10) {
        0 => dice.below(0x1_0000),
        1..4 => 1024 * (1 + dice.below(6)),
        _ => dice.below(300),
    } as u32;
    let far = remote(FAR + dice.below(0x8_0000));
    let add = SendOp::FetchAdd {
        remote: remote(FAR + 0x9_0000),
        add: 1,
    };
    match dice.below(4) {
        0 => (SendOp::Send, sge(START + dice.below(0x8_0000), len)),
        1 => (
            SendOp::Write { remote: far },
            sge(START + dice.below(0x8_0000), len),
        ),
        2 => (
            SendOp::Read {
                remote: remote(FAR + 0xa_0000),
            },
            sge(START + 0x30_0000, len),
        ),
        _ => (add, sge(START + 0x20_0000 + id * 8, 8)),
    }
}

/// A long program of mixed operations with data checks at its end.
fn mixed(setup: Setup, ops: u64, seed: u64, loss_per_mille: u64) -> Pair {
    let mut pair = Pair::new(setup);
    let mut dice = Dice(seed);
    let mut luck = Dice(seed ^ 0xabcdef);
    pair.rule(move |_| {
        if luck.below(1000) < loss_per_mille {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    let mut adds = 0;
    let mut received = Vec::new();
    let mut sent = Vec::new();
    let mut done = Vec::new();
    let mut expected_recvs = Vec::new();
    for id in 0..ops {
        let (op, piece) = any_operation(&mut dice, id);
        let len = piece.length;
        adds += u64::from(matches!(op, SendOp::FetchAdd { .. }));
        if op == SendOp::Send {
            pair.recv(1, id, &[sge(FAR + 0x18_0000, 0x1_0000)]).unwrap();
            expected_recvs.push((id, len));
        }
        pair.post(0, wr(id, op, &[piece])).unwrap();
        sent.push(id);
        while sent.len() - done.len() > 60 {
            assert!(pair.step(), "stalled at {id}");
            done.extend(pair.results(0));
            received.extend(pair.wcs(1).iter().map(|wc| (wc.wr_id, wc.byte_len)));
        }
    }
    pair.run();
    done.extend(pair.results(0));
    received.extend(pair.wcs(1).iter().map(|wc| (wc.wr_id, wc.byte_len)));
    assert_eq!(done, sent.iter().map(|id| (*id, OK)).collect::<Vec<_>>());
    assert_eq!(received, expected_recvs);
    let word = pair.side[1].world.peek(KEY, FAR + 0x9_0000, 8);
    assert_eq!(u64::from_ne_bytes(word.try_into().unwrap()), adds);
    pair
}

#[test]
fn c005_the_psn_wrap_is_ordinary_traffic() {
    let setup = Setup {
        sq_psn: 0xff_fff0,
        ..Setup::default()
    };
    for (seed, loss) in [(11, 0), (12, 10), (13, 50)] {
        let pair = mixed(setup, 1000, seed, loss);
        let psn = pair.side[0].node.query_qp(QPN[0]).unwrap().0.sq_psn;
        assert!(psn.value() < 0x80_0000, "it did wrap");
        let failed = pair.side[0].world.counter(Counter::LocalAckTimeoutErr);
        assert!(loss != 0 || failed == 0);
    }
}

#[test]
fn c005_small_windows_and_chunks_change_nothing() {
    let cfg = NodeConfig {
        window_packets: 3,
        read_chunk_packets: 2,
        peer_window_bytes: 4000,
        read_window_bytes: 4000,
        ..NodeConfig::default()
    };
    let setup = Setup {
        sq_psn: 0xff_fff0,
        rd_atomic: 2,
        dest_rd_atomic: 2,
        cfg,
        ..Setup::default()
    };
    mixed(setup, 300, 21, 0);
    mixed(setup, 300, 22, 30);
}

#[test]
fn c006_a_lost_read_response_is_asked_for_again_from_the_first_missing_byte() {
    let lost: [&[u32]; 5] = [&[1], &[4], &[8], &[1, 2, 3, 4, 5, 6, 7, 8], &[2, 5]];
    for lost in lost {
        let cfg = NodeConfig {
            read_chunk_packets: 64,
            ..NodeConfig::default()
        };
        let mut pair = Pair::new(Setup {
            cfg,
            ..Setup::default()
        });
        let bytes = pair.pattern(1, FAR, 8 * 1024, 4);
        let mut once: Vec<u32> = lost.iter().map(|n| 0x101 + n - 1).collect();
        pair.rule(move |f| {
            let response = f.packet().info.operation == rocebud_wire::Operation::ReadResponse;
            match once.iter().position(|psn| response && *psn == f.psn) {
                Some(at) => {
                    once.remove(at);
                    Fate::Drop
                }
                None => Fate::Deliver,
            }
        });
        let write = SendOp::Write {
            remote: remote(FAR + 0x1_0000),
        };
        pair.post(0, wr(0, write, &[sge(START, 100)])).unwrap();
        pair.post(
            0,
            wr(
                1,
                SendOp::Read {
                    remote: remote(FAR),
                },
                &[sge(START + 0x1_0000, 8192)],
            ),
        )
        .unwrap();
        pair.post(0, wr(2, write, &[sge(START, 100)])).unwrap();
        pair.run();
        assert_eq!(pair.results(0), [(0, OK), (1, OK), (2, OK)], "{lost:?}");
        assert_eq!(pair.side[0].world.peek(KEY, START + 0x1_0000, 8192), bytes);
        let again: Vec<_> = pair
            .sent(0, Opcode::RC_READ_REQUEST)
            .iter()
            .skip(1)
            .map(|f| (f.psn - 0x101, f.packet().ext.reth.unwrap()))
            .collect();
        let first = lost[0] - 1;
        assert_eq!(again[0].0, first);
        assert_eq!(again[0].1.va, FAR + u64::from(first) * 1024);
        assert_eq!(again[0].1.dma_len, 8192 - first * 1024);
        assert!(pair.side[0].world.counter(Counter::ImpliedNakSeqErr) > 0);
        assert_eq!(pair.side[0].world.counter(Counter::LocalAckTimeoutErr), 0);
    }
}

#[test]
fn c007_a_repeated_atomic_gets_the_stored_result_and_runs_once() {
    for lose_acks_only in [true, false] {
        let mut pair = Pair::rc();
        let mut luck = Dice(5);
        let mut seen = 0;
        pair.rule(move |f| {
            let lost = if lose_acks_only {
                seen += u32::from(f.is(Opcode::RC_ATOMIC_ACKNOWLEDGE));
                f.is(Opcode::RC_ATOMIC_ACKNOWLEDGE) && seen % 7 == 0
            } else {
                luck.below(100) < 5
            };
            if lost { Fate::Drop } else { Fate::Deliver }
        });
        let add = SendOp::FetchAdd {
            remote: remote(FAR),
            add: 1,
        };
        let mut results = Vec::new();
        for id in 0..1000 {
            while pair
                .post(0, wr(id, add, &[sge(START + id * 8, 8)]))
                .is_err()
            {
                assert!(pair.step());
            }
            results.extend(pair.results(0));
        }
        pair.run();
        results.extend(pair.results(0));
        assert_eq!(results, (0..1000).map(|id| (id, OK)).collect::<Vec<_>>());
        assert_eq!(pair.side[1].world.peek(KEY, FAR, 8), 1000_u64.to_ne_bytes());
        for id in 0..1000_u64 {
            assert_eq!(
                pair.side[0].world.peek(KEY, START + id * 8, 8),
                id.to_ne_bytes()
            );
        }
        assert!(pair.side[1].world.counter(Counter::DuplicateRequest) > 100);
    }
}

#[test]
fn c013_reset_starts_clean() {
    let mut pair = Pair::rc();
    pair.recv(0, 90, &[]).unwrap();
    let bad = rocebud_objects::Remote {
        addr: FAR,
        rkey: RKey(5),
    };
    pair.post(0, wr(0, SendOp::Write { remote: bad }, &[sge(START, 8)]))
        .unwrap();
    pair.post(0, wr(1, SendOp::Send, &[])).unwrap();
    pair.run();
    assert_eq!(pair.results(0).len(), 3);
    for side in 0..2 {
        pair.set_state(side, QpState::Reset).unwrap();
        assert!(pair.wcs(side).is_empty(), "RESET completes nothing");
        let (attr, init) = pair.side[side].node.query_qp(QPN[side]).unwrap();
        let clean = QpAttr {
            cap: init.cap,
            ..QpAttr::default()
        };
        assert_eq!(attr, clean);
        pair.connect(side);
    }
    ping_pong(&mut pair, 7);
    // From the middle of things too: nothing of before may complete.
    pair.recv(0, 91, &[]).unwrap();
    pair.post(
        0,
        wr(
            5,
            SendOp::Write {
                remote: remote(FAR),
            },
            &[sge(START, 30_000)],
        ),
    )
    .unwrap();
    pair.transmit(0);
    for side in 0..2 {
        pair.set_state(side, QpState::Reset).unwrap();
        pair.connect(side);
    }
    pair.run();
    assert!(pair.wcs(0).is_empty());
    ping_pong(&mut pair, 8);
}

#[test]
fn c015_a_message_completes_at_most_once_whenever_error_strikes() {
    for strike in 0..60 {
        let mut pair = Pair::rc();
        let setup = pair.init_attr().cap.max_recv_wr.min(100);
        for id in 0..u64::from(setup) {
            pair.recv(1, id, &[sge(FAR, 64)]).unwrap();
            pair.post(0, wr(id, SendOp::Send, &[sge(START, 64)]))
                .unwrap();
        }
        // The error strikes between two packets.
        let seen = Rc::new(Cell::new(0));
        let count = Rc::clone(&seen);
        pair.rule(move |_| {
            count.set(count.get() + 1);
            Fate::Delay(u64::from(count.get() as u32) * 100)
        });
        for _ in 0..strike {
            pair.step();
        }
        pair.set_state(1, QpState::Err).unwrap();
        pair.run_until(pair.now + 10_000_000);
        let results = pair.results(1);
        assert_eq!(results.len(), setup as usize);
        assert!(
            results
                .iter()
                .enumerate()
                .all(|(i, (id, _))| *id == i as u64)
        );
        let flushed = results
            .iter()
            .position(|(_, s)| *s != OK)
            .unwrap_or(results.len());
        assert!(
            results[flushed..]
                .iter()
                .all(|(_, s)| *s == WcStatus::WrFlushErr)
        );
        assert!(seen.get() > 0);
    }
}

fn with_srq(posted: u64, limit: u32) -> Pair {
    let srq = SrqId(4);
    let mut pair = Pair::bare(Setup {
        srq: Some(srq),
        ..Setup::default()
    });
    let attr = SrqAttr {
        max_wr: 64,
        max_sge: 2,
        srq_limit: 0,
    };
    pair.side[1]
        .node
        .create_srq(
            srq,
            SrqInit {
                pd: PD,
                attr,
                xrc: None,
            },
        )
        .unwrap();
    pair.create(0, QPN[0]);
    pair.create(1, QPN[1]);
    pair.connect(0);
    pair.connect(1);
    for wr_id in 0..posted {
        let wr = RecvWr {
            wr_id,
            sges: [sge(FAR, 4096)].into_iter().collect(),
        };
        pair.side[1].node.post_srq_recv(srq, wr).unwrap();
    }
    let limit = SrqAttr {
        srq_limit: limit,
        ..attr
    };
    pair.side[1]
        .node
        .modify_srq(srq, &limit, SrqMask(SrqMask::LIMIT))
        .unwrap();
    pair
}

#[test]
fn c024_the_srq_limit_fires_once_and_last_wqe_once_per_error() {
    let mut pair = with_srq(16, 10);
    let srq = SrqId(4);
    let consume = |pair: &mut Pair, n: u64| {
        for id in 0..n {
            pair.post(0, wr(id, SendOp::Send, &[sge(START, 3000)]))
                .unwrap();
        }
        pair.run();
        pair.events(1, EventKind::SrqLimitReached)
    };
    assert_eq!(consume(&mut pair, 7), 1);
    assert_eq!(pair.side[1].node.query_srq(srq).unwrap().srq_limit, 0);
    assert_eq!(consume(&mut pair, 5), 1);
    let attr = SrqAttr {
        max_wr: 64,
        max_sge: 2,
        srq_limit: 4,
    };
    pair.side[1]
        .node
        .modify_srq(srq, &attr, SrqMask(SrqMask::LIMIT))
        .unwrap();
    assert_eq!(consume(&mut pair, 1), 2);
    assert!(
        pair.recv(1, 1, &[]).is_err(),
        "a queue pair with an SRQ takes no receives"
    );
    assert!(pair.side[1].node.destroy_srq(srq).is_err(), "EBUSY");
    pair.wcs(1);
    // A SEND in progress: its receive first, then the event.
    pair.rule(|f| {
        if f.psn % 3 == 2 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.post(0, wr(9, SendOp::Send, &[sge(START, 3000)]))
        .unwrap();
    pair.step();
    pair.set_state(1, QpState::Err).unwrap();
    assert_eq!(pair.events(1, EventKind::QpLastWqeReached), 1);
    assert_eq!(
        pair.wcs(1).len(),
        1,
        "SRQ receives are not flushed, the one in use is"
    );
    pair.set_state(1, QpState::Err).unwrap();
    assert_eq!(pair.events(1, EventKind::QpLastWqeReached), 1);
    let side = &mut pair.side[1];
    side.node.destroy_qp(QPN[1], &mut side.world).unwrap();
    side.node.destroy_srq(srq).unwrap();
}

#[test]
fn c024_last_wqe_comes_by_error_too_and_reset_gives_the_receive_back() {
    let mut pair = with_srq(3, 0);
    let bad = rocebud_objects::Remote {
        addr: FAR,
        rkey: RKey(5),
    };
    pair.post(0, wr(0, SendOp::Write { remote: bad }, &[sge(START, 8)]))
        .unwrap();
    pair.run();
    assert_eq!(pair.events(1, EventKind::QpLastWqeReached), 1);

    let mut pair = with_srq(1, 0);
    pair.rule(|f| {
        if f.psn == 0x101 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.post(0, wr(0, SendOp::Send, &[sge(START, 3000)]))
        .unwrap();
    pair.step();
    for side in 0..2 {
        pair.set_state(side, QpState::Reset).unwrap();
        pair.connect(side);
    }
    pair.rule(|_| Fate::Deliver);
    pair.post(0, wr(1, SendOp::Send, &[sge(START, 3000)]))
        .unwrap();
    pair.run();
    assert_eq!(pair.results(1), [(0, OK)], "the only receive was not lost");
}

#[test]
fn c037_two_gib_is_accepted_and_one_byte_more_is_not() {
    let mut pair = Pair::rc();
    let gib = 1_u32 << 30;
    let far = remote(FAR);
    for op in [
        SendOp::Send,
        SendOp::Write { remote: far },
        SendOp::Read { remote: far },
    ] {
        assert!(
            pair.post(0, wr(0, op, &[sge(START, gib), sge(START, gib)]))
                .is_ok()
        );
        assert!(pair.post(0, wr(0, op, &[sge(START, 1 << 31)])).is_ok());
        assert!(
            pair.post(
                0,
                wr(0, op, &[sge(START, gib), sge(START, gib), sge(START, 1)])
            )
            .is_err()
        );
        let wrapping = [
            sge(START, gib),
            sge(START, gib),
            sge(START, gib),
            sge(START, gib),
            sge(START, 16),
        ];
        assert!(
            pair.post(0, wr(0, op, &wrapping)).is_err(),
            "4 GiB + 16 does not wrap to 16"
        );
    }
}

#[test]
fn c039_a_fenced_send_carries_what_the_read_before_it_brought() {
    let mut pair = Pair::rc();
    let bytes = pair.pattern(1, FAR, 4000, 3);
    pair.rule(|f| {
        if f.from == 1 {
            Fate::Delay(50_000)
        } else {
            Fate::Deliver
        }
    });
    pair.recv(1, 1, &[sge(FAR + 0x1_0000, 4000)]).unwrap();
    for id in 0..4 {
        let read = SendOp::Read {
            remote: remote(FAR + id * 1000),
        };
        pair.post(0, wr(id, read, &[sge(START + id * 1000, 1000)]))
            .unwrap();
    }
    let fenced = SendWr {
        flags: SendFlags::FENCE,
        ..wr(4, SendOp::Send, &[sge(START, 4000)])
    };
    pair.post(0, fenced).unwrap();
    pair.run();
    assert_eq!(pair.side[1].world.peek(KEY, FAR + 0x1_0000, 4000), bytes);

    let mut window = region(crate::pair::everything());
    window.window = true;
    pair.side[0].world.regions.insert(0x900, window);
    let target = Sge {
        addr: START,
        length: 4000,
        lkey: LKey(0x900),
    };
    pair.post(
        0,
        wr(
            5,
            SendOp::Read {
                remote: remote(FAR),
            },
            &[target],
        ),
    )
    .unwrap();
    pair.post(0, wr(6, SendOp::LocalInv { rkey: RKey(0x900) }, &[]))
        .unwrap();
    pair.step();
    pair.step();
    assert!(
        pair.side[0].world.regions.contains_key(&0x900),
        "not before the READ is complete"
    );
    pair.run();
    assert!(!pair.side[0].world.regions.contains_key(&0x900));
    assert!(pair.results(0).iter().all(|(_, status)| *status == OK));
}

#[test]
fn c041_the_inline_limit_is_on_the_exact_total() {
    let mut setup = Setup::default();
    setup.cap.max_inline_data = 64;
    let mut pair = Pair::new(setup);
    let inline = |id, len: usize| SendWr {
        payload: Payload::Inline((0..len).map(|i| i as u8).collect()),
        flags: SendFlags::INLINE,
        ..wr(id, SendOp::Send, &[])
    };
    pair.recv(1, 0, &[sge(FAR, 100)]).unwrap();
    pair.recv(1, 1, &[sge(FAR + 200, 100)]).unwrap();
    pair.post(0, inline(0, 64)).unwrap();
    assert!(pair.post(0, inline(9, 65)).is_err());
    let gib = sge(START, 1 << 30);
    let lists: [&[Sge]; 3] = [
        &[sge(START, 33), sge(START, 32)],
        &[gib, gib, gib, gib, sge(START, 8)],
        &[sge(START, 8)],
    ];
    for list in lists {
        let request = SendWr {
            flags: SendFlags::INLINE,
            ..wr(9, SendOp::Send, list)
        };
        assert!(pair.post(0, request).is_err());
    }
    pair.post(0, inline(1, 1)).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, OK), (1, OK)], "neighbours untouched");
    let want: Vec<u8> = (0..64).collect();
    assert_eq!(pair.side[1].world.peek(KEY, FAR, 64), want);
}

#[test]
fn c042_atomics_need_eight_local_bytes_and_alignment_is_the_responders_to_refuse() {
    let mut pair = Pair::rc();
    let add = |addr| SendOp::FetchAdd {
        remote: remote(addr),
        add: 1,
    };
    assert!(pair.post(0, wr(0, add(FAR), &[sge(START, 7)])).is_err());
    assert!(pair.post(0, wr(0, add(FAR), &[])).is_err());
    pair.post(0, wr(0, add(FAR), &[sge(START, 16)])).unwrap();
    pair.run();
    assert_eq!(pair.wcs(0)[0].byte_len, 8);
    pair.post(0, wr(1, add(FAR + 1), &[sge(START, 8)])).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(1, WcStatus::RemInvReqErr)]);
}

#[test]
fn c054_a_changed_duplicate_read_is_dropped() {
    let mut pair = Pair::rc();
    pair.post(
        0,
        wr(
            0,
            SendOp::Read {
                remote: remote(FAR),
            },
            &[sge(START, 4000)],
        ),
    )
    .unwrap();
    pair.transmit(0);
    let request = pair.log[0].bytes.clone();
    pair.run();
    let answers = |pair: &mut Pair, bytes: &[u8]| {
        pair.log.clear();
        pair.inject(1, bytes);
        pair.transmit(1)
    };
    assert_eq!(answers(&mut pair, &request), 4, "unchanged: answered again");
    let with = |psn: u32, va: u64, key: u32, len: u32| {
        let mut bytes = request.clone();
        bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
        bytes[12..20].copy_from_slice(&va.to_be_bytes());
        bytes[20..24].copy_from_slice(&key.to_be_bytes());
        bytes[24..28].copy_from_slice(&len.to_be_bytes());
        bytes
    };
    assert_eq!(
        answers(&mut pair, &with(0x102, FAR + 2048, KEY, 1952)),
        2,
        "from its middle"
    );
    for (psn, va, key, len) in [
        (0x100, FAR + 1, KEY, 4000),
        (0x100, FAR, KEY, 4001),
        (0x100, u64::MAX - 1023, KEY, 1024),
        (0x100, FAR, KEY + 1, 4000),
        (0x102, FAR + 2048, KEY, 1953),
        (0x102, FAR, KEY, 1000),
        (0x100, FAR, KEY, u32::MAX),
        (0x100, FAR, KEY, 0),
    ] {
        assert_eq!(
            answers(&mut pair, &with(psn, va, key, len)),
            0,
            "{psn:x} {va:x} {len}"
        );
    }
    pair.side[1].world.regions.clear();
    assert_eq!(
        answers(&mut pair, &request),
        0,
        "the access is checked anew"
    );
    assert_eq!(pair.state(1), QpState::Rts);
}
