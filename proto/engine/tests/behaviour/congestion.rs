//! Congestion marks: counted, and told to the sender by notifications, but not too often.

use rocebud_engine::{RxMeta, Transmit, limits};
use rocebud_objects::{Counter, QpState, QpType, SendOp, WcStatus};
use rocebud_wire::Opcode;

use crate::pair::{Fate, KEY, Pair, QPN, START, Setup, Side, gids, remote, sge, wr};

const FAR: u64 = START + 0x10_0000;
const INTERVAL: u64 = limits::CNP_INTERVAL_NS;

fn of_type(qp_type: QpType) -> Pair {
    Pair::new(Setup {
        qp_type,
        ..Setup::default()
    })
}

/// A packet as a switch with a full queue hands it on.
fn marked(pair: &Pair, from: usize) -> RxMeta {
    RxMeta {
        traffic_class: 0b11,
        ..pair.meta(from)
    }
}

/// Everything that a side has to send, with where it goes.
fn sends(pair: &mut Pair, side: usize) -> Vec<(Transmit, Vec<u8>)> {
    let mut buf = vec![0xaa; limits::FRAME_BYTES_MAX];
    let Side { node, world, .. } = &mut pair.side[side];
    let next = || {
        let tx = node.poll_transmit(pair.now, &mut buf, world)?;
        Some((tx, buf[..tx.len].to_vec()))
    };
    std::iter::from_fn(next).collect()
}

/// The notifications among them.
fn cnps(pair: &mut Pair, side: usize) -> Vec<(Transmit, Vec<u8>)> {
    let mut all = sends(pair, side);
    all.retain(|(_, bytes)| bytes[0] == Opcode::CNP.0);
    all
}

fn counted(pair: &Pair, side: usize) -> (u64, u64) {
    let world = &pair.side[side].world;
    let of = |counter| world.counter(counter);
    (of(Counter::NpEcnMarkedRocePackets), of(Counter::NpCnpSent))
}

/// Frames of a write of so many packets, taken from side 0's mouth.
fn write(pair: &mut Pair, packets: u32) -> Vec<Vec<u8>> {
    let op = SendOp::Write {
        remote: remote(FAR),
    };
    pair.post(0, wr(0, op, &[sge(START, packets * 1024)]))
        .unwrap();
    sends(pair, 0).into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn a_mark_is_answered_with_a_notification_like_those_of_nics() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut pair = of_type(qp_type);
        let frames = write(&mut pair, 3);
        pair.inject(1, &frames[0]);
        assert_eq!(cnps(&mut pair, 1), [], "nothing was marked");
        let meta = marked(&pair, 0);
        pair.inject_from(1, &meta, &frames[1]);
        let [(tx, bytes)] = &cnps(&mut pair, 1)[..] else {
            panic!("no notification");
        };
        assert_eq!(bytes[..], rocebud_wire::cnp(QPN[0]));
        // TOS 0xc2, as ConnectX sends it
        assert_eq!((tx.path.traffic_class, tx.path.dgid), (0xc2, gids()[0]));
        assert_eq!((tx.src_qp, tx.dest_qp), (QPN[1], QPN[0]));
        assert_eq!(counted(&pair, 1), (1, 1));
        pair.inject(0, bytes);
        assert_eq!(pair.side[0].world.counter(Counter::RpCnpHandled), 1);
    }
}

#[test]
fn notifications_are_at_least_an_interval_apart_and_each_needs_a_mark() {
    let mut pair = Pair::rc();
    let frames = write(&mut pair, 60);
    let meta = marked(&pair, 0);
    let mut frames = frames.iter();
    let mut batch = |pair: &mut Pair, n: usize| {
        for frame in frames.by_ref().take(n) {
            pair.inject_from(1, &meta, frame);
        }
        cnps(pair, 1).len()
    };
    assert_eq!(batch(&mut pair, 10), 1);
    pair.now = pair.now + (INTERVAL - 1);
    assert_eq!(batch(&mut pair, 10), 0);
    pair.now = pair.now + 1;
    assert_eq!(batch(&mut pair, 0), 0);
    assert_eq!(batch(&mut pair, 10), 1);
    pair.now = pair.now + 100 * INTERVAL;
    assert_eq!(batch(&mut pair, 10), 1);
    assert_eq!(counted(&pair, 1), (40, 3));
}

#[test]
fn marked_answers_are_answered_too() {
    let mut pair = Pair::rc();
    let op = SendOp::Read {
        remote: remote(FAR),
    };
    pair.post(0, wr(0, op, &[sge(START, 2000)])).unwrap();
    let request = sends(&mut pair, 0).remove(0).1;
    pair.inject(1, &request);
    let meta = marked(&pair, 1);
    for (_, response) in sends(&mut pair, 1) {
        pair.inject_from(0, &meta, &response);
    }
    assert_eq!(pair.results(0), [(0, WcStatus::Success)]);
    assert_eq!(cnps(&mut pair, 0).len(), 1);
    assert_eq!(counted(&pair, 0), (2, 1));
}

#[test]
fn repeated_and_early_packets_tell_of_congestion_as_well() {
    let mut pair = Pair::rc();
    let frames = write(&mut pair, 4);
    let meta = marked(&pair, 0);
    pair.inject_from(1, &meta, &frames[2]);
    assert_eq!(cnps(&mut pair, 1).len(), 1);
    pair.now = pair.now + INTERVAL;
    pair.inject(1, &frames[0]);
    pair.inject_from(1, &meta, &frames[0]);
    assert_eq!(cnps(&mut pair, 1).len(), 1);
}

#[test]
fn what_is_no_connection_s_own_data_draws_no_notification() {
    // a marked notification: two congested ends would never stop
    let mut pair = Pair::rc();
    let meta = marked(&pair, 0);
    pair.inject_from(1, &meta, &rocebud_wire::cnp(QPN[1]));
    assert_eq!(cnps(&mut pair, 1), []);
    assert_eq!(counted(&pair, 1), (1, 0));
    // a stranger's
    let frame = write(&mut pair, 1).remove(0);
    let stranger = RxMeta {
        src: gids()[1],
        ..meta
    };
    pair.inject_from(1, &stranger, &frame);
    assert_eq!(cnps(&mut pair, 1), []);
    assert_eq!(counted(&pair, 1), (1, 0));
    // a datagram: there is no connection whose rate could fall
    let mut pair = of_type(QpType::Ud);
    let (meta, to) = (marked(&pair, 0), pair.ud(0));
    let mut send = wr(0, SendOp::Send, &[sge(START, 100)]);
    send.ud = Some(to);
    pair.post(0, send).unwrap();
    let frame = sends(&mut pair, 0).remove(0).1;
    pair.inject_from(1, &meta, &frame);
    assert_eq!(cnps(&mut pair, 1), []);
    assert_eq!(counted(&pair, 1), (1, 0));
}

#[test]
fn a_queue_pair_that_is_no_longer_connected_owes_nothing() {
    for state in [QpState::Err, QpState::Reset] {
        let mut pair = Pair::rc();
        let frame = write(&mut pair, 1).remove(0);
        let meta = marked(&pair, 0);
        pair.inject_from(1, &meta, &frame);
        pair.set_state(1, state).unwrap();
        assert_eq!(cnps(&mut pair, 1), []);
        assert!(pair.side[1].node.qp_idle(QPN[1]));
    }
    // and a new life of it does not wait for the old one's interval
    let mut pair = Pair::rc();
    for _ in 0..2 {
        let frame = write(&mut pair, 1).remove(0);
        let meta = marked(&pair, 0);
        pair.inject_from(1, &meta, &frame);
        assert_eq!(cnps(&mut pair, 1).len(), 1);
        for side in 0..2 {
            pair.set_state(side, QpState::Reset).unwrap();
            pair.connect(side);
        }
    }
}

#[test]
fn marks_on_everything_and_losses_of_notifications_disturb_no_transfer() {
    let mut pair = Pair::rc();
    pair.marks = true;
    let mut n = 0;
    pair.rule(move |frame| {
        n += u32::from(frame.is(Opcode::CNP));
        match frame.is(Opcode::CNP) && n.is_multiple_of(3) {
            true => Fate::Drop,
            false => Fate::Deliver,
        }
    });
    let memory = &mut pair.side[0].world.regions.get_mut(&KEY).unwrap().bytes;
    for (at, byte) in memory.iter_mut().enumerate().take(400_000) {
        *byte = u8::try_from(at * 7 % 251).unwrap();
    }
    for id in 0..4 {
        let (there, back) = (FAR + id * 100_000, START + 0x20_0000 + id * 100_000);
        let op = SendOp::Write {
            remote: remote(there),
        };
        pair.post(0, wr(id, op, &[sge(START + id * 100_000, 100_000)]))
            .unwrap();
        let op = SendOp::Read {
            remote: remote(there),
        };
        pair.post(0, wr(10 + id, op, &[sge(back, 100_000)]))
            .unwrap();
    }
    pair.run();
    let results = pair.results(0);
    assert!(results.iter().all(|(_, s)| *s == WcStatus::Success));
    assert_eq!(results.len(), 8);
    let memory = &pair.side[0].world.regions[&KEY].bytes;
    assert_eq!(memory[..400_000], memory[0x20_0000..0x20_0000 + 400_000]);
    for side in 0..2 {
        assert!(counted(&pair, side).1 > 0, "side {side}");
        assert!(pair.side[side].world.counter(Counter::RpCnpHandled) > 0);
        assert_eq!(pair.side[side].world.counter(Counter::Retransmits), 0);
    }
}
