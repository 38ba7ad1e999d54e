//! Completion queues: a ring, an arm, and a channel.
//!
//! The engine adds under the ring's lock, pollers take under it; a poller of an empty ring only
//! reads one atomic. Arming looks at what came since the last event and still waits, and fires at
//! once if it qualifies, so a program that polls, then arms, then sleeps never sleeps over a
//! completion. A single completion that an event has announced makes no second one: programs that take
//! an event, arm, and poll one completion for each event (perftest's `_lat -e`) would run ahead of their
//! completions. Several do: programs that take an event, arm, and poll a few at a time (perftest's
//! `_bw -e -b -q 8`) would sleep over the rest.
//!
//! A moderated queue makes its event when enough completions came since it was armed, or some time
//! after the first of them: [`Directory`](crate::env::Directory) knows when the next is due.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rocebud_engine::CqOverrun;
use rocebud_objects::{CqId, Misuse, Wc, WcStatus};
use rocebud_wire::Qpn;

use crate::channel::{Acked, Acks, EventQueue};
use crate::context::ContextShared;
use crate::sync::lock;
use crate::sys;

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

/// What a completion queue is made with, besides its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CqOptions {
    /// A completion that finds the queue full takes the oldest one's place, instead of an error.
    pub ignore_overrun: bool,
    /// Completions carry the device's clock.
    pub timestamps: bool,
    /// Completions carry the time of day.
    pub wallclock: bool,
}

/// When an armed queue makes its event: with the `count`-th completion, or `period_us` after the
/// first. With either 0 or a count of 1: at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moderation {
    /// Completions.
    pub count: u16,
    /// Microseconds.
    pub period_us: u16,
}

impl Moderation {
    const fn is_on(self) -> bool {
        self.count > 1 && self.period_us > 0
    }
}

/// A completion as its queue holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// The completion itself.
    pub wc: Wc,
    /// It counts for a solicited-only arm.
    solicited: bool,
    /// Nanoseconds on the device's clock, if asked for: CLOCK_MONOTONIC.
    pub timestamp_ns: u64,
    /// Nanoseconds since 1970, if asked for.
    pub wallclock_ns: u64,
}

/// No event is due.
const NEVER: u64 = u64::MAX;

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
    /// It was armed once: its program sleeps when nothing comes.
    evented: AtomicBool,
    /// It was armed by a call for programs, and no event has come since.
    armed: AtomicBool,
    overrun: AtomicBool,
    options: CqOptions,
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Completion>,
    cqe: u32,
    arm: Arm,
    /// Entries at the front that the last event spoke of.
    announced: usize,
    moderation: Moderation,
    /// Completions that count for the event to come, while it is held back.
    held_back: u32,
    /// When it will be made at the latest.
    due_ns: u64,
}

impl Ring {
    /// An event speaks of everything that is there.
    fn announce(&mut self) {
        self.arm = Arm::No;
        self.held_back = 0;
        self.due_ns = NEVER;
        self.announced = self.entries.len();
    }
}

/// What a completion asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// Nothing.
    No,
    /// An event by [`Cq::fire_if_due`] at this time: one is held back from now on.
    At(u64),
    /// An event by [`Cq::notify`]; for the queue it was made.
    Now,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Arm {
    No,
    Solicited,
    Any,
}

impl Arm {
    fn wants(self, completion: &Completion) -> bool {
        match self {
            Self::No => false,
            Self::Solicited => completion.solicited || completion.wc.status != WcStatus::Success,
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
        options: CqOptions,
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
            evented: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
            options,
            ring: Mutex::new(Ring {
                entries: VecDeque::with_capacity(cqe.min(256) as usize),
                cqe,
                arm: Arm::No,
                announced: 0,
                moderation: Moderation::default(),
                held_back: 0,
                due_ns: NEVER,
            }),
        }
    }

    /// Adds a completion, and says what is to be done about an event.
    pub(crate) fn push(&self, wc: Wc, solicited: bool) -> Result<Event, CqOverrun> {
        let completion = self.stamped(wc, solicited);
        let mut ring = lock(&self.ring);
        if ring.entries.len() >= ring.cqe as usize && self.options.ignore_overrun {
            ring.entries.pop_front();
            ring.announced = ring.announced.saturating_sub(1);
        }
        if ring.entries.len() >= ring.cqe as usize || self.overrun.load(Ordering::Relaxed) {
            self.overrun.store(true, Ordering::Relaxed);
            return Err(CqOverrun);
        }
        ring.entries.push_back(completion);
        self.publish(&ring);
        if !ring.arm.wants(&completion) {
            return Ok(Event::No);
        }
        ring.held_back += 1;
        let moderation = ring.moderation;
        if !moderation.is_on() || ring.held_back >= u32::from(moderation.count) {
            self.announce(&mut ring);
            return Ok(Event::Now);
        }
        if ring.due_ns == NEVER {
            ring.due_ns = sys::monotonic_ns() + u64::from(moderation.period_us) * 1_000;
            return Ok(Event::At(ring.due_ns));
        }
        Ok(Event::No)
    }

    fn stamped(&self, wc: Wc, solicited: bool) -> Completion {
        let when = |asked: bool, clock: fn() -> u64| if asked { clock() } else { 0 };
        Completion {
            wc,
            solicited,
            timestamp_ns: when(self.options.timestamps, sys::monotonic_ns),
            wallclock_ns: when(self.options.wallclock, sys::realtime_ns),
        }
    }

    /// Makes the event that was held back, if its time has come. Gives the time if it has not.
    pub(crate) fn fire_if_due(self: &Arc<Self>, now_ns: u64) -> Option<u64> {
        let mut ring = lock(&self.ring);
        if ring.due_ns == NEVER || ring.due_ns > now_ns {
            return (ring.due_ns != NEVER).then_some(ring.due_ns);
        }
        self.fire(&mut ring);
        None
    }

    /// `ibv_modify_cq`: how events are moderated from now on.
    pub fn moderate(self: &Arc<Self>, moderation: Moderation) {
        let mut ring = lock(&self.ring);
        ring.moderation = moderation;
        if ring.held_back != 0
            && (!moderation.is_on() || ring.held_back >= u32::from(moderation.count))
        {
            self.fire(&mut ring);
        }
    }

    /// Takes completions in order, `out.len()` at most.
    #[inline]
    pub fn take(&self, out: &mut [Wc]) -> usize {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut ring = lock(&self.ring);
        let n = ring.entries.len().min(out.len());
        for (to, completion) in out.iter_mut().zip(ring.entries.drain(..n)) {
            *to = completion.wc;
        }
        ring.announced = ring.announced.saturating_sub(n);
        self.publish(&ring);
        n
    }

    /// Takes the oldest completion, with its times.
    #[inline]
    pub fn take_one(&self) -> Option<Completion> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut ring = lock(&self.ring);
        let completion = ring.entries.pop_front()?;
        ring.announced = ring.announced.saturating_sub(1);
        self.publish(&ring);
        Some(completion)
    }

    /// Something waits to be polled.
    pub fn has_entries(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    /// It was full when a completion came; it is unusable.
    pub fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// Its program waits for events, at times.
    pub(crate) fn is_evented(&self) -> bool {
        self.evented.load(Ordering::Relaxed)
    }

    /// `ibv_req_notify_cq`. "Solicited" never weakens "any".
    pub fn arm(self: &Arc<Self>, solicited_only: bool) {
        self.evented.store(true, Ordering::Relaxed);
        self.armed.store(true, Ordering::Relaxed);
        self.context.note_sleeper();
        self.arm_for_sleep(solicited_only);
    }

    /// It is armed, so its program may sleep by a poll of its own as soon as it finds nothing here.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// The same for one who says when it sleeps ([`Runtime::sleep_on`](crate::Runtime::sleep_on)).
    pub fn arm_for_sleep(self: &Arc<Self>, solicited_only: bool) {
        let mut ring = lock(&self.ring);
        let wanted = if solicited_only {
            Arm::Solicited
        } else {
            Arm::Any
        };
        ring.arm = ring.arm.max(wanted);
        let arm = ring.arm;
        let mut news = ring.entries.iter().skip(ring.announced);
        let news = news.any(|completion| arm.wants(completion));
        let several = ring
            .entries
            .iter()
            .filter(|c| arm.wants(c))
            .nth(1)
            .is_some();
        // News that waited already are not made to wait longer by moderation.
        if ring.held_back == 0 && (news || several) {
            self.fire(&mut ring);
        }
    }

    /// Takes an arm back: no event comes until the next, unless it is there already.
    pub fn disarm(&self) {
        let mut ring = lock(&self.ring);
        ring.arm = Arm::No;
        ring.held_back = 0;
        ring.due_ns = NEVER;
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
        ring.announced = front.filter(|c| c.wc.qp_num != qpn).count();
        ring.entries.retain(|c| c.wc.qp_num != qpn);
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
        self.announce(ring);
        self.notify();
    }

    fn announce(&self, ring: &mut Ring) {
        self.armed.store(false, Ordering::Relaxed);
        ring.announce();
    }

    /// Makes the event that [`Event::Now`] asks for.
    pub(crate) fn notify(self: &Arc<Self>) {
        if let Some(channel) = &self.channel {
            channel.push(CqNotice(Arc::clone(self)));
        }
    }
}

#[cfg(test)]
mod tests;
