//! Bytes that an attacker or a broken sender puts behind port 4791. At this level a packet may be
//! refused, and nothing else may happen.

use rocebud_wire::frame::{Frame, FrameError, Ipv4, Net, Outer, Udp};
use rocebud_wire::icrc::{self, DF, Id};
use rocebud_wire::{
    Bth, Class, Ext, Header, Opcode, Packet, ParseError, PayloadRule, Psn, Qpn, Reth,
};

/// A small deterministic stream of bytes.
fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            (x >> 24) as u8
        })
        .collect()
}

#[test]
fn c001_every_opcode_and_length_parses_or_fails_cleanly() {
    let view = icrc::V4::default();
    let any = Id::Unknown {
        guess: 0,
        max: u16::MAX,
    };
    for opcode in 0..=u8::MAX {
        for len in 0..=80 {
            for second in [0x00, 0x10, 0x20, 0x30, 0x40, 0x80, 0x0f, 0xff] {
                let mut bytes = noise(u32::from(opcode) << 8 | len as u32, len);
                if let [first, flags, ..] = bytes.as_mut_slice() {
                    (*first, *flags) = (opcode, second);
                }
                let crc = icrc::v4(&view, icrc::covered(&bytes));
                icrc::seal(crc, &mut bytes);
                // A right ICRC makes no packet of what is none.
                assert_eq!(icrc::verify_v4(&view, any, &bytes).is_some(), len >= 16);
                check_parse(&bytes);
            }
        }
    }
}

/// What the parser promises of any bytes.
fn check_parse(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    let header = packet.header();
    let pad = usize::from(packet.bth.pad);
    assert!(bytes[1] & 0xf == 0, "version");
    assert_eq!(
        header.len() + packet.payload.len() + pad + 4,
        bytes.len(),
        "lengths add up"
    );
    assert_eq!((packet.payload.len() + pad) % 4, 0);
    let at = packet.payload.as_ptr() as usize - bytes.as_ptr() as usize;
    assert_eq!(at, header.len());
}

#[test]
fn c001_undefined_opcodes_are_told_from_malformed_packets() {
    let mut undefined = 0;
    for opcode in 0..=u8::MAX {
        let bth = Bth::new(Opcode(opcode), Qpn::new(0x12), Psn::new(7));
        let mut frame = [0; 64];
        let header = Header::new(bth);
        header.emit(0, &mut frame);
        let whole = &frame[..header.frame_len(0)];
        match Packet::parse(whole) {
            Err(ParseError::UnknownOpcode(Opcode(o))) => {
                assert_eq!(o, opcode);
                undefined += 1;
            }
            Ok(p) => assert_eq!(p.bth.opcode.0, opcode),
            Err(ParseError::Length { rule, .. }) => {
                assert!(matches!(rule, PayloadRule::Exactly(_)), "{opcode:#x}");
            }
            Err(other) => panic!("{opcode:#x}: {other}"),
        }
    }
    assert_eq!(undefined, 256 - Opcode::defined().count());
    for reserved in [
        0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f, 0x2c, 0x60, 0x80, 0xb5, 0xc0, 0xff,
    ] {
        assert!(Opcode(reserved).info().is_none(), "{reserved:#x}");
    }
    assert_eq!(Opcode(0xc0).class(), Class::Vendor);
}

/// BTH with this opcode and pad count, then `rest`, then four bytes in place of the ICRC.
fn raw(opcode: Opcode, pad: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![opcode.0, pad << 4, 0xff, 0xff, 0, 0, 0, 0x12, 0x80, 0, 0, 7];
    bytes.extend_from_slice(rest);
    bytes.extend_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    bytes
}

#[test]
fn c002_a_pad_count_beyond_the_payload_is_refused() {
    for payload in [&[][..], &[1], &[1, 2]] {
        let bytes = raw(Opcode::RC_SEND_ONLY, 3, payload);
        assert!(matches!(
            Packet::parse(&bytes),
            Err(ParseError::Short { .. })
        ));
    }
    // Enough bytes, but pad and payload do not make words.
    for (pad, payload) in [
        (0, 1),
        (0, 3),
        (1, 2),
        (1, 5),
        (2, 2),
        (2, 7),
        (3, 3),
        (3, 6),
    ] {
        let bytes = raw(Opcode::RC_SEND_ONLY, pad, &vec![1; payload]);
        assert!(
            matches!(Packet::parse(&bytes), Err(ParseError::Pad { .. })),
            "pad {pad}, {payload} bytes with it"
        );
    }
    assert_eq!(
        Packet::parse(&raw(Opcode::RC_SEND_ONLY, 3, &[1, 0, 0, 0]))
            .unwrap()
            .payload,
        [1]
    );
}

#[test]
fn c002_runts_are_refused() {
    let whole = raw(Opcode::RC_ACKNOWLEDGE, 0, &[0x1f, 0, 0, 1]);
    assert_eq!(whole.len(), 20);
    assert!(Packet::parse(&whole).is_ok());
    for len in 0..20 {
        assert!(
            matches!(
                Packet::parse(&whole[..len]),
                Err(ParseError::Short { needed, had }) if had == len && needed > len
            ),
            "{len} bytes"
        );
    }
    let reth = raw(Opcode::RC_WRITE_ONLY, 0, &[0; 15]);
    assert!(matches!(
        Packet::parse(&reth),
        Err(ParseError::Short { .. })
    ));
}

#[test]
fn c002_lengths_that_an_opcode_never_has_are_refused() {
    let lengths: [(Opcode, &[usize]); 5] = [
        (Opcode::RC_ATOMIC_WRITE, &[16, 20, 28, 32]),
        (Opcode::RC_ACKNOWLEDGE, &[8]),
        (Opcode::RC_READ_REQUEST, &[20]),
        (Opcode::RC_FETCH_ADD, &[32]),
        (Opcode::CNP, &[12, 20]),
    ];
    for (opcode, wrong) in lengths {
        for &n in wrong {
            let bytes = raw(opcode, 0, &vec![0; n]);
            assert!(
                matches!(Packet::parse(&bytes), Err(ParseError::Length { .. })),
                "{opcode} with {n} bytes"
            );
        }
    }
    assert!(Packet::parse(&raw(Opcode::RC_ATOMIC_WRITE, 0, &[0; 24])).is_ok());
}

#[test]
fn c002_a_udp_length_that_lies_is_refused() {
    let outer = Outer {
        ethernet: None,
        net: Net::V4(
            Ipv4 {
                tos: 0,
                id: 1,
                flags_frag: DF,
                ttl: 64,
                src: [10, 0, 0, 1],
                dst: [10, 0, 0, 2],
            },
            Udp {
                sport: 0xc000,
                checksum: 0,
            },
        ),
    };
    let mut ib = raw(Opcode::RC_SEND_ONLY, 0, b"12345678");
    outer.seal(&mut ib);
    let mut frame = [0; 80];
    let len = outer.emit(&ib, &mut frame).unwrap();
    assert!(Frame::parse_ip(&frame[..len]).unwrap().icrc_ok());
    let right = u16::from_be_bytes([frame[24], frame[25]]);
    for lie in [
        0,
        7,
        8,
        right - 4,
        right - 1,
        right + 1,
        right + 4,
        u16::MAX,
    ] {
        let mut lying = frame;
        lying[24..26].copy_from_slice(&lie.to_be_bytes());
        assert!(
            matches!(
                Frame::parse_ip(&lying[..len]),
                Err(FrameError::Lengths { .. })
            ),
            "{lie}"
        );
    }
    // Bytes behind the IP length are padding; bytes missing before it are not.
    assert_eq!(Frame::parse_ip(&frame).unwrap().trailer.len(), 80 - len);
    assert!(Frame::parse_ip(&frame[..len - 1]).is_err());
}

#[test]
fn a_dma_length_is_only_a_number_to_the_codec() {
    let mut rest = vec![0; 16];
    rest[12..16].fill(0xff);
    let bytes = raw(Opcode::RC_WRITE_ONLY, 0, &rest);
    let packet = Packet::parse(&bytes).unwrap();
    let reth = Reth {
        dma_len: u32::MAX,
        ..Default::default()
    };
    assert_eq!(
        packet.ext,
        Ext {
            reth: Some(reth),
            ..Ext::NONE
        }
    );
    assert!(packet.payload.is_empty());
}
