//! Devices follow the interfaces.

use rocebud_ctl::{Client, DeviceInfo, Notice};

use crate::world::{connect, device, enter, ip, wait};

fn veth() {
    ip("link add va type veth peer name vb");
    ip("link set va up");
    ip("link set vb up");
    ip("addr add 10.9.0.1/24 dev va");
}

fn gids(device: &DeviceInfo) -> Vec<Option<String>> {
    let mut list: Vec<_> = device
        .gids
        .iter()
        .map(|slot| slot.map(|entry| entry.gid().ip().to_string()))
        .collect();
    while list.last().is_some_and(Option::is_none) {
        list.pop();
    }
    list
}

/// Waits for a notice with a list in which `fits` holds of the device.
fn told(client: &Client, name: &str, what: &str, fits: impl Fn(&DeviceInfo) -> bool) -> DeviceInfo {
    wait(5, what, || {
        let lists = client
            .poll_notices()
            .into_iter()
            .map(|notice| match notice {
                Notice::Devices(list) => list.devices,
                Notice::Peer(_) => Vec::new(),
                Notice::Closed => panic!("the daemon went"),
            });
        lists.flatten().find(|d| d.name == name && fits(d))
    })
}

#[test]
fn gids_follow_addresses_and_keep_their_slots() {
    if !enter() {
        return;
    }
    veth();
    let client = connect();
    let va = device(&client, "rb_va").expect("device");
    assert!(va.active);
    let first = gids(&va);
    assert_eq!(first.len(), 2, "{first:?}");
    assert!(
        first[0]
            .as_ref()
            .is_some_and(|gid| gid.starts_with("fe80::")),
        "{first:?}"
    );
    assert_eq!(first[1].as_deref(), Some("10.9.0.1"));

    ip("addr add 10.9.0.2/24 dev va");
    let va = told(&client, "rb_va", "a second address", |d| gids(d).len() == 3);
    assert_eq!(gids(&va)[2].as_deref(), Some("10.9.0.2"));
    ip("addr add fd00::9/64 dev va nodad");
    told(&client, "rb_va", "an IPv6 address", |d| gids(d).len() == 4);
    ip("addr del 10.9.0.2/24 dev va");
    let va = told(&client, "rb_va", "a removal", |d| {
        gids(d).get(2) == Some(&None)
    });
    assert_eq!(gids(&va)[3].as_deref(), Some("fd00::9"), "nothing is moved");
    ip("addr add 10.9.0.3/24 dev va");
    let va = told(&client, "rb_va", "the hole filled", |d| {
        gids(d)[2].is_some()
    });
    assert_eq!(gids(&va)[2].as_deref(), Some("10.9.0.3"));
}

#[test]
fn mtu_state_and_name_follow_the_link() {
    if !enter() {
        return;
    }
    veth();
    let client = connect();
    let va = device(&client, "rb_va").expect("device");
    assert_eq!(
        (va.netdev_mtu, va.mtu().bytes(), va.active),
        (1500, 1024, true)
    );
    ip("link set va mtu 9000");
    told(&client, "rb_va", "the MTU", |d| {
        d.netdev_mtu == 9000 && d.mtu().bytes() == 4096
    });
    ip("link set vb down");
    told(&client, "rb_va", "no carrier", |d| !d.active && d.enabled);
    ip("link set vb up");
    told(&client, "rb_va", "carrier again", |d| d.active);
    ip("link set va down");
    let va = told(&client, "rb_va", "down", |d| !d.active && !d.enabled);
    assert!(va.gids[0].is_some(), "slot 0 is never empty");
    ip("link set va name eth-with-15-ch");
    told(&client, "rb_eth-with-15-ch", "the name", |d| {
        d.ifindex == va.ifindex
    });
    ip("link del eth-with-15-ch");
    wait(5, "removal", || {
        device(&client, "rb_eth-with-15-ch").is_none().then_some(())
    });
}

#[test]
fn usable_devices_are_listed_before_loopback_and_that_before_the_rest() {
    if !enter() {
        return;
    }
    ip("link add zz type veth peer name zy");
    veth();
    let client = connect();
    let names: Vec<String> = client
        .devices()
        .expect("devices")
        .into_iter()
        .map(|d| d.name)
        .collect();
    let place = |name: &str| names.iter().position(|n| n == name).expect("listed");
    assert!(place("rb_va") < place("rb_lo"), "{names:?}");
    assert!(place("rb_lo") < place("rb_zz"), "{names:?}");
}

#[test]
fn loopback_has_its_addresses_and_a_guid() {
    if !enter() {
        return;
    }
    let client = connect();
    let lo = device(&client, "rb_lo").expect("device");
    assert!(lo.active && lo.loopback && lo.guid != 0);
    assert_eq!(
        gids(&lo),
        [Some("127.0.0.1".to_owned()), Some("::1".to_owned())]
    );
}

#[test]
fn without_ipv6_addresses_ipv4_is_at_0_at_once() {
    if !enter() {
        return;
    }
    ip("link add va type veth peer name vb");
    for interface in ["va", "vb"] {
        let own = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        let shell = format!("echo 1 > {own}");
        let ok = std::process::Command::new("sh")
            .args(["-c", &shell])
            .status()
            .expect("sh");
        assert!(ok.success());
    }
    ip("addr add 10.9.0.1/24 dev va");
    ip("link set vb up");
    ip("link set va up");
    let start = std::time::Instant::now();
    let client = connect();
    let va = device(&client, "rb_va").expect("device");
    assert_eq!(gids(&va), [Some("10.9.0.1".to_owned())]);
    assert!(start.elapsed() < std::time::Duration::from_secs(4));
}

#[test]
fn a_flood_of_changes_ends_in_the_right_picture() {
    if !enter() {
        return;
    }
    veth();
    let client = connect();
    client.devices().expect("devices");
    // More events than the client's socket holds lists, and the client does not read.
    let batch: String = (0..200)
        .map(|i| {
            format!(
                "addr add 10.8.{}.1/24 dev va\naddr del 10.8.{0}.1/24 dev va\n",
                i % 200
            )
        })
        .collect();
    let path = std::env::temp_dir().join(format!("rocebud-flood-{}", std::process::id()));
    std::fs::write(&path, batch).expect("write");
    ip(&format!("-batch {}", path.display()));
    std::fs::remove_file(&path).expect("remove");
    ip("addr add 10.7.0.1/24 dev va");
    let last = |d: &DeviceInfo| gids(d).contains(&Some("10.7.0.1".to_owned()));
    let va = told(&client, "rb_va", "the newest list", last);
    assert_eq!(gids(&va).iter().flatten().count(), 3, "{:?}", gids(&va));
}
