use super::*;
use rocebud_objects::flow::Network;

const WIRE: u32 = 5;
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];

fn udp_to(port: u16) -> FlowSpec {
    FlowSpec::Udp {
        src_port: Masked::default(),
        dst_port: Masked {
            value: port,
            mask: 0xffff,
        },
    }
}

/// Queue pair, kind, priority, what else.
type Line = (u32, FlowKind, u16, fn(&mut FlowAttr));

fn steering(lines: &[Line]) -> Steering {
    let mut steering = Steering::default();
    for (id, (qpn, kind, priority, more)) in (1..).zip(lines) {
        let mut attr = FlowAttr {
            kind: *kind,
            priority: *priority,
            ..FlowAttr::default()
        };
        more(&mut attr);
        steering.add(Rule {
            id: FlowId(id),
            qpn: Qpn::new(*qpn),
            ifindex: WIRE,
            attr,
            counts: None,
        });
    }
    steering
}

fn packet(dst_mac: [u8; 6], port: u16) -> Headers {
    Headers {
        dst_mac,
        network: Network::V4 {
            src: [10, 0, 0, 1],
            dst: [10, 0, 0, 2],
            flags: 0,
        },
        protocol: 17,
        ports: Some((1, port)),
        ..Headers::default()
    }
}

fn takers(lines: &[Line], headers: &Headers, comes_back: bool) -> Vec<u32> {
    let steering = steering(lines);
    let hits = steering.find(WIRE, headers, comes_back);
    assert!(
        steering
            .find(WIRE + 1, headers, comes_back)
            .rules()
            .is_empty()
    );
    hits.takers().map(|rule| rule.qpn.value()).collect()
}

const NORMAL: FlowKind = FlowKind::Normal;
fn nothing(_: &mut FlowAttr) {}
fn port_7(attr: &mut FlowAttr) {
    attr.specs = vec![udp_to(7)];
}

#[test]
fn the_lowest_number_decides_and_equals_share() {
    let lines: &[Line] = &[
        (1, NORMAL, 2, nothing),
        (2, NORMAL, 1, port_7),
        (3, NORMAL, 1, nothing),
        (3, NORMAL, 1, port_7),
    ];
    assert_eq!(takers(lines, &packet(OWN, 7), true), [2, 3]);
    assert_eq!(takers(lines, &packet(OWN, 8), true), [3]);
}

#[test]
fn what_is_not_trapped_goes_on() {
    let lines: &[Line] = &[
        (1, NORMAL, 0, |attr| attr.dont_trap = true),
        (2, NORMAL, 1, port_7),
        (3, NORMAL, 2, nothing),
    ];
    assert_eq!(takers(lines, &packet(OWN, 7), true), [1, 2]);
    assert_eq!(takers(lines, &packet(OWN, 8), true), [1, 3]);
}

#[test]
fn defaults_get_what_is_left_and_sniffers_everything() {
    let lines: &[Line] = &[
        (1, NORMAL, 0, port_7),
        (2, FlowKind::AllDefault, 0, nothing),
        (3, FlowKind::McDefault, 0, nothing),
        (4, FlowKind::Sniffer, 0, nothing),
    ];
    assert_eq!(takers(lines, &packet(OWN, 7), true), [1, 4]);
    assert_eq!(takers(lines, &packet(OWN, 8), true), [2, 4]);
    assert_eq!(takers(lines, &packet(GROUP, 8), true), [2, 3, 4]);
    assert_eq!(takers(lines, &packet(GROUP, 7), false), [4]);
}

#[test]
fn what_is_dropped_only_sniffers_see() {
    let lines: &[Line] = &[
        (1, NORMAL, 0, |attr| attr.drop = true),
        (2, NORMAL, 0, nothing),
        (3, FlowKind::Sniffer, 0, nothing),
    ];
    assert_eq!(takers(lines, &packet(OWN, 7), true), [3]);
}

#[test]
fn filters_ask_for_no_more_than_the_rule_does() {
    let mut steering = steering(&[(1, NORMAL, 0, |attr| {
        attr.specs = vec![
            FlowSpec::Eth {
                dst_mac: Masked {
                    value: GROUP,
                    mask: [0xff; 6],
                },
                src_mac: Masked::default(),
                ether_type: Masked::default(),
                vlan_tag: Masked::default(),
            },
            udp_to(7),
        ];
    })]);
    assert_eq!(steering.filter(WIRE + 1, OWN, false), None);
    let filter = steering.filter(WIRE, OWN, false).unwrap();
    let pairs = [0x0100, 0x5e00, 0x0001];
    let tests = (0..)
        .step_by(2)
        .zip(pairs)
        .map(|(at, pair)| exactly(at, 2, 0xffff, pair));
    assert_eq!(filter.any_of, [tests.collect::<Vec<_>>()]);
    assert_eq!(filter.outgoing, Outgoing::Back(OWN));
    assert_eq!(
        steering.listens(WIRE, OWN),
        HashSet::from([Listen::Group(GROUP)])
    );
    assert_eq!(
        steering.filter(WIRE, OWN, true).unwrap().outgoing,
        Outgoing::None
    );
    assert!(steering.remove(FlowId(1)).is_some() && steering.remove(FlowId(1)).is_none());
    assert_eq!(steering.filter(WIRE, OWN, false), None);
}
