use super::*;
use proptest::prelude::*;

const DEFAULT: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1]);

fn ips(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|ip| ip.parse().unwrap()).collect()
}

fn gid(ip: &str) -> Option<Gid> {
    Some(Gid::from_ip(ip.parse().unwrap()))
}

fn settled(list: &[&str]) -> GidTable {
    let mut table = GidTable::new(DEFAULT);
    table.update(&ips(list));
    table.settle();
    table
}

#[test]
fn the_first_filling_is_link_local_then_ipv4_then_other_ipv6() {
    let table = settled(&["fd00::1", "10.0.0.1", "10.0.0.2", "fe80::1", "fd00::2"]);
    assert_eq!(
        table.view()[..6],
        [
            gid("fe80::1"),
            gid("10.0.0.1"),
            gid("10.0.0.2"),
            gid("fd00::1"),
            gid("fd00::2"),
            None
        ]
    );
}

#[test]
fn without_ipv6_the_ipv4_address_is_at_0() {
    assert_eq!(settled(&["10.0.0.1"]).view()[..2], [gid("10.0.0.1"), None]);
}

#[test]
fn a_provisional_table_is_filled_anew_until_it_settles() {
    let mut table = GidTable::new(DEFAULT);
    table.update(&ips(&["10.0.0.1"]));
    table.update(&ips(&["10.0.0.1", "fe80::1"]));
    assert_eq!(table.view()[..2], [gid("fe80::1"), gid("10.0.0.1")]);
}

#[test]
fn a_settled_table_gives_a_new_address_the_lowest_free_slot_and_moves_nothing() {
    let mut table = settled(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    table.update(&ips(&["10.0.0.1", "10.0.0.3"]));
    assert_eq!(table.view()[..3], [gid("10.0.0.1"), None, gid("10.0.0.3")]);
    table.update(&ips(&["10.0.0.1", "10.0.0.3", "fe80::1"]));
    assert_eq!(
        table.view()[..3],
        [gid("10.0.0.1"), gid("fe80::1"), gid("10.0.0.3")]
    );
}

#[test]
fn slot_0_is_lent_to_the_lowest_address_and_given_to_the_next_that_comes() {
    let mut table = settled(&["10.0.0.1", "10.0.0.2"]);
    table.update(&ips(&["10.0.0.2"]));
    assert_eq!(table.view()[..2], [gid("10.0.0.2"), gid("10.0.0.2")]);
    table.update(&ips(&["10.0.0.2", "10.0.0.7"]));
    assert_eq!(table.view()[..2], [gid("10.0.0.7"), gid("10.0.0.2")]);
}

#[test]
fn an_interface_without_addresses_has_the_default_gid_at_0() {
    let mut table = settled(&["10.0.0.1"]);
    table.update(&[]);
    assert_eq!(table.view()[..2], [Some(DEFAULT), None]);
}

#[test]
fn the_table_is_short_and_grows_only_with_its_addresses() {
    assert_eq!(settled(&["10.0.0.1"]).view().len(), 16);
    let many: Vec<IpAddr> = (0..200_u8).map(|i| IpAddr::from([10, 0, 0, i])).collect();
    let mut table = GidTable::new(DEFAULT);
    assert_eq!(table.update(&many[..20]), 0);
    assert_eq!(table.view().len(), 24);
    assert_eq!(table.update(&many), 200 - GIDS_MAX);
    assert_eq!(table.view().len(), GIDS_MAX);
}

proptest! {
    #[test]
    fn no_sequence_of_changes_moves_an_address_or_empties_slot_0(
        steps in proptest::collection::vec(proptest::collection::btree_set(0..30_u8, 0..12), 1..20)
    ) {
        let mut table = settled(&["10.0.0.0"]);
        let mut before = table.own.clone();
        for step in steps {
            let wanted: Vec<IpAddr> = step.iter().map(|i| IpAddr::from([10, 0, 0, *i])).collect();
            prop_assert_eq!(table.update(&wanted), 0);
            let view = table.view();
            prop_assert!(view[0].is_some());
            for ip in &wanted {
                let gid = Some(Gid::from_ip(*ip));
                prop_assert!(view.contains(&gid));
                let was = before.iter().position(|slot| *slot == gid);
                let is = table.own.iter().position(|slot| *slot == gid);
                prop_assert!(was.is_none() || was == is);
            }
            before = table.own.clone();
        }
    }
}
