//! Extended reliable connections over real packets, and the lives of their domains.

use std::fs::File;
use std::os::fd::AsRawFd;

use rocebud_verbs::*;

use crate::endpoint::{Endpoint, all_access, loopback, masks, pattern, wait_cq, wait_until};
use crate::{Case, sys};

pub(crate) const ALL: &[Case] = &[
    ("two_xrc_connections_feed_two_queues", traffic),
    ("xrc_domains_hold_what_is_in_them", lives),
    (
        "xrc_domains_are_shared_by_file_within_a_process_alone",
        files,
    ),
    (
        "an_opened_queue_pair_lives_as_long_as_its_last_handle",
        opened,
    ),
    ("events_reach_every_handle_of_a_queue_pair", events),
    (
        "a_queue_pair_outlives_the_device_that_made_it_while_another_has_it",
        outlives,
    ),
];

const SIZE: usize = 3 * 4096;
const OWN: OpenXrcd = OpenXrcd {
    fd: None,
    create: true,
    exclusive: false,
};
const ATTR: SrqAttr = SrqAttr {
    max_wr: 64,
    max_sge: 2,
    srq_limit: 0,
};

/// Takes both ends of a connection to RTS.
fn connect(ends: [(&Qp, &Endpoint); 2]) {
    let (rtr_mask, rts_mask) = masks(QpType::XrcSend);
    for (qp, at) in ends {
        let attr = QpAttr {
            qp_state: QpState::Init,
            port_num: 1,
            qp_access_flags: all_access(),
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        qp.modify(&attr, mask).unwrap();
        let _ = at;
    }
    for ((qp, at), (peer, there)) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        let attr = QpAttr {
            qp_state: QpState::Rtr,
            path_mtu: Mtu::M1024,
            dest_qp_num: peer.qpn(),
            rq_psn: Psn::new(7),
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ah_attr: at.av(there.gid),
            ..QpAttr::default()
        };
        qp.modify(&attr, rtr_mask).unwrap();
        let attr = QpAttr {
            qp_state: QpState::Rts,
            sq_psn: Psn::new(7),
            timeout: 12,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..QpAttr::default()
        };
        qp.modify(&attr, rts_mask).unwrap();
    }
}

fn traffic() {
    // Two requesters, one process that serves them; every message may go to either queue.
    let mut senders = [(); 2].map(|()| Endpoint::new(QpType::XrcSend, false, SIZE));
    let target = Endpoint::new(QpType::Rc, false, SIZE);
    let xrcd = target.context.open_xrcd(OWN).unwrap();
    let cqs = [(); 2].map(|()| target.context.create_cq(64, None, 0, 0).unwrap());
    let srqs = [0, 1].map(|i| target.pd.create_xrc_srq(&ATTR, &xrcd, &cqs[i], 0).unwrap());
    let targets = [(); 2].map(|()| xrcd.create_qp(0).unwrap());
    for (sender, serving) in senders.iter().zip(&targets) {
        connect([(&sender.qp, sender), (serving, &target)]);
    }
    for (i, sender) in senders.iter_mut().enumerate() {
        pattern(&mut sender.buffer, i as u64 + 1);
    }
    for round in 0..40_u64 {
        let (from, into) = ((round % 2) as usize, (round / 2 % 2) as usize);
        let (sender, srq) = (&senders[from], &srqs[into]);
        let sges = [target.sge(4096, 4096)].into_iter().collect();
        srq.post_recv(RecvWr { wr_id: round, sges }).unwrap();
        let request = |op, payload| SendWr {
            wr_id: 500 + round,
            op,
            flags: SendFlags::SIGNALED,
            payload,
            ud: None,
            xrc_srqn: srq.number(),
        };
        let imm = SendOp::SendImm {
            imm: [round as u8; 4],
        };
        let offset = round as usize * 7;
        let post = |op, payload| sender.qp.post_send(request(op, payload)).unwrap();
        post(imm, sender.sges(offset, 3000));
        assert_eq!(sender.wait_good().wr_id, 500 + round);
        let wc = wait_cq(&cqs[into]);
        assert_eq!((wc.wr_id, wc.status), (round, WcStatus::Success));
        assert_eq!((wc.qp_num, wc.imm), (targets[from].qpn(), [round as u8; 4]));
        assert_eq!(
            target.buffer[4096..7096],
            sender.buffer[offset..offset + 3000]
        );
        let remote = target.remote(0);
        post(SendOp::Write { remote }, sender.sges(0, 2000));
        sender.wait_good();
        assert_eq!(target.buffer[..2000], sender.buffer[..2000]);
        post(SendOp::Read { remote }, sender.sges(8192, 2000));
        sender.wait_good();
        assert_eq!(sender.buffer[8192..10_192], target.buffer[..2000]);
    }
    // Keys are those of the queue's domain, and nobody else's.
    let stranger = Endpoint::new(QpType::Rc, false, 64);
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Write {
            remote: stranger.remote(0),
        },
        flags: SendFlags::SIGNALED,
        payload: senders[0].sges(0, 8),
        ud: None,
        xrc_srqn: srqs[0].number(),
    };
    senders[0].qp.post_send(wr).unwrap();
    assert_eq!(senders[0].wait().status, WcStatus::RemAccessErr);
}

fn lives() {
    let at = Endpoint::new(QpType::Rc, false, 64);
    let xrcd = at.context.open_xrcd(OWN).unwrap();
    let cq = at.context.create_cq(4, None, 0, 0).unwrap();
    let srq = at.pd.create_xrc_srq(&ATTR, &xrcd, &cq, 0).unwrap();
    let target = xrcd.create_qp(0).unwrap();
    for refused in [xrcd.close(), cq.destroy()] {
        assert_eq!(refused.unwrap_err().errno, Errno::EBUSY);
    }
    let in_use = QpCreate {
        srq: Some(srq.clone()),
        ..QpCreate::new(QpType::Rc, &cq, &cq)
    };
    assert_eq!(at.pd.create_qp(&in_use).unwrap_err().errno, Errno::EINVAL);
    let sender = QpCreate::new(QpType::XrcSend, &cq, &cq);
    let with_srq = QpCreate {
        srq: Some(srq.clone()),
        ..sender.clone()
    };
    let homeless = QpCreate::new(QpType::XrcRecv, &cq, &cq);
    for bad in [with_srq, homeless] {
        assert_eq!(at.pd.create_qp(&bad).unwrap_err().errno, Errno::EINVAL);
    }
    let sender = at.pd.create_qp(&sender).unwrap();
    let wr = RecvWr::default();
    assert_eq!(
        sender.post_recv(wr.clone()).unwrap_err().errno,
        Errno::EINVAL
    );
    assert_eq!(target.post_recv(wr).unwrap_err().errno, Errno::EINVAL);
    target.destroy().unwrap();
    assert_eq!(xrcd.close().unwrap_err().errno, Errno::EBUSY);
    srq.destroy().unwrap();
    sender.destroy().unwrap();
    cq.destroy().unwrap();
    xrcd.close().unwrap();
    assert_eq!(xrcd.close().unwrap_err().errno, Errno::EINVAL);
    assert_eq!(xrcd.create_qp(0).unwrap_err().errno, Errno::EINVAL);
    let none = OpenXrcd::default();
    assert_eq!(at.context.open_xrcd(none).unwrap_err().errno, Errno::EINVAL);
    let bad = OpenXrcd {
        fd: Some(9999),
        ..OWN
    };
    assert_eq!(at.context.open_xrcd(bad).unwrap_err().errno, Errno(9));
}

fn files() {
    let at = Endpoint::new(QpType::Rc, false, 64);
    let path = std::env::temp_dir().join(format!("rocebud-xrc-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    let again = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let of = |file: &File, create, exclusive| OpenXrcd {
        fd: Some(file.as_raw_fd()),
        create,
        exclusive,
    };
    let open = |how| at.context.open_xrcd(how);
    assert_eq!(
        open(of(&file, false, false)).unwrap_err().errno,
        Errno::EAGAIN
    );
    let first = open(of(&file, true, true)).unwrap();
    let second = open(of(&again, false, false)).unwrap();
    let target = first.create_qp(0).unwrap();
    assert!(
        second.open_qp(target.qpn()).is_ok(),
        "one domain by two names"
    );
    let own = open(OWN).unwrap();
    assert_eq!(own.open_qp(target.qpn()).unwrap_err().errno, Errno::EINVAL);
    let exclusive = open(of(&again, true, true)).unwrap_err();
    assert_eq!(exclusive.errno, Errno::EINVAL);
    // Another process finds it taken.
    let how = of(&file, true, false);
    let refused = sys::in_child(|| loopback().open_xrcd(how).map_or_else(|e| e.errno.0, |_| 0));
    assert_eq!(refused, Errno::EOPNOTSUPP.0);
    target.destroy().unwrap();
}

fn opened() {
    let at = Endpoint::new(QpType::Rc, false, 64);
    let xrcd = at.context.open_xrcd(OWN).unwrap();
    let created = xrcd.create_qp(0).unwrap();
    let other = xrcd.open_qp(created.qpn()).unwrap();
    assert_eq!(other.qpn(), created.qpn());
    created.destroy().unwrap();
    assert_eq!(
        other.query().unwrap().0.qp_state,
        QpState::Reset,
        "it lives on"
    );
    assert_eq!(xrcd.close().unwrap_err().errno, Errno::EBUSY);
    other.destroy().unwrap();
    assert_eq!(other.destroy().unwrap_err().errno, Errno::EINVAL);
    let gone = xrcd.open_qp(created.qpn()).unwrap_err();
    assert_eq!(gone.errno, Errno::EINVAL);
    xrcd.close().unwrap();
}

/// A sender connected to a serving queue pair, whose domain's file is open once more.
struct Served {
    sender: Endpoint,
    at: Endpoint,
    file: File,
    xrcd: Xrcd,
    srq: Srq,
    created: Qp,
}

fn served(user: u64) -> Served {
    let sender = Endpoint::new(QpType::XrcSend, false, 64);
    let at = Endpoint::new(QpType::Rc, false, 64);
    let path = std::env::temp_dir().join(format!("rocebud-xrc-{}-{user}", std::process::id()));
    let file = File::create(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let xrcd = at.context.open_xrcd(of(&file)).unwrap();
    let srq = at.pd.create_xrc_srq(&ATTR, &xrcd, &at.cq, 0).unwrap();
    let created = xrcd.create_qp(user).unwrap();
    connect([(&sender.qp, &sender), (&created, &at)]);
    Served {
        sender,
        at,
        file,
        xrcd,
        srq,
        created,
    }
}

fn of(file: &File) -> OpenXrcd {
    OpenXrcd {
        fd: Some(file.as_raw_fd()),
        ..OWN
    }
}

impl Served {
    /// One request; its completion's status.
    fn request(&self, op: SendOp) -> WcStatus {
        let wr = SendWr {
            wr_id: 1,
            op,
            flags: SendFlags::SIGNALED,
            payload: self.sender.sges(0, 8),
            ud: None,
            xrc_srqn: self.srq.number(),
        };
        self.sender.qp.post_send(wr).unwrap();
        self.sender.wait().status
    }

    /// A request that the serving end refuses, and says so in an event.
    fn misbehave(&self) {
        let remote = self.sender.remote(0); // A key of another domain.
        let status = self.request(SendOp::Write { remote });
        assert_eq!(status, WcStatus::RemAccessErr);
    }
}

/// Events of a device, as kind and `user` word of the queue pair they are about, and acknowledged.
fn taken(context: &Context) -> Vec<(EventKind, u64)> {
    sys::set_nonblocking(context.async_fd());
    let mut all = Vec::new();
    while let Ok(event) = context.next_async_event() {
        if let AsyncElement::Qp { user, .. } = event.element {
            all.push((event.kind, user));
        }
        event.ack();
    }
    all.sort_unstable_by_key(|(_, user)| *user);
    all
}

fn events() {
    // Three handles, the last by another open device: each is named in an event of its own, and
    // one that was destroyed is not named again.
    let served = served(11);
    let second = loopback();
    let second_xrcd = second.open_xrcd(of(&served.file)).unwrap();
    let qpn = served.created.qpn();
    let same = served.xrcd.open_qp(qpn).unwrap();
    let other = second_xrcd.open_qp(qpn).unwrap();
    same.set_user(22);
    other.set_user(33);
    let users = [&served.created, &same, &other].map(Qp::user);
    assert_eq!(users, [11, 22, 33], "a word for each handle");
    assert_eq!(second_xrcd.close().unwrap_err().errno, Errno::EBUSY);

    served.misbehave();
    let kind = EventKind::QpAccessErr;
    wait_until("the second device's event", || {
        sys::readable(second.async_fd())
    });
    assert_eq!(taken(&served.at.context), [(kind, 11), (kind, 22)]);
    assert_eq!(taken(&second), [(kind, 33)]);

    // Unread events go with their handle, the others stay.
    let again = self::served(44);
    let gone = again.xrcd.open_qp(again.created.qpn()).unwrap();
    gone.set_user(55);
    again.misbehave();
    wait_until("events", || sys::readable(again.at.context.async_fd()));
    gone.destroy().unwrap();
    assert_eq!(gone.destroy().unwrap_err().errno, Errno::EINVAL);
    assert_eq!(gone.query().unwrap_err().errno, Errno::EINVAL);
    assert_eq!(taken(&again.at.context), [(kind, 44)]);

    // Destroying a handle waits for the acknowledgement of its own events alone.
    let last = self::served(66);
    let free = last.xrcd.open_qp(last.created.qpn()).unwrap();
    free.set_user(77);
    last.misbehave();
    wait_until("events", || sys::readable(last.at.context.async_fd()));
    let held = [(); 2].map(|()| last.at.context.next_async_event().unwrap());
    let of_free = |e: &AsyncEventOut| matches!(e.element, AsyncElement::Qp { user: 77, .. });
    let (mut of_free, mut of_created) = held.into_iter().partition::<Vec<_>, _>(of_free);
    of_free.pop().unwrap().ack();
    free.destroy().unwrap();
    of_created.pop().unwrap().ack();
    last.created.destroy().unwrap();
}

fn outlives() {
    let served = served(88);
    let second = loopback();
    let xrcd = second.open_xrcd(of(&served.file)).unwrap();
    let pd = second.alloc_pd().unwrap();
    let cq = second.create_cq(4, None, 0, 0).unwrap();
    let srq = pd.create_xrc_srq(&ATTR, &xrcd, &cq, 0).unwrap();
    let other = xrcd.open_qp(served.created.qpn()).unwrap();
    served.at.context.close();
    assert!(served.created.query().is_err(), "its device is closed");
    assert_eq!(other.query().unwrap().0.qp_state, QpState::Rts);
    srq.post_recv(RecvWr::default()).unwrap();
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        payload: served.sender.sges(0, 0),
        ud: None,
        xrc_srqn: srq.number(),
    };
    served.sender.qp.post_send(wr).unwrap();
    assert_eq!(served.sender.wait().status, WcStatus::Success);
    assert_eq!(wait_cq(&cq).qp_num, other.qpn());
    other.destroy().unwrap();
    let gone = xrcd.open_qp(other.qpn()).unwrap_err();
    assert_eq!(gone.errno, Errno::EINVAL);
}
