use super::*;

fn receiver() -> Receiver {
    let ring = Region {
        address: 0x1_0000,
        key: 5,
    };
    Receiver::new(ring, 8192, 16)
}

#[test]
fn the_first_update_announces_the_second_half() {
    let mut r = receiver();
    assert!(r.credit_is_due());
    let (limit, entry) = r.give_credit();
    assert_eq!(limit, 16);
    let (at, entry) = entry.unwrap();
    assert_eq!((at, entry.address, entry.length), (1, 0x1_1000, 4096));
    assert!(!r.credit_is_due());
}

#[test]
fn halves_are_announced_in_turn_as_they_are_read() {
    let mut r = receiver();
    r.give_credit();
    for round in 0..10_u32 {
        r.on_data(4000).unwrap();
        r.on_data(96).unwrap();
        assert_eq!(r.consume(4000), 4000);
        assert!(!r.credit_is_due());
        assert_eq!(r.consume(4096), 96);
        let (limit, entry) = r.give_credit();
        assert_eq!(u32::from(limit), 16 + 2 * (round + 1));
        let (at, entry) = entry.unwrap();
        assert_eq!(at, round % 2);
        assert_eq!(entry.address, 0x1_0000 + u64::from(round % 2) * 4096);
    }
}

#[test]
fn credits_go_back_when_half_of_them_are_read() {
    let mut r = receiver();
    r.give_credit();
    for _ in 0..8 {
        r.on_data(1).unwrap();
    }
    r.consume(7);
    assert!(!r.credit_is_due());
    r.consume(1);
    assert!(r.credit_is_due());
    assert_eq!(r.give_credit(), (24, None));
    assert!(!r.credit_is_due());
}

#[test]
fn a_message_counts_when_its_last_byte_is_read() {
    let mut r = receiver();
    r.on_data(10).unwrap();
    r.on_data(10).unwrap();
    r.consume(9);
    assert_eq!(r.seq_no, 0);
    r.consume(2);
    assert_eq!(r.seq_no, 1);
    r.consume(9);
    assert_eq!((r.seq_no, r.unread()), (2, 0));
    r.on_data(0).unwrap();
    assert_eq!(r.seq_no, 3, "an empty one is read when it comes");
}

#[test]
fn more_than_was_announced_is_refused() {
    let mut r = receiver();
    assert_eq!(r.on_data(4097), Err(Violation::DataBeyondAnnounced));
    r.on_data(4096).unwrap();
    assert_eq!(r.on_data(1), Err(Violation::DataBeyondAnnounced));
    r.give_credit();
    r.on_data(4096).unwrap();
    assert_eq!(r.on_data(1), Err(Violation::DataBeyondAnnounced));
    assert_eq!(r.unread(), 8192);
}

#[test]
fn more_messages_than_credits_are_refused() {
    let mut r = receiver();
    for _ in 0..16 {
        r.on_data(1).unwrap();
    }
    assert_eq!(r.on_data(1), Err(Violation::MessagesBeyondCredits));
    assert_eq!(r.on_data(0), Err(Violation::MessagesBeyondCredits));
}

#[test]
fn bytes_to_read_lie_around_the_end_of_the_ring() {
    let mut r = receiver();
    r.give_credit();
    r.on_data(4096).unwrap();
    r.on_data(4000).unwrap();
    r.consume(8000);
    r.give_credit();
    r.on_data(96).unwrap();
    r.on_data(500).unwrap();
    assert_eq!(
        r.peek(1000),
        [Span { at: 8000, len: 192 }, Span { at: 0, len: 500 }]
    );
    assert_eq!(
        r.peek(100),
        [Span { at: 8000, len: 100 }, Span { at: 0, len: 0 }]
    );
}
