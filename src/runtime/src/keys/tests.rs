use rocebud_wire::Qpn;

use super::*;

const PD: PdId = PdId(7);
const SCOPE: Scope = Scope {
    pd: PD,
    qpn: Qpn::new(0x1234),
};

fn region(access: Access) -> Region {
    Region {
        pd: PD,
        addr: 0x10_0000,
        iova: 0x5000,
        len: 0x1000,
        access,
        is_null: false,
    }
}

fn all() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

#[test]
fn an_address_is_translated_by_its_iova() {
    let table = KeyTable::default();
    let key = table.insert(region(all())).unwrap();
    let local = table.local(PD, LKey(key), 0x5010, 16, true, Ok);
    assert_eq!(local, Ok(Spot::At(0x10_0010)));
    let remote = table.remote(SCOPE, RKey(key), 0x5fff, 1, Access::REMOTE_READ, Ok);
    assert_eq!(remote, Ok(0x10_0fff));
}

#[test]
fn no_pair_of_address_and_length_leaves_the_region() {
    let table = KeyTable::default();
    let key = table.insert(region(all())).unwrap();
    for (va, len) in [
        (u64::MAX - 1023, 1024),
        (0x4fff, 2),
        (0x5fff, 2),
        (0x5000, u64::from(u32::MAX)),
        (0x5000, 0x1001),
        (1 << 63, 1 << 31),
        (0, 1),
        (0x6001, 1),
        (0x5001, u64::MAX),
    ] {
        let local = table.local(PD, LKey(key), va, len, false, Ok);
        assert_eq!(local, Err(LocalFault::Bounds), "{va:#x} {len:#x}");
        let remote = table.remote(SCOPE, RKey(key), va, len, Access::REMOTE_READ, Ok);
        assert_eq!(remote, Err(RemoteFault::Bounds), "{va:#x} {len:#x}");
    }
    let whole = table.remote(SCOPE, RKey(key), 0x5000, 0x1000, Access::REMOTE_READ, Ok);
    assert_eq!(whole, Ok(0x10_0000));
}

#[test]
fn a_key_works_only_whole_only_in_its_domain_and_only_for_what_it_grants() {
    let table = KeyTable::default();
    let key = table.insert(region(Access::REMOTE_READ)).unwrap();
    let read = |scope, key| table.remote(scope, RKey(key), 0x5000, 1, Access::REMOTE_READ, Ok);
    assert_eq!(read(SCOPE, key ^ 1), Err(RemoteFault::Key));
    assert_eq!(read(SCOPE, key ^ 0x100), Err(RemoteFault::Key));
    let stranger = Scope {
        pd: PdId(8),
        ..SCOPE
    };
    assert_eq!(read(stranger, key), Err(RemoteFault::Pd));
    let write = table.remote(SCOPE, RKey(key), 0x5000, 1, Access::REMOTE_WRITE, Ok);
    assert_eq!(write, Err(RemoteFault::Access));
    let local = table.local(PD, LKey(key), 0x5000, 1, true, Ok);
    assert_eq!(local, Err(LocalFault::Access));
    assert!(table.local(PD, LKey(key), 0x5000, 1, false, Ok).is_ok());
    assert_eq!(
        table.local(PdId(8), LKey(key), 0x5000, 1, false, Ok),
        Err(LocalFault::Pd)
    );
}

#[test]
fn zero_bytes_need_no_key() {
    let table = KeyTable::default();
    let local = table.local(PD, LKey(0), 1, 0, true, Ok);
    assert_eq!(local, Ok(Spot::At(0)));
    let remote = table.remote(SCOPE, RKey(0), 1, 0, Access::REMOTE_WRITE, Ok);
    assert_eq!(remote, Ok(0));
}

#[test]
fn a_removed_key_is_gone_and_removing_waits_for_copies() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    let table = KeyTable::default();
    let key = table.insert(region(all())).unwrap();
    let copying = AtomicBool::new(false);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let copied = table.local(PD, LKey(key), 0x5000, 1, true, |_| {
                copying.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(30));
                done.store(true, Ordering::SeqCst);
                Ok(())
            });
            assert_eq!(copied, Ok(()));
        });
        while !copying.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert!(table.remove(key).is_ok());
        assert!(done.load(Ordering::SeqCst), "a copy was under way");
    });
    assert!(table.remove(key).is_err());
    let after = table.local(PD, LKey(key), 0x5000, 1, false, Ok);
    assert_eq!(after, Err(LocalFault::Key));
}

#[test]
fn keys_do_not_tell_the_next_one() {
    let table = KeyTable::default();
    let keys: Vec<u32> = (0..10_000)
        .map(|_| table.insert(region(all())).unwrap())
        .collect();
    let mut differences: Vec<u32> = keys.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    differences.sort_unstable();
    differences.dedup();
    assert!(differences.len() > 9_990, "{}", differences.len());
    let high = keys.iter().filter(|k| **k >> 31 == 1).count();
    assert!((4_500..5_500).contains(&high), "{high}");
    let mut indices: Vec<u32> = keys.iter().map(|k| k >> 8).collect();
    indices.sort_unstable();
    indices.dedup();
    assert_eq!(indices.len(), keys.len());
    assert!(!indices.contains(&0));
}

#[test]
fn a_null_region_has_no_place_and_is_not_for_the_peer() {
    let table = KeyTable::default();
    let null = Region {
        addr: 0,
        iova: 0,
        len: u64::MAX,
        is_null: true,
        ..region(Access::LOCAL_WRITE)
    };
    let key = table.insert(null).unwrap();
    for (va, len) in [(0, 1), (1 << 60, 1 << 31), (u64::MAX - 8, 8)] {
        let spot = table.local(PD, LKey(key), va, len, true, Ok);
        assert_eq!(spot, Ok(Spot::Nowhere), "{va:#x}");
    }
    let wraps = table.local(PD, LKey(key), u64::MAX - 1, 3, true, Ok);
    assert_eq!(wraps, Err(LocalFault::Bounds));
    let remote = table.remote(SCOPE, RKey(key), 0, 1, Access::REMOTE_READ, Ok);
    assert_eq!(remote, Err(RemoteFault::Access));
}

#[test]
fn a_region_that_becomes_another_keeps_its_key_and_nothing_else() {
    let table = KeyTable::default();
    let key = table.insert(region(all())).unwrap();
    let other = Region {
        pd: PdId(9),
        addr: 0x70_0000,
        iova: 0x9000,
        len: 16,
        access: Access::REMOTE_READ,
        is_null: false,
    };
    assert!(table.replace(key ^ 1, other).is_err());
    table.replace(key, other).unwrap();
    assert_eq!(table.region(key), Some(other));
    assert_eq!(
        table.local(PD, LKey(key), 0x5000, 1, false, Ok),
        Err(LocalFault::Pd)
    );
    let scope = Scope {
        pd: PdId(9),
        ..SCOPE
    };
    let at = |need| table.remote(scope, RKey(key), 0x9008, 8, need, Ok);
    assert_eq!(at(Access::REMOTE_READ), Ok(0x70_0008));
    assert_eq!(at(Access::REMOTE_WRITE), Err(RemoteFault::Access));
    let two = table.insert_window(PdId(9), MwType::Two).unwrap();
    let bindable = Region {
        access: Access::MW_BIND,
        ..other
    };
    table.replace(key, bindable).unwrap();
    let shown = MwBind {
        addr: 0x9000,
        len: 8,
        ..bind(two, key, 1)
    };
    table.bind_window(scope, &shown).unwrap();
    let refused = table.replace(key, other).unwrap_err();
    assert_eq!(refused.errno, Errno::EBUSY);
}

// ---- windows

use rocebud_objects::{BindFault, InvalidateFault, MwBind, MwType};

fn bindable() -> Region {
    region(Access::LOCAL_WRITE | Access::MW_BIND)
}

fn bind(window: RKey, key: u32, key_byte: u32) -> MwBind {
    MwBind {
        window,
        rkey: RKey(window.0 & !0xff | key_byte),
        lkey: LKey(key),
        addr: 0x5010,
        len: 0x20,
        access: Access::REMOTE_READ,
    }
}

fn read(table: &KeyTable, scope: Scope, rkey: RKey, va: u64) -> Result<usize, RemoteFault> {
    table.remote(scope, rkey, va, 1, Access::REMOTE_READ, Ok)
}

#[test]
fn a_window_shows_its_part_under_its_latest_key_to_its_queue_pair() {
    let table = KeyTable::default();
    let key = table.insert(bindable()).unwrap();
    let window = table.insert_window(PD, MwType::Two).unwrap();
    assert_eq!(read(&table, SCOPE, window, 0x5010), Err(RemoteFault::Key));
    let asked = bind(window, key, 7);
    table.bind_window(SCOPE, &asked).unwrap();
    assert_eq!(read(&table, SCOPE, asked.rkey, 0x5010), Ok(0x10_0010));
    assert_eq!(read(&table, SCOPE, asked.rkey, 0x502f), Ok(0x10_002f));
    assert_eq!(
        read(&table, SCOPE, asked.rkey, 0x5030),
        Err(RemoteFault::Bounds)
    );
    let old = bind(window, key, 8).rkey;
    assert_eq!(read(&table, SCOPE, old, 0x5010), Err(RemoteFault::Key));
    let other = Scope {
        qpn: Qpn::new(0x4321),
        ..SCOPE
    };
    assert_eq!(
        read(&table, other, asked.rkey, 0x5010),
        Err(RemoteFault::Pd)
    );
    let lkey = LKey(asked.rkey.0);
    let local = table.local(PD, lkey, 0x5010, 1, false, Ok);
    assert_eq!(local, Err(LocalFault::Key), "windows are for the peer");
    let again = table.bind_window(SCOPE, &bind(window, key, 9));
    assert_eq!(again, Err(BindFault::State));
}

#[test]
fn a_region_stays_while_windows_show_it() {
    let table = KeyTable::default();
    let key = table.insert(bindable()).unwrap();
    let two = table.insert_window(PD, MwType::Two).unwrap();
    let one = table.insert_window(PD, MwType::One).unwrap();
    let busy = |table: &KeyTable| table.remove(key).unwrap_err().errno == Errno::EBUSY;
    table.bind_window(SCOPE, &bind(two, key, 1)).unwrap();
    table.bind_window(SCOPE, &bind(one, key, 1)).unwrap();
    table.bind_window(SCOPE, &bind(one, key, 2)).unwrap();
    assert!(busy(&table));
    let rkey = bind(two, key, 1).rkey;
    assert_eq!(table.invalidate(SCOPE, rkey), Ok(()));
    assert_eq!(read(&table, SCOPE, rkey, 0x5010), Err(RemoteFault::Key));
    assert!(busy(&table));
    let nothing = MwBind {
        len: 0,
        ..bind(one, 0, 3)
    };
    table.bind_window(SCOPE, &nothing).unwrap();
    assert!(table.remove(key).is_ok());
    assert!(table.remove_window(two) && table.remove_window(one));
    assert!(!table.remove_window(one));
}

#[test]
fn windows_go_with_their_queue_pair_their_owner_or_their_region() {
    let table = KeyTable::default();
    let key = table.insert(bindable()).unwrap();
    let windows: Vec<RKey> = (0..20)
        .map(|_| table.insert_window(PD, MwType::Two).unwrap())
        .collect();
    let other = Scope {
        qpn: Qpn::new(0x1235),
        ..SCOPE
    };
    for (i, window) in windows.iter().enumerate() {
        let scope = if i < 15 { SCOPE } else { other };
        table.bind_window(scope, &bind(*window, key, 1)).unwrap();
    }
    let shown = |scope, windows: &[RKey]| {
        let good = |w: &&RKey| read(&table, scope, bind(**w, key, 1).rkey, 0x5010).is_ok();
        windows.iter().filter(good).count()
    };
    assert!(table.remove_window(windows[0]));
    assert_eq!(shown(SCOPE, &windows), 14);
    table.unbind_window(bind(windows[1], key, 2).rkey);
    assert_eq!(shown(SCOPE, &windows), 14, "the key is another one now");
    table.unbind_window(bind(windows[1], key, 1).rkey);
    assert_eq!(shown(SCOPE, &windows), 13);
    table.release_windows(SCOPE.qpn);
    assert_eq!(shown(SCOPE, &windows), 0);
    assert_eq!(shown(other, &windows), 5);
    table.remove_with_windows(key);
    assert_eq!(shown(other, &windows), 0);
    assert_eq!(table.len(), 0);
    let region = table.insert(bindable()).unwrap();
    table
        .bind_window(other, &bind(windows[19], region, 4))
        .unwrap();
    table.remove_pds(|pd| pd == PD);
    assert_eq!(table.len(), 0);
    assert!(!table.remove_window(windows[19]));
    table.release_windows(other.qpn);
}

#[test]
fn regions_and_type_1_windows_cannot_be_invalidated() {
    let table = KeyTable::default();
    let key = table.insert(bindable()).unwrap();
    let one = table.insert_window(PD, MwType::One).unwrap();
    let asked = bind(one, key, 1);
    table.bind_window(SCOPE, &asked).unwrap();
    let kind = Err(InvalidateFault::Kind);
    assert_eq!(table.invalidate(SCOPE, RKey(key)), kind);
    assert_eq!(table.invalidate(SCOPE, asked.rkey), kind);
    let nobody = RKey(key ^ 0x8000_0000);
    assert_eq!(table.invalidate(SCOPE, nobody), Err(InvalidateFault::Key));
}

#[test]
fn a_bind_to_a_region_that_is_gone_changes_nothing() {
    let table = KeyTable::default();
    let key = table.insert(bindable()).unwrap();
    let window = table.insert_window(PD, MwType::One).unwrap();
    table.bind_window(SCOPE, &bind(window, key, 1)).unwrap();
    let refused = table.bind_window(SCOPE, &bind(window, key ^ 1, 2));
    assert_eq!(refused, Err(BindFault::Region));
    let rkey = bind(window, key, 1).rkey;
    assert!(read(&table, SCOPE, rkey, 0x5010).is_ok());
}
