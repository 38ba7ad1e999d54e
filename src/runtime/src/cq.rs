//! Completion queues: a ring, an arm, and a channel.
//!
//! The engine adds under the ring's lock, pollers take under it; a poller of an empty ring only
//! reads one atomic. Arming looks at what came since the last event and still waits, and fires at
//! once if it qualifies, so a program that polls, then arms, then sleeps never sleeps over a
//! completion. What an event has announced makes no second one: programs that take an event, arm,
//! and poll one completion for each event (perftest -e) would run ahead of their completions.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rocebud_engine::CqOverrun;
use rocebud_objects::{CqId, Misuse, Wc, WcStatus};
use rocebud_wire::Qpn;

use crate::channel::{Acked, Acks, EventQueue};
use crate::context::ContextShared;
use crate::sync::lock;

/// Entries that a completion queue may have.
pub const CQE_MAX: u32 = 1 << 20;

/// Completion queues of a process.
pub const CQS_MAX: u32 = 1 << 16;

/// A completion channel.
pub type CompChannel = EventQueue<CqNotice>;

/// "This completion queue got something."
#[derive(Debug)]
pub struct CqNotice(pub Arc<Cq>);

impl Acked for CqNotice {
    fn acks(&self) -> Option<&Acks> {
        Some(&self.0.acks)
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// Its name towards the engine.
    pub id: CqId,
    /// The layer above's word.
    pub user: AtomicU64,
    /// Queue pairs that use it (once per role).
    pub users: AtomicU32,
    /// Completion events taken.
    pub acks: Acks,
    /// Asynchronous events taken.
    pub async_acks: Acks,
    /// Whose it is.
    pub context: Arc<ContextShared>,
    channel: Option<Arc<CompChannel>>,
    waiting: AtomicU32,
    overrun: AtomicBool,
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<(Wc, bool)>,
    cqe: u32,
    arm: Arm,
    /// Entries at the front that the last event spoke of.
    announced: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Arm {
    No,
    Solicited,
    Any,
}

impl Arm {
    fn wants(self, wc: &Wc, solicited: bool) -> bool {
        match self {
            Self::No => false,
            Self::Solicited => solicited || wc.status != WcStatus::Success,
            Self::Any => true,
        }
    }
}

impl Cq {
    pub(crate) fn new(
        id: CqId,
        cqe: u32,
        channel: Option<Arc<CompChannel>>,
        context: Arc<ContextShared>,
        user: u64,
    ) -> Self {
        Self {
            id,
            user: AtomicU64::new(user),
            users: AtomicU32::new(0),
            acks: Acks::default(),
            async_acks: Acks::default(),
            context,
            channel,
            waiting: AtomicU32::new(0),
            overrun: AtomicBool::new(false),
            ring: Mutex::new(Ring {
                entries: VecDeque::with_capacity(cqe.min(256) as usize),
                cqe,
                arm: Arm::No,
                announced: 0,
            }),
        }
    }

    /// Adds a completion.
    pub(crate) fn push(self: &Arc<Self>, wc: Wc, solicited: bool) -> Result<(), CqOverrun> {
        let mut ring = lock(&self.ring);
        if ring.entries.len() >= ring.cqe as usize || self.overrun.load(Ordering::Relaxed) {
            self.overrun.store(true, Ordering::Relaxed);
            return Err(CqOverrun);
        }
        ring.entries.push_back((wc, solicited));
        self.publish(&ring);
        if ring.arm.wants(&wc, solicited) {
            self.fire(&mut ring);
        }
        Ok(())
    }

    /// Takes completions in order, `out.len()` at most.
    #[inline]
    pub fn take(&self, out: &mut [Wc]) -> usize {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut ring = lock(&self.ring);
        let n = ring.entries.len().min(out.len());
        for (to, (wc, _)) in out.iter_mut().zip(ring.entries.drain(..n)) {
            *to = wc;
        }
        ring.announced = ring.announced.saturating_sub(n);
        self.publish(&ring);
        n
    }

    /// Something waits to be polled.
    pub fn has_entries(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    /// It was full when a completion came; it is unusable.
    pub fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// `ibv_req_notify_cq`. "Solicited" never weakens "any".
    pub fn arm(self: &Arc<Self>, solicited_only: bool) {
        let mut ring = lock(&self.ring);
        let wanted = if solicited_only {
            Arm::Solicited
        } else {
            Arm::Any
        };
        ring.arm = ring.arm.max(wanted);
        let arm = ring.arm;
        let mut news = ring.entries.iter().skip(ring.announced);
        if news.any(|(wc, se)| arm.wants(wc, *se)) {
            self.fire(&mut ring);
        }
    }

    /// `ibv_resize_cq`.
    ///
    /// # Errors
    /// EINVAL: more completions wait than would fit.
    pub fn resize(&self, cqe: u32) -> Result<(), Misuse> {
        let mut ring = lock(&self.ring);
        if ring.entries.len() > cqe as usize {
            return Err(Misuse::invalid(
                "resize_cq: more completions wait than would fit; poll them first",
            ));
        }
        ring.cqe = cqe;
        Ok(())
    }

    /// Entries.
    pub fn cqe(&self) -> u32 {
        lock(&self.ring).cqe
    }

    /// Takes out the completions of a queue pair that was reset or destroyed; the others stay, in
    /// order.
    pub(crate) fn purge(&self, qpn: Qpn) {
        let mut ring = lock(&self.ring);
        let front = ring.entries.iter().take(ring.announced);
        ring.announced = front.filter(|(wc, _)| wc.qp_num != qpn).count();
        ring.entries.retain(|(wc, _)| wc.qp_num != qpn);
        self.publish(&ring);
    }

    /// Its channel.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// Events not yet taken vanish.
    pub(crate) fn purge_events(&self) {
        let me = self.id;
        if let Some(channel) = &self.channel {
            channel.purge(|notice| notice.0.id == me);
        }
        self.context.purge_cq(me);
    }

    /// Events not yet taken vanish; then waits for those that were.
    pub(crate) fn settle(&self) {
        self.purge_events();
        self.acks.wait_settled();
        self.async_acks.wait_settled();
    }

    fn publish(&self, ring: &Ring) {
        let waiting = u32::try_from(ring.entries.len()).unwrap_or(u32::MAX);
        self.waiting.store(waiting, Ordering::Release);
    }

    fn fire(self: &Arc<Self>, ring: &mut Ring) {
        ring.arm = Arm::No;
        ring.announced = ring.entries.len();
        if let Some(channel) = &self.channel {
            channel.push(CqNotice(Arc::clone(self)));
        }
    }
}

#[cfg(test)]
mod tests;
