use super::*;
use crate::limits::{QUEUE_MAX, QUEUE_MIN};

const fn ints(a: i32, b: i32) -> [u8; 8] {
    let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a.to_ne_bytes(), b.to_ne_bytes());
    [a0, a1, a2, a3, b0, b1, b2, b3]
}

fn set(o: &mut Options, at: (i32, i32), n: i32) -> Result<Name, Misuse> {
    o.set(at, &n.to_ne_bytes(), Phase::Idle)
}

#[test]
fn buffers_are_doubled_and_kept_in_range() {
    let mut o = Options::default();
    let at = (SOL_SOCKET, SO_SNDBUF);
    assert_eq!(o.get(at), Ok(([128 << 10, 0], 1)));
    for (asked, gives) in [
        (512 << 10, 1 << 20),
        (1, 4096),
        (0, 4096),
        (i32::MAX, 1 << 28),
        (-1, 1 << 28),
    ] {
        set(&mut o, at, asked).unwrap();
        assert_eq!(o.get(at).unwrap().0[0], gives, "{asked}");
    }
    let rcv = (SOL_SOCKET, SO_RCVBUF);
    set(&mut o, rcv, 100_001).unwrap();
    assert_eq!(o.config.receive_ring, 200_002);
    let late = o.set(rcv, &ints(1, 0), Phase::Begun);
    assert_eq!(late, Ok(Name::ReceiveBuffer), "accepted");
    assert_eq!(o.config.receive_ring, 200_002, "and without effect");
}

#[test]
fn queue_sizes_are_kept_in_range_and_fixed_by_a_connection() {
    let mut o = Options::default();
    let at = (SOL_RDMA, RDMA_SQSIZE);
    for (asked, gives) in [
        (1, QUEUE_MIN),
        (500, 500),
        (65535, QUEUE_MAX),
        (-1, QUEUE_MAX),
    ] {
        set(&mut o, at, asked).unwrap();
        assert_eq!(o.config.send_queue, gives);
    }
    let late = o.set(at, &ints(20, 0), Phase::Begun).unwrap_err();
    assert_eq!(late.errno, Errno::EINVAL);
    set(&mut o, (SOL_RDMA, RDMA_IOMAPSIZE), 300).unwrap();
    assert_eq!(o.get((SOL_RDMA, RDMA_IOMAPSIZE)), Ok(([256, 0], 1)));
}

#[test]
fn what_is_set_is_read_back() {
    let mut o = Options::default();
    for at in [
        (SOL_SOCKET, SO_REUSEADDR),
        (SOL_SOCKET, SO_KEEPALIVE),
        (SOL_SOCKET, SO_OOBINLINE),
        (IPPROTO_TCP, TCP_NODELAY),
        (IPPROTO_IPV6, IPV6_V6ONLY),
    ] {
        assert_eq!(o.get(at), Ok(([0, 0], 1)));
        set(&mut o, at, 5).unwrap();
        assert_eq!(o.get(at), Ok(([1, 0], 1)));
    }
    o.set((SOL_SOCKET, SO_LINGER), &ints(1, 30), Phase::Begun)
        .unwrap();
    assert_eq!(o.get((SOL_SOCKET, SO_LINGER)), Ok(([1, 30], 2)));
    set(&mut o, (IPPROTO_TCP, TCP_KEEPIDLE), 3).unwrap();
    assert_eq!(o.keep_idle_s, 3);
}

#[test]
fn unknown_short_and_impossible_values_are_refused() {
    let mut o = Options::default();
    let errno = |r: Result<Name, Misuse>| r.unwrap_err().errno;
    assert_eq!(errno(set(&mut o, (SOL_SOCKET, 99), 1)), Errno::EOPNOTSUPP);
    assert_eq!(
        errno(set(&mut o, (SOL_SOCKET, SO_ERROR), 1)),
        Errno::EOPNOTSUPP
    );
    let at = (IPPROTO_TCP, TCP_KEEPIDLE);
    assert_eq!(errno(set(&mut o, at, 0)), Errno::EINVAL);
    assert_eq!(errno(set(&mut o, at, -5)), Errno::EINVAL);
    assert_eq!(errno(o.set(at, &[1, 0, 0], Phase::Idle)), Errno::EINVAL);
    let linger = o.set((SOL_SOCKET, SO_LINGER), &ints(1, 2)[..4], Phase::Idle);
    assert_eq!(errno(linger), Errno::EINVAL);
    assert_eq!(o, Options::default());
}

#[test]
fn no_option_has_two_lines() {
    for (i, a) in OPTIONS.iter().enumerate() {
        let twice = OPTIONS[..i]
            .iter()
            .any(|b| (a.level, a.name) == (b.level, b.name) || a.option == b.option);
        assert!(!twice, "{a:?}");
    }
}
