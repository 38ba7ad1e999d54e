//! Any calls in any order, any bytes: nothing panics, and completions stay accounted for.

use std::collections::BTreeSet;

use rocebud_engine::SrqMask;
use rocebud_objects::{
    Access, AttrMask, MwBind, MwType, Payload, QpAttr, QpState, QpType, RecvWr, SendFlags, SendOp,
    SendWr, SrqAttr, SrqId, SrqInit,
};
use rocebud_wire::{Gid, LKey, RKey};

use crate::dice::Dice;
use crate::pair::{CQ, Fate, PD, Pair, QPN, START, Setup, moves, remote, sge, wr};

const SRQ: SrqId = SrqId(3);
const SRQ_ATTR: SrqAttr = SrqAttr {
    max_wr: 32,
    max_sge: 2,
    srq_limit: 0,
};

fn any_request(dice: &mut Dice, id: u64) -> SendWr {
    let far = if dice.below(20) == 0 {
        5
    } else {
        START + 0x10_0000 + dice.below(4096) * 8
    };
    let to = remote(far);
    let op = match dice.below(12) {
        0 => SendOp::Send,
        1 => SendOp::SendImm { imm: [1; 4] },
        2 => SendOp::SendInv {
            rkey: RKey(0x4000 | dice.below(256) as u32),
        },
        3 => SendOp::Write { remote: to },
        4 => SendOp::WriteImm {
            remote: to,
            imm: [2; 4],
        },
        5 => SendOp::Read { remote: to },
        6 => SendOp::CmpSwap {
            remote: to,
            compare: 0,
            swap: 1,
        },
        7 => SendOp::FetchAdd { remote: to, add: 1 },
        8 => SendOp::AtomicWrite { remote: to },
        9 => SendOp::LocalInv {
            rkey: RKey(0x4000 | dice.below(256) as u32),
        },
        10 => SendOp::BindMw {
            bind: MwBind {
                window: RKey(0x4000),
                rkey: RKey(0x4000 | dice.below(256) as u32),
                lkey: LKey(crate::pair::KEY),
                addr: far,
                len: dice.below(9000),
                access: Access::REMOTE_READ,
            },
        },
        _ => SendOp::Read { remote: to },
    };
    let len = [0, 1, 8, 300, 5000, 40_000][dice.below(6) as usize];
    let lkey = if dice.below(30) == 0 {
        1
    } else {
        crate::pair::KEY
    };
    let piece = rocebud_objects::Sge {
        lkey: LKey(lkey),
        ..sge(START, len)
    };
    let mut request = wr(id, op, &[piece]);
    if matches!(op, SendOp::BindMw { .. }) {
        request.payload = wr(id, op, &[]).payload;
    }
    request.flags = SendFlags::from_bits_truncate(dice.below(16) as u32 & 7);
    if dice.below(5) == 0 {
        request.flags |= SendFlags::INLINE;
        request.payload = Payload::Inline(vec![3; len.min(600) as usize].into());
    }
    request
}

fn any_modify(dice: &mut Dice, pair: &mut Pair, side: usize) {
    let (attr, mask) = moves(&pair.setup, side)[dice.below(3) as usize];
    match dice.below(6) {
        0 => {
            let state = QpState::from_verbs(dice.below(7) as u32).unwrap();
            let _ = pair.set_state(side, state);
        }
        1 => {
            let mask = AttrMask::from_bits_truncate(dice.roll() as u32);
            let qp_state = QpState::from_verbs(dice.below(7) as u32).unwrap();
            let _ = pair.modify(side, &QpAttr { qp_state, ..attr }, mask);
        }
        2 => {
            let _ = pair.set_state(side, QpState::Reset);
            let _ = pair.set_state(1 - side, QpState::Reset);
            for step in 0..3 {
                for side in 0..2 {
                    let (attr, mask) = moves(&pair.setup, side)[step];
                    let _ = pair.modify(side, &attr, mask);
                }
            }
        }
        _ => {
            let _ = pair.modify(side, &attr, mask);
        }
    }
}

fn any_frame(dice: &mut Dice, pair: &mut Pair, side: usize) {
    let Some(frame) = pair.log.last().cloned() else {
        return;
    };
    let mut bytes = frame.bytes;
    for _ in 0..dice.below(4) {
        let at = dice.below(bytes.len() as u64) as usize;
        bytes[at] = dice.roll() as u8;
    }
    if dice.below(3) == 0 {
        bytes[0] = dice.below(0x20) as u8 | bytes[0] & 0xe0;
    }
    if dice.below(8) == 0 {
        bytes.truncate(dice.below(bytes.len() as u64 + 1) as usize);
    }
    pair.inject(side, &bytes);
}

fn begin(dice: &mut Dice, qp_type: QpType, seed: u64) -> Pair {
    let srq = (qp_type != QpType::Uc && dice.below(3) == 0).then_some(SRQ);
    let mut setup = Setup {
        qp_type,
        srq,
        sq_psn: 0xff_ff00,
        ..Setup::default()
    };
    setup.cap.max_send_wr = 16;
    setup.cfg.window_packets = 1 + dice.below(40) as u32;
    setup.cfg.peer_window_bytes = dice.below(100_000) as u32;
    setup.cfg.read_chunk_packets = dice.below(20) as u32;
    let mut pair = Pair::bare(setup);
    for side in &mut pair.side {
        side.world.add_window(PD, MwType::Two, 0x4000);
    }
    pair.side[1]
        .node
        .create_srq(
            SRQ,
            SrqInit {
                pd: PD,
                attr: SRQ_ATTR,
                xrc: None,
            },
        )
        .unwrap();
    pair.create(0, QPN[0]);
    pair.create(1, QPN[1]);
    pair.connect(0);
    pair.connect(1);
    let mut luck = Dice(seed ^ 99);
    pair.rule(move |_| match luck.below(12) {
        0 => Fate::Drop,
        1 => Fate::Twice,
        2 => Fate::Delay(luck.below(10_000)),
        _ => Fate::Deliver,
    });
    pair
}

/// One call of any kind; true if it posted request `id` at `side`.
fn any_call(dice: &mut Dice, pair: &mut Pair, side: usize, id: u64) -> bool {
    let has_srq = pair.setup.srq.is_some() && side == 1;
    match dice.below(12) {
        0..4 => {
            let mut request = any_request(dice, id);
            request.ud = Some(pair.ud(side));
            return pair.post(side, request).is_ok();
        }
        4..6 if has_srq => {
            let sges = [sge(START, 5000)].into_iter().collect();
            let _ = pair.side[1]
                .node
                .post_srq_recv(SRQ, RecvWr { wr_id: id, sges });
            let limit = SrqAttr {
                srq_limit: dice.below(40) as u32,
                ..SRQ_ATTR
            };
            let _ = pair.side[1].node.modify_srq(SRQ, &limit, SrqMask(3));
        }
        4..6 => return pair.recv(side, id, &[sge(START, 5000)]).is_ok(),
        6 => any_modify(dice, pair, side),
        7 => any_frame(dice, pair, side),
        8 if dice.below(20) == 0 => {
            let node = &mut pair.side[side].node;
            node.set_peer_window(crate::pair::gids()[1 - side], 2, 5000);
            let _ = node.attach_mcast(QPN[side], Gid::from_v4([239, 0, 0, 1]));
            let _ = node.detach_mcast(QPN[side], Gid::from_v4([239, 0, 0, 1]));
        }
        _ => {
            pair.step();
        }
    }
    false
}

fn one_life(qp_type: QpType, seed: u64) {
    let mut dice = Dice(seed);
    let mut pair = begin(&mut dice, qp_type, seed);
    let mut posted = BTreeSet::new();
    for id in 0..400 {
        let side = dice.below(2) as usize;
        // Before the call: a request that is flushed at once completes inside of it.
        posted.insert((side, id));
        let was_posted = any_call(&mut dice, &mut pair, side, id);
        for at in 0..2 {
            for wc in pair.side[at].world.wcs.remove(&CQ).unwrap_or_default() {
                let known = posted.remove(&(at, wc.wr_id));
                let shared = at == 1 && pair.setup.srq.is_some();
                assert!(known || shared, "seed {seed}: completed twice: {wc:?}");
            }
        }
        if !was_posted {
            posted.remove(&(side, id));
        }
    }
    bury(&mut pair);
}

/// Everything can be destroyed from whatever state, and nothing is left behind.
fn bury(pair: &mut Pair) {
    for (side, qpn) in QPN.into_iter().enumerate() {
        let side = &mut pair.side[side];
        side.node.destroy_qp(qpn, &mut side.world).unwrap();
        assert!(side.node.query_qp(qpn).is_err());
    }
    pair.side[1].node.destroy_srq(SRQ).unwrap();
    for side in &mut pair.side {
        let mut buf = vec![0; rocebud_engine::limits::FRAME_BYTES_MAX];
        assert!(
            side.node
                .poll_transmit(pair.now, &mut buf, &mut side.world)
                .is_none()
        );
        assert!(side.node.quiescent());
    }
}

#[test]
fn any_calls_in_any_order_neither_panic_nor_complete_twice() {
    for seed in 1..=300 {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            one_life(qp_type, seed);
        }
    }
}
