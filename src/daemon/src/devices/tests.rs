use super::*;
use crate::netlink::codec::{Address, Message};

const UP: u32 = 0x1;
const RUNNING: u32 = 0x40;
const CARRIER: u32 = 0x1_0000;
const TENTATIVE: u32 = 0x40;

fn at(ms: u64) -> Now {
    Duration::from_millis(ms)
}

/// The machine: events in, device list out.
struct World {
    picture: Picture,
    devices: Devices,
    answers: Answers,
}

/// What ethtool says of every interface.
struct Answers {
    takes_batches: bool,
}

impl AskInterface for Answers {
    fn speed_mbps(&self, _: &str) -> Option<u32> {
        Some(10_000)
    }

    fn takes_udp_batches(&self, _: &str) -> bool {
        self.takes_batches
    }
}

impl World {
    fn new() -> Self {
        Self {
            picture: Picture::default(),
            devices: Devices::new(7, true),
            answers: Answers {
                takes_batches: true,
            },
        }
    }

    /// `eth0` runs and has an IPv4 address.
    fn with_eth0() -> Self {
        let mut world = Self::new();
        world.running(2, "eth0").address(2, "10.0.0.1", 0);
        world
    }

    fn link(&mut self, ifindex: u32, name: &str, flags: u32) -> &mut Self {
        let loopback = name == "lo";
        self.picture.apply(&Message::Link(Link {
            ifindex,
            name: name.into(),
            arp_type: if loopback {
                Link::ARP_LOOPBACK
            } else {
                Link::ARP_ETHERNET
            },
            flags,
            mtu: 1500,
            mac: (!loopback).then_some([2, 0, 0, 0, 0, ifindex as u8]),
            is_veth: name.starts_with("ve"),
        }));
        self
    }

    fn running(&mut self, ifindex: u32, name: &str) -> &mut Self {
        self.link(ifindex, name, UP | RUNNING | CARRIER)
    }

    fn address(&mut self, ifindex: u32, ip: &str, flags: u32) -> &mut Self {
        let ip = ip.parse().unwrap();
        self.picture
            .apply(&Message::Address(Address { ifindex, ip, flags }));
        self
    }

    fn look(&mut self, ms: u64) -> bool {
        self.devices.refresh(&self.picture, at(ms), &self.answers)
    }

    fn names(&self) -> Vec<(&str, bool)> {
        let list = self.devices.list().iter();
        list.map(|d| (d.name.as_str(), d.active)).collect()
    }

    fn gids(&self, name: &str) -> Vec<String> {
        let device = self.devices.list().iter().find(|d| d.name == name).unwrap();
        let slots = device.gids.iter();
        slots
            .map_while(|slot| Some(slot.as_ref()?.gid().ip().to_string()))
            .collect()
    }
}

#[test]
fn usable_interfaces_come_first_then_loopback_then_the_rest_as_down() {
    let mut world = World::new();
    world.running(1, "lo").address(1, "127.0.0.1", 0);
    world.running(2, "noaddr");
    world.link(3, "down", 0).address(3, "10.0.3.1", 0);
    world.link(4, "nocarrier", UP).address(4, "10.0.4.1", 0);
    world.running(9, "eth9").address(9, "10.0.9.1", 0);
    world.running(5, "eth5").address(5, "10.0.5.1", 0);
    assert!(world.look(0));
    assert_eq!(
        world.names(),
        [
            ("rb_eth5", true),
            ("rb_eth9", true),
            ("rb_lo", true),
            ("rb_noaddr", false),
            ("rb_down", false),
            ("rb_nocarrier", false)
        ]
    );
    assert!(!world.look(1), "nothing changed");
}

#[test]
fn loopback_and_veths_keep_batches_while_the_offload_is_on() {
    let mut world = World::new();
    world.running(1, "lo").running(2, "ve0").running(3, "eth0");
    let mut kept = |takes_batches, changed| -> Vec<String> {
        world.answers.takes_batches = takes_batches;
        world.devices.ask_again(changed);
        world.look(0);
        let list = world.devices.list().iter();
        let mut kept: Vec<_> = list
            .filter(|d| d.keeps_batches)
            .map(|d| d.netdev.clone())
            .collect();
        kept.sort();
        kept
    };
    assert_eq!(kept(true, None), ["lo", "ve0"]);
    assert_eq!(kept(false, Some(2)), ["lo"], "asked of ve0 alone");
    assert_eq!(kept(false, None), [""; 0]);
    assert_eq!(kept(true, Some(2)), ["ve0"]);
}

#[test]
fn slot_0_waits_for_the_link_local_address_to_pass_its_check() {
    let mut world = World::new();
    world.running(2, "eth0");
    world
        .address(2, "10.0.0.1", 0)
        .address(2, "fe80::1", TENTATIVE);
    world.look(0);
    assert!(!world.devices.is_settled(at(0)));
    assert_eq!(world.names(), [("rb_eth0", false)]);
    world.address(2, "fe80::1", 0x80).look(1500);
    assert!(world.devices.is_settled(at(1500)));
    assert_eq!(world.names(), [("rb_eth0", true)]);
    assert_eq!(world.gids("rb_eth0"), ["fe80::1", "10.0.0.1"]);
}

#[test]
fn a_check_that_does_not_end_is_waited_for_only_shortly() {
    let mut world = World::new();
    world.running(2, "eth0");
    world
        .address(2, "10.0.0.1", 0)
        .address(2, "fe80::1", TENTATIVE);
    world.look(0);
    let deadline = world.devices.deadline(at(0)).unwrap();
    assert_eq!(deadline, SETTLE_MAX);
    assert!(
        world
            .devices
            .refresh(&world.picture, deadline, &world.answers)
    );
    assert!(world.devices.is_settled(deadline));
    assert_eq!(world.gids("rb_eth0"), ["10.0.0.1"]);
    // It comes all the same, to the next free slot.
    world.address(2, "fe80::1", 0x80).look(9000);
    assert_eq!(world.gids("rb_eth0"), ["10.0.0.1", "fe80::1"]);
}

#[test]
fn without_ipv6_nothing_is_waited_for_at_start() {
    let mut world = World::with_eth0();
    world.look(0);
    assert!(world.devices.is_settled(at(0)));
    assert_eq!(world.gids("rb_eth0"), ["10.0.0.1"]);
}

#[test]
fn an_interface_that_has_and_gets_no_address_is_not_waited_for() {
    let mut world = World::new();
    world.running(2, "eth0");
    world.look(0);
    assert!(world.devices.is_settled(at(0)));
    // One whose carrier has only just come may still get one.
    world.link(3, "eth1", UP | CARRIER).look(10);
    assert!(!world.devices.is_settled(at(10)));
}

#[test]
fn an_interface_that_comes_up_gets_a_moment_for_its_link_local_address() {
    let mut world = World::new();
    world.link(2, "eth0", 0).address(2, "10.0.0.1", 0);
    world.look(0);
    world.running(2, "eth0").look(5000);
    assert_eq!(world.names(), [("rb_eth0", false)]);
    assert_eq!(
        world.devices.deadline(at(5000)),
        Some(at(5000) + LINK_LOCAL_GRACE)
    );
    world.address(2, "fe80::1", TENTATIVE).look(5050);
    world.look(5400);
    assert!(!world.devices.is_settled(at(5400)));
    world.address(2, "fe80::1", 0x80).look(6500);
    assert_eq!(world.gids("rb_eth0"), ["fe80::1", "10.0.0.1"]);
}

#[test]
fn a_flap_keeps_ipv4_in_place_and_gives_link_local_its_slot_back() {
    let mut world = World::new();
    world.running(2, "eth0");
    world.address(2, "fe80::1", 0x80).address(2, "10.0.0.1", 0);
    world.look(0);
    world.link(2, "eth0", 0);
    let ip = "fe80::1".parse().unwrap();
    world
        .picture
        .apply(&Message::AddressGone { ifindex: 2, ip });
    world.look(1000);
    assert_eq!(world.names(), [("rb_eth0", false)]);
    assert_eq!(world.gids("rb_eth0"), ["10.0.0.1", "10.0.0.1"]);
    world.running(2, "eth0").look(2000);
    assert_eq!(world.names(), [("rb_eth0", true)]);
    world.address(2, "fe80::1", 0x80).look(3500);
    assert_eq!(world.gids("rb_eth0"), ["fe80::1", "10.0.0.1"]);
}

#[test]
fn mtu_and_name_follow_the_interface() {
    let mut world = World::with_eth0();
    world.look(0);
    for (mtu, payload) in [
        (1500, 1024),
        (9000, 4096),
        (4200, 4096),
        (336, 256),
        (1280, 1024),
    ] {
        world.picture.apply(&Message::Link(Link {
            ifindex: 2,
            name: "enp0s29u1u7u3c2".into(),
            arp_type: Link::ARP_ETHERNET,
            flags: UP | RUNNING | CARRIER,
            mtu,
            mac: Some([2, 0, 0, 0, 0, 2]),
            is_veth: true,
        }));
        world.devices.ask_again(Some(2));
        assert!(world.look(1));
        let device = &world.devices.list()[0];
        assert_eq!(device.mtu().bytes(), payload, "{mtu}");
        assert_eq!(device.name, "rb_enp0s29u1u7u3c2");
        assert!(device.keeps_batches);
        assert!(device.active);
    }
}

#[test]
fn an_mtu_too_small_for_any_payload_makes_the_port_down_and_says_why() {
    let mut world = World::with_eth0();
    world.picture.apply(&Message::Link(Link {
        ifindex: 2,
        name: "eth0".into(),
        arp_type: Link::ARP_ETHERNET,
        flags: UP | RUNNING | CARRIER,
        mtu: 335,
        mac: None,
        is_veth: false,
    }));
    world.look(0);
    assert_eq!(world.names(), [("rb_eth0", false)]);
    assert!(world.devices.remarks()[0].contains("MTU of 335"));
}

#[test]
fn guids_come_from_the_mac_or_are_made_up_stable_and_never_0() {
    let mut world = World::new();
    world.running(1, "lo").address(1, "127.0.0.1", 0);
    world.running(2, "eth0").address(2, "10.0.0.1", 0);
    world.look(0);
    let guids: Vec<u64> = world.devices.list().iter().map(|d| d.guid).collect();
    assert_eq!(guids[0], 0x0000_00ff_fe00_0002);
    assert_eq!(guids[1], made_up_guid(7, "lo"));
    assert_eq!(guids[1] >> 56, 2);
    assert_ne!(made_up_guid(8, "lo"), guids[1], "differs from host to host");
    assert_ne!(
        made_up_guid(7, "tun0"),
        guids[1],
        "differs from interface to interface"
    );
}

#[test]
fn ipv6_addresses_are_no_gids_where_the_daemon_has_no_ipv6() {
    let mut world = World::new();
    world.devices = Devices::new(7, false);
    world.running(1, "lo");
    world.address(1, "::1", 0).address(1, "127.0.0.1", 0);
    world.look(0);
    assert_eq!(world.gids("rb_lo"), ["127.0.0.1"]);
}

#[test]
fn tunnel_stubs_that_nobody_made_are_no_devices() {
    let mut world = World::new();
    world.picture.apply(&Message::Link(Link {
        ifindex: 5,
        name: "sit0".into(),
        arp_type: 776,
        ..Link::default()
    }));
    world.look(0);
    assert!(world.devices.list().is_empty());
}
