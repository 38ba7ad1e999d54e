//! `modify_qp`: the whole table of moves, and its value checks.

use std::fmt::Write;

use rocebud_engine::state;
use rocebud_objects::{AttrMask, Misuse, QpAttr, QpState, QpType};
use rocebud_wire::Mtu;

use crate::pair::{Pair, QPN, START, Setup, moves, sge, wr};
use rocebud_objects::SendOp;

const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];
const TYPES: [QpType; 5] = [
    QpType::Rc,
    QpType::Uc,
    QpType::Ud,
    QpType::XrcSend,
    QpType::XrcRecv,
];

/// A side-0 queue pair of `qp_type` in `state`.
fn in_state(qp_type: QpType, state: QpState) -> Option<Pair> {
    let mut pair = Pair::bare(Setup {
        qp_type,
        ..Setup::default()
    });
    pair.create(0, QPN[0]);
    let steps = match state {
        QpState::Reset => 0,
        QpState::Init | QpState::Err => 1,
        QpState::Rtr => 2,
        QpState::Rts | QpState::Sqd | QpState::Sqe => 3,
    };
    for (attr, mask) in &moves(&pair.setup, 0)[..steps] {
        pair.modify(0, attr, *mask).unwrap();
    }
    match state {
        QpState::Sqd | QpState::Err => pair.set_state(0, state).unwrap(),
        QpState::Sqe if qp_type.is_reliable() => return None,
        QpState::Sqe => {
            let bad = rocebud_objects::Sge {
                lkey: rocebud_wire::LKey(1),
                ..sge(START, 1)
            };
            let mut request = wr(0, SendOp::Send, &[bad]);
            request.ud = Some(pair.ud(0));
            pair.post(0, request).unwrap();
            pair.run();
        }
        _ => {}
    }
    assert_eq!(pair.state(0), state);
    Some(pair)
}

fn values(qp_state: QpState) -> QpAttr {
    QpAttr {
        qp_state,
        ..moves(&Setup::default(), 0)[2].0
    }
}

fn attempt(qp_type: QpType, from: QpState, to: QpState, mask: AttrMask) -> Result<(), Misuse> {
    let mut pair = in_state(qp_type, from).unwrap();
    let attr = QpAttr {
        cur_qp_state: from,
        ..values(to)
    };
    let done = pair.modify(0, &attr, mask | AttrMask::STATE);
    let expected = if done.is_ok() { to } else { from };
    assert_eq!(pair.state(0), expected);
    done
}

/// Every state, every target, every attribute: what the engine does, not what its table says.
fn matrix() -> String {
    let mut text = String::new();
    for qp_type in TYPES {
        writeln!(text, "{qp_type:?}").unwrap();
        for from in STATES {
            if in_state(qp_type, from).is_none() {
                writeln!(text, "  {from:?}: not reached").unwrap();
                continue;
            }
            for to in STATES {
                let line = describe(qp_type, from, to);
                writeln!(text, "  {from:?} -> {to:?}: {line}").unwrap();
            }
        }
    }
    text
}

fn describe(qp_type: QpType, from: QpState, to: QpState) -> String {
    // The required set is what cannot be left out of the largest mask that works.
    let bits: Vec<AttrMask> = AttrMask::all()
        .iter()
        .filter(|b| *b != AttrMask::STATE)
        .collect();
    let table = state::find_move(qp_type, from, to);
    let Some(found) = table else {
        let everything = attempt(qp_type, from, to, AttrMask::empty());
        assert!(everything.is_err());
        return "refused".into();
    };
    let full = found.must | (found.may - AttrMask::ALT_PATH);
    attempt(qp_type, from, to, full).unwrap();
    let mut must = Vec::new();
    let mut may = Vec::new();
    for bit in bits {
        let name = bit.iter_names().next().unwrap().0;
        let without = attempt(qp_type, from, to, full - bit).is_ok();
        let with = attempt(qp_type, from, to, full | bit).is_ok();
        if !without {
            must.push(name);
        } else if with {
            may.push(name);
        }
    }
    format!("must [{}] may [{}]", must.join(" "), may.join(" "))
}

#[test]
fn the_matrix_of_states_and_attributes_is_as_recorded() {
    let now = matrix();
    let recorded = include_str!("moves.txt");
    if now != recorded {
        let path = std::env::temp_dir().join("rocebud-moves.txt");
        std::fs::write(&path, &now).unwrap();
        panic!(
            "differs from tests/behaviour/moves.txt; the new one is {}",
            path.display()
        );
    }
}

#[test]
fn no_move_takes_an_unlisted_attribute_or_leaves_the_state_out_wrongly() {
    // Without STATE a mask is looked up as X to X.
    let mut pair = in_state(QpType::Rc, QpState::Rts).unwrap();
    pair.modify(0, &values(QpState::Rts), AttrMask::MIN_RNR_TIMER)
        .unwrap();
    assert!(
        pair.modify(0, &values(QpState::Rts), AttrMask::TIMEOUT)
            .is_err()
    );
    let mut pair = in_state(QpType::Rc, QpState::Err).unwrap();
    assert!(
        pair.modify(0, &values(QpState::Err), AttrMask::MIN_RNR_TIMER)
            .is_err()
    );
}

#[test]
fn values_out_of_range_are_refused_and_change_nothing() {
    type M = AttrMask;
    let check = |from, step: usize, change: fn(&mut QpAttr)| {
        let mut pair = in_state(QpType::Rc, from).unwrap();
        pair.side[0].node.set_port_mtu(QPN[0], Mtu::M2048).unwrap();
        let before = pair.side[0].node.query_qp(QPN[0]).unwrap().0;
        let (mut attr, mask) = moves(&Setup::default(), 0)[step];
        change(&mut attr);
        assert!(pair.modify(0, &attr, mask).is_err());
        assert_eq!(pair.side[0].node.query_qp(QPN[0]).unwrap().0, before);
    };
    check(QpState::Reset, 0, |a| a.port_num = 0);
    check(QpState::Reset, 0, |a| a.port_num = 2);
    check(QpState::Reset, 0, |a| a.pkey_index = 1);
    check(QpState::Init, 1, |a| a.path_mtu = Mtu::M4096);
    check(QpState::Init, 1, |a| a.max_dest_rd_atomic = 129);
    check(QpState::Init, 1, |a| a.ah_attr.is_global = false);
    check(QpState::Init, 1, |a| a.ah_attr.port_num = 3);
    check(QpState::Rtr, 2, |a| a.max_rd_atomic = 129);
    check(QpState::Rtr, 2, |a| a.timeout = 32);
    let mut pair = in_state(QpType::Rc, QpState::Rts).unwrap();
    assert!(
        pair.modify(0, &values(QpState::Rts), M::STATE | M::ALT_PATH)
            .is_err()
    );
}

#[test]
fn cur_qp_state_replaces_the_state_in_the_look_up_only_where_it_can_be_true() {
    type M = AttrMask;
    let mut pair = in_state(QpType::Rc, QpState::Rts).unwrap();
    let cur = |c| QpAttr {
        cur_qp_state: c,
        ..values(QpState::Rts)
    };
    pair.modify(0, &cur(QpState::Rts), M::STATE | M::CUR_STATE)
        .unwrap();
    assert!(
        pair.modify(0, &cur(QpState::Reset), M::STATE | M::CUR_STATE)
            .is_err()
    );
    let mut pair = in_state(QpType::Rc, QpState::Init).unwrap();
    assert!(
        pair.modify(0, &cur(QpState::Rts), M::STATE | M::CUR_STATE)
            .is_err()
    );
}

#[test]
fn duties_follow_the_state() {
    // The ends of XRC have one queue or none: `xrc.rs` tells.
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for from in STATES {
            let Some(mut pair) = in_state(qp_type, from) else {
                continue;
            };
            let duties = state::duties(from);
            let mut request = wr(1, SendOp::Send, &[]);
            request.ud = Some(pair.ud(0));
            assert_eq!(pair.recv(0, 2, &[]).is_ok(), duties.post_recv, "{from:?}");
            assert_eq!(pair.post(0, request).is_ok(), duties.post_send, "{from:?}");
            let flushed = |id| {
                pair.side[0]
                    .world
                    .wcs
                    .values()
                    .flatten()
                    .any(|wc| wc.wr_id == id)
            };
            assert_eq!(flushed(1), duties.flush_sends, "{from:?}");
            assert_eq!(flushed(2), duties.flush_recvs, "{from:?}");
        }
    }
}

/// A program may say that its queue pair is in another state than it is, and so try to start the
/// send queue anew under traffic: what is in flight would never be given back to the windows.
#[test]
fn the_first_psn_stays_while_requests_are_under_way() {
    type M = AttrMask;
    let far = crate::pair::remote(START + 0x10_0000);
    for op in [SendOp::Read { remote: far }, SendOp::Write { remote: far }] {
        let mut pair = Pair::rc();
        pair.post(0, wr(0, op, &[sge(START, 5000)])).unwrap();
        let until = pair.now + 500;
        pair.run_until(until);
        let [_, _, (mut attr, mask)] = moves(&pair.setup, 0);
        attr.cur_qp_state = QpState::Rtr;
        attr.sq_psn = rocebud_wire::Psn::new(0x777);
        assert!(pair.modify(0, &attr, mask | M::CUR_STATE).is_err());
        pair.run();
        pair.post(0, wr(1, op, &[sge(START, 5000)])).unwrap();
        pair.run();
        let ok = rocebud_objects::WcStatus::Success;
        assert_eq!(pair.results(0), [(0, ok), (1, ok)]);
        // With nothing under way it starts anew, which a peer that does the same understands.
        pair.modify(0, &attr, mask | M::CUR_STATE).unwrap();
        pair.post(0, wr(2, op, &[sge(START, 5000)])).unwrap();
        pair.run();
        let ended: Vec<u64> = pair.results(0).iter().map(|r| r.0).collect();
        assert_eq!(ended, [2]);
        assert_eq!(pair.side[0].node.charged(), (0, 0));
    }
}
