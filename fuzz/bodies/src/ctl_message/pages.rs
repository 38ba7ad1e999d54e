//! A page-set in which a process has written nonsense: readers take it for numbers.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use rocebud_ctl::PageSet;
use rocebud_ctl::page::{Control, Fact, QpCount, QpIdentity};
use rocebud_objects::{Counter, Instant, Note, NoteKind, QpState};
use rocebud_wire::{Gid, Psn, Qpn};

use crate::input::Input;

const PAGE: u64 = 4096;
const RECORD: u64 = 512;

thread_local! {
    /// A mapping of eight megabytes, kept from input to input.
    static PAGES: RefCell<Option<(PageSet, File)>> = const { RefCell::new(None) };
}

pub(super) fn play(data: &[u8]) {
    PAGES.with_borrow_mut(|kept| {
        let (set, file) = kept.get_or_insert_with(|| {
            let (set, fd) = PageSet::create().expect("memory");
            (set, File::from(fd))
        });
        let mut input = Input::new(data);
        let mut written = Vec::new();
        while !input.is_empty() && written.len() < 64 {
            scribble(&mut input, file, &mut written);
            read_all(&mut input, set);
        }
        wipe(set, file, &written);
    });
}

/// Writes some bytes into the head or into one of the first records.
fn scribble(input: &mut Input<'_>, file: &File, written: &mut Vec<(u64, usize)>) {
    let at = match input.below(4) {
        0 => u64::from(input.half()) % PAGE,
        n => PAGE + RECORD * (n as u64 - 1) + u64::from(input.half()) % RECORD,
    };
    let bytes: Vec<u8> = (0..=input.below(24)).map(|_| input.byte()).collect();
    file.write_all_at(&bytes, at).expect("a memory file");
    written.push((at, bytes.len()));
}

/// Everything that a reader, and the owner, does with a page-set.
fn read_all(input: &mut Input<'_>, set: &PageSet) {
    let _ = (
        set.is_valid(),
        set.control(),
        set.fact(Fact::Qps).load(Relaxed),
    );
    let counter = Counter::ALL[input.below(Counter::ALL.len())];
    let _ = set.counter(counter).load(Relaxed);
    let slots: Vec<u16> = set.slots().collect();
    let slot = slots.first().copied().unwrap_or(0);
    let qpn = Qpn::new(u32::from(slot) << 12 | input.below(3) as u32);
    let Some(record) = set.qp_record(qpn) else {
        set.add_slot(u16::from(input.byte()));
        return;
    };
    assert!(record.notes().len() <= rocebud_ctl::page::NOTES_PER_QP);
    let _ = (record.qpn(), record.state(), record.created());
    let _ = (record.identity(), record.error(), format!("{record:?}"));
    for (count, _) in QpCount::ALL {
        let _ = record.count(count).load(Relaxed);
    }
    match input.below(6) {
        0 => record.begin(qpn, Instant(1), &identity(qpn)),
        1 => record.set_identity(&identity(qpn)),
        2 => record.end(),
        3 => set.set_control(Control {
            trace: true,
            fault_generation: input.word(),
        }),
        _ => set.note(
            qpn,
            Instant(u64::from(input.word())),
            Note {
                kind: NoteKind::State,
                psn: Psn::new(1),
                arg: QpState::Reset as u32,
            },
        ),
    }
}

fn identity(qpn: Qpn) -> QpIdentity {
    QpIdentity {
        qp_type: 2,
        dest_qpn: qpn,
        sgid: Gid::ZERO,
        dgid: Gid::ZERO,
    }
}

/// As it was, for the next input.
fn wipe(set: &PageSet, file: &File, written: &[(u64, usize)]) {
    for (at, len) in written {
        file.write_all_at(&vec![0; *len], *at)
            .expect("a memory file");
    }
    let zero = [0; RECORD as usize];
    for record in 0..3 {
        let at = PAGE + RECORD * record;
        file.write_all_at(&zero, at).expect("a memory file");
    }
    // Slot numbers and the rest of the head.
    file.write_all_at(&[0; PAGE as usize], 0)
        .expect("a memory file");
    assert!(!set.is_valid(), "no magic, no page-set");
}
