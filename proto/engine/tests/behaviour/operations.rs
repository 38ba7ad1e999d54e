//! Every operation moves the right bytes and completes as verbs say.

use rocebud_engine::NodeConfig;
use rocebud_objects::{
    Access, Counter, Errno, EventKind, FlushPlacement, FlushRange, Payload, QpState, SendFlags,
    SendOp, SendWr, WcFlags, WcOpcode, WcStatus,
};
use rocebud_wire::{Mtu, Opcode, RKey};

use crate::pair::{KEY, Pair, QPN, START, Setup, region, remote, sge, wr};

const FAR: u64 = START + 0x10_0000;
const LENGTHS: [u32; 8] = [0, 1, 3, 1023, 1024, 1025, 4096, 3 * 1024 + 5];

#[test]
fn send_lands_in_the_receive_whatever_its_length_and_pieces() {
    let mut pair = Pair::rc();
    for (i, len) in LENGTHS.into_iter().enumerate() {
        let bytes = pair.pattern(0, START + 1, len as usize, i as u64);
        let split = len / 3;
        pair.recv(
            1,
            70 + i as u64,
            &[sge(FAR, 100), sge(FAR + 0x1_0000, 0x1_0000)],
        )
        .unwrap();
        let pieces = [
            sge(START + 1, split),
            sge(9, 0),
            sge(START + 1 + u64::from(split), len - split),
        ];
        pair.post(0, wr(i as u64, SendOp::Send, &pieces)).unwrap();
        pair.run();
        let wc = pair.wcs(0)[0];
        assert_eq!(
            (wc.wr_id, wc.status, wc.opcode),
            (i as u64, WcStatus::Success, WcOpcode::Send)
        );
        let wc = pair.wcs(1)[0];
        assert_eq!(
            (wc.wr_id, wc.byte_len, wc.opcode),
            (70 + i as u64, len, WcOpcode::Recv)
        );
        assert_eq!(wc.wc_flags, WcFlags::empty(), "no GRH on RC");
        let head = (len as usize).min(100);
        assert_eq!(pair.side[1].world.peek(KEY, FAR, head), &bytes[..head]);
        let rest = bytes.len() - head;
        assert_eq!(
            pair.side[1].world.peek(KEY, FAR + 0x1_0000, rest),
            &bytes[head..]
        );
    }
}

#[test]
fn immediates_and_invalidation_reach_the_completion() {
    let mut pair = Pair::rc();
    let mut window = region(Access::REMOTE_READ);
    window.window = true;
    pair.side[1].world.regions.insert(0x900, window);
    for i in 0..3 {
        pair.recv(1, i, &[sge(FAR, 8192)]).unwrap();
    }
    let imm = [1, 2, 3, 4];
    pair.post(0, wr(0, SendOp::SendImm { imm }, &[sge(START, 2000)]))
        .unwrap();
    pair.post(
        0,
        wr(
            1,
            SendOp::SendInv { rkey: RKey(0x900) },
            &[sge(START, 2000)],
        ),
    )
    .unwrap();
    pair.pattern(0, START, 2000, 5);
    let op = SendOp::WriteImm {
        remote: remote(FAR + 0x2_0000),
        imm,
    };
    pair.post(0, wr(2, op, &[sge(START, 3000)])).unwrap();
    pair.run();
    let wcs = pair.wcs(1);
    assert_eq!((wcs[0].wc_flags, wcs[0].imm), (WcFlags::WITH_IMM, imm));
    assert_eq!(
        (wcs[1].wc_flags, wcs[1].invalidated_rkey),
        (WcFlags::WITH_INV, RKey(0x900))
    );
    assert!(!pair.side[1].world.regions.contains_key(&0x900));
    assert_eq!(wcs[2].opcode, WcOpcode::RecvRdmaWithImm);
    assert_eq!((wcs[2].byte_len, wcs[2].imm), (3000, imm));
    assert_eq!(pair.wcs(0).len(), 3);
}

#[test]
fn write_and_read_move_bytes_of_every_length() {
    let mut pair = Pair::rc();
    for (i, len) in LENGTHS.into_iter().enumerate() {
        let bytes = pair.pattern(0, START + 3, len as usize, i as u64);
        let to = FAR + i as u64 * 0x1_0000 + 1;
        pair.post(
            0,
            wr(
                1,
                SendOp::Write { remote: remote(to) },
                &[sge(START + 3, len)],
            ),
        )
        .unwrap();
        let back = START + 0x8_0000;
        let halves = [
            sge(back, len / 2),
            sge(back + u64::from(len / 2), len - len / 2),
        ];
        pair.post(0, wr(2, SendOp::Read { remote: remote(to) }, &halves))
            .unwrap();
        pair.run();
        assert_eq!(pair.side[1].world.peek(KEY, to, len as usize), bytes);
        assert_eq!(pair.side[0].world.peek(KEY, back, len as usize), bytes);
        let wcs = pair.wcs(0);
        assert_eq!(wcs.len(), 2);
        assert_eq!((wcs[1].opcode, wcs[1].byte_len), (WcOpcode::RdmaRead, len));
    }
    assert!(pair.wcs(1).is_empty());
}

#[test]
fn zero_length_write_and_read_look_at_no_address_and_no_key() {
    let mut pair = Pair::rc();
    let wild = rocebud_objects::Remote {
        addr: u64::MAX,
        rkey: RKey(0xdead_beef),
    };
    pair.recv(1, 9, &[]).unwrap();
    pair.post(
        0,
        wr(
            0,
            SendOp::WriteImm {
                remote: wild,
                imm: [0; 4],
            },
            &[],
        ),
    )
    .unwrap();
    pair.post(0, wr(1, SendOp::Read { remote: wild }, &[]))
        .unwrap();
    pair.post(0, wr(2, SendOp::Write { remote: wild }, &[]))
        .unwrap();
    pair.run();
    assert_eq!(pair.results(0), [0, 1, 2].map(|i| (i, WcStatus::Success)));
    assert_eq!(pair.wcs(1)[0].byte_len, 0);
}

#[test]
fn atomics_change_the_word_and_return_what_was_there() {
    let mut pair = Pair::rc();
    pair.side[1].world.poke(KEY, FAR, &10_u64.to_ne_bytes());
    let result = |i: u64| [sge(START + i * 8, 8)];
    let ops = [
        SendOp::FetchAdd {
            remote: remote(FAR),
            add: u64::MAX,
        },
        SendOp::CmpSwap {
            remote: remote(FAR),
            compare: 9,
            swap: 77,
        },
        SendOp::CmpSwap {
            remote: remote(FAR),
            compare: 9,
            swap: 78,
        },
    ];
    for (i, op) in ops.into_iter().enumerate() {
        pair.post(0, wr(i as u64, op, &result(i as u64))).unwrap();
    }
    pair.run();
    let opcodes: Vec<_> = pair
        .wcs(0)
        .iter()
        .map(|wc| (wc.opcode, wc.byte_len))
        .collect();
    assert_eq!(
        opcodes,
        [
            (WcOpcode::FetchAdd, 8),
            (WcOpcode::CompSwap, 8),
            (WcOpcode::CompSwap, 8)
        ]
    );
    let word = |pair: &Pair, side: usize, at: u64| {
        u64::from_ne_bytes(pair.side[side].world.peek(KEY, at, 8).try_into().unwrap())
    };
    assert_eq!([0, 8, 16].map(|o| word(&pair, 0, START + o)), [10, 9, 77]);
    assert_eq!(word(&pair, 1, FAR), 77);
}

#[test]
fn atomic_write_and_flush_are_answered_by_an_empty_read_response() {
    let mut pair = Pair::rc();
    let bytes = pair.pattern(0, START, 8, 3);
    let inline = SendWr {
        payload: Payload::Inline(bytes.clone().into()),
        flags: SendFlags::INLINE,
        ..wr(
            0,
            SendOp::AtomicWrite {
                remote: remote(FAR),
            },
            &[],
        )
    };
    pair.post(0, inline).unwrap();
    let flush = |range, length| SendOp::Flush {
        remote: remote(FAR),
        length,
        range,
        placement: FlushPlacement(FlushPlacement::GLOBAL),
    };
    pair.post(0, wr(1, flush(FlushRange::Range, 64), &[]))
        .unwrap();
    pair.post(0, wr(2, flush(FlushRange::Region, 0), &[]))
        .unwrap();
    pair.run();
    assert_eq!(pair.results(0).len(), 3);
    assert_eq!(pair.side[1].world.peek(KEY, FAR, 8), bytes);
    assert_eq!(
        pair.side[1].world.flushes,
        [(FAR, 64, false, 1), (FAR, 0, true, 1)]
    );
    let answers = pair.sent(1, Opcode::RC_READ_RESPONSE_ONLY);
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|f| f.packet().payload.is_empty()));
}

#[test]
fn local_invalidate_runs_after_everything_before_it_and_without_a_packet() {
    let mut pair = Pair::rc();
    let mut window = region(Access::LOCAL_WRITE);
    window.window = true;
    pair.side[0].world.regions.insert(0x900, window);
    let target = rocebud_objects::Sge {
        addr: START,
        length: 5000,
        lkey: rocebud_wire::LKey(0x900),
    };
    pair.post(
        0,
        wr(
            0,
            SendOp::Read {
                remote: remote(FAR),
            },
            &[target],
        ),
    )
    .unwrap();
    pair.post(0, wr(1, SendOp::LocalInv { rkey: RKey(0x900) }, &[]))
        .unwrap();
    pair.post(
        0,
        wr(
            2,
            SendOp::Read {
                remote: remote(FAR),
            },
            &[target],
        ),
    )
    .unwrap();
    pair.run();
    assert_eq!(
        pair.results(0),
        [
            (0, WcStatus::Success),
            (1, WcStatus::Success),
            (2, WcStatus::LocProtErr)
        ]
    );
}

#[test]
fn unsignaled_requests_complete_in_silence_and_free_their_places() {
    let mut pair = Pair::new(Setup {
        sq_sig_all: false,
        ..Setup::default()
    });
    for round in 0..10 {
        for i in 0..256 {
            let mut request = wr(
                i,
                SendOp::Write {
                    remote: remote(FAR),
                },
                &[sge(START, 8)],
            );
            if i == 255 {
                request.flags = SendFlags::SIGNALED;
            }
            pair.post(0, request).unwrap();
        }
        assert!(
            pair.post(0, wr(0, SendOp::Send, &[])).is_err(),
            "round {round}: full"
        );
        pair.run();
        assert_eq!(pair.results(0), [(255, WcStatus::Success)]);
    }
}

#[test]
fn solicited_travels_on_the_last_packet_and_counts_at_the_receiver() {
    let mut pair = Pair::rc();
    for i in 0..2 {
        pair.recv(1, i, &[sge(FAR, 9000)]).unwrap();
        let mut request = wr(i, SendOp::Send, &[sge(START, 3000)]);
        if i == 1 {
            request.flags = SendFlags::SOLICITED;
        }
        pair.post(0, request).unwrap();
    }
    pair.run();
    assert_eq!(pair.side[1].world.solicited, 1);
    let marked: Vec<_> = pair
        .log
        .iter()
        .filter(|f| f.packet().bth.solicited)
        .map(|f| f.opcode)
        .collect();
    assert_eq!(marked, [Opcode::RC_SEND_LAST]);
}

#[test]
fn a_queue_pair_connected_to_itself_works() {
    let mut pair = Pair::bare(Setup::default());
    pair.create(0, QPN[0]);
    for (mut attr, mask) in crate::pair::moves(&Setup::default(), 0) {
        attr.dest_qp_num = QPN[0];
        let own = crate::pair::path(crate::pair::gids()[0], crate::pair::gids()[0]);
        let side = &mut pair.side[0];
        side.node
            .modify_qp(pair.now, QPN[0], &attr, mask, Some(own), &mut side.world)
            .unwrap();
    }
    let bytes = pair.pattern(0, START, 5000, 1);
    pair.recv(0, 50, &[sge(FAR, 5000)]).unwrap();
    pair.post(0, wr(0, SendOp::Send, &[sge(START, 5000)]))
        .unwrap();
    pair.post(
        0,
        wr(
            1,
            SendOp::Read {
                remote: remote(FAR),
            },
            &[sge(START + 0x8_0000, 5000)],
        ),
    )
    .unwrap();
    let meta = rocebud_engine::RxMeta {
        src: crate::pair::gids()[0],
        dst: crate::pair::gids()[0],
        ..pair.meta(0)
    };
    for _ in 0..50 {
        pair.transmit(0);
        for frame in std::mem::take(&mut pair.log) {
            pair.inject_from(0, &meta, &frame.bytes);
        }
    }
    assert_eq!(
        pair.results(0),
        [
            (50, WcStatus::Success),
            (0, WcStatus::Success),
            (1, WcStatus::Success)
        ]
    );
    assert_eq!(pair.side[0].world.peek(KEY, START + 0x8_0000, 5000), bytes);
}

#[test]
fn a_batch_of_messages_draws_one_ack() {
    let mut pair = Pair::rc();
    for i in 0..20 {
        pair.recv(1, i, &[sge(FAR, 64)]).unwrap();
        pair.post(0, wr(i, SendOp::Send, &[sge(START, 64)]))
            .unwrap();
    }
    pair.run();
    let acks = pair.sent(1, Opcode::RC_ACKNOWLEDGE);
    assert_eq!(acks.len(), 1);
    assert_eq!((acks[0].psn, acks[0].msn), (0x100 + 19, 20));
    assert_eq!(pair.results(0).len(), 20);
}

#[test]
fn a_write_before_a_read_gets_its_own_ack() {
    let mut pair = Pair::rc();
    pair.post(
        0,
        wr(
            0,
            SendOp::Write {
                remote: remote(FAR),
            },
            &[sge(START, 64)],
        ),
    )
    .unwrap();
    pair.post(
        0,
        wr(
            1,
            SendOp::Read {
                remote: remote(FAR),
            },
            &[sge(START, 64)],
        ),
    )
    .unwrap();
    pair.run();
    let answers: Vec<_> = pair
        .log
        .iter()
        .filter(|f| f.from == 1)
        .map(|f| (f.opcode, f.psn, f.msn))
        .collect();
    assert_eq!(
        answers,
        [
            (Opcode::RC_ACKNOWLEDGE, 0x100, 1),
            (Opcode::RC_READ_RESPONSE_ONLY, 0x101, 2)
        ]
    );
}

#[test]
fn the_window_bounds_what_is_in_flight_and_always_asks_for_an_ack() {
    let cfg = NodeConfig {
        window_packets: 128,
        peer_window_bytes: 10 * (1024 + 512),
        ack_request_every_packets: 1000,
        ..NodeConfig::default()
    };
    let mut pair = Pair::new(Setup {
        cfg,
        ..Setup::default()
    });
    let write = SendOp::Write {
        remote: remote(FAR),
    };
    pair.post(0, wr(0, write, &[sge(START, 100 * 1024)]))
        .unwrap();
    assert_eq!(pair.transmit(0), 10);
    assert!(pair.log[9].ack_req, "the packet that fills the window asks");
    let before = pair.now;
    pair.run();
    assert_eq!(pair.results(0), [(0, WcStatus::Success)]);
    assert!(pair.now.ns_since(before) < 1_000_000, "no timer was needed");
}

#[test]
fn a_read_is_asked_for_in_chunks_with_consecutive_numbers() {
    let cfg = NodeConfig {
        read_chunk_packets: 4,
        ..NodeConfig::default()
    };
    let mut pair = Pair::new(Setup {
        cfg,
        rd_atomic: 2,
        ..Setup::default()
    });
    let bytes = pair.pattern(1, FAR, 10 * 1024 + 7, 1);
    let read = SendOp::Read {
        remote: remote(FAR),
    };
    pair.post(0, wr(0, read, &[sge(START, 10 * 1024 + 7)]))
        .unwrap();
    assert_eq!(
        pair.transmit(0),
        2,
        "each request counts against max_rd_atomic"
    );
    pair.run();
    let asked: Vec<_> = pair
        .sent(0, Opcode::RC_READ_REQUEST)
        .iter()
        .map(|f| (f.psn, f.packet().ext.reth.unwrap()))
        .map(|(psn, reth)| (psn, reth.va - FAR, reth.dma_len))
        .collect();
    assert_eq!(
        asked,
        [(0x100, 0, 4096), (0x104, 4096, 4096), (0x108, 8192, 2055)]
    );
    assert_eq!(pair.side[0].world.peek(KEY, START, bytes.len()), bytes);
    assert_eq!(pair.results(0), [(0, WcStatus::Success)]);
}

#[test]
fn query_shows_the_next_psns() {
    let mut pair = Pair::new(Setup {
        mtu: Mtu::M1024,
        ..Setup::default()
    });
    pair.post(
        0,
        wr(
            0,
            SendOp::Write {
                remote: remote(FAR),
            },
            &[sge(START, 5000)],
        ),
    )
    .unwrap();
    pair.run();
    let (attr, _) = pair.side[0].node.query_qp(QPN[0]).unwrap();
    assert_eq!(attr.sq_psn.value(), 0x105);
    assert_eq!(
        (attr.qp_state, attr.timeout, attr.retry_cnt),
        (QpState::Rts, 14, 7)
    );
    assert_eq!(
        pair.side[1].node.query_qp(QPN[1]).unwrap().0.rq_psn.value(),
        0x105
    );
}

#[test]
fn the_first_request_in_rtr_tells_that_the_connection_stands() {
    let mut pair = Pair::bare(Setup::default());
    pair.create(0, QPN[0]);
    pair.create(1, QPN[1]);
    pair.connect(0);
    for (attr, mask) in &crate::pair::moves(&Setup::default(), 1)[..2] {
        pair.modify(1, attr, *mask).unwrap();
    }
    for i in 0..3 {
        pair.post(
            0,
            wr(
                i,
                SendOp::Write {
                    remote: remote(FAR),
                },
                &[sge(START, 8)],
            ),
        )
        .unwrap();
        pair.run();
    }
    assert_eq!(pair.results(0).len(), 3);
    assert_eq!(pair.events(1, EventKind::CommEst), 1);
    assert_eq!(pair.side[1].world.counter(Counter::RcvdPkts), 3);
}

#[test]
fn a_batch_is_posted_whole_or_not_at_all() {
    let mut setup = Setup::default();
    setup.cap.max_send_wr = 4;
    let mut pair = Pair::new(setup);
    let write = |id| {
        let op = SendOp::Write {
            remote: remote(FAR),
        };
        wr(id, op, &[sge(START, 8)])
    };
    let too_long = SendWr {
        flags: SendFlags::INLINE,
        payload: Payload::Inline(vec![0; 513].into()),
        ..write(9)
    };
    for (mut bad, errno) in [
        (vec![write(1), too_long, write(3)], Errno::EINVAL),
        ((0..5).map(write).collect(), Errno::ENOMEM),
    ] {
        let whole = bad.clone();
        let refused = pair.post_all(0, &mut bad).unwrap_err();
        assert_eq!(refused.errno, errno);
        assert_eq!(bad, whole, "the caller still has them");
        pair.run();
        assert_eq!(pair.results(0), []);
    }
    let mut good: Vec<SendWr> = (0..4).map(write).collect();
    pair.post_all(0, &mut good).unwrap();
    assert!(good.is_empty());
    pair.run();
    let ids: Vec<u64> = pair.wcs(0).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    pair.set_state(0, QpState::Err).unwrap();
    pair.post_all(0, &mut vec![write(5), write(6)]).unwrap();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(pair.results(0), [(5, flushed), (6, flushed)]);
}
