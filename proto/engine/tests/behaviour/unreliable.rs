//! UC and UD: what is dropped, what resynchronises, and what the receiver sees.

use rocebud_engine::RxMeta;
use rocebud_objects::{
    Counter, EventKind, QpState, QpType, SendFlags, SendOp, SendWr, Sge, UdAddress, WcFlags,
    WcOpcode, WcStatus,
};
use rocebud_wire::{Gid, LKey, Mtu, Opcode, QKey, Qpn, RKey};

use crate::pair::{Fate, KEY, Pair, QPN, START, Setup, path, remote, sge, wr};

const FAR: u64 = START + 0x10_0000;
const OK: WcStatus = WcStatus::Success;

fn uc() -> Pair {
    Pair::new(Setup {
        qp_type: QpType::Uc,
        ..Setup::default()
    })
}

fn ud() -> Pair {
    Pair::new(Setup {
        qp_type: QpType::Ud,
        ..Setup::default()
    })
}

#[test]
fn uc_moves_sends_and_writes_and_completes_when_the_last_packet_is_out() {
    let mut pair = uc();
    let bytes = pair.pattern(0, START, 5000, 1);
    pair.recv(1, 3, &[sge(FAR, 5000)]).unwrap();
    pair.recv(1, 4, &[]).unwrap();
    pair.post(
        0,
        wr(0, SendOp::SendImm { imm: [7; 4] }, &[sge(START, 5000)]),
    )
    .unwrap();
    let op = SendOp::WriteImm {
        remote: remote(FAR + 0x1_0000),
        imm: [8; 4],
    };
    pair.post(0, wr(1, op, &[sge(START, 5000)])).unwrap();
    pair.transmit(0);
    assert_eq!(pair.results(0), [(0, OK), (1, OK)]);
    pair.run();
    assert_eq!(pair.side[1].world.peek(KEY, FAR, 5000), bytes);
    assert_eq!(pair.side[1].world.peek(KEY, FAR + 0x1_0000, 5000), bytes);
    let wcs = pair.wcs(1);
    assert_eq!((wcs[0].byte_len, wcs[0].imm), (5000, [7; 4]));
    assert_eq!(
        (wcs[1].opcode, wcs[1].byte_len),
        (WcOpcode::RecvRdmaWithImm, 5000)
    );
    assert!(pair.log.iter().all(|f| f.from == 0 && !f.ack_req));
}

#[test]
fn uc_drops_a_broken_message_and_takes_up_the_next_with_the_same_receive() {
    for lost in [0x100, 0x101, 0x102] {
        let mut pair = uc();
        pair.rule(move |f| {
            if f.psn == lost {
                Fate::Drop
            } else {
                Fate::Deliver
            }
        });
        pair.recv(1, 3, &[sge(FAR, 3000)]).unwrap();
        pair.recv(1, 4, &[sge(FAR + 0x1_0000, 3000)]).unwrap();
        pair.post(0, wr(0, SendOp::Send, &[sge(START, 3000)]))
            .unwrap();
        let bytes = pair.pattern(0, START + 0x1_0000, 3000, 2);
        pair.post(0, wr(1, SendOp::Send, &[sge(START + 0x1_0000, 3000)]))
            .unwrap();
        pair.run();
        assert_eq!(pair.results(0), [(0, OK), (1, OK)]);
        assert_eq!(pair.results(1), [(3, OK)], "lost {lost:x}");
        assert_eq!(pair.side[1].world.peek(KEY, FAR, 3000), bytes);
        assert_eq!(pair.state(1), QpState::Rts);
        assert!(pair.side[1].world.counter(Counter::DropNoReceive) > 0);
    }
}

#[test]
fn uc_refuses_in_silence() {
    let mut pair = uc();
    let wild = rocebud_objects::Remote {
        addr: FAR,
        rkey: RKey(0x999),
    };
    pair.post(0, wr(0, SendOp::Send, &[sge(START, 8)])).unwrap();
    pair.post(0, wr(1, SendOp::Write { remote: wild }, &[sge(START, 8)]))
        .unwrap();
    let outside = remote(START + crate::pair::SIZE as u64 - 1);
    pair.post(
        0,
        wr(2, SendOp::Write { remote: outside }, &[sge(START, 3000)]),
    )
    .unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, OK), (1, OK), (2, OK)]);
    assert_eq!((pair.state(0), pair.state(1)), (QpState::Rts, QpState::Rts));
    assert!(pair.log.iter().all(|f| f.from == 0));
    pair.recv(1, 5, &[sge(FAR, 100)]).unwrap();
    pair.post(0, wr(3, SendOp::Send, &[sge(START, 3000)]))
        .unwrap();
    pair.post(0, wr(4, SendOp::Send, &[sge(START, 100)]))
        .unwrap();
    pair.run();
    assert_eq!(
        pair.results(1),
        [(5, OK)],
        "the long one was dropped, its receive kept"
    );
}

#[test]
fn a_failed_send_puts_unreliable_queue_pairs_into_sqe_and_rts_revives_them() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut pair = Pair::new(Setup {
            qp_type,
            ..Setup::default()
        });
        let ud = pair.ud(0);
        let send = |id, pieces: &[Sge]| SendWr {
            ud: Some(ud),
            ..wr(id, SendOp::Send, pieces)
        };
        let bad = Sge {
            addr: START,
            length: 8,
            lkey: LKey(0x999),
        };
        pair.recv(0, 50, &[sge(START, 1000)]).unwrap();
        pair.post(0, send(0, &[sge(START, 8)])).unwrap();
        pair.post(0, send(1, &[bad])).unwrap();
        pair.post(0, send(2, &[sge(START, 8)])).unwrap();
        pair.run();
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(
            pair.results(0),
            [(0, OK), (1, WcStatus::LocProtErr), (2, flushed)]
        );
        assert_eq!(pair.state(0), QpState::Sqe);
        pair.post(0, send(3, &[])).unwrap();
        assert_eq!(pair.results(0), [(3, flushed)]);
        let back = SendWr {
            ud: Some(pair.ud(1)),
            ..wr(9, SendOp::Send, &[sge(START, 8)])
        };
        pair.post(1, back).unwrap();
        pair.run();
        assert_eq!(pair.results(0), [(50, OK)], "receives go on");
        pair.set_state(0, QpState::Rts).unwrap();
        pair.recv(1, 60, &[sge(FAR, 1000)]).unwrap();
        pair.post(0, send(4, &[sge(START, 8)])).unwrap();
        pair.run();
        assert_eq!(pair.results(0), [(4, OK)]);
        assert!(pair.results(1).contains(&(60, OK)));
    }
}

#[test]
fn a_datagram_arrives_behind_forty_bytes_that_hold_the_ip_header() {
    let mut pair = ud();
    let bytes = pair.pattern(0, START, 1001, 4);
    pair.recv(1, 3, &[sge(FAR, 40), sge(FAR + 0x1000, 2000)])
        .unwrap();
    let send = SendWr {
        ud: Some(pair.ud(0)),
        ..wr(0, SendOp::SendImm { imm: [5; 4] }, &[sge(START, 1001)])
    };
    pair.post(0, send).unwrap();
    pair.run();
    let wc = pair.wcs(1)[0];
    assert_eq!((wc.byte_len, wc.src_qp, wc.imm), (1041, QPN[0], [5; 4]));
    assert_eq!(wc.wc_flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!(pair.side[1].world.peek(KEY, FAR + 0x1000, 1001), bytes);
    let area = pair.side[1].world.peek(KEY, FAR, 40);
    assert_eq!(area[..20], [0; 20]);
    let udp = 8 + pair.log[0].bytes.len();
    assert_eq!(area[20..22], [0x45, 0]);
    assert_eq!(area[22..24], ((20 + udp) as u16).to_be_bytes());
    assert_eq!(area[24..30], [0, 7, 0x40, 0, 64, 17]);
    assert_eq!(area[32..40], [10, 0, 0, 1, 10, 0, 0, 2]);
    let sum: u32 = area[20..]
        .chunks(2)
        .map(|b| u32::from(u16::from_be_bytes([b[0], b[1]])))
        .sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "header checksum");
}

#[test]
fn a_datagram_over_ipv6_shows_the_ipv6_header() {
    let mut pair = ud();
    pair.recv(1, 3, &[sge(FAR, 100)]).unwrap();
    let send = SendWr {
        ud: Some(pair.ud(0)),
        ..wr(0, SendOp::Send, &[])
    };
    pair.post(0, send).unwrap();
    pair.transmit(0);
    let (src, dst) = (Gid([0xfd; 16]), Gid([0xfc; 16]));
    let meta = RxMeta {
        src,
        dst,
        traffic_class: 0xab,
        ..pair.meta(0)
    };
    let bytes = pair.log[0].bytes.clone();
    pair.inject_from(1, &meta, &bytes);
    let area = pair.side[1].world.peek(KEY, FAR, 40);
    assert_eq!(area[..4], [0x6a, 0xb0, 0, 0]);
    assert_eq!((area[6], area[7]), (17, 64));
    assert_eq!((&area[8..24], &area[24..]), (&src.0[..], &dst.0[..]));
    assert_eq!(pair.wcs(1)[0].byte_len, 40);
}

#[test]
fn datagrams_with_a_wrong_qkey_or_without_room_are_dropped() {
    let mut pair = ud();
    let to = |pair: &Pair, qkey| UdAddress {
        remote_qkey: QKey(qkey),
        ..pair.ud(0)
    };
    let send = |ud| SendWr {
        ud: Some(ud),
        ..wr(0, SendOp::Send, &[sge(START, 100)])
    };
    pair.post(0, send(to(&pair, 0x2222))).unwrap();
    pair.run();
    assert_eq!(pair.side[1].world.counter(Counter::DropBadQkey), 1);
    pair.post(0, send(to(&pair, 0x8000_0000))).unwrap();
    pair.run();
    assert_eq!(
        pair.side[1].world.counter(Counter::DropBadQkey),
        1,
        "controlled: own Q_Key"
    );
    assert_eq!(pair.side[1].world.counter(Counter::DropNoReceive), 1);
    pair.recv(1, 1, &[sge(FAR, 139)]).unwrap();
    pair.post(0, send(pair.ud(0))).unwrap();
    pair.run();
    assert_eq!(
        pair.side[1].world.counter(Counter::DropNoReceive),
        2,
        "one byte short"
    );
    let small = SendWr {
        ud: Some(pair.ud(0)),
        ..wr(0, SendOp::Send, &[sge(START, 99)])
    };
    pair.post(0, small).unwrap();
    pair.run();
    assert_eq!(pair.results(1), [(1, OK)], "the receive was kept");
}

#[test]
fn a_datagram_longer_than_the_port_mtu_fails_at_the_sender() {
    let mut pair = ud();
    pair.side[0].node.set_port_mtu(QPN[0], Mtu::M1024).unwrap();
    let send = SendWr {
        ud: Some(pair.ud(0)),
        ..wr(0, SendOp::Send, &[sge(START, 1025)])
    };
    pair.post(0, send).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, WcStatus::LocLenErr)]);
    assert!(pair.log.is_empty());
}

#[test]
fn multicast_goes_to_every_attached_queue_pair_and_no_other() {
    let mut pair = ud();
    let other = Qpn::new(0x2023);
    let init = pair.init_attr();
    let group = Gid::from_v4([239, 1, 2, 3]);
    let side = &mut pair.side[1];
    side.node.create_qp(other, init).unwrap();
    for (attr, mask) in crate::pair::moves(&pair.setup, 1) {
        side.node
            .modify_qp(pair.now, other, &attr, mask, None, &mut side.world)
            .unwrap();
    }
    for qpn in [QPN[1], other] {
        let recv = rocebud_objects::RecvWr {
            wr_id: u64::from(qpn.value()),
            sges: [sge(FAR, 1000)].into_iter().collect(),
        };
        side.node
            .post_recv(pair.now, qpn, recv, &mut side.world)
            .unwrap();
        side.node.attach_mcast(qpn, group).unwrap();
    }
    assert!(
        side.node
            .attach_mcast(other, Gid::from_v4([10, 0, 0, 1]))
            .is_err()
    );
    let ud = UdAddress {
        path: path(crate::pair::gids()[0], group),
        remote_qpn: Qpn::MULTICAST,
        ..pair.ud(0)
    };
    let send = SendWr {
        ud: Some(ud),
        ..wr(0, SendOp::Send, &[sge(START, 8)])
    };
    pair.post(0, send).unwrap();
    pair.transmit(0);
    let bytes = pair.log[0].bytes.clone();
    let meta = RxMeta {
        dst: group,
        ..pair.meta(0)
    };
    pair.inject_from(1, &meta, &bytes);
    pair.inject_from(
        1,
        &RxMeta {
            dst: Gid::from_v4([239, 9, 9, 9]),
            ..meta
        },
        &bytes,
    );
    assert_eq!(pair.results(1), [(0x2022, OK), (0x2023, OK)]);
    assert_eq!(pair.side[1].world.counter(Counter::DropNoQp), 1);
    let side = &mut pair.side[1];
    assert!(
        side.node.destroy_qp(other, &mut side.world).is_err(),
        "EBUSY while attached"
    );
    side.node.detach_mcast(other, group).unwrap();
    assert!(side.node.detach_mcast(other, group).is_err());
    side.node.destroy_qp(other, &mut side.world).unwrap();
}

#[test]
fn unreliable_services_refuse_what_they_do_not_have() {
    let mut pair = uc();
    for op in [
        SendOp::Read {
            remote: remote(FAR),
        },
        SendOp::FetchAdd {
            remote: remote(FAR),
            add: 1,
        },
        SendOp::SendInv { rkey: RKey(1) },
        SendOp::AtomicWrite {
            remote: remote(FAR),
        },
    ] {
        assert!(pair.post(0, wr(0, op, &[sge(START, 8)])).is_err(), "{op:?}");
    }
    let mut pair = ud();
    assert!(
        pair.post(0, wr(0, SendOp::Send, &[])).is_err(),
        "no address handle"
    );
    let write = SendWr {
        ud: Some(pair.ud(0)),
        ..wr(
            0,
            SendOp::Write {
                remote: remote(FAR),
            },
            &[],
        )
    };
    assert!(pair.post(0, write).is_err());
}

#[test]
fn uc_tells_that_the_connection_stands_and_frames_of_other_classes_are_dropped() {
    let mut pair = Pair::bare(Setup {
        qp_type: QpType::Uc,
        ..Setup::default()
    });
    pair.create(0, QPN[0]);
    pair.create(1, QPN[1]);
    pair.connect(0);
    for (attr, mask) in &crate::pair::moves(&pair.setup, 1)[..2] {
        pair.modify(1, attr, *mask).unwrap();
    }
    let request = SendWr {
        flags: SendFlags::SIGNALED,
        ..wr(
            0,
            SendOp::Write {
                remote: remote(FAR),
            },
            &[sge(START, 8)],
        )
    };
    pair.post(0, request).unwrap();
    pair.run();
    assert_eq!(pair.events(1, EventKind::CommEst), 1);
    let mut bytes = pair.log[0].bytes.clone();
    bytes[0] = Opcode::RC_WRITE_ONLY.0;
    pair.inject(1, &bytes);
    assert_eq!(pair.side[1].world.counter(Counter::DropWrongClass), 1);
}
