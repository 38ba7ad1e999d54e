use super::*;
use crate::{AtomicEth, Deth, Feth, Psn, QKey, RKey, Rdeth, Reth, XrcEth};

fn bytes(opcode: Opcode, ext: Ext, payload: &[u8]) -> Vec<u8> {
    let bth = Bth::new(opcode, Qpn::new(0x12_3456), Psn::new(0xab_cdef));
    let header = Header { bth, ext };
    let mut frame = vec![0xa5; header.frame_len(payload.len())];
    let at = header.emit(payload.len(), &mut frame);
    frame[at..at + payload.len()].copy_from_slice(payload);
    frame
}

#[test]
fn extension_headers_that_no_capture_shows_have_their_bytes_in_order() {
    let reth = Some(Reth {
        va: 0x0102_0304_0506_0708,
        rkey: RKey(0x1112_1314),
        dma_len: 0x2122_2324,
    });
    let reth_bytes = [
        1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24,
    ];
    let feth = Some(Feth { sel: 1, plt: 2 });
    let ext = Ext {
        reth,
        feth,
        rdeth: Some(Rdeth {
            ee_context: 0x31_3233,
        }),
        xrceth: Some(XrcEth { srqn: 0x41_4243 }),
        ..Ext::NONE
    };

    let flush = bytes(Opcode::RC_FLUSH, ext, &[]);
    assert_eq!(
        flush[..12],
        [
            0x1c, 0, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0xab, 0xcd, 0xef
        ]
    );
    assert_eq!(flush[12..16], [0, 0, 0, 0x12]);
    assert_eq!(flush[16..32], reth_bytes);
    assert_eq!(flush.len(), 36);

    let xrc = bytes(
        Opcode::XRC_WRITE_ONLY_IMM,
        Ext {
            imm_dt: Some(*b"abcd"),
            ..ext
        },
        &[],
    );
    assert_eq!(xrc[12..16], [0, 0x41, 0x42, 0x43]);
    assert_eq!(xrc[16..32], reth_bytes);
    assert_eq!(&xrc[32..36], b"abcd");

    let rd = bytes(Opcode::RD_FLUSH, ext, &[]);
    assert_eq!(rd[12..16], [0, 0x31, 0x32, 0x33]);
    assert_eq!(rd[16..20], [0, 0, 0, 0x12]);

    let deth = Some(Deth {
        qkey: QKey(0x5152_5354),
        src_qp: Qpn::new(0x61_6263),
    });
    let rd = bytes(Opcode::RD_SEND_ONLY, Ext { deth, ..ext }, b"x");
    assert_eq!(
        rd[12..24],
        [
            0, 0x31, 0x32, 0x33, 0x51, 0x52, 0x53, 0x54, 0, 0x61, 0x62, 0x63
        ]
    );
    assert_eq!(&rd[24..28], b"x\0\0\0");

    let ieth = Some(RKey(0x7172_7374));
    let inv = bytes(Opcode::RC_SEND_ONLY_INV, Ext { ieth, ..Ext::NONE }, b"y");
    assert_eq!(inv[12..20], [0x71, 0x72, 0x73, 0x74, b'y', 0, 0, 0]);

    let write = bytes(Opcode::RC_ATOMIC_WRITE, ext, b"01234567");
    assert_eq!(write[12..28], reth_bytes);
    assert_eq!(&write[28..36], b"01234567");
}

#[test]
fn every_flag_has_its_bit() {
    let at = |set: fn(&mut Bth)| {
        let mut header = Header::new(Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0), Psn::new(0)));
        set(&mut header.bth);
        let mut frame = [0; 16];
        header.emit(0, &mut frame);
        [frame[1], frame[4], frame[8]]
    };
    assert_eq!(at(|b| b.solicited = true), [0x80, 0, 0]);
    assert_eq!(at(|b| b.migreq = true), [0x40, 0, 0]);
    assert_eq!(at(|b| b.fecn = true), [0, 0x80, 0]);
    assert_eq!(at(|b| b.becn = true), [0, 0x40, 0]);
    assert_eq!(at(|b| b.ack_req = true), [0, 0, 0x80]);
    assert_eq!(at(|b| b.pad = 3), [0, 0, 0], "emit computes the pad count");
}

#[test]
fn a_header_missing_in_ext_goes_out_as_zeros_and_a_needless_one_not_at_all() {
    let none = bytes(Opcode::RC_CMP_SWAP, Ext::NONE, &[]);
    assert_eq!(none[12..40], [0; 28]);
    let all = Ext {
        atomic_eth: Some(AtomicEth::default()),
        imm_dt: Some([1; 4]),
        ..Ext::NONE
    };
    assert_eq!(bytes(Opcode::RC_SEND_ONLY, all, b"12").len(), 12 + 4 + 4);
}

#[test]
fn of_an_undefined_opcode_the_bth_goes_out() {
    let frame = bytes(Opcode(0x1f), Ext::NONE, b"abc");
    assert_eq!(frame[0], 0x1f);
    assert_eq!(&frame[12..16], b"abc\0");
    assert_eq!(frame.len(), 20);
    assert_eq!(
        Packet::parse(&frame),
        Err(ParseError::UnknownOpcode(Opcode(0x1f)))
    );
}

#[test]
fn a_transport_version_is_refused_before_anything_else_is_read() {
    let mut frame = bytes(Opcode::RC_SEND_ONLY, Ext::NONE, b"abcd");
    for version in 1..16 {
        frame[1] = version;
        assert_eq!(Packet::parse(&frame), Err(ParseError::Version(version)));
    }
}

#[test]
fn reserved_bits_are_ignored() {
    let mut frame = bytes(Opcode::UD_SEND_ONLY, Ext::NONE, b"abcd");
    let clean = Packet::parse(&frame).unwrap().header();
    frame[4] |= 0x3f;
    frame[8] |= 0x7f;
    frame[16] = 0xff;
    assert_eq!(Packet::parse(&frame).unwrap().header(), clean);
}

#[test]
fn errors_say_who_is_at_fault() {
    let text = |b: &[u8]| Packet::parse(b).unwrap_err().to_string();
    assert_eq!(text(&[]), "malformed: 0 bytes where 16 are needed");
    assert_eq!(
        text(&[0x1f; 16]),
        "malformed: transport header version 15, not 0"
    );
    let ack = bytes(Opcode::RC_ACKNOWLEDGE, Ext::NONE, b"1234");
    assert_eq!(text(&ack), "malformed: RC_ACKNOWLEDGE with 4 bytes (Empty)");
}
