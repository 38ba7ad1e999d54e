use super::*;

fn link(ifindex: u32) -> Message {
    Message::Link(Link {
        ifindex,
        name: format!("eth{ifindex}"),
        ..Link::default()
    })
}

fn address(ifindex: u32, ip: &str, flags: u32) -> Message {
    Message::Address(Address {
        ifindex,
        ip: ip.parse().unwrap(),
        flags,
    })
}

fn usable(picture: &Picture, ifindex: u32) -> Vec<String> {
    picture.usable(ifindex).map(|ip| ip.to_string()).collect()
}

#[test]
fn an_event_said_twice_changes_nothing() {
    let mut picture = Picture::default();
    for message in [link(1), address(1, "10.0.0.1", 0)] {
        picture.apply(&message);
    }
    let once = picture.clone();
    picture.apply(&address(1, "10.0.0.1", 0));
    picture.apply(&link(1));
    assert_eq!(picture, once);
}

#[test]
fn tentative_and_duplicate_addresses_are_not_usable() {
    let mut picture = Picture::default();
    picture.apply(&address(1, "fe80::1", 0x40));
    picture.apply(&address(1, "fd00::1", 0x48));
    assert_eq!(usable(&picture, 1), [""; 0]);
    assert!(picture.any_tentative(1));
    picture.apply(&address(1, "fe80::1", 0x80));
    assert_eq!(usable(&picture, 1), ["fe80::1"]);
    // What failed the check is not waited for.
    assert!(!picture.any_tentative(1));
}

#[test]
fn a_deleted_interface_takes_its_addresses_along() {
    let mut picture = Picture::default();
    for message in [
        link(1),
        address(1, "10.0.0.1", 0),
        Message::LinkGone { ifindex: 1 },
        link(1),
    ] {
        picture.apply(&message);
    }
    assert_eq!(usable(&picture, 1), [""; 0]);
}

#[test]
fn a_new_dump_forgets_what_is_gone_and_keeps_the_order_of_what_stays() {
    let mut picture = Picture::default();
    for ip in ["10.0.0.2", "10.0.0.1", "10.0.0.9"] {
        picture.apply(&address(1, ip, 0));
    }
    let dump = [
        link(1),
        address(1, "10.0.0.1", 0),
        address(1, "10.0.0.2", 0),
        address(1, "10.0.0.3", 0),
    ];
    let picture = picture.replaced(&dump);
    assert_eq!(usable(&picture, 1), ["10.0.0.2", "10.0.0.1", "10.0.0.3"]);
}
