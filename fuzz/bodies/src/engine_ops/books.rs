//! What the application remembers: queue pairs, requests, regions.

use std::collections::VecDeque;

use rocebud_fabric::{HostId, Span};
use rocebud_objects::{Access, CqId, Path, QpCap, QpType, WcOpcode};
use rocebud_sim::check::bytes::TargetModel;
use rocebud_wire::{Psn, Qpn, RKey};

/// Words for atomics behind each target region.
pub(super) const WORDS: usize = 4;

/// A posted send request.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) wr_id: u64,
    /// Position in the order of posting, never reused within a queue pair.
    pub(super) seq: u64,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    pub(super) opcode: WcOpcode,
    pub(super) byte_len: u32,
    pub(super) action: Action,
    /// Local pieces in order of the list: where a READ or atomic puts its bytes.
    pub(super) pieces: Vec<Span>,
    /// It must not succeed.
    pub(super) must_fail: bool,
}

/// What a request does that can be judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// A message that takes a receive.
    Message,
    /// Bytes into the peer's target region; with immediate also a message.
    Write {
        offset: u64,
        len: u64,
        message: bool,
    },
    /// Bytes out of the peer's target region.
    Read { offset: u64, len: u64 },
    /// A word of the peer's: what was there before, if it is known.
    Atomic { before: Option<u64> },
    /// Nothing that leaves a trace here.
    Other,
}

/// A posted receive.
#[derive(Clone, Debug)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) pieces: Vec<Span>,
}

/// A message that an honest peer has posted.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) wr_id: u64,
    pub(super) len: u32,
    pub(super) imm: Option<[u8; 4]>,
    pub(super) inv: Option<u32>,
    pub(super) solicited: bool,
    pub(super) write: bool,
    /// It cannot arrive.
    pub(super) must_fail: bool,
    /// It has arrived (unreliable ones stay in the list).
    pub(super) arrived: bool,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) host: HostId,
    pub(super) qpn: Qpn,
    pub(super) kind: QpType,
    pub(super) cqs: [CqId; 2],
    pub(super) shared: bool,
    pub(super) cap: QpCap,
    pub(super) sig_all: bool,
    pub(super) alive: bool,
    /// Began anew so often.
    pub(super) life: u32,
    pub(super) sends: VecDeque<Sent>,
    pub(super) receives: VecDeque<Receive>,
    pub(super) seq: u64,
    /// An error completion of a send was seen, and the send queue has not been started again.
    pub(super) failed: bool,
    /// An error completion of a receive was seen in this life.
    pub(super) receive_failed: bool,
    /// A request was posted that must fail: nothing behind it is ever executed.
    pub(super) doomed: bool,
    /// Whom it is connected to, in which life of his.
    pub(super) peer: Option<(usize, u32)>,
    /// Nobody has lied to it in this life.
    pub(super) honest: bool,
    /// Any error has a reason.
    pub(super) trouble: bool,
    /// Frames were kept from it or of it: retries may be used up.
    pub(super) harmed: bool,
    /// A frame came late or twice: unreliable messages may come twice or out of order.
    pub(super) disordered: bool,
    /// A receive was posted that is shorter than a message may be.
    pub(super) small_receives: bool,
    /// Completions may be missing: a completion queue of its overran.
    pub(super) overrun: bool,
    pub(super) path: Path,
    pub(super) pmtu: u32,
    pub(super) access: Access,
    pub(super) rnr_retry: u8,
    pub(super) timeout: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) first_psn: Psn,
    /// Messages under way to it.
    pub(super) inbox: VecDeque<Message>,
    /// Written by its peer alone.
    pub(super) target: TargetModel,
    pub(super) target_key: u32,
    /// A window onto it, under its newest key.
    pub(super) window: Option<RKey>,
    pub(super) words: Span,
    pub(super) words_key: u32,
    /// What the words hold once everything posted so far is done; `None` after a failure.
    pub(super) values: Option<[u64; WORDS]>,
    /// SQ_DRAINED may come.
    pub(super) draining: bool,
    pub(super) last_wqe: u32,
    pub(super) established: u32,
    pub(super) groups: u32,
}

impl Qp {
    /// Its completions may lie in the queue that is polled only when asked.
    pub(super) fn uses_tiny(&self) -> bool {
        self.cqs.contains(&super::world::TINY_CQ)
    }

    /// Forgets everything that a life leaves behind.
    pub(super) fn begin_life(&mut self) {
        self.life += 1;
        self.sends.clear();
        if !self.shared {
            self.receives.clear();
        }
        self.failed = false;
        self.receive_failed = false;
        self.doomed = false;
        self.peer = None;
        self.honest = false;
        self.trouble = false;
        self.harmed = false;
        self.disordered = false;
        self.small_receives = false;
        self.inbox.clear();
        self.values = None;
        self.last_wqe = 0;
        self.established = 0;
    }
}

/// A host's shared things.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) host: HostId,
    pub(super) next_qpn: u32,
    /// Receives of the shared queue.
    pub(super) shared: VecDeque<Receive>,
    /// Receives of the one for extended reliable connections.
    pub(super) extended: VecDeque<Receive>,
    pub(super) limit: u32,
    /// The queue that overruns has done so: whoever is made on it later loses completions, too.
    pub(super) overran: bool,
    /// The shared queue got a receive that is shorter than a message may be.
    pub(super) small_receives: bool,
    /// A forged frame is or was on its way to the group: it reaches whoever joins before it comes.
    pub(super) group_lied: bool,
    /// The peer may read it and nobody may write it.
    pub(super) readonly: Span,
    pub(super) readonly_key: u32,
    /// Keys that have been handed out and may be named again, sound or not.
    pub(super) keys: Vec<u32>,
    /// Sources: what is in them stays.
    pub(super) sources: Vec<(u64, Vec<u8>)>,
}
