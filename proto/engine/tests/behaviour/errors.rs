//! What each side sees when something is refused.

use rocebud_engine::Reason;
use rocebud_objects::{
    Access, Counter, EventKind, NoteKind, PdId, QpState, SendOp, Sge, WcOpcode, WcStatus,
};
use rocebud_wire::{LKey, NakCode, Opcode, RKey, Syndrome};

use crate::pair::{KEY, Pair, QPN, START, Setup, region, remote, sge, wr};

const FAR: u64 = START + 0x10_0000;
const OK: WcStatus = WcStatus::Success;

fn nak_of(pair: &Pair, side: usize) -> Option<NakCode> {
    pair.sent(side, Opcode::RC_ACKNOWLEDGE)
        .iter()
        .find_map(|f| match f.syndrome {
            Some(Syndrome::Nak(code)) => Some(code),
            _ => None,
        })
}

/// One request from side 0 that side 1 refuses.
fn refused(pair: &mut Pair, op: SendOp, pieces: &[Sge]) -> (WcStatus, Option<NakCode>) {
    pair.post(0, wr(1, op, pieces)).unwrap();
    pair.post(0, wr(2, SendOp::Send, &[])).unwrap();
    pair.run();
    let results = pair.results(0);
    assert_eq!(results.len(), 2, "{results:?}");
    assert_eq!(results[1], (2, WcStatus::WrFlushErr));
    assert_eq!(pair.state(0), QpState::Err);
    assert_eq!(pair.state(1), QpState::Err);
    (results[0].1, nak_of(pair, 1))
}

#[test]
fn keys_bounds_and_permissions_are_remote_access_errors() {
    let cases: [(&str, u64, u32, u32); 7] = [
        ("no such key", FAR, 0x777, 8),
        ("other protection domain", FAR, 0x200, 8),
        ("no permission", FAR, 0x300, 8),
        (
            "one byte past the end",
            START + crate::pair::SIZE as u64 - 7,
            KEY,
            8,
        ),
        ("one byte before the start", START - 1, KEY, 2),
        ("wraps around", u64::MAX - 3, KEY, 8),
        ("top half", 1 << 63, KEY, 8192),
    ];
    for read in [false, true] {
        for (name, va, key, len) in cases {
            let mut pair = Pair::rc();
            let mut other = region(crate::pair::everything());
            other.pd = PdId(9);
            pair.side[1].world.regions.insert(0x200, other);
            pair.side[1]
                .world
                .regions
                .insert(0x300, region(Access::LOCAL_WRITE));
            let remote = rocebud_objects::Remote {
                addr: va,
                rkey: RKey(key),
            };
            let op = if read {
                SendOp::Read { remote }
            } else {
                SendOp::Write { remote }
            };
            let before = pair.side[1]
                .world
                .peek(KEY, START, crate::pair::SIZE)
                .to_vec();
            let (status, nak) = refused(&mut pair, op, &[sge(START, len)]);
            assert_eq!(status, WcStatus::RemAccessErr, "{name}");
            assert_eq!(nak, Some(NakCode::RemoteAccessError), "{name}");
            assert_eq!(pair.events(1, EventKind::QpAccessErr), 1, "{name}");
            assert!(
                pair.side[1].world.peek(KEY, START, crate::pair::SIZE) == before,
                "{name}"
            );
            assert!(pair.wcs(1).is_empty(), "{name}: no receive was in use");
        }
    }
}

#[test]
fn operations_switched_off_and_misaligned_atomics_are_invalid_requests() {
    let add = |addr| SendOp::FetchAdd {
        remote: remote(addr),
        add: 1,
    };
    let all = Setup::default().access;
    let cases = [
        (
            SendOp::Write {
                remote: remote(FAR),
            },
            all - Access::REMOTE_WRITE,
        ),
        (
            SendOp::Read {
                remote: remote(FAR),
            },
            all - Access::REMOTE_READ,
        ),
        (add(FAR), all - Access::REMOTE_ATOMIC),
        (add(FAR + 1), all),
        (add(FAR + 4), all),
        (
            SendOp::CmpSwap {
                remote: remote(FAR + 2),
                compare: 0,
                swap: 1,
            },
            all,
        ),
        (
            SendOp::AtomicWrite {
                remote: remote(FAR + 4),
            },
            all,
        ),
    ];
    for (op, access) in cases {
        let mut pair = Pair::new(Setup {
            access,
            ..Setup::default()
        });
        let (status, nak) = refused(&mut pair, op, &[sge(START, 8)]);
        assert_eq!(status, WcStatus::RemInvReqErr, "{op:?}");
        assert_eq!(nak, Some(NakCode::InvalidRequest), "{op:?}");
        assert_eq!(pair.events(1, EventKind::QpReqErr), 1, "{op:?}");
        assert_eq!(pair.side[1].world.peek(KEY, FAR, 16), [0; 16], "{op:?}");
    }
}

#[test]
fn reads_towards_a_responder_without_resources_are_invalid_requests() {
    let mut pair = Pair::new(Setup {
        dest_rd_atomic: 0,
        ..Setup::default()
    });
    let read = SendOp::Read {
        remote: remote(FAR),
    };
    let (status, nak) = refused(&mut pair, read, &[sge(START, 8)]);
    assert_eq!(
        (status, nak),
        (WcStatus::RemInvReqErr, Some(NakCode::InvalidRequest))
    );

    let mut pair = Pair::new(Setup {
        rd_atomic: 4,
        dest_rd_atomic: 2,
        ..Setup::default()
    });
    for i in 0..4 {
        pair.post(0, wr(i, read, &[sge(START, 8192)])).unwrap();
    }
    pair.run();
    assert!(
        pair.results(0)
            .iter()
            .any(|(_, status)| *status == WcStatus::RemInvReqErr),
        "the third outstanding READ is one too many"
    );
}

#[test]
fn a_read_without_own_resources_fails_here() {
    let mut pair = Pair::new(Setup {
        rd_atomic: 0,
        ..Setup::default()
    });
    pair.post(
        0,
        wr(
            1,
            SendOp::Read {
                remote: remote(FAR),
            },
            &[sge(START, 8)],
        ),
    )
    .unwrap();
    pair.run();
    let wc = pair.wcs(0)[0];
    assert_eq!(
        (wc.status, wc.vendor_err),
        (WcStatus::LocQpOpErr, Reason::ReadsNotAllowed as u32)
    );
    assert!(pair.log.is_empty());
}

#[test]
fn a_send_longer_than_its_receive_is_an_invalid_request_and_a_length_error() {
    for len in [101, 5000] {
        let mut pair = Pair::rc();
        pair.recv(1, 40, &[sge(FAR, 100)]).unwrap();
        pair.recv(1, 41, &[sge(FAR, 100)]).unwrap();
        let (status, nak) = refused(&mut pair, SendOp::Send, &[sge(START, len)]);
        assert_eq!(
            (status, nak),
            (WcStatus::RemInvReqErr, Some(NakCode::InvalidRequest))
        );
        let wcs = pair.wcs(1);
        assert_eq!((wcs[0].wr_id, wcs[0].status), (40, WcStatus::LocLenErr));
        assert_eq!(wcs[0].vendor_err, Reason::ReceiveTooSmall as u32);
        assert_eq!((wcs[1].wr_id, wcs[1].status), (41, WcStatus::WrFlushErr));
        assert_eq!(
            pair.events(1, EventKind::QpReqErr),
            0,
            "the completion tells"
        );
    }
}

#[test]
fn a_bad_receive_buffer_is_the_responders_fault() {
    let mut pair = Pair::rc();
    let bad = Sge {
        addr: FAR,
        length: 100,
        lkey: LKey(0x999),
    };
    pair.recv(1, 40, &[bad]).unwrap();
    let (status, nak) = refused(&mut pair, SendOp::Send, &[sge(START, 8)]);
    assert_eq!(
        (status, nak),
        (WcStatus::RemOpErr, Some(NakCode::RemoteOperationalError))
    );
    let wc = pair.wcs(1)[0];
    assert_eq!(
        (wc.status, wc.vendor_err),
        (WcStatus::LocProtErr, Reason::LocalKey as u32)
    );
}

#[test]
fn memory_that_is_gone_is_an_operational_error() {
    let mut pair = Pair::rc();
    pair.side[1].world.bad_pages.insert(FAR);
    let write = SendOp::Write {
        remote: remote(FAR),
    };
    let (status, nak) = refused(&mut pair, write, &[sge(START, 8)]);
    assert_eq!(
        (status, nak),
        (WcStatus::RemOpErr, Some(NakCode::RemoteOperationalError))
    );
}

#[test]
fn a_region_that_vanishes_under_a_read_ends_it_with_a_nak_in_place_of_the_response() {
    let mut pair = Pair::rc();
    pair.post(
        0,
        wr(
            0,
            SendOp::Read {
                remote: remote(FAR),
            },
            &[sge(START, 8192)],
        ),
    )
    .unwrap();
    pair.transmit(0);
    // Two responses leave, then the region goes.
    pair.now = pair.now + 1000;
    let request = pair.log[0].bytes.clone();
    pair.inject(1, &request);
    let mut buf = vec![0; 5000];
    for _ in 0..2 {
        let side = &mut pair.side[1];
        let tx = side
            .node
            .poll_transmit(pair.now, &mut buf, &mut side.world)
            .unwrap();
        let bytes = buf[..tx.len].to_vec();
        pair.inject(0, &bytes);
    }
    let gone = pair.side[1].world.regions.remove(&KEY);
    assert!(gone.is_some());
    pair.transmit(1);
    let nak = pair.log.last().unwrap().clone();
    assert_eq!(
        nak.syndrome,
        Some(Syndrome::Nak(NakCode::RemoteAccessError))
    );
    assert_eq!(nak.psn, 0x102);
    pair.inject(0, &nak.bytes);
    assert_eq!(pair.results(0), [(0, WcStatus::RemAccessErr)]);
    assert_eq!(pair.state(1), QpState::Err);
}

#[test]
fn a_bad_local_buffer_fails_in_its_turn_after_what_is_before_it() {
    let bad = Sge {
        addr: START,
        length: 100,
        lkey: LKey(0x999),
    };
    let far = SendOp::Write {
        remote: remote(FAR),
    };
    let reads = SendOp::Read {
        remote: remote(FAR),
    };
    for op in [SendOp::Send, far, reads] {
        let mut pair = Pair::rc();
        pair.post(0, wr(0, far, &[sge(START, 3000)])).unwrap();
        pair.post(0, wr(1, op, &[bad])).unwrap();
        pair.post(0, wr(2, far, &[sge(START, 8)])).unwrap();
        pair.run();
        assert_eq!(
            pair.results(0),
            [
                (0, OK),
                (1, WcStatus::LocProtErr),
                (2, WcStatus::WrFlushErr)
            ],
            "{op:?}"
        );
        assert_eq!(pair.state(1), QpState::Rts, "the peer notices nothing");
    }
}

#[test]
fn a_bad_later_piece_stops_the_message_before_it_begins() {
    let mut pair = Pair::rc();
    let bad = Sge {
        addr: START,
        length: 5000,
        lkey: LKey(0x999),
    };
    let write = SendOp::Write {
        remote: remote(FAR),
    };
    pair.post(0, wr(0, write, &[sge(START, 5000), bad]))
        .unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, WcStatus::LocProtErr)]);
    assert!(pair.log.is_empty());
}

#[test]
fn send_with_invalidate_of_a_bad_key_does_not_blame_the_sender() {
    let mut pair = Pair::new(Setup {
        retry_cnt: 1,
        ..Setup::default()
    });
    pair.recv(1, 3, &[sge(FAR, 100)]).unwrap();
    let bytes = pair.pattern(0, START, 50, 2);
    let op = SendOp::SendInv { rkey: RKey(KEY) };
    pair.post(0, wr(0, op, &[sge(START, 50)])).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
    let wc = pair.wcs(1)[0];
    assert_eq!(
        (wc.wr_id, wc.vendor_err),
        (3, Reason::InvalidateFailed as u32)
    );
    assert_ne!(wc.status, OK);
    assert_eq!(
        pair.side[1].world.peek(KEY, FAR, 50),
        bytes,
        "the data stay placed"
    );
    assert_eq!(pair.state(1), QpState::Err);
    pair.post(0, wr(1, SendOp::Send, &[])).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn error_flushes_both_queues_in_order_and_what_is_posted_later() {
    let mut pair = Pair::rc();
    pair.rule(|_| crate::pair::Fate::Drop);
    for i in 0..3 {
        pair.recv(0, 10 + i, &[]).unwrap();
        pair.post(0, wr(i, SendOp::Send, &[])).unwrap();
    }
    pair.transmit(0);
    pair.set_state(0, QpState::Err).unwrap();
    let flushed = |ids: &[u64]| {
        ids.iter()
            .map(|i| (*i, WcStatus::WrFlushErr))
            .collect::<Vec<_>>()
    };
    assert_eq!(pair.results(0), flushed(&[0, 1, 2, 10, 11, 12]));
    pair.post(
        0,
        wr(
            7,
            SendOp::Write {
                remote: remote(FAR),
            },
            &[],
        ),
    )
    .unwrap();
    pair.recv(0, 8, &[]).unwrap();
    let wcs = pair.wcs(0);
    assert_eq!(
        (wcs[0].opcode, wcs[1].opcode),
        (WcOpcode::RdmaWrite, WcOpcode::Recv)
    );
    assert!(
        wcs.iter()
            .all(|wc| wc.vendor_err == Reason::FlushedByModify as u32)
    );
    assert_eq!(
        pair.side[0].node.next_timeout().map(|_| ()),
        Some(()),
        "stale, fires for nothing"
    );
    pair.run();
    assert!(pair.wcs(0).is_empty());
}

#[test]
fn a_full_completion_queue_takes_its_queue_pairs_down() {
    let mut pair = Pair::rc();
    pair.side[0].world.cq_room = Some(2);
    for i in 0..5 {
        pair.post(
            0,
            wr(
                i,
                SendOp::Write {
                    remote: remote(FAR),
                },
                &[],
            ),
        )
        .unwrap();
    }
    pair.run();
    assert_eq!(pair.events(0, EventKind::CqErr), 1);
    assert_eq!(pair.events(0, EventKind::QpFatal), 1);
    assert_eq!(pair.state(0), QpState::Err);
    assert_eq!(pair.state(1), QpState::Rts);
    // No completion can say why: the queue that would tell has no room. Whoever reads the story learns it.
    let notes = &pair.side[0].world.notes;
    let told = notes
        .iter()
        .filter(|(_, note)| note.kind == NoteKind::ErrorCompletion);
    let told: Vec<u32> = told.map(|(_, note)| note.arg).collect();
    let why = (WcStatus::WrFlushErr as u32) << 16 | Reason::FlushedByCq as u32;
    assert_eq!(told, [why]);
}

#[test]
fn a_queue_pair_that_comes_to_an_overrun_completion_queue_is_told_too() {
    let mut pair = Pair::rc();
    pair.side[0].world.cq_room = Some(0);
    let write = |i| {
        wr(
            i,
            SendOp::Write {
                remote: remote(FAR),
            },
            &[],
        )
    };
    for round in 1..=3 {
        pair.post(0, write(1)).unwrap();
        pair.post(0, write(2)).unwrap();
        pair.run();
        assert_eq!(pair.state(0), QpState::Err, "round {round}");
        assert_eq!(pair.events(0, EventKind::QpFatal), round);
        assert_eq!(pair.events(0, EventKind::CqErr), 1, "said once");
        for side in 0..2 {
            pair.set_state(side, QpState::Reset).unwrap();
            pair.connect(side);
        }
    }
}

#[test]
fn a_wrong_answer_is_a_bad_response() {
    use rocebud_wire::{Aeth, Bth, Header, Psn};
    let forge = |opcode, psn, len: usize| {
        let mut header = Header::new(Bth::new(opcode, QPN[0], Psn::new(psn)));
        header.ext.aeth = Some(Aeth {
            syndrome: Syndrome::ACK,
            msn: 1,
        });
        let mut frame = vec![0; header.frame_len(len)];
        header.emit(len, &mut frame);
        frame
    };
    let cases = [
        (
            Opcode::RC_READ_RESPONSE_MIDDLE,
            1024,
            Reason::BadResponseOpcode,
        ),
        (
            Opcode::RC_READ_RESPONSE_LAST,
            1024,
            Reason::BadResponseOpcode,
        ),
        (
            Opcode::RC_READ_RESPONSE_ONLY,
            1024,
            Reason::BadResponseOpcode,
        ),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, 0, Reason::BadResponseOpcode),
        (
            Opcode::RC_READ_RESPONSE_FIRST,
            512,
            Reason::BadResponseLength,
        ),
        (
            Opcode::RC_READ_RESPONSE_FIRST,
            4096,
            Reason::BadResponseLength,
        ),
    ];
    for (opcode, len, reason) in cases {
        let mut pair = Pair::rc();
        pair.post(
            0,
            wr(
                0,
                SendOp::Read {
                    remote: remote(FAR),
                },
                &[sge(START, 3000)],
            ),
        )
        .unwrap();
        pair.transmit(0);
        pair.inject(0, &forge(opcode, 0x100, len));
        let wc = pair.wcs(0)[0];
        assert_eq!(
            (wc.status, wc.vendor_err),
            (WcStatus::BadRespErr, reason as u32),
            "{opcode} {len}"
        );
    }
}

#[test]
fn only_the_peer_may_send_congestion_notifications() {
    let mut pair = Pair::rc();
    let mut cnp = vec![0_u8; 12 + 16 + 4];
    cnp[0] = 0x81;
    cnp[2..4].copy_from_slice(&[0xff, 0xff]);
    cnp[5..8].copy_from_slice(&QPN[1].value().to_be_bytes()[1..]);
    let meta = pair.meta(0);
    let stranger = rocebud_engine::RxMeta {
        src: crate::pair::gids()[1],
        ..meta
    };
    pair.inject_from(1, &stranger, &cnp);
    assert_eq!(pair.side[1].world.counter(Counter::RpCnpHandled), 0);
    assert_eq!(pair.side[1].world.counter(Counter::DropWrongPeer), 1);
    pair.inject(1, &cnp);
    assert_eq!(pair.side[1].world.counter(Counter::RpCnpHandled), 1);
}

#[test]
fn frames_from_elsewhere_cost_a_counter() {
    let mut pair = Pair::rc();
    let write = SendOp::Write {
        remote: remote(FAR),
    };
    pair.post(0, wr(0, write, &[sge(START, 8)])).unwrap();
    pair.transmit(0);
    let bytes = pair.log[0].bytes.clone();
    let meta = pair.meta(0);
    let elsewhere = rocebud_engine::RxMeta {
        src: crate::pair::gids()[1],
        ..meta
    };
    pair.inject_from(1, &elsewhere, &bytes);
    let not_ours = rocebud_engine::RxMeta {
        dst: crate::pair::gids()[0],
        ..meta
    };
    pair.inject_from(1, &not_ours, &bytes);
    assert_eq!(pair.side[1].world.counter(Counter::DropWrongPeer), 2);
    let mut pkey = bytes.clone();
    pkey[2] = 0x12;
    pair.inject(1, &pkey);
    assert_eq!(pair.side[1].world.counter(Counter::DropBadPkey), 1);
    let mut nobody = bytes.clone();
    nobody[7] ^= 0x44;
    pair.inject(1, &nobody);
    assert_eq!(pair.side[1].world.counter(Counter::DropNoQp), 1);
    assert_eq!(
        pair.side[1].node.query_qp(QPN[1]).unwrap().0.rq_psn.value(),
        0x100
    );
}
