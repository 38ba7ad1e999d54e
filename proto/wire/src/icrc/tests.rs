use super::*;

/// The CRC, one bit at a time.
fn bitwise(parts: &[&[u8]]) -> u32 {
    let mut r = u32::MAX;
    for &byte in parts.iter().copied().flatten() {
        r ^= u32::from(byte);
        for _ in 0..8 {
            r = (r >> 1) ^ if r & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !r
}

/// BTH of a SEND Only, as it is summed.
const BTH: [u8; 12] = [4, 0, 0xff, 0xff, 0xff, 0, 0, 0x12, 0, 0, 0, 7];

#[test]
fn all_three_kinds_agree_with_a_bit_by_bit_sum() {
    let mut ib = BTH.to_vec();
    ib.extend(0..32);
    let ones: &[u8] = &[0xff; 8];
    let (s, d) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let hdr = V4 {
        src: s,
        dst: d,
        id: 0x1234,
        sport: 0xc123,
        ..Default::default()
    };
    let ip = [0x45, 0xff, 0, 76, 0x12, 0x34, 0x40, 0, 0xff, 17, 0xff, 0xff];
    let udp: &[u8] = &[0xc1, 0x23, 0x12, 0xb7, 0, 56, 0xff, 0xff];
    assert_eq!(v4(&hdr, &ib), bitwise(&[ones, &ip, &s, &d, udp, &ib]));

    let (s, d) = ([1; 16], [2; 16]);
    let hdr = V6 {
        src: s,
        dst: d,
        sport: 0xc123,
        ..Default::default()
    };
    let ip = [0x6f, 0xff, 0xff, 0xff, 0, 56, 17, 0xff];
    assert_eq!(v6(&hdr, &ib), bitwise(&[ones, &ip, &s, &d, udp, &ib]));

    let mut header = [9; 40];
    header[..8].copy_from_slice(&[0x60, 1, 2, 3, 0, 48, 0x1b, 64]);
    let mut masked = header;
    masked[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, 0, 48, 0x1b, 0xff]);
    assert_eq!(grh(&header, &ib), bitwise(&[ones, &masked, &ib]));
}

#[test]
fn congestion_bits_of_the_bth_may_change() {
    let mut ib = BTH.to_vec();
    let before = v4(&V4::default(), &ib);
    ib[4] = 0x40;
    assert_eq!(v4(&V4::default(), &ib), before);
}

#[test]
fn a_register_goes_back_over_any_number_of_bytes() {
    for bytes in [0, 1, 2, 3, 4, 5, 255, 256, 257, 4096, 4160, 65_535] {
        let mut register = 0x1234_5678_u32;
        for _ in 0..bytes * 8 {
            register = (register >> 1) ^ if register & 1 == 1 { POLYNOMIAL } else { 0 };
        }
        assert_eq!(unshift(register, bytes), 0x1234_5678, "{bytes}");
    }
}

#[test]
fn the_seed_is_the_sum_of_eight_ones() {
    assert_eq!(CRC_OF_LRH, bitwise(&[&[0xff; 8]]));
}

#[test]
fn flags_other_than_df_alone_or_none_explain_nothing() {
    let mut frame = BTH.to_vec();
    frame.extend([0; 4]);
    let any = Id::Unknown {
        guess: 0,
        max: u16::MAX,
    };
    for flags_frag in [0x2000, 0x8000, 0xc000, 0x4001, 1, 0x1fff] {
        let hdr = V4 {
            flags_frag,
            id: 77,
            ..Default::default()
        };
        seal(v4(&hdr, covered(&frame)), &mut frame);
        assert_eq!(verify_v4(&hdr, any, &frame), None, "{flags_frag:#x}");
    }
}

#[test]
fn runts_and_giants_are_never_right() {
    let any = Id::Unknown {
        guess: 0,
        max: u16::MAX,
    };
    for len in [0, 3, 4, 15, 65_508, 70_000] {
        let mut frame = vec![0; len];
        let sum = v4(&V4::default(), covered(&frame));
        seal(sum, &mut frame);
        assert_eq!(verify_v4(&V4::default(), any, &frame), None, "{len}");
        assert!(!verify_v6(&V6::default(), &frame));
        assert!(!verify_grh(&[0; 40], &frame));
    }
    let mut frame = vec![0x11; 65_507];
    let hdr = V4 {
        id: 0xfedc,
        ..Default::default()
    };
    seal(v4(&hdr, covered(&frame)), &mut frame);
    assert_eq!(verify_v4(&hdr, any, &frame).map(|r| r.id), Some(0xfedc));
}
