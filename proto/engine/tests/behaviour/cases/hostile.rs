//! Packets that no honest peer sends: they cost a counter, or end in a defined state.

use rocebud_objects::{Counter, QpState, SendOp};
use rocebud_wire::{Packet, Psn};

use super::{FAR, OK, ping_pong};
use crate::dice::Dice;
use crate::pair::{KEY, Pair, QPN, SIZE, START, remote, sge, wr};

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
