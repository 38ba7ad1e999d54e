//! Lifetimes, events, refusals, forks, and the death of the daemon.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rocebud_verbs::*;

use crate::endpoint::{Endpoint, all_access, loopback, pair, pattern, wait_cq, wait_until};
use crate::{Case, sys};

pub(crate) const ALL: &[Case] = &[
    ("attributes_are_true", attributes),
    ("objects_in_use_cannot_be_destroyed", busy),
    ("bad_regions_are_refused", bad_regions),
    ("bad_address_vectors_are_refused", bad_paths),
    ("a_completion_event_comes_for_an_armed_queue", cq_event),
    (
        "destroying_waits_for_the_last_acknowledgement",
        destroy_waits,
    ),
    (
        "a_reset_queue_pair_takes_its_completions_along",
        reset_purges,
    ),
    ("an_overrun_queue_takes_its_queue_pairs_down", overrun),
    ("deregistering_is_a_fence", dereg_fence),
    ("a_wrong_key_is_an_access_error", wrong_key),
    ("one_sided_traffic_needs_no_call_at_the_target", one_sided),
    ("many_threads_and_queues", threads),
    ("a_child_harms_nobody", fork),
    ("memory_deregistered_and_reused_stays_as_it_is", canaries),
    ("more_queue_pairs_than_a_slot_has_numbers", many_qps),
    ("closing_a_device_ends_its_traffic", close_in_traffic),
    ("an_idle_process_costs_nothing", idle),
    ("link_changes_are_told", link_events),
];

fn attributes() {
    let context = loopback();
    let device = context.query_device();
    assert_ne!(device.node_guid, 0);
    assert_eq!(device.atomic_cap, AtomicCap::Glob);
    let port = context.query_port(1).unwrap();
    assert_eq!(port.state, PortState::Active);
    assert_eq!(port.active_mtu, Mtu::M4096);
    assert_eq!((port.phys_state, port.link_layer), (5, 2));
    assert_eq!(context.query_port(0).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(context.query_port(2).unwrap_err().errno, Errno::EINVAL);
    let gids: Vec<_> = context.gid_table().iter().map(|e| e.gid).collect();
    assert!(gids.contains(&Gid::from_v4([127, 0, 0, 1])), "{gids:?}");
    let out = context.query_gid(1, port.gid_tbl_len).unwrap_err();
    assert_eq!(out.errno, Errno::EINVAL);
    let out = context.query_gid_entry(1, port.gid_tbl_len).unwrap_err();
    assert_eq!(out.errno, Errno::ENODATA);
    assert_eq!(context.query_pkey(1, 0).unwrap(), PKey::DEFAULT);
    assert!(context.query_pkey(1, 1).is_err());
}

fn busy() {
    let context = loopback();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(4, Some(&channel), 0, 0).unwrap();
    let pd = context.alloc_pd().unwrap();
    let attr = SrqAttr {
        max_wr: 4,
        max_sge: 1,
        srq_limit: 0,
    };
    let srq = pd.create_srq(&attr, 0).unwrap();
    let create = QpCreate {
        srq: Some(srq.clone()),
        ..QpCreate::new(QpType::Rc, &cq, &cq)
    };
    let qp = pd.create_qp(&create).unwrap();
    for refused in [channel.destroy(), cq.destroy(), pd.dealloc(), srq.destroy()] {
        assert_eq!(refused.unwrap_err().errno, Errno::EBUSY);
    }
    qp.destroy().unwrap();
    srq.destroy().unwrap();
    cq.destroy().unwrap();
    channel.destroy().unwrap();
    pd.dealloc().unwrap();
    assert!(qp.destroy().is_err());
    assert!(context.create_cq(0, None, 0, 0).is_err());
    assert!(context.create_cq(1, None, 1, 0).is_err());
    assert!(context.create_cq(u32::MAX, None, 0, 0).is_err());
}

fn bad_regions() {
    let context = loopback();
    let pd = context.alloc_pd().unwrap();
    let page = sys::map(8192, true);
    let readonly = sys::map(4096, false);
    let hole = sys::map(4096, true);
    sys::unmap(hole, 4096);
    let local = Access::LOCAL_WRITE;
    for (addr, len, iova, access, errno) in [
        (page, 10, page, Access::REMOTE_WRITE, Errno::EINVAL),
        (page, 10, page, Access::REMOTE_ATOMIC, Errno::EINVAL),
        (
            page,
            10,
            page,
            Access::from_bits_retain(1 << 15),
            Errno::EINVAL,
        ),
        (page, u64::MAX, page, local, Errno::EINVAL),
        (page, 10, page + 1, local, Errno::EINVAL),
        (hole, 10, hole, local, Errno::EFAULT),
        (page, 8192 * 1000, page, local, Errno::EFAULT),
        (readonly, 10, readonly, local, Errno::EFAULT),
    ] {
        let refused = pd.reg_mr(addr, len, iova, access).unwrap_err();
        assert_eq!(refused.errno, errno, "{len:#x} {access:?}: {refused}");
    }
    pd.reg_mr(readonly, 10, readonly, Access::empty()).unwrap();
    pd.reg_mr(page, 0, page, local).unwrap();
    let optional = Access::from_bits_retain(1 << 25);
    pd.reg_mr(page, 8192, page, local | optional).unwrap();
    pd.dealloc().expect("dropped regions do not count");
}

fn bad_paths() {
    let a = Endpoint::new(QpType::Rc, false, 64);
    let bad = AhAttr {
        sgid_index: 200,
        ..a.av(a.gid)
    };
    assert_eq!(a.pd.create_ah(&bad).unwrap_err().errno, Errno::EINVAL);
    let bad = AhAttr {
        is_global: false,
        ..a.av(a.gid)
    };
    assert_eq!(a.pd.create_ah(&bad).unwrap_err().errno, Errno::EINVAL);
    let nowhere = a.av(Gid::from_v4([10, 250, 250, 250]));
    assert_eq!(
        a.pd.create_ah(&nowhere).unwrap_err().errno,
        Errno::ENETUNREACH
    );
    let bad = a.av(Gid::ZERO);
    assert_eq!(a.pd.create_ah(&bad).unwrap_err().errno, Errno::EINVAL);
}

fn with_channel(bytes: usize) -> (Endpoint, CompChannel) {
    let context = loopback();
    let channel = context.create_comp_channel().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, Some(&channel), 0, 4711).unwrap();
    let qp = pd.create_qp(&QpCreate::new(QpType::Rc, &cq, &cq)).unwrap();
    let endpoint = Endpoint::with(context, pd, cq, qp, false, bytes);
    (endpoint, channel)
}

fn join(a: &Endpoint, b: &Endpoint) {
    a.init();
    b.init();
    a.ready(b);
    b.ready(a);
}

fn cq_event() {
    let a = Endpoint::new(QpType::Rc, false, 64);
    let (b, channel) = with_channel(64);
    join(&a, &b);
    for round in 0..50 {
        b.post_recv(round, 0, 64);
        b.cq.req_notify(round % 2 == 1).unwrap();
        std::thread::scope(|s| {
            let waiter = s.spawn(|| channel.get_event().unwrap());
            if round % 10 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            let wr = SendWr {
                wr_id: 1,
                op: SendOp::Send,
                flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
                payload: a.sges(0, 8),
                ud: None,
                xrc_srqn: 0,
            };
            a.qp.post_send(wr).unwrap();
            assert_eq!(waiter.join().unwrap().user, 4711);
        });
        b.cq.ack_events(1);
        b.wait_good();
        a.wait_good();
    }
    sys::set_nonblocking(channel.fd());
    assert_eq!(channel.get_event().unwrap_err().errno, Errno::EAGAIN);
}

fn destroy_waits() {
    let a = Endpoint::new(QpType::Rc, false, 64);
    let (b, channel) = with_channel(64);
    join(&a, &b);
    b.post_recv(1, 0, 64);
    b.cq.req_notify(false).unwrap();
    a.post(1, SendOp::Send, a.sges(0, 8));
    channel.get_event().unwrap();
    b.qp.destroy().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            b.cq.destroy().unwrap();
            done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(30));
        assert!(!done.load(Ordering::SeqCst));
        b.cq.ack_events(1);
    });
    assert!(done.load(Ordering::SeqCst));
}

fn reset_purges() {
    let (a, b) = pair(QpType::Rc, false, 64);
    let create = QpCreate::new(QpType::Rc, &a.cq, &a.cq);
    let other = a.pd.create_qp(&create).unwrap();
    let error = QpAttr {
        qp_state: QpState::Err,
        ..QpAttr::default()
    };
    let init = QpAttr {
        qp_state: QpState::Init,
        port_num: 1,
        ..error
    };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    other.modify(&init, mask).unwrap();
    other.modify(&error, AttrMask::STATE).unwrap();
    let flushed = SendWr {
        wr_id: 5,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        payload: a.sges(0, 1),
        ud: None,
        xrc_srqn: 0,
    };
    other.post_send(flushed).unwrap();
    let bad = Remote {
        addr: b.at(0),
        rkey: RKey(0x55),
    };
    a.post(1, SendOp::Write { remote: bad }, a.sges(0, 8));
    wait_until("the error", || a.qp.state() == QpState::Err);
    let reset = QpAttr::default();
    a.qp.modify(&reset, AttrMask::STATE).unwrap();
    let wc = a.wait();
    assert_eq!((wc.qp_num, wc.wr_id), (other.qpn(), 5));
    let mut out = [Wc::default()];
    assert_eq!(a.cq.poll(&mut out), Ok(0), "{out:?}");
    b.qp.modify(&reset, AttrMask::STATE).unwrap();
    join(&a, &b);
    b.post_recv(1, 0, 64);
    a.post(9, SendOp::Send, a.sges(0, 8));
    assert_eq!(a.wait_good().wr_id, 9);
    assert_eq!(b.wait_good().wr_id, 1);
}

fn overrun() {
    let context = loopback();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(2, None, 0, 77).unwrap();
    let qp = pd.create_qp(&QpCreate::new(QpType::Rc, &cq, &cq)).unwrap();
    let a = Endpoint::with(context, pd, cq, qp, false, 64);
    let b = Endpoint::new(QpType::Rc, false, 64);
    join(&a, &b);
    for id in 0..3 {
        let remote = b.remote(0);
        a.post(id, SendOp::Write { remote }, a.sges(0, 8));
    }
    sys::set_nonblocking(a.context.async_fd());
    wait_until("the error", || a.qp.state() == QpState::Err);
    let event = a.context.next_async_event().unwrap();
    assert_eq!(event.kind, EventKind::CqErr);
    assert_eq!(event.element, AsyncElement::Cq { user: 77 });
    event.ack();
    let event = a.context.next_async_event().unwrap();
    assert_eq!(event.kind, EventKind::QpFatal);
    event.ack();
    wait_cq(&a.cq);
    wait_cq(&a.cq);
    assert!(a.cq.poll(&mut [Wc::default()]).is_err());
}

fn dereg_fence() {
    let (a, b) = pair(QpType::Rc, false, 1 << 18);
    let stop = AtomicBool::new(false);
    let target = sys::map(1 << 18, true);
    let mr = b.pd.reg_mr(target, 1 << 18, target, all_access()).unwrap();
    let remote = Remote {
        addr: target,
        rkey: mr.rkey(),
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                a.post(1, SendOp::Write { remote }, a.sges(0, 1 << 18));
                if a.wait().status != WcStatus::Success {
                    return;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        mr.dereg().unwrap();
        // Nothing may touch it now; if something did, it would only be an error in the engine, so
        // the key check must come first.
        sys::unmap(target, 1 << 18);
        std::thread::sleep(Duration::from_millis(20));
        stop.store(true, Ordering::SeqCst);
    });
    wait_until("the refusal", || a.qp.state() == QpState::Err);
}

fn wrong_key() {
    let (a, b) = pair(QpType::Rc, false, 64);
    let stranger = Endpoint::new(QpType::Rc, false, 64);
    let remote = stranger.remote(0);
    a.post(1, SendOp::Write { remote }, a.sges(0, 8));
    let wc = a.wait();
    assert_eq!(wc.status, WcStatus::RemAccessErr, "{wc:?}");
    assert_ne!(wc.vendor_err, 0);
    assert!(stranger.buffer.iter().all(|byte| *byte == 0));
    wait_until("the responder's error", || b.qp.state() == QpState::Err);
}

fn one_sided() {
    let (mut a, b) = pair(QpType::Rc, false, 4096);
    pattern(&mut a.buffer, 4);
    for round in 0..20u64 {
        // Nobody polls anything: the progress thread must do all of it.
        let flags = a.at(4000);
        let _ = flags;
        let remote = b.remote(0);
        a.post(round, SendOp::Write { remote }, a.sges(0, 4096));
        std::thread::sleep(Duration::from_millis(1));
    }
    wait_until("the bytes", || {
        std::hint::black_box(&b.buffer)[..] == std::hint::black_box(&a.buffer)[..]
    });
    for _ in 0..20 {
        a.wait_good();
    }
}

fn threads() {
    const ROUNDS: u64 = 300;
    std::thread::scope(|s| {
        for n in 0..4 {
            s.spawn(move || {
                let (mut a, b) = pair(QpType::Rc, n % 2 == 0, 8192);
                for round in 0..ROUNDS {
                    pattern(&mut a.buffer, round * 4 + n);
                    b.post_recv(round, 0, 8192);
                    a.post(round, SendOp::Send, a.sges(0, 5000));
                    assert_eq!(b.wait_good().wr_id, round);
                    assert_eq!(a.wait_good().wr_id, round);
                    assert!(a.buffer[..5000] == b.buffer[..5000]);
                }
            });
        }
    });
}

fn fork() {
    let (mut a, b) = pair(QpType::Rc, false, 1 << 16);
    let code = sys::in_child(|| {
        let dead = Errno::EIO;
        let checks = [
            a.cq.poll(&mut [Wc::default()]).map(|_| ()),
            a.cq.req_notify(false),
            a.qp.query().map(|_| ()),
            a.qp.destroy(),
            a.mr.dereg(),
            a.context.alloc_pd().map(|_| ()),
            a.qp.post_recv(RecvWr::default()),
        ];
        let good = checks.iter().all(|c| c.is_err_and(|e| e.errno == dead));
        a.context.close();
        if !good || sys::sockets() != 0 {
            return 1;
        }
        // With objects of its own it is a process like any other, and so is its child.
        let two = pair(QpType::Rc, false, 64);
        let (c, d) = &two;
        let works = || {
            d.post_recv(1, 0, 64);
            c.post(1, SendOp::Send, c.sges(0, 64));
            c.wait_good().wr_id == 1 && d.wait_good().wr_id == 1
        };
        let grandchild = sys::in_child(|| {
            let inherited = c.cq.poll(&mut [Wc::default()]).is_err() && a.qp.query().is_err();
            let (e, f) = pair(QpType::Rc, true, 64);
            f.post_recv(1, 0, 64);
            e.post(1, SendOp::Send, e.sges(0, 64));
            i32::from(!inherited || f.wait_good().wr_id != 1)
        });
        i32::from(grandchild != 0 || !works() || a.cq.poll(&mut [Wc::default()]).is_ok())
    });
    assert_eq!(code, 0);
    pattern(&mut a.buffer, 12);
    b.post_recv(1, 0, 1 << 16);
    a.post(1, SendOp::Send, a.sges(0, 1 << 16));
    a.wait_good();
    b.wait_good();
    assert!(a.buffer == b.buffer);
}

fn canaries() {
    const LEN: usize = 1 << 16;
    const CANARY: u8 = 0xca;
    let target = sys::map(LEN, true);
    for round in 0..40 {
        let (a, b) = pair(QpType::Rc, false, LEN);
        let mr =
            b.pd.reg_mr(target, LEN as u64, target, all_access())
                .unwrap();
        let remote = Remote {
            addr: target,
            rkey: mr.rkey(),
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                loop {
                    a.post(1, SendOp::Write { remote }, a.sges(0, LEN));
                    if a.wait().status != WcStatus::Success {
                        return;
                    }
                }
            });
            std::thread::sleep(Duration::from_micros(200 * round % 3000));
            mr.dereg().unwrap();
            sys::fill(target, LEN, CANARY);
            std::thread::sleep(Duration::from_millis(2));
            assert!(sys::is_filled(target, LEN, CANARY), "round {round}");
        });
    }
}

fn many_qps() {
    let a = Endpoint::new(QpType::Rc, false, 4096);
    let create = QpCreate::new(QpType::Rc, &a.cq, &a.cq);
    let qps: Vec<Qp> = (0..5000)
        .map(|_| a.pd.create_qp(&create).unwrap())
        .collect();
    let mut numbers: Vec<u32> = qps.iter().map(|qp| qp.qpn().value()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 5000);
    let slots: std::collections::HashSet<u16> = qps.iter().map(|qp| qp.qpn().slot()).collect();
    assert!(slots.len() >= 2, "{slots:?}");
    // One in each slot must work.
    for slot in slots {
        let qp = qps
            .iter()
            .find(|qp| qp.qpn().slot() == slot)
            .unwrap()
            .clone();
        let (context, pd, cq) = (a.context.clone(), a.pd.clone(), a.cq.clone());
        let one = Endpoint::with(context, pd, cq, qp, false, 4096);
        let other = Endpoint::new(QpType::Rc, false, 4096);
        join(&one, &other);
        other.post_recv(1, 0, 4096);
        one.post(2, SendOp::Send, one.sges(0, 4000));
        one.wait_good();
        other.wait_good();
    }
}

fn close_in_traffic() {
    let (a, b) = pair(QpType::Rc, false, 1 << 16);
    let remote = b.remote(0);
    for id in 0..50 {
        a.post(id, SendOp::Write { remote }, a.sges(0, 1 << 16));
    }
    b.context.close();
    assert_eq!(b.qp.state(), QpState::Err);
    assert!(b.context.alloc_pd().is_err());
    assert!(b.qp.destroy().is_ok(), "nothing is left of it");
    a.context.close();
    assert!(a.qp.post_recv(RecvWr::default()).is_err());
}

fn idle() {
    let (a, b) = pair(QpType::Rc, false, 4096);
    b.post_recv(1, 0, 4096);
    a.post(1, SendOp::Send, a.sges(0, 64));
    a.wait_good();
    b.wait_good();
    std::thread::sleep(Duration::from_millis(100));
    let (before, switches) = sys::usage();
    std::thread::sleep(Duration::from_millis(500));
    let (after, switches_after) = sys::usage();
    assert!(
        after - before < Duration::from_millis(5),
        "{:?}",
        after - before
    );
    let switches = switches_after - switches;
    assert!(switches < 20, "woke up {switches} times");
}

fn link_events() {
    let context = loopback();
    sys::set_nonblocking(context.async_fd());
    let expect = |kind: EventKind| {
        wait_until("the event", || {
            context.next_async_event().is_ok_and(|event| {
                let found = event.kind == kind;
                assert!(matches!(event.element, AsyncElement::Port(1)));
                event.ack();
                found
            })
        });
    };
    sys::set_link(false);
    expect(EventKind::PortErr);
    wait_until("DOWN", || {
        context.query_port(1).unwrap().state == PortState::Down
    });
    sys::set_link(true);
    expect(EventKind::PortActive);
    wait_until("its IPv6 address", || {
        let port = context.query_port(1).unwrap();
        let gids = context.gid_table();
        port.state == PortState::Active && gids.iter().any(|e| e.gid.v4().is_none())
    });
}
