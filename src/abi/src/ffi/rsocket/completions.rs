//! A completion queue and the channel of its events. Queues of our own devices are reached without the
//! detours that calls for programs make; those of others by the calls that there are.

use core::ffi::{c_int, c_void};
use std::os::fd::RawFd;

use rocebud_verbs::CompChannel as Sleeper;

use super::super::boundary::Outcome;
use super::super::cq::{CompChannel, Cq};
use super::super::handle::{Handle, Owner};
use super::super::types::{Plain, ibv_comp_channel, ibv_context, ibv_cq, ibv_wc};
use super::verbs::{self, Ops};

/// Completions taken at a time.
const BATCH: usize = 32;

/// How to look for completions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// At the queue only. Others run the engine, or this thread did a moment ago.
    Glance,
    /// By a poll, which takes packets.
    Pump,
}

/// See the module.
pub(super) struct Completions {
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    ops: Ops,
}

impl Completions {
    /// A queue of a living context.
    pub(super) fn new(context: *mut ibv_context, entries: u32) -> Outcome<Self> {
        let ops = Ops::of(context)?;
        // SAFETY: a living context.
        let channel = unsafe { verbs::ibv_create_comp_channel(context) };
        let channel = verbs::made(channel, "no completion channel for the socket")?;
        // SAFETY: made just now.
        verbs::never_wait(unsafe { (*channel).fd });
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let none: *mut c_void = core::ptr::null_mut();
        // SAFETY: a living context and its channel.
        let cq = unsafe { verbs::ibv_create_cq(context, entries, none, channel, 0) };
        let this = Self { cq, channel, ops };
        match verbs::made(cq, "no completion queue for the socket") {
            Ok(_) => Ok(this),
            Err(e) => {
                this.close();
                Err(e)
            }
        }
    }

    /// Destroys both; no queue pair uses them.
    pub(super) fn close(self) {
        if !self.cq.is_null() {
            // SAFETY: no queue pair uses it, and every event of it is acknowledged.
            unsafe { verbs::ibv_destroy_cq(self.cq) };
        }
        // SAFETY: its queue has gone.
        unsafe { verbs::ibv_destroy_comp_channel(self.channel) };
    }

    pub(super) const fn cq(&self) -> *mut ibv_cq {
        self.cq
    }

    pub(super) const fn ops(&self) -> Ops {
        self.ops
    }

    /// Both, if they are ours and this process made them.
    fn ours(&self) -> Option<(&Cq, &CompChannel)> {
        let Ok(Owner::Us(cq)) = Handle::<Cq>::from_raw(self.cq).owner() else {
            return None;
        };
        let channel = Handle::<CompChannel>::from_raw(self.channel).ours();
        channel.verbs.is_own().then_some((cq, channel))
    }

    /// Hands every completion that there is to `each`.
    pub(super) fn take(&self, look: Look, mut each: impl FnMut(&ibv_wc)) {
        let ours = match look {
            Look::Glance => self.ours(),
            Look::Pump => None,
        };
        loop {
            let mut done = [ibv_wc::zeroed(); BATCH];
            let n = match ours {
                Some((cq, _)) => cq.take(&mut done),
                None => self.ops.poll(self.cq, &mut done),
            };
            done.iter().take(n).for_each(&mut each);
            if n < BATCH {
                return;
            }
        }
    }

    /// Readable after [`Completions::arm`] when something has completed.
    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: a living channel.
        unsafe { (*self.channel).fd }
    }

    /// Wants an event of what completes from now on.
    pub(super) fn arm(&self) {
        match self.ours() {
            // Only a child made by fork is refused, and that is not this process.
            Some((cq, _)) => _ = cq.verbs.arm_for_sleep(),
            None => self.ops.arm(self.cq),
        }
    }

    /// Wants none any more: whoever is awake looks itself.
    pub(super) fn disarm(&self) {
        if let Some((cq, _)) = self.ours() {
            let _ = cq.verbs.disarm();
        }
    }

    /// Takes the events that made the descriptor readable.
    pub(super) fn take_events(&self) {
        match self.ours() {
            Some((_, channel)) => channel.verbs.forget_events(),
            None => verbs::take_cq_events(self.channel),
        }
    }

    /// Who sleeps, where queues are ours: a thread that sleeps on the sockets need not be woken by another.
    pub(super) fn sleeper(&self) -> Option<Sleeper> {
        self.ours().map(|(_, channel)| channel.verbs.clone())
    }
}
