//! Completion queues and channels.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rocebud_objects::{Errno, Misuse, Wc};
use rocebud_runtime::{Asleep, PollFd, Runtime, Watch, cq as shared};

use crate::attrs::limits;
use crate::pd::PdUse;
use crate::{Context, Pd};

pub use rocebud_runtime::cq::{Completion, CqOptions, Moderation};

/// A completion channel: an event for each armed completion queue that got something.
#[derive(Clone, Debug)]
pub struct CompChannel {
    inner: Arc<ChannelInner>,
}

#[derive(Debug)]
struct ChannelInner {
    context: Context,
    shared: Arc<shared::CompChannel>,
    users: AtomicU32,
    gone: AtomicBool,
    user: AtomicU64,
}

/// "This completion queue got something."
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqEvent {
    /// The completion queue's `user` word.
    pub user: u64,
}

impl CqEvent {
    fn of(notice: &shared::CqNotice) -> Self {
        Self {
            user: notice.0.user.load(Ordering::Acquire),
        }
    }
}

impl CompChannel {
    pub(crate) fn new(context: Context, shared: Arc<shared::CompChannel>) -> Self {
        Self {
            inner: Arc::new(ChannelInner {
                context,
                shared,
                users: AtomicU32::new(0),
                gone: AtomicBool::new(false),
                user: AtomicU64::new(0),
            }),
        }
    }

    /// Becomes readable when an event waits.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.inner.shared.fd()
    }

    /// `ibv_get_cq_event`: blocks unless the descriptor has O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN: non-blocking and nothing there. EINTR as errno 4: a signal. EIO: a child made by
    /// fork.
    pub fn get_event(&self) -> Result<CqEvent, Misuse> {
        let notice = self.own_runtime()?.next_cq_event(&self.inner.shared)?;
        Ok(CqEvent::of(&notice))
    }

    /// As [`CompChannel::get_event`], for callers that wait themselves: `None` means that eight
    /// bytes are to be read from the descriptor, asleep ([`CompChannel::sleep`]), and the outcome
    /// brought here.
    ///
    /// # Errors
    /// As [`CompChannel::get_event`].
    pub fn event(&self, read: Option<io::Result<()>>) -> Result<Option<CqEvent>, Misuse> {
        let notice = self.own_runtime()?.cq_event(&self.inner.shared, read)?;
        Ok(notice.as_ref().map(CqEvent::of))
    }

    /// Takes every event that waits and acknowledges it, without running the engine: for callers that
    /// look at their queues in any case.
    pub fn forget_events(&self) {
        self.inner.shared.purge(|_| true);
    }

    /// Begins a sleep until one of the descriptors is ready, or there are packets that completions may
    /// come of: adds to `fds` what tells of those. The caller armed its queues ([`Cq::arm_for_sleep`]);
    /// it polls the descriptors, drops what it got here, and polls its queues.
    #[must_use]
    pub fn sleep_on(&self, fds: &mut Vec<PollFd>) -> Watch {
        self.inner.context.runtime().sleep_on(fds)
    }

    /// This is the process that made it, not a child made by fork.
    #[must_use]
    pub fn is_own(&self) -> bool {
        !self.inner.context.runtime().is_inherited()
    }

    /// The calling thread sleeps until a completion comes.
    #[must_use]
    pub fn sleep(&self) -> Asleep {
        self.inner.context.runtime().sleep()
    }

    fn own_runtime(&self) -> Result<&Arc<Runtime>, Misuse> {
        let runtime = self.inner.context.runtime();
        if runtime.is_inherited() {
            runtime.check()?;
        }
        Ok(runtime)
    }

    /// `ibv_destroy_comp_channel`.
    ///
    /// # Errors
    /// EBUSY: completion queues use it. EINVAL: done already.
    pub fn destroy(&self) -> Result<(), Misuse> {
        if self.inner.context.runtime().is_inherited() {
            return self.inner.context.check();
        }
        if self.inner.users.load(Ordering::Acquire) != 0 {
            return Err(Misuse::new(
                Errno::EBUSY,
                "destroy_comp_channel: completion queues still use it; destroy them first",
            ));
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("destroy_comp_channel: done already"));
        }
        Ok(())
    }

    /// The word that the layer above keeps here.
    #[must_use]
    pub fn user(&self) -> u64 {
        self.inner.user.load(Ordering::Acquire)
    }

    /// Sets [`CompChannel::user`].
    pub fn set_user(&self, user: u64) {
        self.inner.user.store(user, Ordering::Release);
    }
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct Cq {
    inner: Arc<CqInner>,
}

#[derive(Debug)]
struct CqInner {
    context: Context,
    channel: Option<CompChannel>,
    shared: Arc<shared::Cq>,
    parent_domain: Option<PdUse>,
    gone: AtomicBool,
}

/// What `create_cq_ex` is told; `struct ibv_cq_init_attr_ex`.
#[derive(Clone, Debug, Default)]
pub struct CqCreate {
    /// Entries at least.
    pub cqe: u32,
    /// Where its events go.
    pub channel: Option<CompChannel>,
    /// Below `num_comp_vectors`.
    pub comp_vector: u32,
    /// What [`CqEvent::user`] gives back.
    pub user: u64,
    /// What completions carry, and what an overrun does.
    pub options: CqOptions,
    /// A domain that must outlive the queue.
    pub parent_domain: Option<Pd>,
}

fn check_size(cqe: u32) -> Result<(), Misuse> {
    if cqe == 0 || cqe > shared::CQE_MAX {
        return Err(Misuse::invalid(
            "completion queue: cqe must be 1 up to max_cqe of query_device",
        ));
    }
    Ok(())
}

impl Cq {
    pub(crate) fn create(context: &Context, create: CqCreate) -> Result<Self, Misuse> {
        context.check()?;
        check_size(create.cqe)?;
        if create.comp_vector >= limits::COMP_VECTORS {
            return Err(Misuse::invalid(
                "create_cq: comp_vector must be below num_comp_vectors",
            ));
        }
        let CqCreate { channel, user, .. } = create;
        let pd = create.parent_domain.as_ref();
        if pd.is_some_and(|pd| pd.check().is_err() || !pd.context().is_same(context)) {
            return Err(Misuse::invalid(
                "create_cq: the parent domain was deallocated or belongs to another open device",
            ));
        }
        if channel
            .as_ref()
            .is_some_and(|c| !Arc::ptr_eq(c.inner.context.shared(), context.shared()))
        {
            return Err(Misuse::invalid(
                "create_cq: the completion channel belongs to another open device",
            ));
        }
        let events = channel.as_ref().map(|c| Arc::clone(&c.inner.shared));
        let shared = context.runtime().create_cq(
            context.shared(),
            create.cqe,
            events,
            user,
            create.options,
        )?;
        if let Some(channel) = &channel {
            channel.inner.users.fetch_add(1, Ordering::AcqRel);
        }
        Ok(Self {
            inner: Arc::new(CqInner {
                context: context.clone(),
                channel,
                shared,
                parent_domain: pd.map(Pd::hold),
                gone: AtomicBool::new(false),
            }),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<shared::Cq> {
        &self.inner.shared
    }

    pub(crate) fn is_of(&self, context: &Context) -> bool {
        Arc::ptr_eq(self.inner.context.shared(), context.shared())
            && !self.inner.gone.load(Ordering::Acquire)
    }

    /// `ibv_poll_cq`: fills `out` from the front, in order; 0 when nothing is there. Runs the
    /// engine when the queue is empty.
    ///
    /// # Errors
    /// EIO: nothing waits and nothing will come: the queue overran, the daemon is gone, or this is
    /// a child made by fork.
    #[inline]
    pub fn poll(&self, out: &mut [Wc]) -> Result<usize, Misuse> {
        self.check_process()?;
        let runtime = self.inner.context.runtime();
        let n = runtime.poll(&self.inner.shared, out);
        if n == 0 && !out.is_empty() {
            self.check_usable()?;
        }
        Ok(n)
    }

    /// This process may use the queue at all.
    ///
    /// # Errors
    /// EIO: a child made by fork.
    #[inline]
    pub fn check_process(&self) -> Result<(), Misuse> {
        let runtime = self.inner.context.runtime();
        if runtime.is_inherited() {
            runtime.check()?;
        }
        Ok(())
    }

    /// One step of `ibv_start_poll` or `ibv_next_poll`: the oldest completion, with its times.
    /// Runs the engine when the queue is empty.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    #[inline]
    pub fn poll_one(&self) -> Result<Option<Completion>, Misuse> {
        self.check_process()?;
        let runtime = self.inner.context.runtime();
        let found = runtime.poll_one(&self.inner.shared);
        if found.is_none() {
            self.check_usable()?;
        }
        Ok(found)
    }

    /// `ibv_modify_cq`: how events are moderated from now on.
    ///
    /// # Errors
    /// EIO: the device is dead.
    pub fn moderate(&self, moderation: Moderation) -> Result<(), Misuse> {
        self.inner.context.check()?;
        self.inner.shared.moderate(moderation);
        Ok(())
    }

    fn check_usable(&self) -> Result<(), Misuse> {
        // Asked first: what a lost device flushes is there before it counts as lost.
        let lost = self.inner.context.check_lost();
        if self.inner.shared.has_entries() {
            return Ok(());
        }
        if self.inner.shared.is_overrun() {
            return Err(Misuse::new(
                Errno::EIO,
                "poll_cq: the queue overran; create it larger or poll it more often",
            ));
        }
        lost
    }

    /// `ibv_req_notify_cq`: the next completion that qualifies makes one event; one that waits
    /// already makes it at once.
    ///
    /// # Errors
    /// EIO: a child made by fork.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), Misuse> {
        if self.inner.context.runtime().is_inherited() {
            self.inner.context.check()?;
        }
        self.inner.shared.arm(solicited_only);
        Ok(())
    }

    /// As [`Cq::req_notify`], for a program that sleeps by [`CompChannel::sleep_on`] only: what it owes
    /// its peer may wait for its next call until then.
    ///
    /// # Errors
    /// As [`Cq::req_notify`].
    pub fn arm_for_sleep(&self) -> Result<(), Misuse> {
        self.check_process()?;
        self.inner.shared.arm_for_sleep(false);
        Ok(())
    }

    /// Takes the last request for an event back, unless the event is there.
    ///
    /// # Errors
    /// As [`Cq::req_notify`].
    pub fn disarm(&self) -> Result<(), Misuse> {
        self.check_process()?;
        self.inner.shared.disarm();
        Ok(())
    }

    /// Takes what has completed, and does not run the engine when there is nothing.
    ///
    /// # Errors
    /// As [`Cq::req_notify`].
    pub fn take(&self, out: &mut [Wc]) -> Result<usize, Misuse> {
        self.check_process()?;
        let runtime = self.inner.context.runtime();
        Ok(runtime.take(&self.inner.shared, out))
    }

    /// `ibv_resize_cq`.
    ///
    /// # Errors
    /// EINVAL: fewer than wait in it, 0, or above `max_cqe`.
    pub fn resize(&self, cqe: u32) -> Result<(), Misuse> {
        self.inner.context.check()?;
        check_size(cqe)?;
        self.inner.shared.resize(cqe)
    }

    /// Entries granted.
    #[must_use]
    pub fn cqe(&self) -> u32 {
        self.inner.shared.cqe()
    }

    /// `ibv_ack_cq_events`.
    pub fn ack_events(&self, n: u32) {
        if !self.inner.context.runtime().is_inherited() {
            self.inner.shared.acks.ack(n);
        }
    }

    /// `ibv_destroy_cq`: waits until every event taken was acknowledged.
    ///
    /// # Errors
    /// EBUSY: queue pairs use it. EINVAL: done already.
    pub fn destroy(&self) -> Result<(), Misuse> {
        if self.inner.context.runtime().is_inherited() {
            return self.inner.context.check();
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("destroy_cq: done already"));
        }
        if self.inner.context.is_open() {
            let done = self.inner.context.runtime().destroy_cq(&self.inner.shared);
            if done.is_err() {
                self.inner.gone.store(false, Ordering::Release);
                return done;
            }
        }
        self.inner.release();
        Ok(())
    }

    /// `ibv_ack_async_event`, by object: acknowledges `n` asynchronous events taken.
    pub fn ack_async_events(&self, n: u32) {
        if !self.inner.context.runtime().is_inherited() {
            self.inner.shared.async_acks.ack(n);
        }
    }

    /// The word that events carry.
    #[must_use]
    pub fn user(&self) -> u64 {
        self.inner.shared.user.load(Ordering::Acquire)
    }

    /// Sets [`Cq::user`].
    pub fn set_user(&self, user: u64) {
        self.inner.shared.user.store(user, Ordering::Release);
    }
}

impl CqInner {
    fn release(&self) {
        if let Some(pd) = &self.parent_domain {
            pd.release();
        }
        if let Some(channel) = &self.channel {
            channel.inner.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for CqInner {
    /// The last handle went without `destroy`: nobody is left to acknowledge, so nothing is waited
    /// for. Queue pairs hold handles, so none uses it.
    fn drop(&mut self) {
        if self.context.runtime().is_inherited() || self.gone.load(Ordering::Acquire) {
            return;
        }
        self.release();
        if self.context.is_open() {
            self.context.runtime().abandon_cq(&self.shared);
        }
    }
}
