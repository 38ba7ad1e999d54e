//! Reset, errors in the middle, and the events of shared receive queues.

use std::cell::Cell;
use std::rc::Rc;

use rocebud_engine::SrqMask;
use rocebud_objects::{
    EventKind, QpAttr, QpState, RecvWr, SendOp, SrqAttr, SrqId, SrqInit, WcStatus,
};
use rocebud_wire::RKey;

use super::{FAR, OK, ping_pong};
use crate::pair::{Fate, PD, Pair, QPN, START, Setup, remote, sge, wr};

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
