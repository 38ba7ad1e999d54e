use super::*;
use std::sync::atomic::AtomicBool;

const QPN: Qpn = Qpn::new(0x12_003);

fn set() -> PageSet {
    let (set, _fd) = PageSet::create().unwrap();
    assert!(set.add_slot(0x12));
    set
}

fn note(kind: NoteKind, psn: u32, arg: u32) -> Note {
    Note {
        kind,
        psn: Psn::new(psn),
        arg,
    }
}

fn begin(set: &PageSet) -> &QpRecord {
    let record = set.qp_record(QPN).unwrap();
    record.begin(
        QPN,
        Instant(1),
        &QpIdentity {
            qp_type: 2,
            dest_qpn: Qpn::new(0),
            sgid: Gid::ZERO,
            dgid: Gid::ZERO,
        },
    );
    record
}

/// Whoever maps the page-set can write nonsense into it, also under its owner's hands.
#[test]
fn a_count_of_notes_that_is_nonsense_harms_nobody() {
    let set = set();
    let record = begin(&set);
    for count in [u64::MAX, u64::MAX - 1, 1 << 63] {
        record.noted.store(count, Relaxed);
        for n in 0..3 {
            set.note(QPN, Instant(2), note(NoteKind::Timeout, n, 0));
        }
        assert!(record.notes().len() <= NOTES_PER_QP);
    }
}

#[test]
fn both_mappings_see_the_same_counters() {
    let (daemon, fd) = PageSet::create().unwrap();
    let client = PageSet::map(&fd).unwrap();
    assert!(client.is_valid());
    client.counter(Counter::SentPkts).fetch_add(3, Relaxed);
    assert_eq!(daemon.counter(Counter::SentPkts).load(Relaxed), 3);
    let control = Control {
        trace: true,
        fault_generation: 0xffff_fffe,
    };
    daemon.set_control(control);
    assert_eq!(client.control(), control);
}

#[test]
fn a_file_that_is_short_or_could_shrink_is_refused() {
    use rustix::fs::MemfdFlags;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&fd, PageSet::BYTES as u64).unwrap();
    assert!(PageSet::map(&fd).is_err(), "not sealed");
    let fd = crate::fds::sealed_memfd("test", 4096).unwrap();
    assert!(PageSet::map(&fd).is_err(), "too short");
}

#[test]
fn records_exist_only_for_the_slots_of_the_process() {
    let set = set();
    assert!(set.qp_record(QPN).is_some());
    assert!(set.qp_record(Qpn::new(0x13_003)).is_none());
    for slot in 1..SLOTS_PER_PROCESS_MAX as u16 {
        assert!(set.add_slot(slot));
    }
    assert!(!set.add_slot(99), "all places are taken");
    assert_eq!(set.slots().count(), SLOTS_PER_PROCESS_MAX);
    let a = set.qp_record(Qpn::new(0x1_003)).unwrap();
    assert!(!std::ptr::eq(a, set.qp_record(QPN).unwrap()));
    // Writing to a foreign QPN is no crime.
    set.note(Qpn::new(0), Instant(0), note(NoteKind::Timeout, 0, 0));
}

#[test]
fn the_last_notes_are_kept_in_order() {
    let set = set();
    let record = begin(&set);
    for i in 0..20 {
        set.note(QPN, Instant(i), note(NoteKind::Timeout, i as u32, 0));
    }
    let psns: Vec<u32> = record.notes().iter().map(|n| n.psn.value()).collect();
    assert_eq!(psns, (12..20).collect::<Vec<u32>>());
    assert_eq!(record.notes()[0].at, Instant(12));
}

#[test]
fn the_first_error_stays_until_the_queue_pair_starts_anew() {
    let set = set();
    let record = begin(&set);
    set.note(
        QPN,
        Instant(5),
        note(NoteKind::ErrorCompletion, 0, 12 << 16 | 60),
    );
    for _ in 0..20 {
        set.note(
            QPN,
            Instant(6),
            note(NoteKind::ErrorCompletion, 0, 5 << 16 | 2),
        );
    }
    assert_eq!(record.error().unwrap().arg, 12 << 16 | 60);
    set.note(
        QPN,
        Instant(7),
        note(NoteKind::State, 0, QpState::Err as u32),
    );
    assert!(record.error().is_some());
    set.note(
        QPN,
        Instant(8),
        note(NoteKind::State, 0, QpState::Reset as u32),
    );
    assert!(record.error().is_none());
}

#[test]
fn a_new_queue_pair_of_the_same_number_begins_without_the_old_story() {
    let set = set();
    begin(&set);
    set.note(QPN, Instant(5), note(NoteKind::ErrorCompletion, 0, 1));
    set.qp_record(QPN)
        .unwrap()
        .count(QpCount::SentPkts)
        .store(4, Relaxed);
    set.qp_record(QPN).unwrap().end();
    assert_eq!(set.qp_record(QPN).unwrap().state(), None);
    let record = begin(&set);
    assert_eq!(record.notes(), []);
    assert_eq!(record.error(), None);
    assert_eq!(record.count(QpCount::SentPkts).load(Relaxed), 0);
    assert_eq!(record.state(), Some(QpState::Reset));
    assert_eq!(set.qps().count(), 1);
}

#[test]
fn nonsense_in_the_file_is_read_without_harm() {
    let set = set();
    let record = begin(&set);
    record.state.store(77, Relaxed);
    record.version.store(1, Relaxed);
    record.notes[0].ticket.store(u64::MAX, Relaxed);
    record.notes[0].what.store(u64::MAX, Relaxed);
    assert_eq!(record.state(), None);
    assert_eq!(record.identity(), None, "a writer died inside");
    assert_eq!(record.notes()[0].kind, None);
}

#[test]
fn a_reader_never_sees_half_a_note_or_half_a_peer() {
    let set = set();
    let record = begin(&set);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..200_000_u32 {
                let n = i & 0xffff;
                record.add_note(Instant(u64::from(n)), note(NoteKind::Timeout, n, n));
                let gid = Gid([n as u8; 16]);
                record.set_identity(&QpIdentity {
                    qp_type: 2,
                    dest_qpn: Qpn::new(n & 0xff),
                    sgid: gid,
                    dgid: gid,
                });
            }
            stop.store(true, Relaxed);
        });
        while !stop.load(Relaxed) {
            for line in record.notes() {
                assert_eq!(line.at.0, u64::from(line.psn.value()));
                assert_eq!(line.arg, line.psn.value());
            }
            if let Some(identity) = record.identity() {
                assert_eq!(identity.sgid, identity.dgid);
                assert_eq!(identity.sgid, Gid([identity.dest_qpn.value() as u8; 16]));
            }
        }
    });
}
