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

/// Sends packets of 1488 bytes (2000 with their charge) until there is no room.
fn fill(sender: &mut Flow, now_ns: u64) -> usize {
    let mut packets = 0;
    while packets < 1000 && sender.has_room(HERE, SLOT, 1488, now_ns) {
        sender.sent(HERE, dest(), 1488);
        packets += 1;
    }
    sender.flush();
    packets
}

#[test]
fn half_the_buffer_may_be_under_way_and_what_is_read_makes_room() {
    let (mut sender, mut owner) = pair();
    assert_eq!(fill(&mut sender, 0), 50);
    assert!(sender.is_behind(HERE, SLOT));
    for _ in 0..3 {
        owner.received(dest(), 1488);
    }
    assert_eq!(fill(&mut sender, 0), 0, "not entered yet");
    owner.enter_read();
    assert_eq!(fill(&mut sender, 0), 3);
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
    assert_eq!(fill(&mut sender, 0), 50);
    assert_eq!(fill(&mut other, 0), 0);
}

#[test]
fn who_reads_nothing_gets_a_packet_now_and_then_and_is_given_up_in_the_end() {
    let (mut sender, mut owner) = pair();
    fill(&mut sender, 0);
    let mut probes = Vec::new();
    for ms in 1..=500 {
        if sender.has_room(HERE, SLOT, 1488, ms * MS) {
            sender.sent(HERE, dest(), 1488);
            sender.flush();
            probes.push(ms);
        }
    }
    assert_eq!(probes, [5, 15, 35, 75, 155, 315]);
    assert_eq!(fill(&mut sender, 501 * MS), 1000, "it is stuck");
    owner.received(dest(), 1488);
    owner.enter_read();
    assert_eq!(fill(&mut sender, 502 * MS), 0, "it reads again");
}

#[test]
fn a_reader_that_goes_on_is_waited_for() {
    let (mut sender, mut owner) = pair();
    fill(&mut sender, 0);
    for ms in 1..2000 {
        if ms % 3 == 0 {
            owner.received(dest(), 1488);
            owner.enter_read();
        }
        assert!(fill(&mut sender, ms * MS) <= 1, "at {ms} ms");
    }
}

#[test]
fn what_was_lost_on_the_way_is_written_off_when_the_owner_is_dry_twice() {
    let (mut sender, mut owner) = pair();
    fill(&mut sender, 0);
    owner.received(dest(), 1488);
    owner.enter_read();
    owner.dry();
    assert_eq!(fill(&mut sender, 0), 1, "the rest may still be on its way");
    owner.dry();
    assert_eq!(fill(&mut sender, 0), 49, "all but the one sent since");
    owner.received(dest(), 1488);
    owner.enter_read();
    owner.dry();
    assert!(sender.is_behind(HERE, SLOT), "a frame came: it begins anew");
}

#[test]
fn an_address_that_goes_away_is_another_host() {
    let (mut sender, _owner) = pair();
    fill(&mut sender, 0);
    sender.set_devices(&[]);
    assert!(sender.has_room(HERE, SLOT, 1488, 0));
}
