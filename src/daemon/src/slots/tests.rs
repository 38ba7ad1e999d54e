use super::*;

const T0: Now = Duration::from_secs(100);

#[test]
fn a_number_rests_for_time_wait_after_its_owner_went() {
    let mut slots = Slots::default();
    let n = slots.take(1, 41, T0).unwrap();
    assert_eq!(slots.owner(n), Some(1));
    assert_eq!(slots.release(1, T0), [n]);
    assert_eq!(slots.owner(n), None);
    // The same chance would give the same number, were it free.
    let just_before = T0 + TIME_WAIT - Duration::from_nanos(1);
    assert_ne!(slots.take(2, 41, just_before), Some(n));
    assert_eq!(slots.take(3, 41, T0 + TIME_WAIT), Some(n));
}

#[test]
fn numbers_never_are_the_daemons_or_hold_the_multicast_qpn() {
    let mut slots = Slots::default();
    let mut taken: Vec<u16> = std::iter::from_fn(|| slots.take(1, u32::MAX, T0)).collect();
    taken.sort_unstable();
    assert_eq!(taken, (1..=0xffe).collect::<Vec<u16>>());
    assert_eq!(slots.take(2, 0, T0), None);
}

#[test]
fn only_the_owners_numbers_are_released() {
    let mut slots = Slots::default();
    let a = slots.take(1, 10, T0).unwrap();
    let b = slots.take(2, 10, T0).unwrap();
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
    let n = slots.take(1, 5, T0).unwrap();
    slots.undo(n);
    assert_eq!(slots.take(1, 5, T0), Some(n));
}
