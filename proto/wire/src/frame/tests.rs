use super::*;

const V4: Ipv4 = Ipv4 {
    tos: 2,
    id: 0x9d4e,
    flags_frag: 0x4000,
    ttl: 64,
    src: [192, 170, 1, 2],
    dst: [192, 170, 1, 50],
};

const V6: Ipv6 = Ipv6 {
    traffic_class: 0x12,
    flow_label: 0x3_4567,
    hop_limit: 63,
    src: [0x20; 16],
    dst: [0x30; 16],
};

#[test]
fn the_area_over_ipv4_ends_with_the_header_that_was_on_the_wire() {
    // An ACK that a Mellanox NIC sent.
    let wire = [
        0x45, 0x02, 0x00, 0x30, 0x9d, 0x4e, 0x40, 0x00, 0x40, 0x11, 0x19, 0xe4, 0xc0, 0xaa, 0x01,
        0x02, 0xc0, 0xaa, 0x01, 0x32,
    ];
    let area = grh_area_v4(&V4, 20);
    assert_eq!(area[..20], [0; 20]);
    assert_eq!(area[20..], wire);
    assert_eq!(
        internet_checksum(&[&area[20..]]),
        0,
        "as receivers check it"
    );
}

#[test]
fn the_area_over_ipv6_is_its_header() {
    let area = grh_area_v6(&V6, 24);
    assert_eq!(area[..8], [0x61, 0x23, 0x45, 0x67, 0, 32, 17, 63]);
    assert_eq!(area[8..24], V6.src);
    assert_eq!(area[24..], V6.dst);
    let v1 = grh_area_v1(&V6, 24);
    assert_eq!(v1[..8], [0x61, 0x23, 0x45, 0x67, 0, 24, 0x1b, 63]);
}

/// An IPv4 frame with an ACK in it.
fn frame() -> Vec<u8> {
    let outer = outer();
    let mut buf = vec![0; 48];
    let n = outer.emit(&[0x11; 20], &mut buf);
    assert_eq!(n, Some(48));
    buf
}

const fn outer() -> Outer {
    Outer {
        ethernet: None,
        net: Net::V4(
            V4,
            Udp {
                sport: 0xc000,
                checksum: 0,
            },
        ),
    }
}

/// With the checksum made right again.
fn changed(at: usize, to: u8) -> Vec<u8> {
    let mut f = frame();
    f[at] = to;
    f[10..12].fill(0);
    let sum = internet_checksum(&[&f[..20]]);
    f[10..12].copy_from_slice(&sum.to_be_bytes());
    f
}

#[test]
fn what_is_no_roce_frame_says_why() {
    let why = |f: &[u8]| Frame::parse_ip(f).unwrap_err();
    assert!(Frame::parse_ip(&frame()).is_ok());
    assert_eq!(why(&changed(0, 0x46)), FrameError::IpOptions);
    assert_eq!(why(&changed(0, 0x35)), FrameError::IpVersion(3));
    assert_eq!(why(&changed(6, 0x20)), FrameError::Fragment);
    assert_eq!(why(&changed(7, 1)), FrameError::Fragment);
    assert_eq!(why(&changed(9, 6)), FrameError::NotRoce);
    assert_eq!(why(&changed(23, 0xb8)), FrameError::NotRoce);
    let mut f = frame();
    f[8] -= 1;
    assert_eq!(why(&f), FrameError::Ipv4Checksum);
    for len in 0..48 {
        assert!(Frame::parse_ip(&frame()[..len]).is_err(), "{len}");
    }
    for total in [0, 19, 20, 27] {
        assert!(Frame::parse_ip(&changed(3, total)).is_err(), "{total}");
    }
}

#[test]
fn a_buffer_that_is_too_short_is_refused() {
    for len in 0..48 {
        assert_eq!(outer().emit(&[0; 20], &mut vec![0; len]), None);
    }
    assert_eq!(outer().emit(&[0; 65_508], &mut vec![0; 70_000]), None);
}

#[test]
fn a_udp_checksum_is_one_that_receivers_accept() {
    let ib = [0x37; 23];
    let sum = outer().udp_checksum(&ib).expect("UDP");
    let mut f = vec![0; 51];
    let Net::V4(ip, udp) = outer().net else {
        unreachable!()
    };
    let with = Outer {
        ethernet: None,
        net: Net::V4(
            ip,
            Udp {
                checksum: sum,
                ..udp
            },
        ),
    };
    with.emit(&ib, &mut f);
    let pseudo = [&f[12..20], &[0, 17, 0, 31]].concat();
    assert_eq!(internet_checksum(&[&pseudo, &f[20..]]), 0);
}
