//! Memory windows: binds and invalidations take their turn, and count for the peer.

use rocebud_engine::Reason;
use rocebud_objects::{
    Access, Misuse, MwBind, MwType, PdId, QpState, QpType, Remote, SendFlags, SendOp, SendWr, Wc,
    WcFlags, WcOpcode, WcStatus,
};
use rocebud_wire::{LKey, Opcode, RKey};

use crate::pair::{Fate, KEY, PD, Pair, QPN, START, Setup, region, remote, sge, wr};

const FAR: u64 = START + 0x10_0000;
const OK: WcStatus = WcStatus::Success;
/// Key of the window, low byte 0.
const MW: u32 = 0x4000;
/// Key of the region behind windows, which grants the peer nothing.
const LKEY: u32 = 0x500;

fn with_window(setup: Setup, side: usize, mw_type: MwType) -> Pair {
    let mut pair = Pair::new(setup);
    let world = &mut pair.side[side].world;
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    world.regions.insert(LKEY, region(access));
    world.add_window(PD, mw_type, MW);
    pair
}

fn bind(key_byte: u32) -> MwBind {
    MwBind {
        window: RKey(MW),
        rkey: RKey(MW | key_byte),
        lkey: LKey(LKEY),
        addr: FAR,
        len: 0x1000,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
    }
}

fn bind_wr(wr_id: u64, bind: MwBind) -> SendWr {
    wr(wr_id, SendOp::BindMw { bind }, &[])
}

fn through(rkey: u32, addr: u64) -> Remote {
    let rkey = RKey(rkey);
    Remote { addr, rkey }
}

fn write_wr(wr_id: u64, remote: Remote, len: u32) -> SendWr {
    wr(wr_id, SendOp::Write { remote }, &[sge(START, len)])
}

fn reset(pair: &mut Pair) {
    for side in 0..2 {
        pair.set_state(side, QpState::Reset).unwrap();
    }
    for side in 0..2 {
        pair.connect(side);
    }
}

#[test]
fn a_window_opens_its_range_and_nothing_else() {
    for mw_type in [MwType::One, MwType::Two] {
        let mut pair = with_window(Setup::default(), 1, mw_type);
        pair.post(1, bind_wr(0, bind(1))).unwrap();
        pair.run();
        let wc = pair.wcs(1)[0];
        assert_eq!((wc.status, wc.opcode), (OK, WcOpcode::BindMw));
        let bytes = pair.pattern(0, START, 3000, 4);
        pair.post(0, write_wr(1, through(MW | 1, FAR + 0x1000 - 3000), 3000))
            .unwrap();
        pair.run();
        assert_eq!(pair.results(0), [(1, OK)]);
        let placed = pair.side[1].world.peek(LKEY, FAR + 0x1000 - 3000, 3000);
        assert_eq!(placed, bytes);
        let refused = [
            through(MW | 1, FAR - 1),
            through(MW | 1, FAR + 0x1000 - 1),
            through(MW, FAR),
            through(MW | 2, FAR),
            through(LKEY, FAR),
        ];
        for target in refused {
            pair.post(0, write_wr(2, target, 2)).unwrap();
            pair.run();
            assert_eq!(pair.results(0), [(2, WcStatus::RemAccessErr)], "{target:?}");
            reset(&mut pair);
            if mw_type == MwType::Two {
                assert!(!pair.side[1].world.is_bound(MW), "RESET releases it");
                pair.post(1, bind_wr(0, bind(1))).unwrap();
                pair.run();
            }
            pair.wcs(1);
        }
    }
}

#[test]
fn a_bind_is_in_force_before_what_is_posted_behind_it() {
    // Each side opens a window and tells the other in the same breath.
    let mut pair = with_window(Setup::default(), 1, MwType::Two);
    pair.recv(0, 9, &[sge(START, 100)]).unwrap();
    pair.post(1, bind_wr(0, bind(7))).unwrap();
    pair.post(1, wr(1, SendOp::Send, &[])).unwrap();
    while pair.side[0].world.wcs.is_empty() {
        assert!(pair.step());
    }
    pair.post(0, write_wr(2, through(MW | 7, FAR), 8)).unwrap();
    pair.run();
    assert_eq!(pair.results(1), [(0, OK), (1, OK)]);
    assert_eq!(pair.results(0), [(9, OK), (2, OK)]);
}

#[test]
fn a_bind_holds_up_nothing_and_completes_in_its_turn() {
    let mut pair = with_window(Setup::default(), 0, MwType::Two);
    pair.post(0, write_wr(0, remote(FAR), 2000)).unwrap();
    pair.post(0, bind_wr(1, bind(1))).unwrap();
    pair.post(0, write_wr(2, remote(FAR), 2000)).unwrap();
    pair.transmit(0);
    assert_eq!(pair.sent(0, Opcode::RC_WRITE_LAST).len(), 2);
    assert!(pair.side[0].world.is_bound(MW));
    assert_eq!(pair.results(0), [], "the first WRITE is not acknowledged");
    pair.run();
    assert_eq!(pair.results(0), [(0, OK), (1, OK), (2, OK)]);
}

#[test]
fn losses_do_not_repeat_a_bind() {
    let mut pair = with_window(Setup::default(), 0, MwType::Two);
    let mut n = 0;
    pair.rule(move |f| {
        n += u32::from(f.from == 0);
        if f.from == 0 && n <= 3 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.post(0, write_wr(0, remote(FAR), 2000)).unwrap();
    pair.post(0, bind_wr(1, bind(1))).unwrap();
    pair.post(0, wr(2, SendOp::LocalInv { rkey: RKey(MW | 1) }, &[]))
        .unwrap();
    pair.post(0, bind_wr(3, bind(2))).unwrap();
    pair.post(0, write_wr(4, remote(FAR), 2000)).unwrap();
    pair.run();
    let results = pair.results(0);
    assert_eq!(results, (0..5).map(|i| (i, OK)).collect::<Vec<_>>());
}

#[test]
fn a_fenced_bind_waits_for_the_read_before_it() {
    let mut pair = with_window(Setup::default(), 0, MwType::Two);
    let read = SendOp::Read {
        remote: remote(FAR),
    };
    pair.post(0, wr(0, read, &[sge(START, 5000)])).unwrap();
    let fenced = SendWr {
        flags: SendFlags::FENCE,
        ..bind_wr(1, bind(1))
    };
    pair.post(0, fenced).unwrap();
    pair.transmit(0);
    assert!(!pair.side[0].world.is_bound(MW));
    pair.run();
    assert!(pair.side[0].world.is_bound(MW));
    assert_eq!(pair.results(0), [(0, OK), (1, OK)]);
}

#[test]
fn a_flushed_bind_never_happened() {
    for mw_type in [MwType::One, MwType::Two] {
        let mut pair = with_window(Setup::default(), 0, mw_type);
        pair.rule(|_| Fate::Drop);
        pair.post(0, write_wr(0, remote(FAR), 8)).unwrap();
        pair.post(0, bind_wr(1, bind(1))).unwrap();
        pair.transmit(0);
        assert!(pair.side[0].world.is_bound(MW));
        pair.run();
        let flushed = [(0, WcStatus::RetryExcErr), (1, WcStatus::WrFlushErr)];
        assert_eq!(pair.results(0), flushed);
        assert!(!pair.side[0].world.is_bound(MW));
        reset(&mut pair);
        pair.rule(|_| Fate::Drop);
        pair.post(0, write_wr(0, remote(FAR), 8)).unwrap();
        pair.post(0, bind_wr(1, bind(1))).unwrap();
        pair.transmit(0);
        assert!(pair.side[0].world.is_bound(MW));
        reset(&mut pair);
        assert!(!pair.side[0].world.is_bound(MW), "nor does RESET leave one");
    }
}

/// Posts a bind and returns its completion; the queue pair is fit again afterwards.
fn try_bind(pair: &mut Pair, bind: MwBind) -> Wc {
    pair.post(0, bind_wr(5, bind)).unwrap();
    pair.run();
    let wc = pair.wcs(0)[0];
    if wc.status != OK {
        assert_eq!(pair.state(0), QpState::Err);
        reset(pair);
    }
    wc
}

#[test]
fn every_broken_rule_of_a_bind_is_mw_bind_err_and_names_itself() {
    let mut pair = with_window(Setup::default(), 0, MwType::Two);
    let world = &mut pair.side[0].world;
    world.regions.insert(0x600, region(Access::LOCAL_WRITE));
    world.regions.insert(0x700, region(Access::MW_BIND));
    let mut alien = region(Access::LOCAL_WRITE | Access::MW_BIND);
    alien.pd = PdId(9);
    world.regions.insert(0x800, alien);
    world.add_window(PdId(9), MwType::Two, 0x5000);
    let lkey = |key| MwBind {
        lkey: LKey(key),
        ..bind(1)
    };
    let range = |addr, len| MwBind {
        addr,
        len,
        ..bind(1)
    };
    let foreign = MwBind {
        window: RKey(0x5000),
        rkey: RKey(0x5001),
        ..bind(1)
    };
    let nobody = MwBind {
        window: RKey(0x7700),
        ..bind(1)
    };
    let other_index = MwBind {
        rkey: RKey(MW + 0x100),
        ..bind(1)
    };
    let cases = [
        (lkey(0x600), Reason::BindAccess),
        (lkey(0x700), Reason::BindAccess),
        (lkey(0x800), Reason::BindPd),
        (lkey(0x999), Reason::BindRegion),
        (foreign, Reason::BindPd),
        (nobody, Reason::BindWindow),
        (other_index, Reason::BindWindow),
        (range(u64::MAX - 15, 32), Reason::BindBounds),
        (range(START - 1, 2), Reason::BindBounds),
        (range(FAR, u64::MAX), Reason::BindBounds),
        (range(FAR, 0), Reason::BindBounds),
    ];
    for (bad, reason) in cases {
        let wc = try_bind(&mut pair, bad);
        let seen = (wc.status, wc.vendor_err);
        assert_eq!(seen, (WcStatus::MwBindErr, reason as u32), "{bad:?}");
        assert!(!pair.side[0].world.is_bound(MW));
    }
    assert_eq!(try_bind(&mut pair, bind(1)).status, OK);
    let wc = try_bind(&mut pair, bind(2));
    assert_eq!(wc.vendor_err, Reason::BindState as u32);
}

#[test]
fn a_failed_bind_waits_for_what_is_before_it_and_flushes_what_is_behind() {
    let mut pair = with_window(Setup::default(), 0, MwType::Two);
    let bad = MwBind {
        lkey: LKey(1),
        ..bind(1)
    };
    pair.post(0, write_wr(0, remote(FAR), 5000)).unwrap();
    pair.post(0, bind_wr(1, bad)).unwrap();
    pair.post(0, write_wr(2, remote(FAR), 8)).unwrap();
    pair.run();
    let seen = [(0, OK), (1, WcStatus::MwBindErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(pair.results(0), seen);
    assert_eq!(pair.sent(0, Opcode::RC_WRITE_ONLY).len(), 0);
}

#[test]
fn local_inv_and_send_with_invalidate_close_a_window() {
    for by_peer in [false, true] {
        let mut pair = with_window(Setup::default(), 1, MwType::Two);
        pair.post(1, bind_wr(0, bind(1))).unwrap();
        pair.run();
        let key = RKey(MW | 1);
        if by_peer {
            pair.recv(1, 1, &[]).unwrap();
            pair.post(0, wr(7, SendOp::SendInv { rkey: key }, &[]))
                .unwrap();
        } else {
            pair.post(1, wr(1, SendOp::LocalInv { rkey: key }, &[]))
                .unwrap();
        }
        pair.run();
        let wc = pair.wcs(1)[1];
        assert_eq!((wc.wr_id, wc.status), (1, OK));
        if by_peer {
            let shown = (wc.wc_flags, wc.invalidated_rkey);
            assert_eq!(shown, (WcFlags::WITH_INV, key));
        }
        pair.wcs(0);
        pair.post(0, write_wr(2, through(MW | 1, FAR), 8)).unwrap();
        pair.run();
        assert_eq!(pair.results(0), [(2, WcStatus::RemAccessErr)]);
        reset(&mut pair);
        pair.wcs(1);
        // The same key byte again, and another one.
        for key_byte in [1, 9] {
            pair.post(1, bind_wr(0, bind(key_byte))).unwrap();
            let rkey = RKey(MW | key_byte);
            pair.run();
            pair.post(0, write_wr(3, through(rkey.0, FAR), 8)).unwrap();
            pair.run();
            assert_eq!(pair.results(0), [(3, OK)]);
            pair.post(1, wr(1, SendOp::LocalInv { rkey }, &[])).unwrap();
            pair.run();
            assert_eq!(pair.results(1), [(0, OK), (1, OK)]);
        }
    }
}

#[test]
fn a_type_1_window_cannot_be_invalidated() {
    let mut pair = with_window(Setup::default(), 1, MwType::One);
    pair.post(1, bind_wr(0, bind(1))).unwrap();
    pair.run();
    pair.recv(1, 1, &[]).unwrap();
    let rkey = RKey(MW | 1);
    pair.post(0, wr(7, SendOp::SendInv { rkey }, &[])).unwrap();
    pair.run();
    let wc = pair.wcs(1)[1];
    let seen = (wc.status, wc.vendor_err);
    let bad = (WcStatus::RemInvReqErr, Reason::InvalidateFailed as u32);
    assert_eq!(seen, bad);
    reset(&mut pair);
    assert!(pair.side[1].world.is_bound(MW), "any queue pair serves it");
    pair.post(1, wr(2, SendOp::LocalInv { rkey }, &[])).unwrap();
    pair.run();
    assert_eq!(pair.results(1), [(2, WcStatus::LocQpOpErr)]);
}

#[test]
fn destroying_the_queue_pair_releases_its_windows() {
    let mut pair = with_window(Setup::default(), 0, MwType::Two);
    pair.post(0, bind_wr(0, bind(1))).unwrap();
    pair.run();
    assert!(pair.side[0].world.is_bound(MW));
    let side = &mut pair.side[0];
    side.node.destroy_qp(QPN[0], &mut side.world).unwrap();
    assert!(!pair.side[0].world.is_bound(MW));
}

#[test]
fn an_unreliable_connection_binds_and_serves_windows() {
    let setup = Setup {
        qp_type: QpType::Uc,
        ..Setup::default()
    };
    let mut pair = with_window(setup, 1, MwType::Two);
    pair.post(1, bind_wr(0, bind(1))).unwrap();
    pair.run();
    let bytes = pair.pattern(0, START, 3000, 4);
    pair.post(0, write_wr(1, through(MW | 1, FAR), 3000))
        .unwrap();
    pair.run();
    assert_eq!(pair.side[1].world.peek(LKEY, FAR, 3000), bytes);
    assert_eq!(pair.results(1), [(0, OK)]);
    let bad = MwBind {
        len: u64::MAX,
        ..bind(2)
    };
    pair.post(1, bind_wr(2, bad)).unwrap();
    pair.run();
    assert_eq!(pair.results(1), [(2, WcStatus::MwBindErr)]);
    assert_eq!(pair.state(1), QpState::Sqe, "receiving goes on");
}

#[test]
fn datagrams_do_not_bind_and_binds_take_no_pieces() {
    let refused = |setup, piece: bool| -> Misuse {
        let mut pair = with_window(setup, 0, MwType::Two);
        let mut request = bind_wr(0, bind(1));
        if piece {
            request = wr(0, request.op, &[sge(START, 0)]);
        } else {
            request.ud = Some(pair.ud(0));
        }
        pair.post(0, request).unwrap_err()
    };
    let ud = Setup {
        qp_type: QpType::Ud,
        ..Setup::default()
    };
    assert_eq!(refused(ud, false).errno.0, 22);
    assert_eq!(refused(Setup::default(), true).errno.0, 22);
}

#[test]
fn windows_on_one_region_are_separate() {
    let mut pair = with_window(Setup::default(), 1, MwType::Two);
    pair.side[1].world.add_window(PD, MwType::One, 0x5000);
    let second = MwBind {
        window: RKey(0x5000),
        rkey: RKey(0x5001),
        addr: FAR + 0x800,
        access: Access::REMOTE_READ,
        ..bind(1)
    };
    pair.post(1, bind_wr(0, bind(1))).unwrap();
    pair.post(1, bind_wr(1, second)).unwrap();
    let rkey = RKey(MW | 1);
    pair.post(1, wr(2, SendOp::LocalInv { rkey }, &[])).unwrap();
    pair.run();
    let read = SendOp::Read {
        remote: through(0x5001, FAR + 0x1000),
    };
    pair.post(0, wr(3, read, &[sge(START, 0x800)])).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(3, OK)]);
    pair.post(0, write_wr(4, through(0x5001, FAR + 0x1000), 1))
        .unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(4, WcStatus::RemAccessErr)]);
    assert_eq!(KEY & 0xff, 0, "keys here end in 0");
}
