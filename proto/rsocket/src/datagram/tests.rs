use super::*;
use crate::limits::DESTINATIONS_MAX;
use proptest::prelude::*;

fn v4(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 1, 2, 3], port))
}

#[test]
fn the_udp_header_has_the_number_in_the_low_bits() {
    let header = UdpHeader {
        op: Op::Data,
        qpn: 0x12_3456,
        address: Ipv4Addr::new(10, 1, 2, 3).into(),
    };
    let bytes = header.emit();
    let expected = [
        0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 10, 1, 2, 3,
    ];
    assert_eq!(bytes.as_ref(), expected);
    let v6 = UdpHeader {
        op: Op::Control,
        qpn: 1,
        address: Ipv6Addr::LOCALHOST.into(),
    };
    let bytes = v6.emit();
    assert_eq!(bytes.as_ref()[..8], [0x55, 0x55, 0x55, 0x55, 6, 7, 28, 0]);
    assert_eq!(bytes.as_ref().len(), 28);
    assert_eq!(bytes.as_ref()[27], 1);
}

#[test]
fn the_ud_header_names_the_sender() {
    let bytes = UdHeader::of(v4(0x1b3a)).emit();
    assert_eq!(bytes.as_ref(), [4, 8, 0x1b, 0x3a, 10, 1, 2, 3]);
    let (header, rest) = UdHeader::parse(bytes.as_ref(), false).unwrap();
    assert_eq!((header.name(0), rest.len()), (v4(0x1b3a), 0));
    let link_local = "[fe80::1%7]:5".parse::<SocketAddr>().unwrap();
    let bytes = UdHeader::of(link_local).emit();
    assert_eq!(bytes.as_ref().len(), 24);
    let (header, _) = UdHeader::parse(bytes.as_ref(), true).unwrap();
    assert_eq!(header.name(7), link_local);
}

#[test]
fn strangers_are_ignored() {
    let good = UdpHeader {
        op: Op::Data,
        qpn: 7,
        address: Ipv4Addr::LOCALHOST.into(),
    }
    .emit();
    let good = good.as_ref();
    assert!(UdpHeader::parse(good, false).is_some());
    assert!(UdpHeader::parse(good, true).is_none(), "the other family");
    assert!(UdpHeader::parse(&good[..15], false).is_none());
    for (at, byte) in [(0, 0), (3, 0x54), (4, 6), (5, 1), (6, 15), (6, 28)] {
        let mut bad = good.to_vec();
        bad[at] = byte;
        assert!(UdpHeader::parse(&bad, false).is_none(), "byte {at}");
    }
    let ud = UdHeader::of(v4(9)).emit();
    assert!(UdHeader::parse(&ud.as_ref()[..7], false).is_none());
    assert!(UdHeader::parse(ud.as_ref(), true).is_none());
}

#[test]
fn a_datagram_fits_the_receivers_buffer_and_the_path() {
    assert_eq!(payload_max(false, 4096), 2040);
    assert_eq!(payload_max(true, 4096), 2024);
    assert_eq!(payload_max(false, 1024), 1016);
    assert_eq!(payload_max(true, 1024), 1000);
    assert_eq!(payload_max(true, 0), 0);
}

#[test]
fn udp_comes_first_and_ud_follows_the_answer() {
    let (mut here, mut there) = (Destinations::default(), Destinations::default());
    let (a, b) = (v4(1), v4(2));
    let header = |op, qpn| UdpHeader {
        op,
        qpn,
        address: a.ip(),
    };
    assert_eq!(here.way(b), Way::Udp);
    let mut datagram = header(Op::Data, 0xa).emit().as_ref().to_vec();
    datagram.extend_from_slice(b"hello");

    let heard = there.heard(a, &datagram, false).unwrap();
    let expected = Heard {
        resolve: Some(0xa),
        answer: true,
        deliver: Some(b"hello".as_slice()),
    };
    assert_eq!(heard, expected);
    there.resolved(a, 0xa);
    assert_eq!(there.way(a), Way::Ud { qpn: 0xa });

    let answer = header(Op::Control, 0xb).emit();
    let heard = here.heard(b, answer.as_ref(), false).unwrap();
    let expected = Heard {
        resolve: Some(0xb),
        answer: false,
        deliver: None,
    };
    assert_eq!(heard, expected, "an answer is not answered");
    here.resolved(b, 0xb);
    assert_eq!(here.way(b), Way::Ud { qpn: 0xb });

    let again = there.heard(a, &datagram, false).unwrap();
    assert_eq!(again.resolve, None, "known already");
    let restarted = header(Op::Data, 0xc).emit();
    let heard = there.heard(a, restarted.as_ref(), false).unwrap();
    assert_eq!(heard.resolve, Some(0xc), "another queue pair");
    here.forget(b);
    assert_eq!(here.way(b), Way::Udp);
}

#[test]
fn a_flood_of_names_costs_bounded_memory() {
    let mut d = Destinations::default();
    let name = |n: usize| SocketAddr::from((Ipv4Addr::from(n as u32), 9));
    d.resolved(name(0), 1);
    for n in 1..DESTINATIONS_MAX + 50 {
        let _ = d.way(name(0));
        d.resolved(name(n), 1);
    }
    assert_eq!(d.len(), DESTINATIONS_MAX);
    assert_eq!(d.way(name(0)), Way::Ud { qpn: 1 }, "in use");
    assert_eq!(d.way(name(1)), Way::Udp, "rested longest");
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_come_out_the_same(bytes in prop::collection::vec(any::<u8>(), 0..40), v6: bool) {
        if let Some((header, rest)) = UdHeader::parse(&bytes, v6) {
            let mut again = header.emit().as_ref().to_vec();
            again.extend_from_slice(rest);
            prop_assert_eq!(again, bytes.clone());
        }
        if let Some((header, rest)) = UdpHeader::parse(&bytes, v6) {
            let again = header.emit();
            prop_assert_eq!(UdpHeader::parse(again.as_ref(), v6), Some((header, &[][..])));
            prop_assert_eq!(again.as_ref().len() + rest.len(), bytes.len());
        }
    }
}
