//! Asynchronous events, and the notes from which `rocebud status` tells a queue pair's story.

use rocebud_wire::{Psn, Qpn};

use crate::{CqId, SrqId};

/// `enum ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub enum EventKind {
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    DeviceFatal = 8,
    PortActive = 9,
    PortErr = 10,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    GidChange = 18,
}

/// An event and what it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "variants name their object")]
pub enum AsyncEvent {
    Qp { qpn: Qpn, kind: EventKind },
    Cq { cq: CqId, kind: EventKind },
    Srq { srq: SrqId, kind: EventKind },
}

/// What happened to a queue pair. `arg` is explained at each variant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum NoteKind {
    /// Entered a state; arg = state number.
    State = 1,
    /// Local ACK timer expired; arg = retries left.
    Timeout = 2,
    /// PSN sequence NAK received; arg = retries left.
    SeqNakReceived = 3,
    /// An ACK or response passed an unanswered READ or atomic; arg = retries left.
    ImpliedNak = 4,
    /// RNR NAK received; arg = timer code.
    RnrNakReceived = 5,
    /// Fatal NAK received; arg = NAK code (1 invalid request, 2 remote access, 3 operational).
    FatalNakReceived = 6,
    /// PSN sequence NAK sent; arg = PSN that arrived instead.
    SeqNakSent = 7,
    /// RNR NAK sent; arg = timer code.
    RnrNakSent = 8,
    /// Fatal NAK sent; arg = NAK code.
    FatalNakSent = 9,
    /// An error completion; arg = status << 16 | reason (engine's table of reasons).
    ErrorCompletion = 10,
    /// Duplicate request answered; arg = opcode.
    Duplicate = 11,
}

/// A line of a queue pair's story.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// What happened.
    pub kind: NoteKind,
    /// Where in the sequence.
    pub psn: Psn,
    /// Meaning depends on the kind.
    pub arg: u32,
}
