use super::*;
use proptest::prelude::*;

const LINKS: &[u8] = include_bytes!("recorded/link_dump.bin");
const ADDRESSES: &[u8] = include_bytes!("recorded/addr_dump.bin");
const EVENTS: &[u8] = include_bytes!("recorded/link_events.bin");
const GONE: &[u8] = include_bytes!("recorded/gone_events.bin");

fn all(bytes: &[u8]) -> Vec<Message> {
    Messages::new(bytes).collect()
}

#[test]
fn a_dump_of_links_gives_name_mtu_mac_and_state() {
    let messages = all(LINKS);
    assert_eq!(messages.last(), Some(&Message::Done));
    let links: Vec<&Link> = messages
        .iter()
        .filter_map(|m| match m {
            Message::Link(link) => Some(link),
            _ => None,
        })
        .collect();
    assert_eq!(links.len(), 3);
    let lo = links.iter().find(|l| l.name == "lo").unwrap();
    assert!(lo.is_loopback() && lo.is_up() && lo.has_carrier());
    assert_eq!((lo.ifindex, lo.mtu, lo.mac), (1, 65_536, None));
    let veth = links.iter().find(|l| l.name == "nlr0").unwrap();
    assert!(veth.is_up() && veth.has_carrier() && veth.is_running());
    assert_eq!(veth.mtu, 9000);
    assert_eq!(veth.mac, Some([2, 0, 0, 0, 0, 7]));
    let veths = links.iter().filter(|l| l.is_veth);
    assert!(veth.is_veth && !lo.is_veth, "{veths:?}");
}

#[test]
fn a_dump_of_addresses_gives_our_own_side_of_a_point_to_point_link() {
    let ips: Vec<IpAddr> = all(ADDRESSES)
        .into_iter()
        .filter_map(|m| match m {
            Message::Address(a) => Some(a.ip),
            _ => None,
        })
        .collect();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    for own in ["127.0.0.1", "::1", "10.1.2.3", "10.1.2.9", "fd00::7"] {
        assert!(ips.contains(&ip(own)), "{own} of {ips:?}");
    }
    assert!(
        !ips.contains(&ip("10.1.2.10")),
        "the peer's address is not ours"
    );
}

#[test]
fn a_fresh_ipv6_address_is_tentative_in_its_event() {
    let fresh = all(EVENTS).into_iter().find_map(|m| match m {
        Message::Address(a) if a.ip == "fd00::7".parse::<IpAddr>().unwrap() => Some(a),
        _ => None,
    });
    let fresh = fresh.expect("recorded");
    assert!(fresh.is_tentative() && !fresh.is_duplicate());
}

#[test]
fn removal_names_interfaces_and_addresses() {
    let messages = all(GONE);
    let links = messages
        .iter()
        .filter(|m| matches!(m, Message::LinkGone { .. }));
    assert_eq!(links.count(), 2);
    let ip: IpAddr = "10.1.2.3".parse().unwrap();
    let gone = |m: &Message| matches!(m, Message::AddressGone { ip: i, .. } if *i == ip);
    assert!(messages.iter().any(gone));
}

#[test]
fn a_bridge_that_lets_a_port_go_does_not_remove_the_interface() {
    let mut body = [0_u8; 16];
    body[4..8].copy_from_slice(&9_u32.to_ne_bytes());
    assert_eq!(parse(17, &body), Some(Message::LinkGone { ifindex: 9 }));
    body[0] = 7;
    assert_eq!(parse(17, &body), None);
}

#[test]
fn errors_acks_and_interrupted_dumps_are_told_apart() {
    let message = |kind: u16, flags: u16, body: &[u8]| {
        let mut bytes = Vec::new();
        bytes.extend((16 + body.len() as u32).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes
    };
    assert_eq!(
        all(&message(2, 0, &(-1_i32).to_ne_bytes())),
        [Message::Failed(1)]
    );
    assert_eq!(all(&message(2, 0, &0_i32.to_ne_bytes())), []);
    assert_eq!(
        all(&message(3, 0x12, &[])),
        [Message::Interrupted, Message::Done]
    );
}

proptest! {
    #[test]
    fn any_bytes_end_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(all(&bytes).len() <= bytes.len());
    }

    #[test]
    fn damaged_recordings_end_without_harm(
        at in 0..ADDRESSES.len(), value: u8, cut in 0..ADDRESSES.len(),
    ) {
        let mut bytes = ADDRESSES.to_vec();
        bytes[at] = value;
        bytes.truncate(cut);
        prop_assert!(all(&bytes).len() <= 100);
        let mut bytes = LINKS.to_vec();
        bytes[at] = value;
        prop_assert!(all(&bytes).len() <= 1000);
    }
}
