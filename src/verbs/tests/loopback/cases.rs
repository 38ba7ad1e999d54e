//! Every operation, byte for byte.

use rocebud_verbs::*;

use crate::Case;
use crate::endpoint::{Endpoint, pair, pattern};

pub(crate) const ALL: &[Case] = &[
    ("rc_send_recv_v4", || send_recv(false)),
    ("rc_send_recv_v6", || send_recv(true)),
    ("rc_write_and_read_of_every_size", write_and_read),
    ("rc_write_with_immediate", write_imm),
    ("rc_atomics_are_exact", atomics),
    ("rc_inline_is_a_copy", inline),
    ("rc_from_many_pieces", pieces),
    ("uc_send", || uc_send(false)),
    ("uc_messages_of_growing_sizes_stay_in_order", uc_growing),
    ("ud_send_v4", || ud_send(false)),
    ("ud_send_v6", || ud_send(true)),
    ("many_small_sends_in_order", many_small),
    ("two_directions_at_once", both_ways),
];

fn send_recv(v6: bool) {
    let (mut a, b) = pair(QpType::Rc, v6, 1 << 20);
    for len in [0, 1, 3, 64, 1023, 1024, 1025, 65_537, 1 << 20] {
        pattern(&mut a.buffer, len as u64);
        b.post_recv(7, 0, 1 << 20);
        a.post(len as u64, SendOp::Send, a.sges(0, len));
        assert_eq!(a.wait_good().wr_id, len as u64);
        let wc = b.wait_good();
        assert_eq!((wc.wr_id, wc.byte_len as usize), (7, len));
        assert_eq!(wc.opcode, WcOpcode::Recv);
        assert!(a.buffer[..len] == b.buffer[..len], "{len} bytes differ");
    }
}

fn write_and_read() {
    const MAX: usize = 4 << 20;
    let (mut a, mut b) = pair(QpType::Rc, false, MAX);
    for len in [1, 2, 1000, 1024, 4097, 65_535, 65_536, 1_000_001, MAX] {
        pattern(&mut a.buffer, len as u64);
        b.buffer.fill(0);
        let at = MAX - len;
        let to = b.remote(at);
        a.post(1, SendOp::Write { remote: to }, a.sges(0, len));
        assert_eq!(a.wait_good().opcode, WcOpcode::RdmaWrite);
        assert!(a.buffer[..len] == b.buffer[at..], "write of {len}");
        assert!(b.buffer[..at].iter().all(|b| *b == 0));

        pattern(&mut b.buffer, !(len as u64));
        a.post(2, SendOp::Read { remote: to }, a.sges(0, len));
        assert_eq!(a.wait_good().opcode, WcOpcode::RdmaRead);
        assert!(a.buffer[..len] == b.buffer[at..], "read of {len}");
    }
}

fn write_imm() {
    let (mut a, b) = pair(QpType::Rc, false, 1 << 16);
    pattern(&mut a.buffer, 5);
    b.post_recv(9, 0, 0);
    let op = SendOp::WriteImm {
        remote: b.remote(16),
        imm: [1, 2, 3, 4],
    };
    a.post(1, op, a.sges(0, 5000));
    a.wait_good();
    let wc = b.wait_good();
    assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm);
    assert_eq!((wc.imm, wc.byte_len, wc.wr_id), ([1, 2, 3, 4], 5000, 9));
    assert!(a.buffer[..5000] == b.buffer[16..5016]);
}

fn atomics() {
    let (a, mut b) = pair(QpType::Rc, false, 64);
    b.buffer[8..16].copy_from_slice(&100u64.to_ne_bytes());
    let old = |e: &Endpoint| u64::from_ne_bytes(e.buffer[..8].try_into().unwrap());
    // The region begins wherever the allocator put it; atomics need eight-byte alignment.
    let at = (8 - b.at(0) as usize % 8) % 8 + 8;
    b.buffer[at..at + 8].copy_from_slice(&100u64.to_ne_bytes());
    let op = SendOp::FetchAdd {
        remote: b.remote(at),
        add: 5,
    };
    a.post(1, op, a.sges(0, 8));
    assert_eq!(a.wait_good().opcode, WcOpcode::FetchAdd);
    assert_eq!(old(&a), 100);
    let op = SendOp::CmpSwap {
        remote: b.remote(at),
        compare: 105,
        swap: 7,
    };
    a.post(2, op, a.sges(0, 8));
    assert_eq!(a.wait_good().opcode, WcOpcode::CompSwap);
    assert_eq!(old(&a), 105);
    let now = u64::from_ne_bytes(b.buffer[at..at + 8].try_into().unwrap());
    assert_eq!(now, 7);
}

fn inline() {
    let (mut a, b) = pair(QpType::Rc, false, 256);
    b.post_recv(1, 0, 256);
    pattern(&mut a.buffer, 77);
    let expected = a.buffer[..100].to_vec();
    let sges = [
        Sge {
            lkey: LKey(0),
            ..a.sge(0, 60)
        },
        a.sge(60, 40),
    ];
    let payload = a.qp.gather_inline(&sges).unwrap();
    a.buffer.fill(0);
    a.post(1, SendOp::Send, payload);
    a.wait_good();
    assert_eq!(b.wait_good().byte_len, 100);
    assert_eq!(b.buffer[..100], expected);
    let cap = a.qp.cap().max_inline_data;
    assert!(cap >= 512, "raised to what is granted: {cap}");
    let huge = Sge {
        length: 1 << 30,
        ..a.sge(0, 1)
    };
    let wraps = a.qp.gather_inline(&[huge; 4]).unwrap_err();
    assert_eq!(wraps.errno, Errno::EINVAL);
}

fn pieces() {
    let (mut a, b) = pair(QpType::Rc, false, 1 << 16);
    pattern(&mut a.buffer, 3);
    let cuts = [(5, 1), (100, 1999), (3001, 0), (4000, 3003)];
    let expected: Vec<u8> = cuts
        .iter()
        .flat_map(|(at, len)| a.buffer[*at..at + len].to_vec())
        .collect();
    let list = cuts.iter().map(|(at, len)| a.sge(*at, *len)).collect();
    let recv = RecvWr {
        wr_id: 1,
        sges: [b.sge(10, 11), b.sge(40, 3), b.sge(100, 20_000)]
            .into_iter()
            .collect(),
    };
    b.qp.post_recv(recv).unwrap();
    a.post(1, SendOp::Send, Payload::Sges(list));
    a.wait_good();
    assert_eq!(b.wait_good().byte_len as usize, expected.len());
    let got = [&b.buffer[10..21], &b.buffer[40..43], &b.buffer[100..]].concat();
    assert!(got[..expected.len()] == expected[..]);
}

fn uc_send(v6: bool) {
    let (mut a, b) = pair(QpType::Uc, v6, 1 << 16);
    pattern(&mut a.buffer, 8);
    b.post_recv(1, 0, 1 << 16);
    a.post(1, SendOp::Send, a.sges(0, 30_000));
    a.wait_good();
    assert_eq!(b.wait_good().byte_len, 30_000);
    assert!(a.buffer[..30_000] == b.buffer[..30_000]);
}

/// A short packet must not leave behind the longer one of the next message.
fn uc_growing() {
    let (a, b) = pair(QpType::Uc, false, 4096);
    for id in 0..240 {
        b.post_recv(id, 0, 4096);
    }
    let lens: Vec<usize> = (0..240).map(|i| 1 + i % 8 * 50).collect();
    for (id, len) in (0..).zip(&lens) {
        a.post(id, SendOp::Send, a.sges(0, *len));
    }
    for (id, len) in (0..).zip(&lens) {
        a.wait_good();
        let wc = b.wait_good();
        assert_eq!((wc.wr_id, wc.byte_len as usize), (id, *len));
    }
}

fn ud_send(v6: bool) {
    let (mut a, b) = pair(QpType::Ud, v6, 4096);
    pattern(&mut a.buffer, 8);
    b.post_recv(1, 0, 4096);
    let ah = a.pd.create_ah(&a.av(b.gid)).unwrap();
    let wr = SendWr {
        wr_id: 3,
        op: SendOp::SendImm { imm: [9; 4] },
        flags: SendFlags::SIGNALED,
        payload: a.sges(0, 1000),
        xrc_srqn: 0,
        ud: Some(UdAddress {
            path: ah.path(),
            remote_qpn: b.qp.qpn(),
            remote_qkey: QKey(0x1111_1111),
        }),
    };
    a.qp.post_send(wr).unwrap();
    a.wait_good();
    let wc = b.wait_good();
    assert_eq!(wc.byte_len, 1040);
    assert_eq!(wc.src_qp, a.qp.qpn());
    assert!(wc.wc_flags.contains(WcFlags::GRH | WcFlags::WITH_IMM));
    assert!(a.buffer[..1000] == b.buffer[40..1040]);
    let version = b.buffer[if v6 { 0 } else { 20 }] >> 4;
    assert_eq!(version, if v6 { 6 } else { 4 });
}

fn many_small() {
    const N: usize = 5000;
    let (mut a, b) = pair(QpType::Rc, false, 64 * 256);
    for slot in 0..128 {
        b.post_recv(slot, slot as usize * 64, 64);
    }
    let (mut sent, mut done, mut got) = (0, 0, 0u64);
    let mut out = [Wc::default(); 16];
    while got < N as u64 {
        while sent < N && sent - done < 100 {
            let at = sent % 128 * 64;
            a.buffer[at..at + 8].copy_from_slice(&(sent as u64).to_ne_bytes());
            a.post(sent as u64, SendOp::Send, a.sges(at, 64));
            sent += 1;
        }
        let n = a.cq.poll(&mut out).unwrap();
        for wc in &out[..n] {
            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, done as u64));
            done += 1;
        }
        let n = b.cq.poll(&mut out).unwrap();
        for wc in &out[..n] {
            assert_eq!(wc.status, WcStatus::Success);
            let at = wc.wr_id as usize * 64;
            let number = u64::from_ne_bytes(b.buffer[at..at + 8].try_into().unwrap());
            assert_eq!(number, got);
            got += 1;
            b.post_recv(wc.wr_id, at, 64);
        }
    }
}

fn both_ways() {
    const LEN: usize = 1 << 20;
    let (mut a, mut b) = pair(QpType::Rc, true, 2 * LEN);
    pattern(&mut a.buffer[..LEN], 1);
    pattern(&mut b.buffer[..LEN], 2);
    std::thread::scope(|s| {
        for (from, to) in [(&a, &b), (&b, &a)] {
            s.spawn(move || {
                for round in 0..4 {
                    let remote = to.remote(LEN);
                    from.post(round, SendOp::Write { remote }, from.sges(0, LEN));
                    from.wait_good();
                }
            });
        }
    });
    assert!(a.buffer[..LEN] == b.buffer[LEN..]);
    assert!(b.buffer[..LEN] == a.buffer[LEN..]);
}
