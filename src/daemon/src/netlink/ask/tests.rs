use super::*;

fn answer(family: u8, kind: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = vec![family, 32, 0, 0, 254, 0, 0, kind, 0, 0, 0, 0];
    for (kind, value) in attributes {
        attribute(&mut body, *kind, value);
    }
    body
}

#[test]
fn a_route_names_interface_gateway_and_hop_limit() {
    let to: IpAddr = "10.9.0.1".parse().expect("an address");
    let mut metric = Vec::new();
    attribute(&mut metric, 10, &7_u32.to_ne_bytes());
    let body = answer(
        2,
        1,
        &[(4, &3_u32.to_ne_bytes()), (5, &[10, 0, 0, 1]), (8, &metric)],
    );
    let route = parse_route(&body, to).expect("a route");
    assert_eq!(route.ifindex, 3);
    assert_eq!(route.next_hop, IpAddr::from([10, 0, 0, 1]));
    assert_eq!(route.hop_limit, Some(7));
    assert!(!route.local);
}

#[test]
fn without_a_gateway_the_destination_is_asked_itself() {
    let to: IpAddr = "10.0.0.9".parse().expect("an address");
    let route = parse_route(&answer(2, 2, &[]), to).expect("a route");
    assert_eq!(route.next_hop, to);
    assert!(route.local);
}

#[test]
fn a_gateway_of_the_other_family_is_understood() {
    let to: IpAddr = "10.0.0.9".parse().expect("an address");
    let mut via = 10_u16.to_ne_bytes().to_vec();
    via.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let route = parse_route(&answer(2, 1, &[(18, &via)]), to).expect("a route");
    assert_eq!(
        route.next_hop,
        "fe80::1".parse::<IpAddr>().expect("an address")
    );
}

#[test]
fn neighbours_are_usable_unless_they_are_asked_for_or_failed() {
    let state = |s: u16| {
        let mut body = vec![0; 12];
        body[8..10].copy_from_slice(&s.to_ne_bytes());
        parse_neighbour(&body)
    };
    for (s, expected) in [
        (0, Neighbour::Unknown),
        (1, Neighbour::Unknown),
        (2, Neighbour::Usable),
        (4, Neighbour::Usable),
        (0x20, Neighbour::Failed),
        (0x40, Neighbour::Usable),
        (0x80, Neighbour::Usable),
    ] {
        assert_eq!(state(s), expected, "state {s:#x}");
    }
    assert_eq!(parse_neighbour(&[]), Neighbour::Unknown);
}

#[test]
fn truncated_answers_are_no_routes() {
    let to: IpAddr = "10.0.0.9".parse().expect("an address");
    let body = answer(2, 1, &[(4, &3_u32.to_ne_bytes())]);
    for n in 0..12 {
        assert_eq!(parse_route(&body[..n], to), None);
    }
}

#[test]
fn the_kernel_answers_about_loopback() {
    let mut asker = Asker::new().expect("a netlink socket");
    let lo: IpAddr = "127.0.0.1".parse().expect("an address");
    // A namespace whose loopback is down has no such route.
    if let Some(route) = asker.route(lo, 0) {
        assert!(route.local, "{route:?}");
    }
}
