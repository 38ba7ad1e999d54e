use super::*;

const PD: PdId = PdId(3);
const SCOPE: Scope = Scope {
    pd: PD,
    qpn: Qpn::new(0x77),
};
const REGION: BindTarget = BindTarget {
    pd: PD,
    iova: 0x5000,
    len: 0x1000,
    access: Access::LOCAL_WRITE.union(Access::MW_BIND),
};
const KEY: RKey = RKey(0x1234_5600);

fn bind() -> MwBind {
    MwBind {
        window: KEY,
        rkey: RKey(0x1234_5601),
        lkey: LKey(9),
        addr: 0x5010,
        len: 0x100,
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
    }
}

fn window(mw_type: MwType) -> Window {
    Window::new(PD, mw_type, KEY)
}

fn bound(mw_type: MwType, asked: &MwBind) -> Window {
    let mut window = window(mw_type);
    window.binding = window.check_bind(SCOPE, asked, Some(&REGION)).unwrap();
    window.rkey = asked.rkey;
    window
}

#[test]
fn every_rule_of_a_bind_has_its_own_name() {
    use BindFault as F;
    let mw = window(MwType::Two);
    let check = |asked: MwBind, region: BindTarget| mw.check_bind(SCOPE, &asked, Some(&region));
    assert!(check(bind(), REGION).is_ok());
    for rkey in [0x1234_5601, 0x1234_5600, 0x1234_56ff] {
        let rkey = RKey(rkey);
        assert!(
            check(MwBind { rkey, ..bind() }, REGION).is_ok(),
            "any key byte"
        );
    }
    let rkey = RKey(0x1234_5701);
    assert_eq!(check(MwBind { rkey, ..bind() }, REGION), Err(F::Window));
    let alien = PdId(4);
    assert_eq!(
        check(
            bind(),
            BindTarget {
                pd: alien,
                ..REGION
            }
        ),
        Err(F::Pd)
    );
    let elsewhere = Scope { pd: alien, ..SCOPE };
    assert_eq!(mw.check_bind(elsewhere, &bind(), Some(&REGION)), Err(F::Pd));
    assert_eq!(mw.check_bind(SCOPE, &bind(), None), Err(F::Region));
    for (addr, len) in [
        (u64::MAX - 15, 32),
        (0x4fff, 2),
        (0x5fff, 2),
        (0x5001, u64::MAX),
        (0x5000, 0),
    ] {
        let asked = MwBind {
            addr,
            len,
            ..bind()
        };
        assert_eq!(check(asked, REGION), Err(F::Bounds), "{addr:#x} {len:#x}");
    }
    for access in [Access::LOCAL_WRITE, Access::MW_BIND] {
        assert_eq!(
            check(bind(), BindTarget { access, ..REGION }),
            Err(F::Access)
        );
    }
    let reads = MwBind {
        access: Access::REMOTE_READ,
        ..bind()
    };
    let access = Access::MW_BIND;
    assert!(check(reads, BindTarget { access, ..REGION }).is_ok());
    let access = REGION.access | Access::ZERO_BASED;
    assert_eq!(
        check(bind(), BindTarget { access, ..REGION }),
        Err(F::Region)
    );
    for access in [Access::MW_BIND, Access::ON_DEMAND, Access::FLUSH_GLOBAL] {
        assert_eq!(check(MwBind { access, ..bind() }, REGION), Err(F::Access));
    }
}

#[test]
fn a_type_2_window_is_bound_once_and_a_type_1_window_at_will() {
    let again = MwBind {
        rkey: RKey(0x1234_5602),
        ..bind()
    };
    let two = bound(MwType::Two, &bind());
    let refused = two.check_bind(SCOPE, &again, Some(&REGION));
    assert_eq!(refused, Err(BindFault::State));
    let one = bound(MwType::One, &bind());
    assert!(
        one.check_bind(SCOPE, &again, Some(&REGION))
            .unwrap()
            .is_some()
    );
    let nothing = MwBind { len: 0, ..again };
    assert_eq!(
        one.check_bind(SCOPE, &nothing, None),
        Ok(None),
        "taken away"
    );
    let zero_based = MwBind {
        access: Access::ZERO_BASED,
        ..again
    };
    let refused = one.check_bind(SCOPE, &zero_based, Some(&REGION));
    assert_eq!(refused, Err(BindFault::Access));
}

#[test]
fn a_window_has_its_own_range_rights_and_key() {
    let mw = bound(MwType::Two, &bind());
    let at = |rkey, va, len, need| mw.check_use(SCOPE, RKey(rkey), va, len, need);
    let (key, read) = (0x1234_5601, Access::REMOTE_READ);
    assert_eq!(at(key, 0x5010, 0x100, read), Ok(0x10));
    assert_eq!(at(key, 0x510f, 1, Access::REMOTE_WRITE), Ok(0x10f));
    assert_eq!(at(KEY.0, 0x5010, 1, read), Err(RemoteFault::Key));
    for (va, len) in [(0x500f, 1), (0x5010, 0x101), (0x5110, 1), (u64::MAX, 2)] {
        assert_eq!(at(key, va, len, read), Err(RemoteFault::Bounds), "{va:#x}");
    }
    let atomic = at(key, 0x5010, 8, Access::REMOTE_ATOMIC);
    assert_eq!(atomic, Err(RemoteFault::Access));
    let fresh = window(MwType::Two).check_use(SCOPE, KEY, 0x5010, 1, read);
    assert_eq!(fresh, Err(RemoteFault::Key), "it shows nothing yet");
}

#[test]
fn a_zero_based_window_counts_from_its_first_byte() {
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    let mw = bound(MwType::Two, &MwBind { access, ..bind() });
    let at = |va, len| mw.check_use(SCOPE, mw.rkey, va, len, Access::REMOTE_READ);
    assert_eq!(at(0, 0x100), Ok(0x10));
    assert_eq!(at(0xff, 1), Ok(0x10f));
    assert_eq!(at(0x5010, 1), Err(RemoteFault::Bounds));
}

#[test]
fn only_its_queue_pair_serves_and_invalidates_a_type_2_window() {
    let other = Scope {
        qpn: Qpn::new(0x78),
        ..SCOPE
    };
    let stranger = Scope {
        pd: PdId(4),
        ..SCOPE
    };
    let two = bound(MwType::Two, &bind());
    let one = bound(MwType::One, &bind());
    let read = |mw: &Window, scope| mw.check_use(scope, mw.rkey, 0x5010, 1, Access::REMOTE_READ);
    assert_eq!(read(&two, other), Err(RemoteFault::Pd));
    assert_eq!(read(&one, other), Ok(0x10));
    assert_eq!(read(&one, stranger), Err(RemoteFault::Pd));

    use InvalidateFault as F;
    assert_eq!(two.check_invalidate(SCOPE, two.rkey), Ok(()));
    assert_eq!(two.check_invalidate(SCOPE, KEY), Err(F::Key), "an old key");
    assert_eq!(two.check_invalidate(other, two.rkey), Err(F::Pd));
    assert_eq!(two.check_invalidate(stranger, two.rkey), Err(F::Pd));
    assert_eq!(one.check_invalidate(SCOPE, one.rkey), Err(F::Kind));
    let free = window(MwType::Two);
    assert_eq!(free.check_invalidate(other, KEY), Ok(()), "nothing to take");
}
