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
    assert_eq!(local, Ok(0x10_0010));
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
    assert_eq!(table.local(PD, LKey(0), 1, 0, true, Ok), Ok(0));
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
        assert!(table.remove(key).is_some());
        assert!(done.load(Ordering::SeqCst), "a copy was under way");
    });
    assert!(table.remove(key).is_none());
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
