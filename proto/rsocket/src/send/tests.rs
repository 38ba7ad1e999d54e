use super::*;

fn sender(credits: u16, first: u32) -> Sender {
    let mut s = Sender::new(8192, 16);
    s.establish(
        credits,
        TargetEntry {
            address: 0x1000,
            key: 1,
            length: first,
        },
    );
    s
}

fn entry(length: u32) -> TargetEntry {
    TargetEntry {
        address: 0x9000,
        key: 2,
        length,
    }
}

#[test]
fn a_message_never_spans_two_entries() {
    let mut s = sender(100, 100);
    assert!(s.on_entry(entry(50)));
    assert_eq!(s.message_len(130), 100);
    let first = s.take_target(100);
    assert_eq!((first.address, first.len), (0x1000, 100));
    assert_eq!(s.message_len(130), 50);
    assert_eq!(s.take_target(20).address, 0x9000);
    assert_eq!(s.take_target(30).address, 0x9014);
    assert!(!s.can_send(), "both are used up");
    assert_eq!(s.next_entry(), 0);
    assert!(s.on_entry(entry(8)));
    assert!(s.can_send());
}

#[test]
fn an_entry_that_is_not_used_up_is_not_replaced() {
    let mut s = sender(100, 100);
    assert!(s.on_entry(entry(50)));
    assert!(!s.on_entry(entry(70)), "entry 0 has 100 bytes left");
    assert_eq!(s.message_len(4096), 100);
    assert!(!s.on_entry(entry(80)), "entry 1 has 50 left");
}

#[test]
fn credits_are_compared_for_inequality_over_the_wrap() {
    let mut s = sender(3, 4096);
    for round in 0..30_000_u32 {
        assert!(s.can_send(), "round {round}");
        s.take_target(1);
        s.take_target(1);
        s.take_target(1);
        assert!(!s.can_send());
        let limit = ((round + 1) * 3 + 3) as u16;
        assert!(s.on_credit(limit));
        if s.target().length < 3 {
            s.targets[s.index].length = 4096;
        }
    }
}

#[test]
fn a_limit_beyond_the_peers_receives_is_cut() {
    let mut s = sender(3, 4096);
    s.take_target(1);
    assert!(!s.on_credit(5), "4 for 3 receives");
    s.take_target(1);
    s.take_target(1);
    s.take_target(1);
    assert!(!s.has_credit());
    assert!(!s.on_credit(0), "backwards");
    assert!(s.on_credit(7));
}

#[test]
fn the_ring_and_the_queue_bound_what_is_on_its_way() {
    let mut s = sender(100, 1 << 20);
    let kept = s.reserve(8000);
    assert_eq!(kept.spans[0], Span { at: 0, len: 8000 });
    assert!(!s.can_send(), "less than the low-water mark is free");
    s.data_done(8000);
    let kept = s.reserve(1000);
    assert_eq!(
        kept.spans,
        [Span { at: 8000, len: 192 }, Span { at: 0, len: 808 }]
    );
    for _ in 0..12 {
        assert!(s.can_send());
        s.take_slot();
    }
    assert!(!s.can_send(), "the last four entries are for control");
    s.data_done(0);
    assert!(s.can_send());
    for _ in 0..4 {
        assert!(s.can_control());
        s.take_control();
    }
    assert!(!s.can_control());
    assert_eq!(s.in_flight(), 15);
}
