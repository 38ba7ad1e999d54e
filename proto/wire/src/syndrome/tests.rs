use super::*;

#[test]
fn every_byte_is_a_syndrome_and_comes_out_again() {
    for byte in 0..=u8::MAX {
        assert_eq!(Syndrome::decode(byte).encode(), byte);
    }
    assert_eq!(Syndrome::decode(0x1f), Syndrome::ACK);
    assert_eq!(Syndrome::decode(0x2e), Syndrome::RnrNak { timer: 14 });
    assert_eq!(
        Syndrome::decode(0x62),
        Syndrome::Nak(NakCode::RemoteAccessError)
    );
    for byte in [0x40, 0x5f, 0x65, 0x7f, 0x80, 0x9f, 0xe0, 0xff] {
        assert_eq!(Syndrome::decode(byte), Syndrome::Reserved(byte));
    }
}

#[test]
fn credit_codes_promise_no_more_than_there_is() {
    assert_eq!(credits(5), Some(6));
    assert_eq!(credits(30), Some(32768));
    assert_eq!(credits(Syndrome::CREDITS_UNLIMITED), None);
    for n in 0..40_000 {
        let code = credit_code(n);
        let promised = credits(code).expect("a count");
        assert!(promised <= n);
        assert!(code == 30 || credits(code + 1).expect("a count") > n);
    }
    assert_eq!(credit_code(u32::MAX), 30);
}

#[test]
fn rnr_codes_wait_at_least_as_long_as_asked() {
    assert_eq!(rnr_timer_ns(0), 655_360_000);
    assert_eq!(rnr_timer_ns(1), 10_000);
    assert_eq!(rnr_timer_ns(14), 1_280_000);
    assert_eq!(rnr_timer_ns(25), 61_440_000);
    assert_eq!(rnr_timer_ns(31), 491_520_000);
    assert_eq!(rnr_timer_ns(32 + 14), rnr_timer_ns(14));
    assert!((1..31).all(|c| rnr_timer_ns(c) < rnr_timer_ns(c + 1)));
    for (ns, code) in [(0, 1), (10_000, 1), (10_001, 2), (491_520_000, 31)] {
        assert_eq!(rnr_timer_code(ns), code, "{ns}");
    }
    assert_eq!(rnr_timer_code(491_520_001), 0);
    assert_eq!(rnr_timer_code(u64::MAX), 0);
}
