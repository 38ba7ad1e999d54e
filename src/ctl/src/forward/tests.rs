use super::*;
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

fn header(src: &str, dst: &str) -> Header {
    Header {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        ifindex: 3,
        traffic_class: 2,
        hop_limit: 64,
        seg_index: 5,
        batch_len: 9,
    }
}

#[test]
fn a_header_comes_back_as_it_was_with_the_scope_of_link_local_senders() {
    for header in [
        header("10.0.0.1:49152", "10.0.0.2"),
        header("[fd00::1]:65535", "fd00::2"),
        header("[fe80::1%3]:49152", "fe80::2"),
    ] {
        let message = [&header.encode()[..], b"frame"].concat();
        assert_eq!(Header::decode(&message), Some((header, &b"frame"[..])));
    }
}

#[test]
fn the_layout_is_the_documented_one() {
    let bytes = header("10.0.0.1:258", "10.0.0.2").encode();
    assert_eq!(bytes[..8], [1, 4, 2, 1, 10, 0, 0, 1]);
    assert_eq!(bytes[20..24], [10, 0, 0, 2]);
    assert_eq!(bytes[36..48], [3, 0, 0, 0, 2, 64, 5, 0, 9, 0, 0, 0]);
}

#[test]
fn frames_cross_a_pair_of_sockets_and_its_end_is_told() {
    let flags = SocketFlags::CLOEXEC;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let mut buf = vec![0; MESSAGE_BYTES_MAX];
    assert!(recv(&b, &mut buf).unwrap().is_none());
    let header = header("10.0.0.1:49152", "10.0.0.2");
    let frame = vec![7; 9000];
    send(&a, &header, &frame).unwrap();
    assert_eq!(recv(&b, &mut buf).unwrap(), Some((header, &frame[..])));
    rustix::net::send(&a, b"nonsense", SendFlags::empty()).unwrap();
    assert!(recv(&b, &mut buf).unwrap().is_none(), "nonsense is skipped");
    drop(a);
    let end = recv(&b, &mut buf).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
}

proptest! {
    #[test]
    fn any_bytes_are_a_frame_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Some((header, frame)) = Header::decode(&bytes) {
            prop_assert_eq!(frame.len(), bytes.len() - HEADER_BYTES);
            prop_assert_eq!(Header::decode(&header.encode()).map(|(h, _)| h), Some(header));
        }
    }
}
