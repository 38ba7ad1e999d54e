use rocebud_objects::{
    AhAttr, AttrMask, CqId, Path, Payload, PdId, QpAttr, QpCap, QpInit, QpState, QpType, RateLimit,
    Remote, SendFlags, SendOp, SendWr,
};
use rocebud_wire::{Mtu, Qpn, RKey};

use super::*;

const QPN: Qpn = Qpn::new(0x1000);
const BYTES: usize = 4096;

fn shared() -> Shared {
    Shared {
        keys: KeyTable::default(),
        pages: Arc::new(PageSet::create().unwrap().0),
    }
}

/// An unreliable connection: it waits for no answer.
fn connect(core: &mut Core, shared: &Shared) {
    let (node, mut world) = core.split(shared);
    let cap = QpCap {
        max_send_wr: 8,
        max_send_sge: 1,
        max_inline_data: 4096,
        ..QpCap::default()
    };
    let init = QpInit {
        qp_type: QpType::Uc,
        pd: PdId(1),
        send_cq: CqId(0),
        recv_cq: CqId(0),
        srq: None,
        xrcd: None,
        cap,
        sq_sig_all: false,
    };
    node.create_qp(QPN, init).unwrap();
    type M = AttrMask;
    let attr = QpAttr {
        port_num: 1,
        ah_attr: AhAttr {
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        },
        path_mtu: Mtu::M4096,
        dest_qp_num: Qpn::new(0x2000),
        ..QpAttr::default()
    };
    for (qp_state, mask) in [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (QpState::Rtr, M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN),
        (QpState::Rts, M::SQ_PSN),
    ] {
        let attr = QpAttr { qp_state, ..attr };
        let path = Some(Path::default()).filter(|_| mask.contains(M::AV));
        node.modify_qp(world.now, QPN, &attr, mask | M::STATE, path, &mut world)
            .unwrap();
    }
}

fn write() -> SendWr {
    SendWr {
        wr_id: 0,
        op: SendOp::Write {
            remote: Remote {
                addr: 0,
                rkey: RKey(1),
            },
        },
        flags: SendFlags::INLINE,
        payload: Payload::Inline(vec![0; BYTES].into()),
        ud: None,
        xrc_srqn: 0,
    }
}

#[test]
fn a_turn_that_sends_nothing_tells_of_the_deadline_that_it_made() {
    let (mut core, shared) = (Core::new(), shared());
    connect(&mut core, &shared);
    let limit = RateLimit {
        rate_kbps: 80,
        ..RateLimit::default()
    };
    let (node, mut world) = core.split(&shared);
    node.set_rate_limit(world.now, QPN, limit, &mut world)
        .unwrap();
    // More than a burst: the last has to wait.
    for _ in 0..3 {
        node.post_send(world.now, QPN, write(), &mut world).unwrap();
    }
    assert!(
        core.deadline_ns()
            .is_some_and(|at| at < now().0 + 10_000_000)
    );
    let turn = core.turn(&shared, now(), |_, _| false);
    assert!(turn.is_idle(), "without a link nothing leaves");
    assert!(core.deadline_ns().is_some(), "the rate limit's");
    assert!(core.may_be_due_sooner(turn));
    let turn = core.turn(&shared, now(), |_, _| false);
    assert!(!core.may_be_due_sooner(turn), "known by now");
}
