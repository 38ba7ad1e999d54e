//! Memory windows over real packets.

use rocebud_verbs::*;

use crate::Case;
use crate::endpoint::{Endpoint, pair};

pub(crate) const ALL: &[Case] = &[
    ("c017_windows_follow_the_bind_rules", c017),
    ("type_1_windows_are_bound_and_taken_away_by_a_call", type_1),
    ("bad_calls_about_windows_are_refused", refusals),
    ("objects_under_windows_stay", busy),
    ("the_peer_invalidates_what_it_was_lent", lent),
];

const BYTES: usize = 8192;
const GOOD: WcStatus = WcStatus::Success;
const DENIED: WcStatus = WcStatus::RemAccessErr;

fn bindable(end: &Endpoint) -> Mr {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let (at, len) = (end.at(0), BYTES as u64);
    end.pd.reg_mr(at, len, at, access).unwrap()
}

fn info<'a>(end: &Endpoint, mr: &'a Mr) -> MwBindInfo<'a> {
    MwBindInfo {
        mr: Some(mr),
        addr: end.at(1024),
        len: 2048,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
    }
}

fn nothing() -> Payload {
    Payload::Sges(SgeList::new())
}

/// What a WRITE of `a` through `rkey` comes to; the connection is fit again afterwards.
fn write(a: &Endpoint, b: &Endpoint, rkey: RKey, addr: u64, len: usize) -> WcStatus {
    let remote = Remote { addr, rkey };
    a.post(1, SendOp::Write { remote }, a.sges(0, len));
    let status = a.wait().status;
    if status != WcStatus::Success {
        a.restart(b);
    }
    status
}

fn bind(end: &Endpoint, op: SendOp) -> WcStatus {
    end.post(2, op, nothing());
    let wc = end.wait();
    assert_eq!((wc.wr_id, wc.opcode), (2, WcOpcode::BindMw));
    wc.status
}

fn local_inv(end: &Endpoint, rkey: RKey) {
    end.post(3, SendOp::LocalInv { rkey }, nothing());
    assert_eq!(end.wait_good().opcode, WcOpcode::LocalInv);
}

fn c017() {
    let (a, b) = pair(QpType::Rc, false, BYTES);
    let mr = bindable(&b);
    let mw = b.pd.alloc_mw(MwType::Two).unwrap();
    let info = info(&b, &mr);
    opens_its_own_range_once(&a, &b, &mw, &info);
    old_keys_are_dead(&a, &b, &mw, &info);
    broken_rules(&a, &b, &mw, &info);

    // A live window holds its region; deallocating it lets go.
    let rkey = key(&mw, 3);
    assert_eq!(bind(&b, mw.bind_op(rkey, &info)), GOOD);
    assert_eq!(mr.dereg().unwrap_err().errno, Errno::EBUSY);
    mw.dealloc().unwrap();
    assert_eq!(write(&a, &b, rkey, info.addr, 8), DENIED);
    mr.dereg().unwrap();
}

fn key(mw: &Mw, byte: u32) -> RKey {
    RKey(mw.rkey().0 & !0xff | byte)
}

/// Bind, use; its bounds, not the region's; once only.
fn opens_its_own_range_once(a: &Endpoint, b: &Endpoint, mw: &Mw, info: &MwBindInfo<'_>) {
    assert_eq!(write(a, b, mw.rkey(), info.addr, 8), DENIED, "unbound");
    assert_eq!(bind(b, mw.bind_op(key(mw, 0x11), info)), GOOD);
    assert_eq!(write(a, b, key(mw, 0x11), info.addr, 2048), GOOD);
    assert_eq!(
        bind(b, mw.bind_op(key(mw, 0x12), info)),
        WcStatus::MwBindErr
    );
    a.restart(b);
    for (addr, len) in [
        (info.addr - 1, 2),
        (info.addr + 2047, 2),
        (u64::MAX - 7, 16),
    ] {
        assert_eq!(bind(b, mw.bind_op(key(mw, 0x11), info)), GOOD);
        assert_eq!(write(a, b, key(mw, 0x11), addr, len), DENIED, "{addr:#x}");
    }
}

/// Again with the same and with another key byte.
fn old_keys_are_dead(a: &Endpoint, b: &Endpoint, mw: &Mw, info: &MwBindInfo<'_>) {
    for byte in [0x11, 0x77] {
        assert_eq!(bind(b, mw.bind_op(key(mw, byte), info)), GOOD);
        assert_eq!(write(a, b, key(mw, byte), info.addr, 8), GOOD);
        local_inv(b, key(mw, byte));
        assert_eq!(write(a, b, key(mw, byte), info.addr, 8), DENIED);
    }
    assert_eq!(bind(b, mw.bind_op(key(mw, 0x78), info)), GOOD);
    assert_eq!(write(a, b, key(mw, 0x77), info.addr, 8), DENIED);
}

/// Window or region of another domain; a region without MW_BIND or LOCAL_WRITE; a range that
/// leaves the region or wraps.
fn broken_rules(a: &Endpoint, b: &Endpoint, mw: &Mw, info: &MwBindInfo<'_>) {
    let alien = b.context.alloc_pd().unwrap();
    let alien_mw = alien.alloc_mw(MwType::Two).unwrap();
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let at = b.at(0);
    let alien_mr = alien.reg_mr(at, BYTES as u64, at, access).unwrap();
    let readonly = b.pd.reg_mr(at, BYTES as u64, at, Access::MW_BIND).unwrap();
    let with = |mr| MwBindInfo {
        mr: Some(mr),
        ..*info
    };
    let range = |addr, len| MwBindInfo { addr, len, ..*info };
    for bad in [
        alien_mw.bind_op(alien_mw.rkey(), info),
        mw.bind_op(key(mw, 1), &with(&alien_mr)),
        mw.bind_op(key(mw, 1), &with(&b.mr)),
        mw.bind_op(key(mw, 1), &with(&readonly)),
        mw.bind_op(key(mw, 1), &range(u64::MAX - 15, 32)),
        mw.bind_op(key(mw, 1), &range(b.at(0) - 1, 2)),
        mw.bind_op(key(mw, 1), &range(b.at(1), BYTES as u64)),
        mw.bind_op(key(mw, 1), &range(b.at(0), 0)),
        mw.bind_op(RKey(mw.rkey().0 ^ 0x100), info),
        mw.bind_op(key(mw, 1), &MwBindInfo { mr: None, ..*info }),
    ] {
        assert_eq!(bind(b, bad), WcStatus::MwBindErr, "{bad:?}");
        a.restart(b);
    }
    let reads = MwBindInfo {
        access: Access::REMOTE_READ,
        ..with(&readonly)
    };
    assert_eq!(bind(b, mw.bind_op(key(mw, 2), &reads)), GOOD);
    local_inv(b, key(mw, 2));
}

fn type_1() {
    let (a, b) = pair(QpType::Rc, true, BYTES);
    let mr = bindable(&b);
    let mw = b.pd.alloc_mw(MwType::One).unwrap();
    let info = info(&b, &mr);
    let mut before = mw.rkey();
    for _ in 0..3 {
        let rkey = b.qp.bind_mw(&mw, 5, SendFlags::SIGNALED, &info).unwrap();
        assert_eq!(b.wait_good().opcode, WcOpcode::BindMw);
        assert_eq!((rkey, mw.rkey()), (inc_rkey(before), inc_rkey(before)));
        assert_eq!(write(&a, &b, rkey, info.addr, 100), WcStatus::Success);
        assert_eq!(
            write(&a, &b, before, info.addr, 100),
            WcStatus::RemAccessErr
        );
        before = rkey;
    }
    b.post(6, SendOp::LocalInv { rkey: before }, nothing());
    assert_eq!(b.wait().status, WcStatus::LocQpOpErr, "not of type 1");
    a.restart(&b);
    let away = MwBindInfo {
        mr: None,
        addr: 0,
        len: 0,
        access: Access::empty(),
    };
    let rkey = b.qp.bind_mw(&mw, 7, SendFlags::SIGNALED, &away).unwrap();
    b.wait_good();
    for rkey in [rkey, before] {
        assert_eq!(write(&a, &b, rkey, info.addr, 8), WcStatus::RemAccessErr);
    }
    mr.dereg().expect("nothing is bound to it");
}

fn refusals() {
    let (a, b) = pair(QpType::Rc, false, BYTES);
    let ud = Endpoint::new(QpType::Ud, false, 64);
    let mr = bindable(&a);
    let alien = bindable(&b);
    let info = info(&a, &mr);
    let one = a.pd.alloc_mw(MwType::One).unwrap();
    let two = a.pd.alloc_mw(MwType::Two).unwrap();
    let alien_mw = b.pd.alloc_mw(MwType::One).unwrap();
    let refused = |qp: &Qp, mw: &Mw, flags, info: &MwBindInfo<'_>| {
        let refused = qp.bind_mw(mw, 1, flags, info).unwrap_err();
        assert_eq!(refused.errno, Errno::EINVAL, "{refused}");
    };
    let signaled = SendFlags::SIGNALED;
    refused(&a.qp, &two, signaled, &info);
    refused(&ud.qp, &one, signaled, &info);
    refused(&a.qp, &one, SendFlags::INLINE, &info);
    refused(&a.qp, &one, signaled, &MwBindInfo { mr: None, ..info });
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    refused(&a.qp, &one, signaled, &MwBindInfo { access, ..info });
    refused(&a.qp, &alien_mw, signaled, &info);
    let other = MwBindInfo {
        mr: Some(&alien),
        ..info
    };
    let alien = a.qp.bind_mw(&one, 1, signaled, &other).unwrap_err();
    assert_eq!(alien.errno, Errno::EPERM);
    let fresh = Endpoint::new(QpType::Rc, false, 64);
    let its_own = fresh.pd.alloc_mw(MwType::One).unwrap();
    let away = MwBindInfo {
        mr: None,
        len: 0,
        ..info
    };
    refused(&fresh.qp, &its_own, signaled, &away);
    one.dealloc().unwrap();
    assert_eq!(one.dealloc().unwrap_err().errno, Errno::EINVAL);
    refused(&a.qp, &one, signaled, &info);
    let device = a.context.query_device();
    assert!(device.max_mw > 1000);
    let caps = device_cap::MEM_WINDOW | device_cap::MEM_WINDOW_TYPE_2B;
    assert_eq!(device.device_cap_flags & caps, caps);
    assert_eq!(device.device_cap_flags & 1 << 23, 0, "2B, so not 2A");
}

fn busy() {
    let a = Endpoint::new(QpType::Rc, false, 64);
    let pd = a.context.alloc_pd().unwrap();
    let mw = pd.alloc_mw(MwType::Two).unwrap();
    assert_eq!(pd.dealloc().unwrap_err().errno, Errno::EBUSY);
    mw.dealloc().unwrap();
    pd.dealloc().unwrap();
}

fn lent() {
    let (a, b) = pair(QpType::Rc, false, BYTES);
    let mr = bindable(&b);
    let mw = b.pd.alloc_mw(MwType::Two).unwrap();
    let info = info(&b, &mr);
    let mut rkey = mw.rkey();
    for round in 0..50 {
        rkey = inc_rkey(rkey);
        // Lent, used and given back without a pause: order alone keeps this right.
        b.post_recv(9, 4096, 64);
        b.post(2, mw.bind_op(rkey, &info), nothing());
        a.post_recv(8, 4096, 64);
        b.post(3, SendOp::Send, b.sges(0, 8));
        assert_eq!(a.wait_good().wr_id, 8);
        let remote = Remote {
            addr: info.addr,
            rkey,
        };
        a.post(1, SendOp::Write { remote }, a.sges(0, 2048));
        a.post(4, SendOp::SendInv { rkey }, a.sges(0, 8));
        let seen = [a.wait_good().wr_id, a.wait_good().wr_id];
        assert_eq!(seen, [1, 4], "round {round}");
        assert_eq!([b.wait_good().wr_id, b.wait_good().wr_id], [2, 3]);
        let wc = b.wait_good();
        assert_eq!((wc.wr_id, wc.wc_flags), (9, WcFlags::WITH_INV));
        assert_eq!(wc.invalidated_rkey, rkey);
    }
    assert_eq!(
        write(&a, &b, rkey, info.addr, 8),
        WcStatus::RemAccessErr,
        "given back"
    );
    assert_eq!(mr.dereg(), Ok(()));
}
