//! How RC recovers from losses, and when it gives up.

use std::collections::BTreeMap;

use rocebud_engine::Reason;
use rocebud_objects::{Counter, Instant, NoteKind, QpState, SendFlags, SendOp, WcStatus};
use rocebud_wire::{NakCode, Opcode, Syndrome};

use crate::pair::{Fate, Frame, KEY, Pair, QPN, START, Setup, remote, sge, wr};

const FAR: u64 = START + 0x10_0000;
const OK: WcStatus = WcStatus::Success;

/// Side 0 writes `length` bytes to the far buffer.
fn write(pair: &mut Pair, wr_id: u64, length: u32) {
    let remote = remote(FAR);
    let op = SendOp::Write { remote };
    pair.post(0, wr(wr_id, op, &[sge(START, length)])).unwrap();
}

/// Side 0 sends `length` bytes.
fn send(pair: &mut Pair, wr_id: u64, length: u32) {
    let pieces = [sge(START, length)];
    pair.post(0, wr(wr_id, SendOp::Send, &pieces)).unwrap();
}

/// Nothing of side 0 arrives.
fn mute(pair: &mut Pair) {
    pair.rule(|f| {
        if f.from == 0 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
}

/// What was sent again.
fn resent(pair: &Pair) -> impl Iterator<Item = &Frame> {
    pair.log.iter().filter(|f| f.retransmit)
}

/// Drops the n-th frames (from 1) that match.
fn drop_nth(
    matches: impl Fn(&Frame) -> bool + 'static,
    which: &'static [usize],
) -> impl FnMut(&Frame) -> Fate {
    let mut seen = 0;
    move |f| {
        if !matches(f) {
            return Fate::Deliver;
        }
        seen += 1;
        if which.contains(&seen) {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    }
}

#[test]
fn a_gap_draws_one_nak_and_the_resend_starts_at_it() {
    let mut pair = Pair::rc();
    let bytes = pair.pattern(0, START, 10 * 1024, 1);
    pair.rule(drop_nth(|f| f.psn == 0x103, &[1]));
    write(&mut pair, 0, 10 * 1024);
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
    assert_eq!(pair.side[1].world.peek(KEY, FAR, bytes.len()), bytes);
    let naks: Vec<_> = pair
        .sent(1, Opcode::RC_ACKNOWLEDGE)
        .iter()
        .filter(|f| f.syndrome == Some(Syndrome::Nak(NakCode::PsnSequenceError)))
        .map(|f| (f.psn, f.msn))
        .collect();
    assert_eq!(naks, [(0x103, 0)]);
    let again: Vec<_> = resent(&pair).map(|f| f.psn).collect();
    assert_eq!(again, (0x103..0x10a).collect::<Vec<_>>());
    assert_eq!(
        pair.sent(0, Opcode::RC_WRITE_MIDDLE)
            .iter()
            .filter(|f| f.psn == 0x103)
            .count(),
        2
    );
    assert_eq!(pair.side[0].world.counter(Counter::LocalAckTimeoutErr), 0);
    assert_eq!(pair.side[1].world.counter(Counter::OutOfSequence), 6);
}

#[test]
fn a_lost_last_ack_is_recovered_by_the_timer_and_not_executed_twice() {
    let mut pair = Pair::rc();
    pair.recv(1, 5, &[sge(FAR, 64)]).unwrap();
    pair.rule(drop_nth(|f| f.is(Opcode::RC_ACKNOWLEDGE), &[1]));
    send(&mut pair, 0, 64);
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
    assert_eq!(pair.results(1), [(5, OK)]);
    assert_eq!(pair.side[0].world.counter(Counter::LocalAckTimeoutErr), 1);
    assert_eq!(pair.side[1].world.counter(Counter::DuplicateRequest), 1);
}

#[test]
fn a_dead_peer_is_reported_after_retry_cnt_retries_within_one_to_four_timeouts_each() {
    for retry_cnt in [0, 1, 7] {
        let mut pair = Pair::new(Setup {
            retry_cnt,
            ..Setup::default()
        });
        mute(&mut pair);
        pair.recv(0, 99, &[]).unwrap();
        let start = pair.now;
        send(&mut pair, 0, 8);
        send(&mut pair, 1, 8);
        pair.run();
        let wcs = pair.wcs(0);
        let seen: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(
            seen,
            [
                (0, WcStatus::RetryExcErr),
                (1, WcStatus::WrFlushErr),
                (99, WcStatus::WrFlushErr)
            ]
        );
        assert_eq!(wcs[0].vendor_err, Reason::RetryExceeded as u32);
        let sends = pair.log.iter().filter(|f| f.psn == 0x100).count();
        assert_eq!(sends, 1 + usize::from(retry_cnt));
        let took = pair.now.ns_since(start);
        let timeout = 4096_u64 << 14;
        let tries = u64::from(retry_cnt) + 1;
        assert!(
            took >= tries * timeout && took <= tries * 4 * timeout,
            "{retry_cnt}: {took}"
        );
        assert_eq!(pair.state(0), QpState::Err);
        assert_eq!(pair.side[0].world.counter(Counter::RetryExceededErr), 1);
    }
}

/// A process that was descheduled finds its timer long past due. Its peer may have had no turn
/// either: what it did in that time is not yet known.
#[test]
fn a_timer_that_runs_late_waits_once_more_before_it_acts() {
    let nominal = 4096_u64 << 14;
    for (late, sent) in [(nominal / 16, 2), (nominal / 2, 1), (30 * nominal, 1)] {
        let mut pair = Pair::rc();
        pair.recv(1, 5, &[sge(FAR, 64)]).unwrap();
        mute(&mut pair);
        send(&mut pair, 0, 64);
        pair.transmit(0);
        let tick = |pair: &mut Pair, ns: u64| {
            pair.now = pair.now + ns;
            let now = pair.now;
            let side = &mut pair.side[0];
            side.node.on_timeout(now, &mut side.world);
            pair.transmit(0);
            pair.log.len()
        };
        assert_eq!(tick(&mut pair, nominal + late), sent, "late by {late}");
        if sent == 1 {
            let excuse = late.min(nominal);
            assert_eq!(tick(&mut pair, excuse - 1), 1, "as long as it was late");
            assert_eq!(tick(&mut pair, nominal), 2, "once, however late");
            assert_eq!(tick(&mut pair, 3 * nominal), 2, "each retry has its own");
        }
    }
}

#[test]
fn timeout_zero_never_fires() {
    let mut pair = Pair::new(Setup {
        timeout: 0,
        ..Setup::default()
    });
    pair.rule(|_| Fate::Drop);
    pair.post(0, wr(0, SendOp::Send, &[])).unwrap();
    pair.run_until(Instant(1 << 50));
    assert_eq!(pair.log.len(), 1);
    assert_eq!(pair.side[0].node.next_timeout(), None);
}

#[test]
fn progress_reloads_the_retries() {
    // Each message loses its first ACK seven times over: never an eighth in a row.
    let mut pair = Pair::new(Setup {
        retry_cnt: 2,
        ..Setup::default()
    });
    let mut lost: BTreeMap<u32, u32> = BTreeMap::new();
    pair.rule(move |f| {
        let count = lost.entry(f.psn).or_default();
        if f.from == 1 && *count < 2 {
            *count += 1;
            return Fate::Drop;
        }
        Fate::Deliver
    });
    for i in 0..5 {
        write(&mut pair, i, 8);
        pair.run();
    }
    assert!(pair.results(0).iter().all(|(_, status)| *status == OK));
}

#[test]
fn rnr_waits_at_least_the_timer_and_then_delivers() {
    let mut pair = Pair::rc();
    send(&mut pair, 0, 3000);
    pair.run_until(pair.now + 100_000);
    let nak = pair.sent(1, Opcode::RC_ACKNOWLEDGE)[0].clone();
    assert_eq!(nak.syndrome, Some(Syndrome::RnrNak { timer: 12 }));
    assert_eq!((nak.psn, nak.msn), (0x100, 0));
    pair.recv(1, 7, &[sge(FAR, 3000)]).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
    assert_eq!(pair.results(1), [(7, OK)]);
    let firsts = pair.sent(0, Opcode::RC_SEND_FIRST);
    assert_eq!(firsts.len(), 2);
    assert!(
        firsts[1].at.ns_since(nak.at) >= 640_000,
        "code 12 is 0.64 ms"
    );
    assert_eq!(
        pair.side[1].world.counter(Counter::SendRnrErr),
        1,
        "later packets stay silent"
    );
    assert_eq!(pair.side[0].world.counter(Counter::RcvdRnrErr), 1);
}

/// A sender must not take a peer without receives for a path that loses packets.
#[test]
fn what_the_peer_had_no_receive_for_is_sent_again_but_not_lost() {
    let mut pair = Pair::rc();
    send(&mut pair, 0, 3000);
    pair.run_until(pair.now + 100_000);
    pair.recv(1, 7, &[sge(FAR, 3000)]).unwrap();
    pair.run();
    assert!(resent(&pair).count() > 0);
    assert!(resent(&pair).all(|f| !f.lost));
    let before = resent(&pair).count();
    pair.rule(drop_nth(|f| f.is(Opcode::RC_WRITE_ONLY), &[1]));
    write(&mut pair, 1, 8);
    pair.run();
    assert!(resent(&pair).count() > before);
    assert!(
        resent(&pair).skip(before).all(|f| f.lost),
        "a loss after that is one"
    );
}

#[test]
fn rnr_retry_n_allows_n_resends() {
    for rnr_retry in [0, 1, 3] {
        let mut pair = Pair::new(Setup {
            rnr_retry,
            ..Setup::default()
        });
        send(&mut pair, 0, 8);
        pair.run();
        let wc = pair.wcs(0)[0];
        assert_eq!(wc.status, WcStatus::RnrRetryExcErr);
        assert_eq!(wc.vendor_err, Reason::RnrRetryExceeded as u32);
        let sends = pair.sent(0, Opcode::RC_SEND_ONLY).len();
        assert_eq!(sends, 1 + usize::from(rnr_retry));
        assert_eq!(pair.state(1), QpState::Rts, "the responder is not at fault");
    }
}

#[test]
fn rnr_retry_seven_never_gives_up() {
    let mut pair = Pair::new(Setup {
        rnr_retry: 7,
        retry_cnt: 0,
        ..Setup::default()
    });
    send(&mut pair, 0, 8);
    pair.run_until(pair.now + 100_000_000);
    assert!(pair.sent(0, Opcode::RC_SEND_ONLY).len() > 100);
    assert!(pair.wcs(0).is_empty());
    pair.recv(1, 1, &[sge(FAR, 8)]).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
}

#[test]
fn write_with_immediate_without_receive_resends_only_its_last_packet() {
    let mut pair = Pair::rc();
    let op = SendOp::WriteImm {
        remote: remote(FAR),
        imm: [9; 4],
    };
    pair.post(0, wr(0, op, &[sge(START, 5 * 1024)])).unwrap();
    pair.run_until(pair.now + 100_000);
    pair.recv(1, 3, &[]).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
    assert_eq!(pair.wcs(1)[0].byte_len, 5 * 1024);
    let again: Vec<_> = resent(&pair).map(|f| f.opcode).collect();
    assert_eq!(again, [Opcode::RC_WRITE_LAST_IMM]);
}

#[test]
fn a_doubled_nak_costs_one_resend() {
    let mut pair = Pair::new(Setup {
        retry_cnt: 1,
        ..Setup::default()
    });
    let mut lost = false;
    pair.rule(move |f| {
        if f.from == 0 && f.psn == 0x100 && !lost {
            lost = true;
            return Fate::Drop;
        }
        if matches!(f.syndrome, Some(Syndrome::Nak(_))) {
            Fate::Twice
        } else {
            Fate::Deliver
        }
    });
    write(&mut pair, 0, 3000);
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
    assert_eq!(pair.side[0].world.counter(Counter::PacketSeqErr), 2);
    assert_eq!(resent(&pair).count(), 3);
}

#[test]
fn a_nak_for_the_same_place_after_a_timeout_is_heeded() {
    // First try wholly lost; the timer's resend loses its first packet again, which draws the
    // first NAK for that place.
    let mut pair = Pair::rc();
    let mut count = 0;
    pair.rule(move |f| {
        count += usize::from(f.from == 0);
        if f.from == 0 && count <= 4 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    write(&mut pair, 0, 3000);
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
    assert_eq!(pair.side[0].world.counter(Counter::LocalAckTimeoutErr), 1);
}

#[test]
fn reordered_packets_are_recovered_and_every_byte_is_right() {
    let mut pair = Pair::rc();
    let bytes = pair.pattern(0, START, 100 * 1024, 9);
    let mut n = 0;
    pair.rule(move |_| {
        n += 1;
        if n % 17 == 0 {
            Fate::Delay(5000)
        } else {
            Fate::Deliver
        }
    });
    write(&mut pair, 0, 100 * 1024);
    pair.post(
        0,
        wr(
            1,
            SendOp::Read {
                remote: remote(FAR),
            },
            &[sge(START + 0x8_0000, 100 * 1024)],
        ),
    )
    .unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, OK), (1, OK)]);
    assert_eq!(
        pair.side[0].world.peek(KEY, START + 0x8_0000, bytes.len()),
        bytes
    );
}

#[test]
fn duplicates_of_everything_change_nothing() {
    let mut pair = Pair::rc();
    pair.rule(|_| Fate::Twice);
    for i in 0..20 {
        pair.recv(1, 100 + i, &[sge(FAR, 4096)]).unwrap();
        pair.post(0, wr(3 * i, SendOp::Send, &[sge(START, 2500)]))
            .unwrap();
        let add = SendOp::FetchAdd {
            remote: remote(FAR + 0x8_0000),
            add: 1,
        };
        pair.post(0, wr(3 * i + 1, add, &[sge(START + 0x9_0000 + i * 8, 8)]))
            .unwrap();
        let read = SendOp::Read {
            remote: remote(FAR),
        };
        pair.post(0, wr(3 * i + 2, read, &[sge(START + 0xa_0000, 2500)]))
            .unwrap();
    }
    pair.run();
    assert_eq!(
        pair.results(0),
        (0..60).map(|i| (i, OK)).collect::<Vec<_>>()
    );
    assert_eq!(
        pair.results(1),
        (100..120).map(|i| (i, OK)).collect::<Vec<_>>()
    );
    assert_eq!(
        pair.side[1].world.peek(KEY, FAR + 0x8_0000, 8),
        20_u64.to_ne_bytes()
    );
}

#[test]
fn the_story_of_a_recovery_is_noted() {
    let mut pair = Pair::rc();
    pair.rule(drop_nth(|f| f.psn == 0x100, &[1]));
    write(&mut pair, 0, 2000);
    pair.run();
    let kinds = |pair: &Pair, side: usize| {
        pair.side[side]
            .world
            .notes
            .iter()
            .map(|(_, note)| note.kind)
            .filter(|kind| *kind != NoteKind::State)
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(&pair, 0), [NoteKind::SeqNakReceived]);
    assert_eq!(kinds(&pair, 1), [NoteKind::SeqNakSent]);
}

#[test]
fn a_story_ends_with_what_happened_last_and_not_with_the_destruction() {
    let mut pair = Pair::rc();
    for (side, qpn) in pair.side.iter_mut().zip(QPN) {
        let before = side.world.notes.len();
        side.node.destroy_qp(qpn, &mut side.world).unwrap();
        assert_eq!(side.world.notes[before..], []);
    }
}

#[test]
fn sqd_finishes_what_was_begun_keeps_the_rest_and_goes_on() {
    let mut pair = Pair::rc();
    write(&mut pair, 0, 5000);
    pair.transmit(0);
    let notify = rocebud_objects::QpAttr {
        qp_state: QpState::Sqd,
        en_sqd_async_notify: true,
        ..rocebud_objects::QpAttr::default()
    };
    use rocebud_objects::AttrMask as M;
    pair.modify(0, &notify, M::STATE | M::EN_SQD_ASYNC_NOTIFY)
        .unwrap();
    write(&mut pair, 1, 8);
    assert!(pair.side[0].node.query_qp(QPN[0]).unwrap().0.sq_draining);
    assert!(pair.set_state(0, QpState::Rts).is_err(), "still draining");
    pair.run();
    assert_eq!(pair.results(0), [(0, OK)]);
    assert_eq!(pair.events(0, rocebud_objects::EventKind::SqDrained), 1);
    assert!(!pair.side[0].node.query_qp(QPN[0]).unwrap().0.sq_draining);
    pair.set_state(0, QpState::Rts).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(1, OK)]);
}

#[test]
fn a_fatal_nak_with_the_first_psn_of_a_partly_answered_read_is_accepted() {
    let mut pair = Pair::rc();
    pair.pattern(1, FAR, 8192, 1);
    // The peer's region vanishes after two responses; its NAK is rewritten to the READ's first
    // PSN, as the Linux software peer sends it.
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
    let request = pair.log[0].bytes.clone();
    pair.rule(|f| {
        if f.psn < 0x102 {
            Fate::Deliver
        } else {
            Fate::Drop
        }
    });
    pair.run_until(pair.now + 3000);
    let answered = pair.sent(1, Opcode::RC_READ_RESPONSE_FIRST).len();
    assert_eq!(answered, 1);
    drop(request);
    let mut header = rocebud_wire::Header::new(rocebud_wire::Bth::new(
        Opcode::RC_ACKNOWLEDGE,
        QPN[0],
        rocebud_wire::Psn::new(0x100),
    ));
    header.ext.aeth = Some(rocebud_wire::Aeth {
        syndrome: Syndrome::Nak(NakCode::RemoteAccessError),
        msn: 0,
    });
    let mut frame = [0; 20];
    header.emit(0, &mut frame);
    pair.inject(0, &frame);
    assert_eq!(pair.results(0), [(0, WcStatus::RemAccessErr)]);
}

#[test]
fn a_fence_waits_for_reads_and_not_for_writes() {
    let mut pair = Pair::rc();
    let fenced = |id| rocebud_objects::SendWr {
        flags: SendFlags::FENCE,
        ..wr(id, SendOp::Send, &[sge(START, 100)])
    };
    pair.recv(1, 0, &[sge(FAR + 0x8_0000, 100)]).unwrap();
    pair.recv(1, 1, &[sge(FAR + 0x8_0000, 100)]).unwrap();
    write(&mut pair, 0, 100);
    pair.post(0, fenced(1)).unwrap();
    assert_eq!(pair.transmit(0), 2, "the WRITE's ACK is not needed");
    for i in 0..4 {
        pair.post(
            0,
            wr(
                2 + i,
                SendOp::Read {
                    remote: remote(FAR),
                },
                &[sge(START, 100)],
            ),
        )
        .unwrap();
    }
    pair.post(0, fenced(6)).unwrap();
    assert_eq!(pair.transmit(0), 4, "the SEND waits for all READs");
    pair.run();
    assert_eq!(pair.results(0), (0..7).map(|i| (i, OK)).collect::<Vec<_>>());
}
