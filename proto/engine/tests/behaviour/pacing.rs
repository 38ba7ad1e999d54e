//! Rate limits: requests leave no faster, nothing is lost or sent twice for it.

use rocebud_objects::{Counter, Errno, QpState, QpType, RateLimit, SendOp, WcStatus};

use crate::pair::{Fate, Pair, QPN, START, Setup, Side, remote, sge, wr};

const FAR: u64 = START + 0x10_0000;
const BYTES: u32 = 100_000;

fn limit(pair: &mut Pair, rate_kbps: u32) -> Result<(), Errno> {
    let limit = RateLimit {
        rate_kbps,
        ..RateLimit::default()
    };
    let Side { node, world, .. } = &mut pair.side[0];
    node.set_rate_limit(pair.now, QPN[0], limit, world)
        .map_err(|refused| refused.errno)
}

/// Milliseconds of virtual time that ten writes take.
fn ten_writes(pair: &mut Pair) -> u64 {
    let before = pair.now;
    for id in 0..10 {
        let op = SendOp::Write {
            remote: remote(FAR),
        };
        pair.post(0, wr(id, op, &[sge(START, BYTES)])).unwrap();
    }
    pair.run();
    assert_eq!(pair.wcs(0).len(), 10);
    pair.now.ns_since(before) / 1_000_000
}

#[test]
fn a_limited_connection_keeps_its_rate_and_sends_nothing_twice() {
    // A rate at which the next packet comes later than an ACK timeout, too.
    for rate_kbps in [80_000, 400] {
        let mut pair = Pair::rc();
        limit(&mut pair, rate_kbps).unwrap();
        let wanted = u64::from(BYTES) * 10 * 8 / u64::from(rate_kbps);
        let ms = ten_writes(&mut pair);
        assert!(
            ms >= wanted * 95 / 100 && ms <= wanted * 125 / 100,
            "{rate_kbps} kbit/s: {ms} ms, expected {wanted}"
        );
        assert_eq!(pair.side[0].world.counter(Counter::Retransmits), 0);
    }
}

/// Retries are over after some tens of milliseconds.
fn quick() -> Pair {
    Pair::new(Setup {
        timeout: 8,
        ..Setup::default()
    })
}

/// Some packets at once, then one in 170 ms.
fn slow(pair: &mut Pair) {
    let limit = RateLimit {
        rate_kbps: 50,
        max_burst_bytes: 5000,
        ..RateLimit::default()
    };
    let Side { node, world, .. } = &mut pair.side[0];
    node.set_rate_limit(pair.now, QPN[0], limit, world).unwrap();
}

#[test]
fn a_resend_that_the_rate_holds_back_costs_no_retries() {
    let mut pair = quick();
    // The first packets leave at once, before it is known that nobody takes them; after that, one
    // takes longer than all retries together.
    slow(&mut pair);
    for id in 0..3 {
        pair.post(0, wr(id, SendOp::Send, &[sge(START, 1024)]))
            .unwrap();
    }
    for id in 0..3 {
        let soon = pair.now + 500_000_000;
        pair.run_until(soon);
        pair.recv(1, id, &[sge(FAR, 2048)]).unwrap();
    }
    pair.run();
    let all_well = [0, 1, 2].map(|id| (id, WcStatus::Success));
    assert_eq!(pair.results(0), all_well);
}

#[test]
fn a_limit_that_is_lifted_brings_the_clock_of_retries_back() {
    let mut pair = quick();
    slow(&mut pair);
    for id in 0..2 {
        pair.post(0, wr(id, SendOp::Send, &[sge(START, 1024)]))
            .unwrap();
    }
    let soon = pair.now + 500_000_000;
    pair.run_until(soon);
    pair.rule(|_| Fate::Drop);
    limit(&mut pair, 0).unwrap();
    let before = pair.now;
    pair.run();
    assert_eq!(pair.results(0)[0], (0, WcStatus::RetryExcErr));
    let ms = pair.now.ns_since(before) / 1_000_000;
    assert!(ms < 10_000, "{ms} ms");
}

#[test]
fn a_limit_ends_with_zero_or_reset_and_needs_rts() {
    let mut pair = Pair::rc();
    limit(&mut pair, 80_000).unwrap();
    limit(&mut pair, 0).unwrap();
    assert!(ten_writes(&mut pair) < 50);
    limit(&mut pair, 80_000).unwrap();
    pair.set_state(0, QpState::Reset).unwrap();
    assert_eq!(limit(&mut pair, 80_000), Err(Errno::EINVAL));
}

#[test]
fn datagrams_are_limited_too() {
    let mut pair = Pair::new(Setup {
        qp_type: QpType::Ud,
        ..Setup::default()
    });
    limit(&mut pair, 8_000).unwrap();
    let (before, to) = (pair.now, pair.ud(0));
    for id in 0..100 {
        let mut wr = wr(id, SendOp::Send, &[sge(START, 1000)]);
        wr.ud = Some(to);
        pair.post(0, wr).unwrap();
    }
    let mut sent = 0;
    while sent < 100 {
        assert!(pair.step(), "{sent} datagrams left");
        sent += pair.wcs(0).len();
    }
    let ms = pair.now.ns_since(before) / 1_000_000;
    assert!((90..130).contains(&ms), "{ms} ms for 100 kB at 1 kB/ms");
}
