use super::*;

#[test]
fn ports_are_those_of_other_implementations() {
    let q = Qpn::new;
    for (label, port) in [
        (1, 0xc001),
        (0x3fff, 0xffff),
        (0x4000, 0xc001),
        (0xf_ffff, 0xffc0),
        (0x2_9f38, 0xdf32),
    ] {
        assert_eq!(source_port(label, q(5), q(6)), port, "{label:#x}");
    }
    for (l, r, port) in [
        (0, 7, 0xc000),
        (1, 1, 0xc001),
        (1, 0xff_ffff, 0xffcf),
        (0xff_ffff, 0xff_ffff, 0xff21),
        (0x12_3456, 0xab_cdef, 0xc3c8),
    ] {
        assert_eq!(source_port(0, q(l), q(r)), port, "{l:#x} {r:#x}");
        assert_eq!(source_port(0, q(r), q(l)), port, "symmetric");
    }
    for (qpn, port) in [(1, 0xd872), (0x38, 0xd8f7), (0x61, 0xc33e)] {
        assert_eq!(ud_source_port(q(qpn)), port, "{qpn:#x}");
    }
    assert_eq!(cm_flow_label(0xab40, 7174), 0x4_d8c6);
}

#[test]
fn ports_stay_in_the_range_of_senders() {
    for n in (0..0x0100_0000).step_by(9973) {
        assert!(source_port(n, Qpn::new(n), Qpn::new(n ^ 0xff)) >= 0xc000);
        assert!(source_port(0, Qpn::new(n), Qpn::new(n ^ 0xff)) >= 0xc000);
        assert!(ud_source_port(Qpn::new(n)) >= 0xc000);
    }
}
