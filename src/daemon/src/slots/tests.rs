use super::*;

const T0: Now = Duration::from_secs(100);

#[test]
fn a_number_rests_for_time_wait_after_its_owner_went() {
    let mut slots = Slots::default();
    let n = slots.take(1, 0, 41, T0).unwrap();
    assert_eq!(slots.owner(n), Some(1));
    assert_eq!(slots.release(1, T0), [n]);
    assert_eq!(slots.owner(n), None);
    // The same chance would give the same number, were it free.
    let just_before = T0 + TIME_WAIT - Duration::from_nanos(1);
    assert_ne!(slots.take(2, 0, 41, just_before), Ok(n));
    assert_eq!(slots.take(3, 0, 41, T0 + TIME_WAIT), Ok(n));
}

#[test]
fn numbers_never_are_the_daemons_or_hold_the_multicast_qpn() {
    let mut slots = Slots::default();
    let mut taken: Vec<u16> = std::iter::from_fn(|| slots.take(1, 0, u32::MAX, T0).ok()).collect();
    taken.sort_unstable();
    assert_eq!(taken, (1..=0xffe).collect::<Vec<u16>>());
    assert_eq!(slots.take(2, 0, 0, T0), Err(NoNumber::All));
}

#[test]
fn only_the_owners_numbers_are_released() {
    let mut slots = Slots::default();
    let a = slots.take(1, 0, 10, T0).unwrap();
    let b = slots.take(2, 0, 10, T0).unwrap();
    assert_ne!(a, b);
    slots.release(1, T0);
    assert_eq!(slots.owner(b), Some(2));
    let listed: Vec<_> = slots.list(T0).collect();
    assert_eq!(listed.len(), 2);
    assert!(listed.contains(&(a, None, TIME_WAIT)));
    assert!(listed.contains(&(b, Some(2), Duration::ZERO)));
    assert_eq!(slots.list(T0 + TIME_WAIT).count(), 1);
}

#[test]
fn a_number_that_could_not_be_used_does_not_rest() {
    let mut slots = Slots::default();
    let n = slots.take(1, 0, 5, T0).unwrap();
    slots.undo(n);
    assert_eq!(slots.take(1, 0, 5, T0), Ok(n));
}

#[test]
fn an_ordinary_user_leaves_numbers_for_others_however_he_takes_them() {
    let mut slots = Slots::default();
    for _ in 0..SLOTS_PER_USER_MAX {
        slots.take(1, 1000, 7, T0).unwrap();
    }
    assert_eq!(slots.take(1, 1000, 7, T0), Err(NoNumber::User), "holding");
    assert!(slots.take(2, 0, 7, T0).is_ok());
    assert!(slots.take(3, 1001, 7, T0).is_ok());
    slots.release(1, T0);
    for owner in 10.. {
        let Ok(_) = slots.take(owner, 1000, 7, T0) else {
            break;
        };
        slots.release(owner, T0);
    }
    assert_eq!(slots.list(T0).count(), NUMBERS_PER_USER_MAX + 2);
    assert_eq!(
        slots.take(4, 1000, 7, T0),
        Err(NoNumber::User),
        "coming and going"
    );
    assert!(slots.take(5, 1001, 7, T0).is_ok());
    assert!(
        slots.take(6, 1000, 7, T0 + TIME_WAIT).is_ok(),
        "what has rested counts no more"
    );
}
