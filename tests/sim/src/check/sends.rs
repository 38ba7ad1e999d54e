//! Send completions: each signaled request completes exactly once and in order, an unsignaled one
//! only on an error, and after the first error everything is flushed.

use std::collections::VecDeque;

use rocebud_fabric::Span;
use rocebud_objects::{Wc, WcOpcode, WcStatus};
use rocebud_wire::{QKey, Qpn, RKey};

use crate::violation::{Checker, Verdict, Violation};
use crate::world::Shown;

/// What a posted request does, as far as a checker must know.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields are named after the verbs' words")]
pub enum Action {
    /// A message for the peer's receive queue.
    Send,
    /// Bytes at an offset of the peer's target region; `message` when it also takes a receive.
    Write {
        offset: u64,
        len: u64,
        message: bool,
    },
    /// Bytes from an offset of the peer's target region.
    Read { offset: u64, len: u64 },
    /// An operation on a shared word.
    Atomic { word: usize },
    /// Eight bytes at an offset of the peer's target region.
    AtomicWrite { offset: u64 },
    /// FLUSH of a range (or the whole) of the peer's target region.
    Flush {
        rkey: RKey,
        va: u64,
        len: u64,
        whole_region: bool,
        placement: u8,
    },
    /// Invalidates a key of our own.
    LocalInv { key: u32 },
    /// Binds a memory window.
    Bind { window: RKey, shown: Shown },
    /// A datagram; the receiver takes it only if the Q_Key is its own.
    Datagram { to: usize, qkey: QKey },
    /// Posted to a queue pair that cannot execute it any more.
    Marker,
}

impl Action {
    /// Needs the key of the peer's target region.
    const fn uses_target(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Read { .. } | Self::AtomicWrite { .. } | Self::Flush { .. }
        )
    }
}

/// A request that must not succeed, and how it may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fatal {
    /// Statuses at the requester.
    pub requester: &'static [WcStatus],
    /// Status of the receive that the responder was filling.
    pub receiver: Option<WcStatus>,
}

/// A posted send request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Posted {
    /// Unique in a run.
    pub wr_id: u64,
    /// Position in the queue pair's program.
    pub seq: u64,
    /// Must complete visibly.
    pub signaled: bool,
    /// Waits for earlier READs and atomics.
    pub fence: bool,
    /// What it does.
    pub action: Action,
    /// Opcode of its completion.
    pub opcode: WcOpcode,
    /// Byte count of its completion, where it means anything.
    pub byte_len: Option<u32>,
    /// Window of the peer's that it goes through.
    pub window: Option<RKey>,
    /// Local pieces, source or sink, in order of the list.
    pub pieces: Vec<Span>,
    /// Set if it must fail.
    pub fatal: Option<Fatal>,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Successfully, whether a completion said so or silence did.
    Done,
    /// With this status.
    Failed(WcStatus),
}

/// Errors that circumstances allow at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tolerance {
    /// The peer cannot answer.
    pub retry_exceeded: bool,
    /// The queue pair is in error.
    pub flush: bool,
    /// The peer's region was taken away: how its use ends.
    pub access: Option<WcStatus>,
    /// Its own region was taken away, and binds to it fail.
    pub bind: bool,
}

/// The send queue as an application remembers it.
#[derive(Debug)]
pub struct SendLedger {
    qpn: Qpn,
    outstanding: VecDeque<Posted>,
    failed: bool,
}

impl SendLedger {
    /// An empty queue of `qpn`.
    #[must_use]
    pub const fn new(qpn: Qpn) -> Self {
        Self {
            qpn,
            outstanding: VecDeque::new(),
            failed: false,
        }
    }

    /// Remembers a request that the engine took.
    pub fn post(&mut self, posted: Posted) {
        self.outstanding.push_back(posted);
    }

    /// Requests that have not ended, oldest first.
    #[must_use]
    pub const fn outstanding(&self) -> &VecDeque<Posted> {
        &self.outstanding
    }

    /// An error completion was seen since the last start.
    #[must_use]
    pub const fn failed(&self) -> bool {
        self.failed
    }

    /// Judges a completion; returns the requests that have ended with it, in order.
    pub fn complete(&mut self, wc: &Wc, tolerance: Tolerance) -> Verdict<Vec<(Posted, Outcome)>> {
        let at = self
            .outstanding
            .iter()
            .position(|p| p.wr_id == wc.wr_id)
            .ok_or_else(|| self.wrong(wc, "completes nothing that is outstanding"))?;
        self.check_skipped(wc, at)?;
        let posted = &self.outstanding[at];
        if wc.qp_num != self.qpn {
            return Err(self.wrong(wc, "names another queue pair"));
        }
        let outcome = if wc.status == WcStatus::Success {
            self.check_success(wc, posted)?;
            Outcome::Done
        } else {
            self.check_failure(wc, posted, tolerance)?;
            self.failed = true;
            Outcome::Failed(wc.status)
        };
        let mut ended: Vec<_> = self
            .outstanding
            .drain(..=at)
            .map(|posted| (posted, Outcome::Done))
            .collect();
        if let Some(last) = ended.last_mut() {
            last.1 = outcome;
        }
        Ok(ended)
    }

    /// Everything earlier has ended silently: possible for unsignaled requests before any error.
    fn check_skipped(&self, wc: &Wc, at: usize) -> Verdict {
        let skipped = self.outstanding.iter().take(at);
        for posted in skipped {
            if self.failed {
                return Err(self.wrong(wc, &format!("overtakes {posted:?} after an error")));
            }
            if posted.signaled {
                return Err(self.wrong(wc, &format!("overtakes signaled {posted:?}")));
            }
            if posted.fatal.is_some() {
                return Err(self.wrong(wc, &format!("overtakes {posted:?}, which cannot succeed")));
            }
        }
        Ok(())
    }

    fn check_success(&self, wc: &Wc, posted: &Posted) -> Verdict {
        if self.failed {
            return Err(self.wrong(wc, "succeeds after an error"));
        }
        if posted.fatal.is_some() || posted.action == Action::Marker {
            return Err(self.wrong(wc, &format!("succeeds: {posted:?}")));
        }
        if !posted.signaled {
            return Err(self.wrong(wc, &format!("is for unsignaled {posted:?}")));
        }
        if wc.opcode != posted.opcode {
            return Err(self.wrong(wc, &format!("opcode is not {:?}", posted.opcode)));
        }
        if posted.byte_len.is_some_and(|len| len != wc.byte_len) {
            return Err(self.wrong(wc, &format!("byte_len is not {:?}", posted.byte_len)));
        }
        Ok(())
    }

    fn check_failure(&self, wc: &Wc, posted: &Posted, tolerance: Tolerance) -> Verdict {
        let allowed = match wc.status {
            WcStatus::WrFlushErr => self.failed || tolerance.flush,
            _ if self.failed => false,
            WcStatus::RetryExcErr => tolerance.retry_exceeded,
            WcStatus::MwBindErr if tolerance.bind => {
                matches!(posted.action, Action::Bind { .. } | Action::Marker)
            }
            status if tolerance.access == Some(status) => posted.action.uses_target(),
            status => posted.fatal.is_some_and(|f| f.requester.contains(&status)),
        };
        if allowed {
            return Ok(());
        }
        let state = if self.failed {
            "after an error"
        } else {
            "first error"
        };
        Err(self.wrong(wc, &format!("unexpected status ({state}) of {posted:?}")))
    }

    /// No further completion will come: what is left was unsignaled and went well.
    pub fn drain(&mut self) -> Verdict<Vec<Posted>> {
        let silent = |p: &Posted| !p.signaled && p.fatal.is_none() && !self.failed;
        if let Some(lost) = self.outstanding.iter().find(|p| !silent(p)) {
            let what = format!("{}: never completed: {lost:?}", self.qpn);
            return Err(Violation::new(Checker::Sends, what));
        }
        Ok(self.outstanding.drain(..).collect())
    }

    /// The queue pair went to RESET: nothing of what was posted may complete any more.
    pub fn abandon(&mut self) -> Vec<Posted> {
        self.failed = false;
        self.outstanding.drain(..).collect()
    }

    /// The queue pair starts anew, perhaps under another number.
    pub fn restart(&mut self, qpn: Qpn) {
        self.qpn = qpn;
        self.failed = false;
    }

    fn wrong(&self, wc: &Wc, why: &str) -> Violation {
        Violation::new(Checker::Sends, format!("{}: {wc:?} {why}", self.qpn))
    }
}
