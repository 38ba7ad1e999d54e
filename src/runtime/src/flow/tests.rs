use super::*;

const HERE: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
const THERE: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]);
const SLOT: u16 = 7;
const BUFFER: u32 = 200_000;
const MS: u64 = 1_000_000;

/// Two processes: a sender, and the owner of a slot.
fn pair() -> (Flow, Flow) {
    let (ledger, fd) = Ledger::create().unwrap();
    ledger.line(SLOT).unwrap().open(BUFFER);
    let mut sender = Flow::default();
    sender.own.insert(HERE);
    sender.begin(ledger);
    let mut owner = Flow::default();
    owner.begin(Ledger::map(&fd).unwrap());
    owner.add_slot(SLOT);
    (sender, owner)
}

fn dest() -> Qpn {
    Qpn::new(u32::from(SLOT) << 12 | 5)
}

/// Packets of 1488 bytes (charged 2304) that fit into six eighths of the buffer.
const FULL: usize = 65;

/// Sends packets of 1488 bytes until there is no room.
fn fill(sender: &mut Flow, now_ns: u64) -> usize {
    let mut packets = 0;
    while packets < 1000 && sender.has_room(HERE, SLOT, 1488, now_ns) {
        sender.sent(HERE, dest(), 1488, false);
        packets += 1;
    }
    sender.flush();
    sender.left();
    packets
}

#[test]
fn most_of_the_buffer_may_be_under_way_and_what_is_read_makes_room() {
    let (mut sender, mut owner) = pair();
    assert_eq!(fill(&mut sender, 0), FULL);
    assert!(sender.is_behind(HERE, SLOT));
    for _ in 0..3 {
        owner.received(dest(), 1488, false);
    }
    assert_eq!(fill(&mut sender, 0), 0, "not entered yet");
    owner.enter_read();
    assert_eq!(fill(&mut sender, 0), 0, "who was refused waits for more");
    assert_eq!(fill(&mut sender, RESUME_NS), 3, "but not for long");
    for _ in 0..20 {
        owner.received(dest(), 1488, false);
    }
    owner.enter_read();
    assert_eq!(fill(&mut sender, RESUME_NS), 20);
}

#[test]
fn other_hosts_and_slots_without_owner_hold_back_nobody() {
    let (mut sender, _owner) = pair();
    fill(&mut sender, 0);
    assert!(sender.has_room(THERE, SLOT, 1 << 30, 0));
    assert!(sender.has_room(HERE, SLOT + 1, 1 << 30, 0));
    assert!(!sender.is_behind(THERE, SLOT));
    let ledger = sender.ledger.as_ref().unwrap();
    ledger.line(SLOT).unwrap().close();
    assert!(sender.has_room(HERE, SLOT, 1 << 30, 0));
}

#[test]
fn several_senders_share_one_budget() {
    let (mut sender, mut owner) = pair();
    let mut other = Flow::default();
    other.own.insert(HERE);
    std::mem::swap(&mut other.ledger, &mut owner.ledger);
    assert_eq!(fill(&mut sender, 0), FULL);
    assert_eq!(fill(&mut other, 0), 0);
}

#[test]
fn who_reads_nothing_is_given_up_in_the_end() {
    let (mut sender, mut owner) = pair();
    fill(&mut sender, 0);
    let mut probes = Vec::new();
    for ms in 1..=500 {
        if sender.has_room(HERE, SLOT, 1488, ms * MS) {
            sender.sent(HERE, dest(), 1488, false);
            sender.flush();
            probes.push(ms);
        }
    }
    assert_eq!(probes, [0; 0], "nothing fits");
    assert_eq!(fill(&mut sender, 501 * MS), 1000, "it is stuck");
    owner.received(dest(), 1488, false);
    owner.enter_read();
    assert_eq!(fill(&mut sender, 502 * MS), 0, "it reads again");
}

#[test]
fn a_reader_that_goes_on_is_waited_for() {
    let (mut sender, mut owner) = pair();
    fill(&mut sender, 0);
    for ms in 1..2000 {
        if ms % 3 == 0 {
            owner.received(dest(), 1488, false);
            owner.enter_read();
        }
        assert!(fill(&mut sender, ms * MS) <= 1, "at {ms} ms");
    }
}

#[test]
fn what_was_lost_on_the_way_is_written_off_when_the_owner_is_dry_for_long() {
    let (mut sender, mut owner) = pair();
    fill(&mut sender, 0);
    owner.received(dest(), 1488, false);
    owner.enter_read();
    owner.dry(0);
    let ms = |n| n * RESUME_NS;
    assert_eq!(
        fill(&mut sender, ms(1)),
        1,
        "the rest may still be on its way"
    );
    owner.dry(WRITE_OFF_NS - 1);
    assert_eq!(fill(&mut sender, ms(2)), 0);
    owner.dry(WRITE_OFF_NS);
    assert_eq!(
        fill(&mut sender, ms(3)),
        FULL - 1,
        "all but the one sent since"
    );
    owner.received(dest(), 1488, false);
    owner.enter_read();
    owner.dry(10 * WRITE_OFF_NS);
    assert!(sender.is_behind(HERE, SLOT), "a frame came: it begins anew");
}

/// What others see under way.
fn seen(owner: &Flow) -> u64 {
    owner
        .ledger
        .as_ref()
        .unwrap()
        .line(SLOT)
        .unwrap()
        .under_way()
}

#[test]
fn packets_behind_others_cost_their_bytes() {
    let (mut sender, mut owner) = pair();
    let mut packets = 0;
    while sender.has_room(HERE, SLOT, 1488, 0) {
        sender.sent(HERE, dest(), 1488, packets % 16 != 0);
        packets += 1;
    }
    sender.flush();
    sender.left();
    assert!(packets > FULL * 5 / 4, "{packets}");
    for n in 0..packets {
        owner.received(dest(), 1488, n % 16 != 0);
    }
    owner.enter_read();
    assert_eq!(seen(&owner), 0, "both charge the same");
}

#[test]
fn what_was_reserved_and_not_sent_is_given_back() {
    let (mut sender, owner) = pair();
    assert!(sender.has_room(HERE, SLOT, 1488, 0));
    assert_eq!(seen(&owner), 2304, "a lone packet reserves itself");
    sender.sent(HERE, dest(), 1488, false);
    assert!(sender.has_room(HERE, SLOT, 1488, 0));
    assert!(seen(&owner) > 3 * 2304, "a run reserves more at a time");
    sender.flush();
    assert_eq!(seen(&owner), 2304);
    sender.left();
    let mut other = Flow::default();
    other.own.insert(HERE);
    std::mem::swap(&mut other.ledger, &mut sender.ledger);
    assert_eq!(fill(&mut other, 0), FULL - 1);
}

#[test]
fn a_sender_that_has_no_turn_is_not_written_off() {
    let (mut sender, mut owner) = pair();
    while sender.has_room(HERE, SLOT, 1488, 0) {
        sender.sent(HERE, dest(), 1488, false);
    }
    sender.flush();
    for n in 0..40 {
        owner.dry(n * WRITE_OFF_NS);
    }
    assert_eq!(fill(&mut sender, 0), 0, "it is about to leave");
}

#[test]
fn what_a_killed_process_has_reserved_is_free_after_a_second() {
    let (mut sender, mut owner) = pair();
    let mut killed = Flow::default();
    killed.own.insert(HERE);
    std::mem::swap(&mut killed.ledger, &mut sender.ledger);
    while killed.has_room(HERE, SLOT, 1488, 0) {
        killed.sent(HERE, dest(), 1488, false);
    }
    std::mem::swap(&mut killed.ledger, &mut sender.ledger);
    drop(killed);
    for ms in 0..1000 {
        owner.dry(ms * MS);
    }
    assert_eq!(fill(&mut sender, 0), 0);
    for ms in 1000..1000 + 3 * WRITE_OFF_NS / MS {
        owner.dry(ms * MS);
    }
    assert_eq!(fill(&mut sender, 0), FULL);
}

#[test]
fn an_address_that_goes_away_is_another_host() {
    let (mut sender, _owner) = pair();
    fill(&mut sender, 0);
    sender.set_devices(&[]);
    assert!(sender.has_room(HERE, SLOT, 1488, 0));
}
