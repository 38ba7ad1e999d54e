use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rocebud_cm::Path;
use rocebud_cm::hello::{self, METHOD_GET, METHOD_GET_RESP};
use rocebud_ctl::{DeviceInfo, GidEntry};

use super::*;
use crate::devices::Now;
use crate::picture::Picture;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const REP: u8 = 0x13;
const REJ: u8 = 0x12;

fn ours(instance: u64) -> Hello {
    Hello::new(instance, 64, 1 << 20, 0)
}

fn with<T>(at: Now, act: impl FnOnce(&World<'_>) -> T) -> T {
    let gid = GidEntry {
        bytes: Gid::from_ip(HERE).0,
        ifindex: 1,
    };
    let device = DeviceInfo {
        name: "rb_eth0".into(),
        ifindex: 1,
        netdev: "eth0".into(),
        guid: 7,
        mac: [0; 6],
        netdev_mtu: 1500,
        active_mtu: 3,
        enabled: true,
        active: true,
        speed_mbps: 1000,
        loopback: false,
        gids: vec![Some(gid)],
    };
    act(&World {
        devices: &[device],
        picture: &Picture::default(),
        now: at,
    })
}

fn ends(to: IpAddr) -> Ends {
    Ends {
        port: 1,
        local: Gid::from_ip(HERE),
        remote: Gid::from_ip(to),
    }
}

/// The connection manager sends a message of this kind.
fn sends(greeting: &mut Greeting, attribute: u8, to: IpAddr) {
    let mut mad = Box::new([0; 256]);
    mad[17] = attribute;
    let path = Path {
        ends: ends(to),
        ..Path::default()
    };
    with(Now::ZERO, |world| {
        greeting.sending(&Transmit { path, mad }, world);
    });
}

fn status(greeting: &Greeting) -> Vec<PeerStatus> {
    with(Now::ZERO, |world| greeting.status(world))
}

#[test]
fn whom_a_program_talks_to_is_asked_once() {
    let mut greeting = Greeting::new(ours(1));
    sends(&mut greeting, REJ, THERE);
    sends(&mut greeting, REP, HERE);
    assert!(greeting.poll_transmit().is_none(), "a stranger; ourselves");
    sends(&mut greeting, REP, THERE);
    sends(&mut greeting, REP, THERE);
    let question = greeting.poll_transmit().expect("a question");
    let (header, said) = hello::parse(&question.mad[..]).expect("of ours");
    assert_eq!((header.method, said), (METHOD_GET, ours(1)));
    assert!(greeting.poll_transmit().is_none());
    assert!(status(&greeting).iter().all(|peer| peer.asked));

    let answer = ours(2).datagram(METHOD_GET_RESP, header.tid);
    let now = Instant(1);
    assert!(greeting.0.handle_mad(now, ends(THERE), &answer[..]));
    let expected = PeerStatus {
        address: THERE.to_string(),
        asked: false,
        ours: true,
        id_bound: 64,
        receive_buffer: 1 << 20,
        extensions: 0,
    };
    assert_eq!(status(&greeting), [expected]);
}

#[test]
fn who_says_nothing_speaks_the_standard() {
    let mut greeting = Greeting::new(ours(1));
    sends(&mut greeting, REP, THERE);
    let mut asked = 0;
    for second in 0..10 {
        while greeting.poll_transmit().is_some() {
            asked += 1;
        }
        let now = Duration::from_secs(second).as_nanos();
        greeting.handle_timeout(Instant(u64::try_from(now).expect("early")));
    }
    assert_eq!(asked, 3);
    let found = status(&greeting);
    assert!(found.iter().all(|peer| !peer.asked && !peer.ours));
    assert_eq!(found.len(), 1);
}
