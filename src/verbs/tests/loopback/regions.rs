//! Regions that change, that are nothing, that come and go, and device memory, over real packets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rocebud_verbs::*;

use crate::endpoint::{Endpoint, all_access, pair, pattern, wait_until};
use crate::{Case, sys};

pub(crate) const ALL: &[Case] = &[
    ("registering_anew_changes_what_is_asked", rereg),
    ("registering_anew_is_a_fence", rereg_fence),
    ("a_null_region_gives_zeros_and_takes_anything", null),
    (
        "c054_no_range_leaves_a_zero_based_or_renamed_region",
        bounds,
    ),
    ("on_demand_memory_comes_and_goes", on_demand),
    ("the_whole_address_space_on_demand", everything),
    ("device_memory_is_memory", device_memory),
];

const GOOD: WcStatus = WcStatus::Success;
const PAGE: usize = 4096;

/// What a request comes to; the connection is fit again afterwards.
fn outcome(a: &Endpoint, b: &Endpoint, op: SendOp, payload: Payload) -> WcStatus {
    a.post(1, op, payload);
    let status = a.wait().status;
    if status != GOOD {
        a.restart(b);
    }
    status
}

fn write(a: &Endpoint, b: &Endpoint, mr: &Mr, addr: u64, len: usize) -> WcStatus {
    let remote = Remote {
        addr,
        rkey: mr.rkey(),
    };
    outcome(a, b, SendOp::Write { remote }, a.sges(0, len))
}

fn piece(addr: u64, length: usize, mr: &Mr) -> Sge {
    Sge {
        addr,
        length: u32::try_from(length).unwrap(),
        lkey: mr.lkey(),
    }
}

fn pieces<const N: usize>(list: [Sge; N]) -> Payload {
    Payload::Sges(list.into_iter().collect())
}

fn rereg() {
    let (mut a, b) = pair(QpType::Rc, false, 2 * PAGE);
    pattern(&mut a.buffer, 9);
    let mr = b.pd.reg_mr(b.at(0), 1000, b.at(0), all_access()).unwrap();
    let key = mr.rkey();
    let change = |change: Rereg<'_>| mr.rereg(&change);
    assert_eq!(write(&a, &b, &mr, b.at(0), 1000), GOOD);

    // Another range: the old one is out of bounds from then on.
    change(Rereg {
        range: Some((b.at(4096), 500)),
        ..Rereg::default()
    })
    .unwrap();
    assert_eq!(mr.rkey(), key);
    let denied = WcStatus::RemAccessErr;
    assert_eq!(write(&a, &b, &mr, b.at(0), 8), denied);
    assert_eq!(write(&a, &b, &mr, b.at(4096), 501), denied);
    assert_eq!(write(&a, &b, &mr, b.at(4096), 500), GOOD);
    assert_eq!(b.buffer[4096..4596], a.buffer[..500]);

    // Other rights.
    let access = Some(Access::LOCAL_WRITE);
    change(Rereg {
        access,
        ..Rereg::default()
    })
    .unwrap();
    assert_eq!(write(&a, &b, &mr, b.at(4096), 8), denied);

    // Another domain, together with everything else.
    let other = b.context.alloc_pd().unwrap();
    change(Rereg {
        range: Some((b.at(0), 8192)),
        pd: Some(&other),
        access: Some(all_access()),
    })
    .unwrap();
    assert_eq!(write(&a, &b, &mr, b.at(0), 8), denied);
    assert_eq!(other.dealloc().unwrap_err().errno, Errno::EBUSY);
    change(Rereg {
        pd: Some(&b.pd),
        ..Rereg::default()
    })
    .unwrap();
    other.dealloc().expect("nothing is left on it");
    assert_eq!(write(&a, &b, &mr, b.at(0), 8192), GOOD);
    refused_changes(&b, &mr);
    assert_eq!(
        write(&a, &b, &mr, b.at(0), 8192),
        GOOD,
        "nothing has changed"
    );
}

fn refused_changes(b: &Endpoint, mr: &Mr) {
    let hole = sys::map(PAGE, true);
    sys::unmap(hole, PAGE);
    let readonly = sys::map(PAGE, false);
    let alien = Endpoint::new(QpType::Rc, false, 64);
    let nothing = Rereg::default();
    let range = |range| Rereg {
        range: Some(range),
        ..nothing
    };
    let access = |access| Rereg {
        access: Some(access),
        ..nothing
    };
    let pd = Rereg {
        pd: Some(&alien.pd),
        ..nothing
    };
    for (change, errno) in [
        (nothing, Errno::EINVAL),
        (range((hole, 8)), Errno::EFAULT),
        (range((readonly, 8)), Errno::EFAULT),
        (range((u64::MAX - 4, 8)), Errno::EINVAL),
        (access(Access::REMOTE_WRITE), Errno::EINVAL),
        (access(Access::from_bits_retain(1 << 15)), Errno::EINVAL),
        (pd, Errno::EINVAL),
    ] {
        let refused = mr.rereg(&change).unwrap_err();
        assert_eq!(refused.errno, errno, "{change:?}: {refused}");
    }
    // Windows hold a region as it is.
    mr.rereg(&access(all_access() | Access::MW_BIND)).unwrap();
    let mw = b.pd.alloc_mw(MwType::One).unwrap();
    let info = MwBindInfo {
        mr: Some(mr),
        addr: b.at(0),
        len: 8,
        access: Access::REMOTE_READ,
    };
    b.qp.bind_mw(&mw, 7, SendFlags::SIGNALED, &info).unwrap();
    b.wait_good();
    let refused = mr.rereg(&access(all_access())).unwrap_err();
    assert_eq!(refused.errno, Errno::EBUSY);
    mw.dealloc().unwrap();
    let null = b.pd.alloc_null_mr().unwrap();
    let refused = null.rereg(&access(all_access())).unwrap_err();
    assert_eq!(refused.errno, Errno::EINVAL);
}

fn rereg_fence() {
    const LEN: usize = 1 << 16;
    const CANARY: u8 = 0xc5;
    let (a, b) = pair(QpType::Rc, false, LEN);
    let places = [sys::map(LEN, true), sys::map(LEN, true)];
    let mr =
        b.pd.reg_mr(places[0], LEN as u64, 0x1_0000, all_access())
            .unwrap();
    let stop = AtomicBool::new(false);
    let remote = Remote {
        addr: 0,
        rkey: mr.rkey(),
    };
    let zero_based = all_access() | Access::ZERO_BASED;
    let move_to = |at: u64| {
        mr.rereg(&Rereg {
            range: Some((at, LEN as u64)),
            access: Some(zero_based),
            ..Rereg::default()
        })
    };
    move_to(places[0]).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                a.post(1, SendOp::Write { remote }, a.sges(0, LEN));
                a.wait_good();
            }
        });
        for round in 0..40 {
            let [old, new] = [places[round % 2], places[(round + 1) % 2]];
            std::thread::sleep(Duration::from_micros(500));
            move_to(new).unwrap();
            sys::fill(old, LEN, CANARY);
            std::thread::sleep(Duration::from_micros(500));
            assert!(sys::is_filled(old, LEN, CANARY), "round {round}");
        }
        stop.store(true, Ordering::SeqCst);
    });
}

fn null() {
    let (mut a, mut b) = pair(QpType::Rc, false, PAGE);
    pattern(&mut a.buffer, 3);
    pattern(&mut b.buffer, 4);
    let null = [&a, &b].map(|end| end.pd.alloc_null_mr().unwrap());
    // 100 bytes of ours, 50 zeros, and the rest again ours; the receiver drops the first 120.
    b.qp.post_recv(RecvWr {
        wr_id: 5,
        sges: [piece(7, 120, &null[1]), b.sge(0, 1000)]
            .into_iter()
            .collect(),
    })
    .unwrap();
    let list = [
        a.sge(0, 100),
        piece(u64::MAX - 60, 50, &null[0]),
        a.sge(100, 80),
    ];
    a.post(1, SendOp::Send, pieces(list));
    a.wait_good();
    assert_eq!(b.wait_good().byte_len, 230);
    assert!(b.buffer[..30].iter().all(|byte| *byte == 0));
    assert_eq!(b.buffer[30..110], a.buffer[100..180]);
    // What a READ brings vanishes, an atomic's result too.
    let before = b.buffer.clone();
    let remote = a.remote(0);
    b.post(
        2,
        SendOp::Read { remote },
        pieces([piece(0, 3000, &null[1])]),
    );
    b.wait_good();
    let add = SendOp::FetchAdd { remote, add: 1 };
    b.post(3, add, pieces([piece(0, 8, &null[1])]));
    b.wait_good();
    assert_eq!(b.buffer, before);
    // It is not for the peer.
    let remote = Remote {
        addr: 0,
        rkey: RKey(null[1].lkey().0),
    };
    for op in [SendOp::Write { remote }, SendOp::Read { remote }] {
        let status = outcome(&a, &b, op, a.sges(0, 8));
        assert_eq!(status, WcStatus::RemAccessErr);
    }
    null[1].dereg().unwrap();
}

fn bounds() {
    let (a, b) = pair(QpType::Rc, false, PAGE);
    let memory = sys::map(4 * PAGE, true);
    let region = memory + PAGE as u64;
    let len = 2 * PAGE as u64;
    sys::fill(memory, PAGE, 0xab);
    sys::fill(region + len, PAGE, 0xab);
    let zero_based = all_access() | Access::ZERO_BASED;
    let renamed = (region & 0xfff) + 0x7fff_0000_0000_0000;
    for (iova, access) in [
        (0, zero_based),
        (renamed, all_access()),
        (u64::MAX - len - 0xfff + (region & 0xfff), all_access()),
    ] {
        let mr = b.pd.reg_mr(region, len, iova, access).unwrap();
        assert_eq!(write(&a, &b, &mr, iova, PAGE), GOOD, "{iova:#x}");
        assert_eq!(write(&a, &b, &mr, iova + len - 8, 8), GOOD);
        for (va, bytes) in [
            (iova + len, 1),
            (iova + len - 1, 2),
            (iova.wrapping_sub(1), 1),
            (iova.wrapping_sub(1), 2),
            (u64::MAX - 1, 2),
            (region, 8),
            (1 << 63, 8),
        ] {
            let status = write(&a, &b, &mr, va, bytes);
            assert_eq!(status, WcStatus::RemAccessErr, "{iova:#x}: {va:#x} {bytes}");
            let local = pieces([piece(va, bytes, &mr)]);
            let op = SendOp::Write {
                remote: a.remote(0),
            };
            let status = outcome(&b, &a, op, local);
            assert_eq!(status, WcStatus::LocProtErr, "{iova:#x}: {va:#x} {bytes}");
        }
    }
    assert!(sys::is_filled(memory, PAGE, 0xab) && sys::is_filled(region + len, PAGE, 0xab));
}

fn on_demand() {
    let (a, b) = pair(QpType::Rc, false, PAGE);
    let at = sys::map(PAGE, true);
    sys::unmap(at, PAGE);
    let access = all_access() | Access::ON_DEMAND;
    let mr = b.pd.reg_mr(at, PAGE as u64, at, access).unwrap();
    let remote = Remote {
        addr: at,
        rkey: mr.rkey(),
    };
    let read = SendOp::Read { remote };
    let add = SendOp::FetchAdd { remote, add: 5 };
    for round in 0..3_u64 {
        // Nobody is there: the responder's own trouble.
        for op in [SendOp::Write { remote }, read, add] {
            let status = outcome(&a, &b, op, a.sges(0, 8));
            assert_eq!(status, WcStatus::RemOpErr, "{op:?} in round {round}");
        }
        b.qp.post_recv(RecvWr {
            wr_id: 3,
            sges: [piece(at, 64, &mr)].into_iter().collect(),
        })
        .unwrap();
        let status = outcome(&a, &b, SendOp::Send, a.sges(0, 8));
        assert_eq!(status, WcStatus::RemOpErr);
        let op = SendOp::Send;
        let status = outcome(&b, &a, op, pieces([piece(at, 8, &mr)]));
        assert_eq!(status, WcStatus::LocProtErr);

        sys::map_at(at, PAGE);
        let word = 0x0123_4567_89ab_cd00 + round;
        sys::fill(a.at(0), 8, 0);
        let inline = Payload::Inline(word.to_ne_bytes().into());
        assert_eq!(outcome(&a, &b, SendOp::Write { remote }, inline), GOOD);
        assert_eq!(outcome(&a, &b, add, a.sges(0, 8)), GOOD);
        assert_eq!(outcome(&a, &b, read, a.sges(0, 8)), GOOD);
        let seen = u64::from_ne_bytes(a.buffer[..8].try_into().unwrap());
        assert_eq!(seen, word + 5);
        sys::unmap(at, PAGE);
    }
    mr.dereg().unwrap();
}

fn everything() {
    let (mut a, b) = pair(QpType::Rc, false, PAGE);
    pattern(&mut a.buffer, 8);
    let all = all_access() | Access::ON_DEMAND;
    let local = a.pd.reg_mr(0, u64::MAX, 0, all).unwrap();
    let remote_mr = b.pd.reg_mr(0, u64::MAX, 0, all).unwrap();
    let remote = Remote {
        addr: b.at(100),
        rkey: remote_mr.rkey(),
    };
    let whole = pieces([piece(a.at(0), 3000, &local)]);
    assert_eq!(outcome(&a, &b, SendOp::Write { remote }, whole), GOOD);
    assert_eq!(b.buffer[100..3100], a.buffer[..3000]);
    let hole = sys::map(PAGE, true);
    sys::unmap(hole, PAGE);
    for addr in [hole, 0, 16, u64::MAX - 8, 1 << 63, 0xffff_8000_0000_0000] {
        let status = write(&a, &b, &remote_mr, addr, 8);
        assert_eq!(status, WcStatus::RemOpErr, "{addr:#x}");
        let list = pieces([piece(addr, 8, &local)]);
        let status = outcome(&a, &b, SendOp::Write { remote }, list);
        assert_eq!(status, WcStatus::LocProtErr, "{addr:#x}");
    }
    let status = write(&a, &b, &remote_mr, u64::MAX - 3, 8);
    assert_eq!(status, WcStatus::RemAccessErr, "it wraps");
    // Without ON_DEMAND nobody registers everything, and less than all is not everything.
    let refused = a.pd.reg_mr(0, u64::MAX, 0, all_access()).unwrap_err();
    assert_eq!(refused.errno, Errno::EINVAL);
    let refused = a.pd.reg_mr(0, u64::MAX - 1, 0, all).unwrap_err();
    assert_eq!(refused.errno, Errno::EINVAL);
}

fn device_memory() {
    const LEN: usize = 100_000;
    let (mut a, b) = pair(QpType::Rc, false, LEN);
    pattern(&mut a.buffer, 12);
    let dm = b.context.alloc_dm(LEN as u64 + 64, 12).unwrap();
    let access = all_access().difference(Access::FLUSH_GLOBAL) | Access::ZERO_BASED;
    let mr = b.pd.reg_dm_mr(&dm, 64, LEN as u64, access).unwrap();
    assert_eq!(write(&a, &b, &mr, 0, LEN), GOOD);
    dm.copy_from(64, b.at(0), LEN as u64).unwrap();
    assert!(b.buffer == a.buffer, "what the peer wrote is in it");
    dm.copy_to(64, a.at(8), 4096).unwrap();
    let remote = Remote {
        addr: 0,
        rkey: mr.rkey(),
    };
    b.post(
        7,
        SendOp::Write {
            remote: a.remote(50_000),
        },
        pieces([piece(0, 4096, &mr)]),
    );
    b.wait_good();
    assert_eq!(a.buffer[50_000..54_096], a.buffer[8..4104]);
    let add = SendOp::FetchAdd { remote, add: 1 };
    assert_eq!(outcome(&a, &b, add, a.sges(0, 8)), GOOD);
    for (addr, len) in [(LEN as u64, 1), (LEN as u64 - 1, 2), (u64::MAX, 1)] {
        let status = write(&a, &b, &mr, addr, len);
        assert_eq!(status, WcStatus::RemAccessErr, "{addr:#x}");
    }
    assert_eq!(dm.free().unwrap_err().errno, Errno::EBUSY);
    mr.dereg().unwrap();
    let other = dm.clone();
    dm.free().unwrap();
    assert_eq!(other.free().unwrap_err().errno, Errno::EINVAL);
    assert_eq!(
        other.copy_to(0, a.at(0), 4).unwrap_err().errno,
        Errno::EINVAL
    );
    let refused = b.pd.reg_dm_mr(&dm, 0, 4, access).unwrap_err();
    assert_eq!(refused.errno, Errno::EINVAL);
    wait_until("both fit", || a.qp.state() == QpState::Rts);
}
