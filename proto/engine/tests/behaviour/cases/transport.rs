//! Long runs of mixed operations, over loss and wrap, and what is asked for or answered again.

use rocebud_engine::NodeConfig;
use rocebud_objects::{Counter, SendOp, Sge};
use rocebud_wire::Opcode;

use super::{FAR, OK};
use crate::dice::Dice;
use crate::pair::{Fate, KEY, Pair, QPN, START, Setup, remote, sge, wr};

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
