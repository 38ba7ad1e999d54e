//! Sequence numbers around the wrap (C005 at the level of numbers).

use rocebud_wire::Psn;

#[test]
fn c005_a_run_across_the_wrap_stays_in_order() {
    let start = Psn::new(0xff_fff0);
    for n in 0..64_u32 {
        let psn = start.add(n);
        assert_eq!(psn.value(), (0xff_fff0 + n) % (1 << 24));
        assert_eq!(psn.diff(start), n as i32);
        assert_eq!(psn.after(start), n > 0);
        assert!(!psn.before(start));
        assert!(psn.before(psn.add(1)) && psn.after(psn.sub(1)));
    }
}

#[test]
fn c005_half_the_range_is_future_and_half_is_past() {
    for base in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_ffff].map(Psn::new) {
        assert_eq!(base.diff(base), 0);
        assert!(base.add((1 << 23) - 1).after(base));
        assert!(base.add(1 << 23).before(base), "exactly half away is past");
        assert_eq!(base.add(1 << 23).diff(base), -(1 << 23));
        assert!(base.sub(1).before(base));
    }
}

#[test]
fn bits_above_the_24th_are_cut() {
    assert_eq!(Psn::new(0x0100_0001), Psn::new(1));
    assert_eq!(Psn::new(5).add(u32::MAX), Psn::new(4));
    assert_eq!(Psn::new(0).sub(1).value(), 0xff_ffff);
}
