use super::*;
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;

fn header(src: &str, dst: &str) -> Header {
    Header {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        ifindex: 3,
        traffic_class: 2,
        hop_limit: 64,
        batch_len: 9,
    }
}

fn v4() -> Header {
    header("10.0.0.1:258", "10.0.0.2")
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn frames(message: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let (_, frames) = unpack(message).unwrap();
    frames.map(|(n, f)| (n, f.to_vec())).collect()
}

#[test]
fn a_header_comes_back_as_it_was_with_the_scope_of_link_local_senders() {
    for header in [
        v4(),
        header("[fd00::1]:65535", "fd00::2"),
        header("[fe80::1%3]:49152", "fe80::2"),
    ] {
        let bundle = Bundle::new(7, &header, 5, b"frame").unwrap();
        let (told, _) = unpack(bundle.message()).unwrap();
        assert_eq!(told, header);
        assert_eq!(frames(bundle.message()), [(5, b"frame".to_vec())]);
    }
}

#[test]
fn the_layout_is_the_documented_one() {
    let bundle = Bundle::new(7, &v4(), 5, b"frame").unwrap();
    let bytes = bundle.message();
    assert_eq!(bytes[..8], [2, 4, 2, 1, 10, 0, 0, 1]);
    assert_eq!(bytes[20..24], [10, 0, 0, 2]);
    assert_eq!(bytes[36..48], [3, 0, 0, 0, 2, 64, 9, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[48..], [5, 0, 5, 0, b'f', b'r', b'a', b'm', b'e']);
}

#[test]
fn frames_of_one_batch_and_slot_travel_together() {
    let (a, b) = sockets();
    let mut outbox = Outbox::default();
    for position in 0..9 {
        let slot = 7 + position % 2;
        assert!(outbox.add(slot, &v4(), position, &[position as u8; 100]));
    }
    // The next batch begins, and one from elsewhere.
    assert!(outbox.add(7, &v4(), 2, b"next"));
    assert!(outbox.add(7, &header("10.0.0.1:259", "10.0.0.2"), 3, b"other"));
    assert_eq!(outbox.flush(&a).unwrap(), 11);
    assert!(outbox.is_empty());
    let mut buf = vec![0; MESSAGE_BYTES_MAX];
    let mut came = Vec::new();
    while let Some((_, frames)) = recv(&b, &mut buf).unwrap() {
        came.push(frames.map(|(n, _)| n).collect::<Vec<_>>());
    }
    let expected: [&[u16]; 4] = [&[0, 2, 4, 6, 8], &[1, 3, 5, 7], &[2], &[3]];
    assert_eq!(came, expected);
}

#[test]
fn what_the_socket_does_not_take_waits_within_a_bound() {
    let (a, b) = sockets();
    let mut outbox = Outbox::default();
    let mut kept = 0;
    let frame = vec![7; 60_000];
    while outbox.add(7, &v4(), 0, &frame) {
        kept += 1;
    }
    assert!(kept > 60 && kept * 60_000 <= OUTBOX_BYTES_MAX, "{kept}");
    let mut buf = vec![0; MESSAGE_BYTES_MAX];
    let (mut sent, mut came) = (0, 0);
    while !outbox.is_empty() {
        sent += outbox.flush(&a).unwrap();
        while let Some((_, frames)) = recv(&b, &mut buf).unwrap() {
            came += frames.count();
        }
    }
    assert_eq!((sent, came), (kept as u64, kept));
    assert!(outbox.add(7, &v4(), 0, &frame), "there is room again");
    drop(b);
    assert!(outbox.flush(&a).is_err());
    assert_eq!(outbox.clear(), 1);
    assert!(!outbox.add(7, &v4(), 0, &vec![0; 65_536]), "no UDP payload");
}

#[test]
fn nonsense_is_skipped_and_the_end_is_told() {
    let (a, b) = sockets();
    let mut buf = vec![0; MESSAGE_BYTES_MAX];
    assert!(recv(&b, &mut buf).unwrap().is_none());
    let good = Bundle::new(7, &v4(), 1, b"frame").unwrap();
    let message = good.message();
    for nonsense in [
        b"nonsense",
        &message[..message.len() - 1],
        &message[..HEADER_BYTES],
        &[message, b"x"].concat(),
    ] {
        rustix::net::send(&a, nonsense, SendFlags::empty()).unwrap();
    }
    assert!(recv(&b, &mut buf).unwrap().is_none());
    drop(a);
    let end = recv(&b, &mut buf).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
}

proptest! {
    #[test]
    fn any_bytes_are_frames_or_none(
        family in 4_u8..7,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        lengths in proptest::collection::vec(0_u16..40, 0..4),
    ) {
        let mut message = v4().encode().to_vec();
        message[1] = family;
        let mut rest = &bytes[..];
        for len in lengths {
            let (frame, more) = rest.split_at(rest.len().min(usize::from(len)));
            message.extend([0, 0]);
            message.extend(len.to_le_bytes());
            message.extend(frame);
            rest = more;
        }
        for message in [&message[..], &bytes[..]] {
            if let Some((_, frames)) = unpack(message) {
                let sum: usize = frames.map(|(_, f)| f.len() + FRAME_HEADER_BYTES).sum();
                prop_assert_eq!(sum + HEADER_BYTES, message.len());
            }
        }
    }
}
