use super::*;
use crate::DeviceInfo;
use proptest::prelude::*;

#[test]
fn greetings_keep_their_layout_whatever_the_version() {
    let hello = Hello {
        version: 7,
        role: Role::Command,
    };
    assert_eq!(&hello.encode(), b"ROCEBUD\0\x07\0\0\0\x02\0\0\0");
    assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    let welcome = Welcome {
        version: 9,
        accepted: false,
        reason: Refusal::Version,
        netns: 0x0102_0304_0506_0708,
        pid: 77,
    };
    assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
    // A later version may append.
    let longer = [&welcome.encode()[..], &[1, 2, 3]].concat();
    assert_eq!(Welcome::decode(&longer), Some(welcome));
}

#[test]
fn the_longest_request_fits_its_bound() {
    let hint = PeerHint {
        ifindex: u32::MAX,
        local: [0xff; 16],
        remote: [0xff; 16],
        doubt: true,
    };
    for request in [Request::PagesOf { key: u64::MAX }, Request::Peer(hint)] {
        let request = encode(&request).unwrap();
        assert!(request.len() <= crate::limits::REQUEST_BYTES_MAX);
    }
}

#[test]
fn the_longest_device_list_fits_a_message() {
    use crate::GidEntry;
    use crate::limits::{DEVICES_MAX, GIDS_MAX, MESSAGE_BYTES_MAX};
    let gid = GidEntry {
        bytes: [0xff; 16],
        ifindex: u32::MAX,
    };
    let device = DeviceInfo {
        name: "rb_".to_owned() + &"x".repeat(15),
        ifindex: u32::MAX,
        netdev: "x".repeat(15),
        guid: u64::MAX,
        mac: [0xff; 6],
        netdev_mtu: u32::MAX,
        active_mtu: 5,
        enabled: true,
        active: true,
        speed_mbps: u32::MAX,
        loopback: true,
        keeps_batches: true,
        gids: vec![Some(gid); GIDS_MAX],
    };
    let answer = Answer::Devices(DeviceList {
        generation: u64::MAX,
        devices: vec![device; DEVICES_MAX],
    });
    assert!(encode(&answer).unwrap().len() <= MESSAGE_BYTES_MAX);
}

#[test]
fn trailing_bytes_are_refused() {
    let mut bytes = encode(&Request::Status).unwrap();
    assert_eq!(decode::<Request>(&bytes).unwrap(), Request::Status);
    bytes.push(0);
    assert!(decode::<Request>(&bytes).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Hello::decode(&bytes);
        let _ = Welcome::decode(&bytes);
        let _ = decode::<Answer>(&bytes);
        let _ = decode::<Announcement>(&bytes);
        if let Ok(request) = decode::<Request>(&bytes) {
            prop_assert_eq!(decode::<Request>(&encode(&request).unwrap()).unwrap(), request);
        }
    }
}
