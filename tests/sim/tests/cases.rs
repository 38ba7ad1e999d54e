//! Scenarios written by hand: behaviours that users of RDMA trip over.

use std::collections::BTreeSet;

use rocebud_fabric::{
    Chaos, FaultPlan, IdRule, Ratio, Rng, Sight, Verdict, every_nth, fill, the_nth,
};
use rocebud_objects::{
    Access, AsyncEvent, EventKind, Payload, QpState, Remote, SendFlags, SendOp, Sge, SgeList,
    WcStatus,
};
use rocebud_sim::pair::{Pair, PairConfig};
use rocebud_sim::setup::{ALL_REMOTE, Link};
use rocebud_sim::{EndPlan, HostPlan, LinkPlan, Options, Plan, ReceivePlan, World};
use rocebud_wire::{Ext, LKey, Mtu, Opcode, Operation, Psn, RKey, Reth, Syndrome};

const SUCCESS: WcStatus = WcStatus::Success;
const NONE: SendFlags = SendFlags::empty();

// ---- C005: the PSN wrap in every comparison

fn ten_thousand_mixed_operations(loss_percent: u32) {
    let host = HostPlan {
        id_rule: IdRule::BatchIndex,
        batch_max: 64,
        window_packets: 128,
        read_chunk_packets: 16,
        ack_every_packets: 32,
        quantum_packets: 64,
        window_bytes: [106_496; 2],
        ack_request_every_packets: 16,
        byte_ns_per_1024: 80,
        srq: None,
    };
    let end = |host, budget| EndPlan {
        host,
        budget,
        send_depth: 64,
        sge_max: 3,
        rd_atomic: 16,
        receives: ReceivePlan {
            depth: 64,
            buffer: 256 << 10,
            sge_max: 3,
            ..ReceivePlan::default()
        },
        message_max: 256 << 10,
        target: 1 << 20,
        burst_max: 64,
        first_psn: Some(0x00ff_fff0),
        ..EndPlan::default()
    };
    let link = Link {
        mtu: Mtu::M4096,
        ..Link::default()
    };
    let plan = Plan {
        seed: 5,
        hosts: vec![host.clone(), host],
        links: vec![LinkPlan {
            link,
            ends: [end(0, 5000), end(1, 5000)],
        }],
        datagrams: Vec::new(),
        faults: FaultPlan::loss_percent(loss_percent),
        heals: false,
        latency_ns: 5000,
        weather_ns: 0,
        freeze_ns_max: 0,
        windows: false,
    };
    let done = World::new(plan, Options::default()).and_then(|mut world| world.run());
    match done {
        Ok(report) => assert_eq!((report.done, report.failed), (10_000, 0)),
        Err(violation) => panic!("{violation}"),
    }
}

#[test]
fn c005_ten_thousand_operations_cross_the_psn_wrap() {
    ten_thousand_mixed_operations(0);
}

#[test]
fn c005_ten_thousand_operations_cross_the_psn_wrap_under_loss() {
    ten_thousand_mixed_operations(1);
}

// ---- C006: an ACK beyond an unanswered READ never completes it

fn is_read_response(sight: &Sight<'_>) -> bool {
    sight.packet.info.operation == Operation::ReadResponse
}

/// WRITE, READ of eight packets, WRITE, with some of the first responses lost.
fn read_between_writes(lost: &'static [u64], first_missing: u32) {
    const START: u32 = 0x00ff_fffb;
    let mut pair = Pair::new(PairConfig {
        sq_psn: START,
        ..PairConfig::default()
    });
    pair.fabric
        .add_rule(the_nth(lost, Verdict::Drop, is_read_response));
    let remote = |offset| pair.remote(offset);
    let (first, read, last) = (remote(0), remote(4096), remote(20_000));
    pair.post(1, SendOp::Write { remote: first }, NONE, 0, 100);
    pair.post(2, SendOp::Read { remote: read }, NONE, 30_000, 8 * 1024);
    pair.post(3, SendOp::Write { remote: last }, NONE, 200, 100);
    pair.drive();
    assert_eq!(pair.statuses(0), [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]);
    assert_eq!(pair.bytes(0, 30_000, 8192), pair.bytes(1, 4096, 8192));
    assert_eq!(pair.bytes(1, 0, 100), pair.bytes(0, 0, 100));
    assert_eq!(pair.bytes(1, 20_000, 100), pair.bytes(0, 200, 100));
    let asked: Vec<_> = pair
        .seen()
        .iter()
        .filter(|s| s.bth.opcode == Opcode::RC_READ_REQUEST)
        .map(|s| (s.bth.psn, s.reth))
        .collect();
    let again = Reth {
        va: read.addr + u64::from(first_missing) * 1024,
        rkey: read.rkey,
        dma_len: (8 - first_missing) * 1024,
    };
    let psn = Psn::new(START + 1).add(first_missing);
    assert_eq!(asked.get(1), Some(&(psn, Some(again))), "{asked:x?}");
}

#[test]
fn c006_a_read_whose_first_response_is_lost_starts_again() {
    read_between_writes(&[1], 0);
}

#[test]
fn c006_a_read_resumes_at_its_first_missing_byte() {
    read_between_writes(&[4], 3);
}

#[test]
fn c006_a_read_whose_last_response_is_lost_asks_for_that_alone() {
    read_between_writes(&[8], 7);
}

#[test]
fn c006_a_read_without_any_response_is_not_completed_by_a_later_ack() {
    read_between_writes(&[1, 2, 3, 4, 5, 6, 7, 8], 0);
}

// ---- C007: duplicate atomics replay their result

fn thousand_fetch_adds(mut pair: Pair) {
    pair.set_word(64, 0);
    let (remote, mut posted) = (pair.remote(64), 0_u64);
    while posted < 1000 {
        let room = 64 - (posted - pair.ends[0].done.len() as u64);
        for _ in 0..room.min(1000 - posted) {
            let op = SendOp::FetchAdd { remote, add: 1 };
            pair.post(posted, op, NONE, posted * 8, 8);
            posted += 1;
        }
        let before = pair.ends[0].done.len();
        pair.drive_until(|p| p.ends[0].done.len() > before);
        assert!(pair.ends[0].done.len() > before, "no completion");
    }
    pair.drive();
    let expected: Vec<_> = (0..1000).map(|n| (n, SUCCESS)).collect();
    assert_eq!(pair.statuses(0), expected);
    assert_eq!(pair.word(1, 64), 1000);
    let values: BTreeSet<u64> = (0..1000).map(|n| pair.word(0, n * 8)).collect();
    assert_eq!(values, (0..1000).collect());
}

#[test]
fn c007_every_seventh_atomic_answer_lost_and_no_add_twice() {
    let mut pair = Pair::new(PairConfig::default());
    let start = Psn::new(pair.config.sq_psn);
    let mut newest = -1;
    // The first answer to every seventh operation.
    let rule = move |s: &Sight<'_>, _: &mut Rng| {
        let nth = s.packet.bth.psn.diff(start);
        let answer = s.packet.info.operation == Operation::AtomicAcknowledge;
        if !answer || nth <= newest {
            return Verdict::Pass;
        }
        newest = nth;
        if nth % 7 == 6 {
            Verdict::Drop
        } else {
            Verdict::Pass
        }
    };
    pair.fabric.add_rule(rule);
    thousand_fetch_adds(pair);
}

#[test]
fn c007_no_add_twice_under_loss_both_ways() {
    let mut pair = Pair::new(PairConfig::default());
    pair.fabric
        .add_rule(Chaos::new(FaultPlan::loss_percent(5)).0);
    thousand_fetch_adds(pair);
}

// ---- C039: fences

#[test]
fn c039_a_fenced_send_carries_what_the_reads_before_it_fetched() {
    let mut pair = Pair::new(PairConfig::default());
    let slow = Verdict::Deliver { delay_ns: 900_000 };
    pair.fabric.add_rule(every_nth(1, slow, is_read_response));
    for n in 0..4 {
        let remote = pair.remote(n * 3000);
        pair.post(n, SendOp::Read { remote }, NONE, 20_000 + n * 3000, 3000);
    }
    pair.post_recv(1, 0, 100, 40_000, 12_000);
    pair.post(4, SendOp::Send, SendFlags::FENCE, 20_000, 12_000);
    pair.drive();
    let expected: Vec<_> = (0..5).map(|n| (n, SUCCESS)).collect();
    assert_eq!(pair.statuses(0), expected);
    assert_eq!(pair.statuses(1), [(100, SUCCESS)]);
    assert_eq!(pair.bytes(1, 40_000, 12_000), pair.bytes(1, 0, 12_000));
}

#[test]
fn c039_a_fence_does_not_wait_for_the_ack_of_a_write() {
    let mut pair = Pair::new(PairConfig::default());
    let answer = |s: &Sight<'_>| s.packet.bth.opcode == Opcode::RC_ACKNOWLEDGE;
    let late = Verdict::Deliver {
        delay_ns: 5_000_000,
    };
    pair.fabric.add_rule(every_nth(1, late, answer));
    let remote = pair.remote(0);
    pair.post_recv(1, 0, 100, 40_000, 100);
    pair.post(1, SendOp::Write { remote }, NONE, 0, 100);
    pair.post(2, SendOp::Send, SendFlags::FENCE, 0, 100);
    pair.drive();
    let send = |s: &&rocebud_sim::pair::Seen| s.bth.opcode == Opcode::RC_SEND_ONLY;
    let sent = pair.seen().iter().find(send).map(|s| s.at.0);
    assert!(sent.is_some_and(|at| at < 1_000_000), "{sent:?}");
    assert_eq!(pair.statuses(0), [(1, SUCCESS), (2, SUCCESS)]);
}

#[test]
fn c039_local_invalidate_waits_for_the_read_that_uses_its_key() {
    let mut pair = Pair::new(PairConfig::default());
    let slow = Verdict::Deliver { delay_ns: 900_000 };
    pair.fabric.add_rule(every_nth(1, slow, is_read_response));
    let region = pair.ends[0].region;
    let memory = &mut pair.fabric.host_mut(pair.ends[0].host).env.memory;
    let pd = rocebud_objects::PdId(1);
    let key = memory.register_window(pd, region, Access::LOCAL_WRITE, None);
    let sink = |len| {
        let mut sges = SgeList::new();
        sges.push(Sge {
            addr: region.addr + 8192,
            length: len,
            lkey: LKey(key),
        });
        Payload::Sges(sges)
    };
    let (op, flags) = (
        SendOp::Read {
            remote: pair.remote(0),
        },
        SendFlags::SIGNALED,
    );
    let empty = Payload::Sges(SgeList::new());
    let inv = SendOp::LocalInv { rkey: RKey(key) };
    assert_eq!(pair.try_post(0, 0, 1, op, flags, sink(5000)), Ok(()));
    assert_eq!(pair.try_post(0, 0, 2, inv, flags, empty), Ok(()));
    let op = SendOp::Send;
    assert_eq!(pair.try_post(0, 0, 3, op, flags, sink(10)), Ok(()));
    pair.drive();
    assert_eq!(
        pair.statuses(0),
        [(1, SUCCESS), (2, SUCCESS), (3, WcStatus::LocProtErr)]
    );
    assert_eq!(pair.bytes(0, 8192, 5000), pair.bytes(1, 0, 5000));
}

// ---- C042: atomics are exact, aligned, and refused cleanly otherwise

/// An atomic that must be refused: at the post, or by the responder with one of `statuses`.
fn refused_atomic(mut pair: Pair, offset: u64, statuses: &[WcStatus]) {
    let before = pair.bytes(1, 0, 64).to_vec();
    let remote = pair.remote(offset);
    for op in [
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CmpSwap {
            remote,
            compare: pair.word(1, 0),
            swap: 7,
        },
    ] {
        let payload = pair.local(0, 0, 8);
        if let Err(why) = pair.try_post(0, 0, 1, op, SendFlags::SIGNALED, payload) {
            assert_eq!(why.errno, rocebud_objects::Errno::EINVAL, "{why}");
        }
        pair.drive();
    }
    assert_eq!(pair.bytes(1, 0, 64), before);
    let first = pair.statuses(0).first().map(|s| s.1);
    assert!(first.is_none_or(|s| statuses.contains(&s)), "{first:?}");
}

#[test]
fn c042_misaligned_atomics_are_refused_and_change_nothing() {
    for offset in [1, 4, 7] {
        let pair = Pair::new(PairConfig::default());
        refused_atomic(pair, offset, &[WcStatus::RemInvReqErr]);
    }
}

#[test]
fn c042_the_responder_itself_refuses_misaligned_atomics() {
    let mut pair = Pair::new(PairConfig::default());
    let before = pair.bytes(1, 0, 64).to_vec();
    let remote = pair.remote(4);
    let ext = Ext {
        atomic_eth: Some(rocebud_wire::AtomicEth {
            va: remote.addr,
            rkey: remote.rkey,
            swap_add: 1,
            compare: 0,
        }),
        ..Ext::NONE
    };
    let psn = Psn::new(pair.config.sq_psn);
    pair.inject(Opcode::RC_FETCH_ADD, psn, true, ext, &[]);
    pair.drive_until(|p| !p.ends[1].events.is_empty());
    assert_eq!(pair.bytes(1, 0, 64), before);
    let qpn = pair.ends[1].qpns[0];
    let state = pair.fabric.host(pair.ends[1].host).node.qp_state(qpn);
    assert_eq!(state, Some(QpState::Err));
}

#[test]
fn c042_atomics_without_permission_are_refused_and_change_nothing() {
    let refused = [WcStatus::RemInvReqErr, WcStatus::RemAccessErr];
    let pair = Pair::new(PairConfig {
        access: ALL_REMOTE - Access::REMOTE_ATOMIC,
        ..PairConfig::default()
    });
    refused_atomic(pair, 0, &refused);
    let pair = Pair::new(PairConfig {
        max_dest_rd_atomic: 0,
        ..PairConfig::default()
    });
    refused_atomic(pair, 0, &refused);
}

#[test]
fn c042_four_queue_pairs_add_to_one_word_exactly() {
    const EACH: u64 = 1000;
    let mut pair = Pair::new(PairConfig {
        qps: 4,
        send_depth: 1000,
        ..PairConfig::default()
    });
    pair.fabric
        .add_rule(Chaos::new(FaultPlan::loss_percent(2)).0);
    pair.set_word(0, 0);
    let op = SendOp::FetchAdd {
        remote: pair.remote(0),
        add: 1,
    };
    for n in 0..EACH {
        for qp in 0..4 {
            let payload = pair.local(0, (n * 4 + qp as u64) * 8, 8);
            let posted = pair.try_post(0, qp, n, op, SendFlags::SIGNALED, payload);
            assert_eq!(posted, Ok(()));
        }
    }
    pair.drive();
    assert!(pair.statuses(0).iter().all(|s| s.1 == SUCCESS));
    assert_eq!(pair.word(1, 0), 4 * EACH);
    let values: BTreeSet<u64> = (0..4 * EACH).map(|n| pair.word(0, n * 8)).collect();
    assert_eq!(values, (0..4 * EACH).collect());
}

// ---- C054: no address and length reach outside a region

/// Ranges that leave the region [start, start + len), some by wrapping.
fn bad_ranges(start: u64, len: u64) -> Vec<(u64, u32)> {
    vec![
        (u64::MAX - 1023, 1024),
        (start - 1, 2),
        (start + len - 1, 2),
        (start, u32::MAX),
        (1 << 63, 1 << 31),
        (start + 1, len as u32),
        (u64::MAX, 1),
        (0, 1),
    ]
}

#[test]
fn c054_no_remote_range_reaches_outside_its_region() {
    let shape = Pair::new(PairConfig::default()).ends[1].region;
    for (va, len) in bad_ranges(shape.addr, shape.len) {
        for opcode in [Opcode::RC_WRITE_ONLY, Opcode::RC_READ_REQUEST] {
            let mut pair = Pair::new(PairConfig::default());
            let before = pair.bytes(1, 0, shape.len).to_vec();
            let reth = Reth {
                va,
                rkey: pair.remote(0).rkey,
                dma_len: len,
            };
            let ext = Ext {
                reth: Some(reth),
                ..Ext::NONE
            };
            // What a WRITE announces beyond its packet never follows.
            let first = len > 1024;
            let (opcode, payload) = match opcode {
                Opcode::RC_READ_REQUEST => (opcode, vec![]),
                _ if first => (Opcode::RC_WRITE_FIRST, vec![0xee; 1024]),
                _ => (opcode, vec![0xee; len as usize]),
            };
            let psn = Psn::new(pair.config.sq_psn);
            pair.inject(opcode, psn, true, ext, &payload);
            pair.drive();
            let what = format!("{opcode} {va:#x} {len:#x}");
            assert_eq!(pair.bytes(1, 0, shape.len), before, "{what}");
            let nak = pair.seen().iter().find_map(|s| s.syndrome);
            assert!(matches!(nak, Some(Syndrome::Nak(_))), "{what}: {nak:?}");
            let data = |s: &rocebud_sim::pair::Seen| {
                s.bth.opcode.info().map(|i| i.operation) == Some(Operation::ReadResponse)
            };
            assert!(!pair.seen().iter().any(data), "{what}: data went out");
        }
    }
}

#[test]
fn c054_no_local_range_reaches_outside_its_region() {
    let shape = Pair::new(PairConfig::default()).ends[0].region;
    for (addr, len) in bad_ranges(shape.addr, shape.len) {
        let mut pair = Pair::new(PairConfig {
            region: shape.len,
            ..PairConfig::default()
        });
        let before = [0, 1].map(|side| pair.bytes(side, 0, shape.len).to_vec());
        for op in [
            SendOp::Write {
                remote: pair.remote(0),
            },
            SendOp::Read {
                remote: pair.remote(0),
            },
        ] {
            let mut sges = SgeList::new();
            let lkey = LKey(pair.ends[0].key);
            sges.push(Sge {
                addr,
                length: len,
                lkey,
            });
            // Over the longest message: refused at the post, which is as good.
            let flags = SendFlags::SIGNALED;
            let _ = pair.try_post(0, 0, 1, op, flags, Payload::Sges(sges));
            pair.drive();
        }
        let after = [0, 1].map(|side| pair.bytes(side, 0, shape.len).to_vec());
        assert_eq!(after, before, "{addr:#x} {len:#x}");
        assert!(pair.statuses(0).iter().all(|s| s.1 != SUCCESS));
    }
}

#[test]
fn c054_a_repeated_read_that_asks_for_more_is_not_served() {
    for (va, len) in [(8_i64, 2048), (-8, 1024), (0, 4096), (4096, 1024)] {
        let mut pair = Pair::new(PairConfig::default());
        let remote = pair.remote(1024);
        let psn = Psn::new(pair.config.sq_psn);
        let ask = |va: u64, dma_len| Ext {
            reth: Some(Reth {
                va,
                rkey: remote.rkey,
                dma_len,
            }),
            ..Ext::NONE
        };
        let first = ask(remote.addr, 2048);
        pair.inject(Opcode::RC_READ_REQUEST, psn, true, first, &[]);
        pair.drive();
        let answered = pair.seen().len();
        assert_eq!(answered, 2, "the READ itself");
        let changed = ask(remote.addr.wrapping_add_signed(va), len);
        pair.inject(Opcode::RC_READ_REQUEST, psn, true, changed, &[]);
        pair.drive();
        assert_eq!(pair.seen().len(), answered, "{va} {len}");
        // The same again is served.
        pair.inject(Opcode::RC_READ_REQUEST, psn, true, first, &[]);
        pair.drive();
        assert_eq!(pair.seen().len(), answered + 2);
    }
}

// ---- giving up

#[test]
fn a_dead_peer_is_reported_after_seven_retries_and_the_rest_is_flushed() {
    let mut pair = Pair::new(PairConfig::default());
    let rule = |_: &Sight<'_>, _: &mut Rng| Verdict::Drop;
    pair.fabric.add_rule(rule);
    let remote = pair.remote(0);
    pair.post(1, SendOp::Write { remote }, NONE, 0, 100);
    pair.post(2, SendOp::Read { remote }, NONE, 200, 100);
    pair.drive();
    assert_eq!(
        pair.statuses(0),
        [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]
    );
    let write = |s: &&rocebud_sim::pair::Seen| s.bth.opcode == Opcode::RC_WRITE_ONLY;
    assert_eq!(pair.seen().iter().filter(write).count(), 8);
    // Eight timeouts of T to 4T at timeout 14.
    let timeout = 4096 << 14;
    let took = pair.fabric.now().0;
    assert!((8 * timeout..32 * timeout).contains(&took), "{took}");
}

#[test]
fn rnr_retries_are_counted_exactly() {
    let mut pair = Pair::new(PairConfig {
        link: Link {
            rnr_retry: 3,
            ..Link::default()
        },
        ..PairConfig::default()
    });
    pair.post(1, SendOp::Send, NONE, 0, 100);
    pair.drive();
    assert_eq!(pair.statuses(0), [(1, WcStatus::RnrRetryExcErr)]);
    let rnr = |s: &&rocebud_sim::pair::Seen| matches!(s.syndrome, Some(Syndrome::RnrNak { .. }));
    assert_eq!(pair.seen().iter().filter(rnr).count(), 4);
}

#[test]
fn a_receive_posted_late_gets_the_message_once() {
    let mut pair = Pair::new(PairConfig::default());
    pair.fabric.add_rule(
        Chaos::new(FaultPlan {
            drop: Ratio::percent(5),
            duplicate: Ratio::percent(5),
            delay_ns_max: 100_000,
            ..FaultPlan::QUIET
        })
        .0,
    );
    pair.post(1, SendOp::Send, NONE, 0, 5000);
    pair.drive_until(|p| p.fabric.now().0 > 20_000_000);
    assert_eq!(pair.statuses(0), []);
    pair.post_recv(1, 0, 100, 10_000, 5000);
    pair.post_recv(1, 0, 101, 20_000, 5000);
    pair.drive();
    assert_eq!(pair.statuses(0), [(1, SUCCESS)]);
    assert_eq!(pair.statuses(1), [(100, SUCCESS)]);
    assert_eq!(pair.bytes(1, 10_000, 5000), pair.bytes(0, 0, 5000));
    let mut untouched = vec![0; 5000];
    fill(1, 20_000, &mut untouched);
    assert_eq!(pair.bytes(1, 20_000, 5000), untouched);
}

#[test]
fn a_remote_address_beside_the_region_is_refused() {
    let mut pair = Pair::new(PairConfig::default());
    let Remote { addr, rkey } = pair.remote(pair.config.region - 50);
    let before = pair.bytes(1, 0, pair.config.region).to_vec();
    let op = SendOp::Write {
        remote: Remote { addr, rkey },
    };
    pair.post(1, op, NONE, 0, 51);
    pair.drive();
    assert_eq!(pair.statuses(0), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(pair.bytes(1, 0, pair.config.region), before);
}

#[test]
fn a_completion_queue_that_overruns_takes_its_queue_pairs_down_and_loses_nothing_silently() {
    let mut pair = Pair::new(PairConfig {
        cqe: 3,
        ..PairConfig::default()
    });
    for n in 0..4 {
        let remote = pair.remote(0);
        pair.post(n, SendOp::Write { remote }, NONE, 0, 10);
    }
    // Nobody polls meanwhile.
    while pair.fabric.step(&mut ()) != rocebud_fabric::Step::Idle {}
    pair.collect();
    let expected: Vec<_> = (0..3).map(|n| (n, SUCCESS)).collect();
    assert_eq!(pair.statuses(0), expected);
    let qpn = pair.ends[0].qpns[0];
    let state = pair.fabric.host(pair.ends[0].host).node.qp_state(qpn);
    assert_eq!(state, Some(QpState::Err));
    let kind = EventKind::QpFatal;
    let fatal = |e: &&AsyncEvent| **e == AsyncEvent::Qp { qpn, kind };
    assert_eq!(pair.ends[0].events.iter().filter(fatal).count(), 1);
}
