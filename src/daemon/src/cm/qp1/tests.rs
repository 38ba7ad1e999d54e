use rocebud_cm::{Ends, Path};
use rocebud_wire::Gid;

use super::*;

fn transmit(local: &str, remote: &str) -> Transmit {
    let gid = |ip: &str| Gid::from_ip(ip.parse().expect("an address"));
    Transmit {
        path: Path {
            ends: Ends {
                port: 3,
                local: gid(local),
                remote: gid(remote),
            },
            ..Path::default()
        },
        mad: Box::new([0x5a; MAD_LEN]),
    }
}

fn frame<'a>(data: &'a [u8], from: &str, to: &str, sport: u16) -> RxFrame<'a> {
    RxFrame {
        data,
        src: (from.parse::<IpAddr>().expect("an address"), sport).into(),
        dst: to.parse().expect("an address"),
        ifindex: 3,
        traffic_class: 0,
        hop_limit: 64,
        seg_index: 0,
        batch_len: 1,
    }
}

#[test]
fn what_is_written_is_read_again() {
    for (a, b) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let sent = transmit(a, b);
        let bytes = write(&sent, Psn::new(7), 0xd872).expect("one family");
        assert!(is_for_qp1(&bytes));
        let read = read(&frame(&bytes, a, b, 0xd872)).expect("a datagram");
        assert_eq!(read.mad, sent.mad);
        assert_eq!(read.ifindex, 3);
    }
}

#[test]
fn a_changed_byte_is_noticed() {
    let (a, b) = ("10.0.0.1", "10.0.0.2");
    let mut bytes = write(&transmit(a, b), Psn::new(7), 0xd872).expect("one family");
    bytes[40] ^= 1;
    assert_eq!(read(&frame(&bytes, a, b, 0xd872)), Err(Bad::Icrc));
}

#[test]
fn other_keys_and_lengths_are_refused() {
    let (a, b) = ("fd00::1", "fd00::2");
    let bytes = write(&transmit(a, b), Psn::new(7), 0xd872).expect("one family");
    let mut other = bytes.clone();
    other[15] = 1;
    assert_eq!(read(&frame(&other, a, b, 0xd872)), Err(Bad::Malformed));
    let short = &bytes[..bytes.len() - 4];
    assert_eq!(read(&frame(short, a, b, 0xd872)), Err(Bad::Malformed));
    assert_eq!(read(&frame(&[], a, b, 0xd872)), Err(Bad::Malformed));
}
