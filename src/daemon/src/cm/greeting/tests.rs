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
        keeps_batches: false,
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
    assert!(greeting.greeter.handle_mad(now, ends(THERE), &answer[..]));
    let expected = PeerStatus {
        address: THERE.to_string(),
        asked: false,
        ours: true,
        id_bound: 64,
        receive_buffer: 1 << 20,
        extensions: 0,
        same_kernel: false,
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

fn hint(to: IpAddr) -> PeerHint {
    PeerHint {
        ifindex: 1,
        local: Gid::from_ip(HERE).0,
        remote: Gid::from_ip(to).0,
        doubt: false,
    }
}

fn talks(greeting: &mut Greeting, client: u64, at: Now, hint: &PeerHint) {
    with(at, |world| greeting.talks(client, hint, world));
}

/// Answers the question that is out, at `at`.
fn answer(greeting: &mut Greeting, at: Now, hello: Hello) {
    let question = greeting.poll_transmit().expect("a question");
    let (header, _) = hello::parse(&question.mad[..]).expect("of ours");
    let answer = hello.datagram(METHOD_GET_RESP, header.tid);
    let at = crate::cm::instant(at);
    assert!(
        greeting
            .greeter
            .handle_mad(at, question.path.ends, &answer[..])
    );
    assert!(greeting.poll_transmit().is_none(), "asked once");
}

/// Two that do not say where they run, and two that say it.
#[test]
fn a_peer_on_the_same_kernel_is_one_that_says_the_same_number() {
    for (us, them, expected) in [(0, 0, false), (0, 5, false), (5, 6, false), (5, 5, true)] {
        let on = |kernel, instance| Hello {
            kernel,
            ..ours(instance)
        };
        let mut greeting = Greeting::new(on(us, 1));
        talks(&mut greeting, 7, Now::ZERO, &hint(THERE));
        answer(&mut greeting, Now::ZERO, on(them, 2));
        let news = greeting.poll_news().and_then(|(_, news)| news.word);
        assert_eq!(news.map(|word| word.same_kernel), Some(expected));
        assert_eq!(status(&greeting)[0].same_kernel, expected, "{us} {them}");
    }
}

fn heard(greeting: &mut Greeting) -> Vec<(u64, Option<u16>)> {
    let news = std::iter::from_fn(|| greeting.poll_news());
    news.map(|(client, news)| (client, news.word.map(|word| word.id_bound)))
        .collect()
}

/// Two programs connect queue pairs by hand: one exchange, of which both hear, the later one at once.
#[test]
fn who_names_a_peer_hears_what_it_said() {
    let mut greeting = Greeting::new(ours(1));
    talks(&mut greeting, 7, Now::ZERO, &hint(THERE));
    talks(&mut greeting, 7, Now::ZERO, &hint(THERE));
    assert_eq!(heard(&mut greeting), []);
    answer(&mut greeting, Now::ZERO, ours(2));
    assert_eq!(heard(&mut greeting), [(7, Some(64))]);
    talks(&mut greeting, 8, Now::ZERO, &hint(THERE));
    assert_eq!(heard(&mut greeting), [(8, Some(64))]);
    assert!(greeting.poll_transmit().is_none());

    let doubt = PeerHint {
        doubt: true,
        ..hint(THERE)
    };
    let later = Now::from_secs(5);
    talks(&mut greeting, 8, later, &doubt);
    answer(&mut greeting, later, ours(2));
    assert_eq!(heard(&mut greeting), [(7, Some(64)), (8, Some(64))]);
    greeting.drop_client(7);
    talks(&mut greeting, 8, later * 2, &doubt);
    answer(&mut greeting, later * 2, Hello::new(3, 128, 0, 0));
    assert_eq!(heard(&mut greeting), [(8, Some(128))]);
    greeting.drop_client(8);
    assert!(greeting.interest.is_empty() && greeting.named.is_empty());
}

/// Nobody is asked for an address that is nobody's, a group's or our own, or in a name not ours.
#[test]
fn what_cannot_be_asked_is_not() {
    let mut greeting = Greeting::new(ours(1));
    let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    let strange = PeerHint {
        local: Gid::from_ip(THERE).0,
        ..hint(THERE)
    };
    let nobody = PeerHint {
        remote: [0; 16],
        ..hint(THERE)
    };
    for hint in [hint(HERE), hint(group), strange, nobody] {
        talks(&mut greeting, 7, Now::ZERO, &hint);
        assert!(greeting.poll_transmit().is_none(), "{hint:?}");
    }
    assert!(greeting.interest.is_empty());
}

/// A peer that somebody relies on is asked again in time. When the last one has gone it is forgotten.
#[test]
fn a_peer_in_use_is_renewed() {
    let mut greeting = Greeting::new(ours(1));
    talks(&mut greeting, 7, Now::ZERO, &hint(THERE));
    answer(&mut greeting, Now::ZERO, ours(2));
    assert_eq!(heard(&mut greeting), [(7, Some(64))]);
    let due = |greeting: &mut Greeting| {
        let at = greeting.greeter.poll_timeout().expect("a timer");
        greeting.handle_timeout(at);
        Now::from_nanos(at.0)
    };
    for _ in 0..2 {
        let at = due(&mut greeting);
        answer(&mut greeting, at, ours(2));
        assert_eq!(heard(&mut greeting), []);
    }
    greeting.drop_client(7);
    due(&mut greeting);
    assert!(greeting.poll_transmit().is_none());
    assert_eq!(greeting.greeter.peers(), 0);
}

#[test]
fn a_client_names_no_more_peers_than_it_may() {
    let mut greeting = Greeting::new(ours(1));
    for n in 0..2 * u32::try_from(PEERS_PER_CLIENT_MAX).expect("small") {
        let there = IpAddr::V4(Ipv4Addr::from(0x0a80_0000 + n));
        talks(&mut greeting, 7, Now::ZERO, &hint(there));
    }
    assert_eq!(greeting.interest.len(), PEERS_PER_CLIENT_MAX);
    assert_eq!(greeting.greeter.peers(), PEERS_PER_CLIENT_MAX);
    talks(&mut greeting, 8, Now::ZERO, &hint(THERE));
    assert_eq!(
        greeting.interest.len(),
        PEERS_PER_CLIENT_MAX + 1,
        "another may"
    );
}
