use core::net::IpAddr;

use super::*;

fn gid(text: &str) -> Gid {
    Gid::from_ip(text.parse::<IpAddr>().expect("an address"))
}

#[test]
fn the_default_gid_is_the_link_local_address_of_the_mac() {
    let mac = [0x52, 0x54, 0x00, 0x98, 0x00, 0x01];
    let gid = Gid::link_local_from_mac(mac);
    assert_eq!(gid.to_string(), "fe80::5054:ff:fe98:1");
    assert!(gid.is_link_local());
    assert_eq!(guid_from_mac(mac), 0x5054_00ff_fe98_0001);
}

#[test]
fn groups_have_their_ethernet_addresses() {
    let mac = |text| gid(text).multicast_mac();
    assert_eq!(mac("239.255.98.1"), Some([1, 0, 0x5e, 0x7f, 0x62, 1]));
    assert_eq!(mac("224.1.2.3"), Some([1, 0, 0x5e, 1, 2, 3]));
    assert_eq!(
        mac("ff0e::ffff:10ff:6201"),
        Some([0x33, 0x33, 0x10, 0xff, 0x62, 1])
    );
    assert_eq!(mac("10.0.0.1"), None);
    assert_eq!(mac("fe80::1"), None);
    assert_eq!(
        Gid::v1_multicast_from_v4([239, 255, 98, 1]),
        gid("ff0e::ffff:239.255.98.1")
    );
}
