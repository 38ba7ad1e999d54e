//! The shared page-set of a process: counters, control word, one record per queue pair.
//!
//! The daemon makes it (a sealed memfd) and both map it. It outlives a kill -9 of the process, so
//! `rocebud status` can say what happened last. Everything is an atomic, and what belongs together
//! carries a ticket that a reader checks before and after, so nobody ever reads half of an old and
//! half of a new value. A process can write nonsense here; readers treat it as numbers and nothing
//! else.
//!
//! Layout (native byte order, [`LAYOUT_VERSION`]):
//!
//! | bytes | |
//! |---|---|
//! | 0..4096 | head: magic, version, slots, control word, facts, counters |
//! | 4096.. | [`SLOTS_PER_PROCESS_MAX`] × 4096 records of 512 bytes |
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC`.

use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use rocebud_objects::{Counter, Instant, Note, NoteKind, QpState};
use rocebud_wire::{Gid, Psn, Qpn};

use crate::fds::Mapping;
use crate::limits::{QPNS_PER_SLOT, SLOTS_PER_PROCESS_MAX};

/// Version of the layout.
pub const LAYOUT_VERSION: u32 = 1;

/// Notes kept per queue pair.
pub const NOTES_PER_QP: usize = 8;

const COUNTERS_MAX: usize = 128;
const FACTS_MAX: usize = 32;
const MAGIC: u64 = u64::from_ne_bytes(*b"RBPAGES\0");

const _: () = assert!(Counter::ALL.len() <= COUNTERS_MAX);
const _: () = assert!(size_of::<Head>() <= 4096);
const _: () = assert!(size_of::<QpRecord>() == 512);

/// A process's page-set, mapped. Shared between threads freely.
pub struct PageSet {
    map: Mapping<Layout>,
}

impl PageSet {
    /// Bytes of the file.
    pub const BYTES: usize = size_of::<Layout>();

    /// Maps the file behind `fd`, which must be sealed at [`PageSet::BYTES`].
    pub fn map(fd: impl std::os::fd::AsFd) -> std::io::Result<Self> {
        Ok(Self {
            map: Mapping::new(fd)?,
        })
    }

    /// Makes a fresh page-set and its descriptor.
    pub fn create() -> std::io::Result<(Self, std::os::fd::OwnedFd)> {
        let fd = crate::fds::sealed_memfd("rocebud-pages", Self::BYTES)?;
        let set = Self::map(&fd)?;
        let head = &set.layout().head;
        head.version.store(LAYOUT_VERSION, Relaxed);
        for slot in &head.slots {
            slot.store(NO_SLOT, Relaxed);
        }
        head.magic.store(MAGIC, Release);
        Ok((set, fd))
    }

    /// The layout is one that this program understands.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let head = &self.layout().head;
        head.magic.load(Acquire) == MAGIC && head.version.load(Relaxed) == LAYOUT_VERSION
    }

    /// A counter of the process.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> &AtomicU64 {
        &self.layout().head.counters[counter as usize]
    }

    /// A fact that the process states about itself.
    #[must_use]
    pub fn fact(&self, fact: Fact) -> &AtomicU64 {
        &self.layout().head.facts[fact as usize]
    }

    /// What the daemon wants of the process now: one relaxed load, free enough for every packet.
    #[must_use]
    pub fn control(&self) -> Control {
        Control::from_word(self.layout().head.control.load(Relaxed))
    }

    /// Changes what the process is asked to do.
    pub fn set_control(&self, control: Control) {
        self.layout().head.control.store(control.word(), Release);
    }

    /// Enters a slot into the head, so that its QPNs have records. The daemon does this when it
    /// grants a slot. Returns false when all places are taken.
    pub fn add_slot(&self, slot: u16) -> bool {
        let word = u32::from(slot);
        let free = |place: &AtomicU32| {
            place
                .compare_exchange(NO_SLOT, word, Release, Relaxed)
                .is_ok()
        };
        self.layout().head.slots.iter().any(free)
    }

    /// Takes a slot out of the head: it was granted and never used.
    pub fn remove_slot(&self, slot: u16) {
        let word = u32::from(slot);
        for place in &self.layout().head.slots {
            let _ = place.compare_exchange(word, NO_SLOT, Release, Relaxed);
        }
    }

    /// Slots of the process.
    pub fn slots(&self) -> impl Iterator<Item = u16> + '_ {
        let slots = self.layout().head.slots.iter();
        slots.filter_map(|s| u16::try_from(s.load(Acquire)).ok())
    }

    /// The record of a queue pair; `None` for a QPN outside the process's slots.
    #[must_use]
    pub fn qp_record(&self, qpn: Qpn) -> Option<&QpRecord> {
        let slot = qpn.value() >> 12;
        let mut places = self.layout().head.slots.iter();
        let place = places.position(|s| s.load(Acquire) == slot)?;
        let index = place * QPNS_PER_SLOT + (qpn.value() & 0xfff) as usize;
        self.layout().qps.get(index)
    }

    /// Adds a line to a queue pair's story. An error completion is also kept apart, so that later
    /// lines do not push it out; the first after a start is the cause, so it stays.
    pub fn note(&self, qpn: Qpn, now: Instant, note: Note) {
        let Some(record) = self.qp_record(qpn) else {
            return;
        };
        record.add_note(now, note);
    }

    /// Records of queue pairs that exist or existed. Reads the whole file's used pages; for the
    /// command, not for a data path.
    pub fn qps(&self) -> impl Iterator<Item = &QpRecord> {
        self.layout().qps.iter().filter(|r| r.qpn().is_some())
    }

    fn layout(&self) -> &Layout {
        self.map.get()
    }
}

impl fmt::Debug for PageSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageSet").finish_non_exhaustive()
    }
}

/// The word by which the daemon steers the hooks in the data path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Control {
    /// Record every packet.
    pub trace: bool,
    /// Changes whenever the fault rules do; 0 = there are none.
    pub fault_generation: u32,
}

impl Control {
    fn word(self) -> u64 {
        u64::from(self.trace) | u64::from(self.fault_generation) << 32
    }

    fn from_word(word: u64) -> Self {
        Self {
            trace: word & 1 != 0,
            fault_generation: (word >> 32) as u32,
        }
    }
}

/// Facts that a process states about itself. The order is part of the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Fact {
    /// How application memory is copied: 0 not yet known, 1 fault handlers, 2 `process_vm_*`.
    MemoryMode,
    /// Destinations that lost segmentation offload.
    GsoLost,
    /// Queue pairs alive.
    Qps,
    /// Memory regions alive.
    Mrs,
    /// Completion queues alive.
    Cqs,
    /// A progress thread runs.
    ProgressThread,
}

/// What a queue pair is, as its process tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpIdentity {
    /// `enum ibv_qp_type`.
    pub qp_type: u32,
    /// QPN of the peer; 0 before RTR.
    pub dest_qpn: Qpn,
    /// Own address.
    pub sgid: Gid,
    /// Address of the peer.
    pub dgid: Gid,
}

/// The record of one queue pair.
#[repr(C, align(64))]
pub struct QpRecord {
    /// 0 = never used; else QPN with bit 31 set.
    qpn: AtomicU32,
    /// `enum ibv_qp_state`; [`GONE`] after it was destroyed.
    state: AtomicU32,
    /// Odd while the identity is being written.
    version: AtomicU32,
    qp_type: AtomicU32,
    dest_qpn: AtomicU32,
    _pad: AtomicU32,
    created_ns: AtomicU64,
    sgid: [AtomicU64; 2],
    dgid: [AtomicU64; 2],
    /// Notes ever made.
    noted: AtomicU64,
    error: NoteCell,
    notes: [NoteCell; NOTES_PER_QP],
    counts: [AtomicU64; QP_COUNTS_MAX],
    _rest: [AtomicU64; 7],
}

const QP_COUNTS_MAX: usize = 8;
const GONE: u32 = 0xff;
const NO_SLOT: u32 = u32::MAX;

/// Counts per queue pair. The order is part of the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum QpCount {
    /// Packets sent.
    SentPkts,
    /// Packets accepted.
    RcvdPkts,
    /// Packets sent again.
    Retransmits,
}

impl QpCount {
    /// Every count with the name that people see.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::SentPkts, "sent_pkts"),
        (Self::RcvdPkts, "rcvd_pkts"),
        (Self::Retransmits, "retransmits"),
    ];
}

impl QpRecord {
    /// Begins the record for a new queue pair: forgets the story of an earlier one of that number.
    pub fn begin(&self, qpn: Qpn, now: Instant, identity: &QpIdentity) {
        for cell in self.notes.iter().chain([&self.error]) {
            cell.clear();
        }
        for count in &self.counts {
            count.store(0, Relaxed);
        }
        self.noted.store(0, Relaxed);
        self.created_ns.store(now.0, Relaxed);
        self.state.store(QpState::Reset as u32, Relaxed);
        self.set_identity(identity);
        self.qpn.store(qpn.value() | USED, Release);
    }

    /// Says who the peer is now.
    pub fn set_identity(&self, identity: &QpIdentity) {
        self.version.fetch_add(1, Acquire);
        fence(Release);
        self.qp_type.store(identity.qp_type, Relaxed);
        self.dest_qpn.store(identity.dest_qpn.value(), Relaxed);
        store_gid(&self.sgid, identity.sgid);
        store_gid(&self.dgid, identity.dgid);
        self.version.fetch_add(1, Release);
    }

    /// Says in which state it is.
    pub fn set_state(&self, state: QpState) {
        self.state.store(state as u32, Relaxed);
    }

    /// It was destroyed; the story stays to be read.
    pub fn end(&self) {
        self.state.store(GONE, Relaxed);
    }

    /// A count of the queue pair.
    #[must_use]
    pub fn count(&self, count: QpCount) -> &AtomicU64 {
        &self.counts[count as usize]
    }

    /// The queue pair's number, if the record was ever used.
    #[must_use]
    pub fn qpn(&self) -> Option<Qpn> {
        match self.qpn.load(Acquire) {
            word if word & USED != 0 => Some(Qpn::new(word & 0xff_ffff)),
            _ => None,
        }
    }

    /// Its state; `None` after it was destroyed.
    #[must_use]
    pub fn state(&self) -> Option<QpState> {
        QpState::from_verbs(self.state.load(Relaxed))
    }

    /// When it was made.
    #[must_use]
    pub fn created(&self) -> Instant {
        Instant(self.created_ns.load(Relaxed))
    }

    /// Who it talks to; `None` while that is being written.
    #[must_use]
    pub fn identity(&self) -> Option<QpIdentity> {
        for _ in 0..READ_TRIES {
            let before = self.version.load(Acquire);
            let identity = QpIdentity {
                qp_type: self.qp_type.load(Relaxed),
                dest_qpn: Qpn::new(self.dest_qpn.load(Relaxed) & 0xff_ffff),
                sgid: load_gid(&self.sgid),
                dgid: load_gid(&self.dgid),
            };
            fence(Acquire);
            if before.is_multiple_of(2) && before == self.version.load(Relaxed) {
                return Some(identity);
            }
        }
        None
    }

    /// The last notes, oldest first.
    #[must_use]
    pub fn notes(&self) -> Vec<NoteLine> {
        let mut lines: Vec<_> = self.notes.iter().filter_map(NoteCell::read).collect();
        lines.sort_by_key(|line| line.number);
        lines
    }

    /// The first error completion since the queue pair was made or left RESET.
    #[must_use]
    pub fn error(&self) -> Option<NoteLine> {
        self.error.read()
    }

    /// Adds a note. One writer at a time gives the best story; several never harm.
    fn add_note(&self, now: Instant, note: Note) {
        let before = self.noted.fetch_add(1, Relaxed);
        let number = before.wrapping_add(1);
        let index = before as usize % NOTES_PER_QP;
        self.notes[index].write(number, now, note);
        match note.kind {
            NoteKind::State if note.arg == QpState::Reset as u32 => self.error.clear(),
            NoteKind::ErrorCompletion if self.error.read().is_none() => {
                self.error.write(number, now, note);
            }
            _ => {}
        }
    }
}

impl fmt::Debug for QpRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpRecord")
            .field("qpn", &self.qpn())
            .field("state", &self.state())
            .field("notes", &self.notes())
            .finish_non_exhaustive()
    }
}

/// A note as read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoteLine {
    /// How many notes there were up to this one.
    pub number: u64,
    /// `CLOCK_MONOTONIC`.
    pub at: Instant,
    /// What happened; `None` for a kind that this program does not know.
    pub kind: Option<NoteKind>,
    /// Where in the sequence.
    pub psn: Psn,
    /// See [`NoteKind`].
    pub arg: u32,
}

/// A note in shared memory. The ticket is 0 while it is being written.
#[repr(C)]
struct NoteCell {
    ticket: AtomicU64,
    at_ns: AtomicU64,
    /// kind << 32 | psn
    what: AtomicU64,
    arg: AtomicU64,
}

impl NoteCell {
    fn clear(&self) {
        self.ticket.store(0, Release);
    }

    fn write(&self, number: u64, now: Instant, note: Note) {
        self.ticket.store(0, Relaxed);
        fence(Release);
        self.at_ns.store(now.0, Relaxed);
        let what = (note.kind as u64) << 32 | u64::from(note.psn.value());
        self.what.store(what, Relaxed);
        self.arg.store(u64::from(note.arg), Relaxed);
        self.ticket.store(number, Release);
    }

    fn read(&self) -> Option<NoteLine> {
        for _ in 0..READ_TRIES {
            let number = self.ticket.load(Acquire);
            if number == 0 {
                return None;
            }
            let at = Instant(self.at_ns.load(Relaxed));
            let what = self.what.load(Relaxed);
            let arg = self.arg.load(Relaxed) as u32;
            fence(Acquire);
            if self.ticket.load(Relaxed) == number {
                return Some(NoteLine {
                    number,
                    at,
                    kind: kind_from_number((what >> 32) as u16),
                    psn: Psn::new(what as u32 & 0xff_ffff),
                    arg,
                });
            }
        }
        None
    }
}

#[repr(C, align(4096))]
struct Head {
    magic: AtomicU64,
    version: AtomicU32,
    _pad: AtomicU32,
    control: AtomicU64,
    slots: [AtomicU32; SLOTS_PER_PROCESS_MAX],
    facts: [AtomicU64; FACTS_MAX],
    counters: [AtomicU64; COUNTERS_MAX],
}

#[repr(C)]
pub(crate) struct Layout {
    head: Head,
    qps: [QpRecord; SLOTS_PER_PROCESS_MAX * QPNS_PER_SLOT],
}

const USED: u32 = 1 << 31;
/// A writer holds a cell for some nanoseconds; one that died inside it must not hold a reader.
const READ_TRIES: usize = 100;

fn store_gid(words: &[AtomicU64; 2], gid: Gid) {
    let value = u128::from_be_bytes(gid.0);
    words[0].store((value >> 64) as u64, Relaxed);
    words[1].store(value as u64, Relaxed);
}

fn load_gid(words: &[AtomicU64; 2]) -> Gid {
    let value = u128::from(words[0].load(Relaxed)) << 64 | u128::from(words[1].load(Relaxed));
    Gid(value.to_be_bytes())
}

fn kind_from_number(number: u16) -> Option<NoteKind> {
    KINDS.into_iter().find(|kind| *kind as u16 == number)
}

const KINDS: [NoteKind; 11] = [
    NoteKind::State,
    NoteKind::Timeout,
    NoteKind::SeqNakReceived,
    NoteKind::ImpliedNak,
    NoteKind::RnrNakReceived,
    NoteKind::FatalNakReceived,
    NoteKind::SeqNakSent,
    NoteKind::RnrNakSent,
    NoteKind::FatalNakSent,
    NoteKind::ErrorCompletion,
    NoteKind::Duplicate,
];

#[cfg(test)]
mod tests;
