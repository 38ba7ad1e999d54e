//! Completion queues, channels and events.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rocebud_objects::{Errno, Misuse, Wc};

use crate::context::{AsyncNotice, ContextShared};
use crate::cq::{CQS_MAX, CompChannel, Completion, Cq, CqNotice, CqOptions};
use crate::runtime::{Runtime, no_descriptor};
use crate::sync::lock;

impl Runtime {
    /// A completion channel.
    ///
    /// # Errors
    /// EMFILE: no descriptor left.
    pub fn create_channel(&self, context: &ContextShared) -> Result<Arc<CompChannel>, Misuse> {
        self.check()?;
        context
            .new_channel()
            .map_err(|e| no_descriptor("making a completion channel", &e))
    }

    /// A completion queue. Sizes were checked by the layer above.
    ///
    /// # Errors
    /// EIO: the daemon is gone. ENOMEM: [`CQS_MAX`] are there.
    pub fn create_cq(
        &self,
        context: &Arc<ContextShared>,
        cqe: u32,
        channel: Option<Arc<CompChannel>>,
        user: u64,
        options: CqOptions,
    ) -> Result<Arc<Cq>, Misuse> {
        self.check()?;
        let mut core = lock(&self.core);
        if core.dir.cqs() >= CQS_MAX as usize {
            return Err(Misuse::new(
                Errno::ENOMEM,
                "create_cq: as many completion queues as a process may have; destroy some",
            ));
        }
        let id = core.dir.next_cq();
        let cq = Cq::new(id, cqe, channel, Arc::clone(context), user, options);
        let cq = Arc::new(cq);
        core.dir.add_cq(Arc::clone(&cq));
        self.state_facts(&core);
        Ok(cq)
    }

    /// Takes completions; runs the engine if there are none.
    #[inline]
    pub fn poll(&self, cq: &Cq, out: &mut [Wc]) -> usize {
        let n = cq.take(out);
        if n != 0 {
            self.progress.polled_well();
            return n;
        }
        self.progress_for_poll(cq);
        let n = cq.take(out);
        if n != 0 {
            self.progress.polled_well();
        }
        n
    }

    /// Takes the oldest completion with its times; runs the engine if there is none.
    #[inline]
    pub fn poll_one(&self, cq: &Cq) -> Option<Completion> {
        let mut found = cq.take_one();
        if found.is_none() {
            self.progress_for_poll(cq);
            found = cq.take_one();
        }
        if found.is_some() {
            self.progress.polled_well();
        }
        found
    }

    /// Takes the oldest event of a channel, waiting if the descriptor's flags say so.
    ///
    /// # Errors
    /// EAGAIN: non-blocking and nothing there. EINTR: a signal. EIO: the device is gone.
    pub fn next_cq_event(&self, channel: &CompChannel) -> Result<CqNotice, Misuse> {
        let mut read = None;
        loop {
            if let Some(notice) = self.cq_event(channel, read)? {
                return Ok(notice);
            }
            self.progress.falls_asleep();
            read = Some(channel.read());
            self.progress.wakes_up();
        }
    }

    /// As [`Runtime::next_cq_event`], for callers that wait themselves: `None` means that the
    /// channel's descriptor is to be read, asleep ([`Asleep`]), and the outcome brought here.
    ///
    /// # Errors
    /// As [`Runtime::next_cq_event`].
    pub fn cq_event(
        &self,
        channel: &CompChannel,
        read: Option<io::Result<()>>,
    ) -> Result<Option<CqNotice>, Misuse> {
        if let Some(read) = read
            && let Some(notice) = channel.after_read(read)?
        {
            return Ok(Some(notice));
        }
        if let Some(notice) = channel.try_take() {
            return Ok(Some(notice));
        }
        if !self.is_dead() {
            self.progress_for_sleep();
            if let Some(notice) = channel.try_take() {
                return Ok(Some(notice));
            }
        }
        channel.before_read()?;
        Ok(None)
    }

    /// Takes the oldest asynchronous event, waiting if the descriptor's flags say so.
    ///
    /// # Errors
    /// EAGAIN: non-blocking and nothing there. EINTR: a signal. EIO: the device is gone, and its
    /// last event was taken.
    pub fn next_async_event(&self, context: &ContextShared) -> Result<AsyncNotice, Misuse> {
        let mut read = None;
        loop {
            if let Some(notice) = self.async_event(context, read)? {
                return Ok(notice);
            }
            read = Some(context.events().read());
        }
    }

    /// As [`Runtime::next_async_event`], for callers that wait themselves, as in
    /// [`Runtime::cq_event`].
    ///
    /// # Errors
    /// As [`Runtime::next_async_event`].
    pub fn async_event(
        &self,
        context: &ContextShared,
        read: Option<io::Result<()>>,
    ) -> Result<Option<AsyncNotice>, Misuse> {
        if let Some(read) = read
            && let Some(notice) = context.events().after_read(read)?
        {
            return Ok(Some(notice));
        }
        if let Some(notice) = context.try_take() {
            return Ok(Some(notice));
        }
        context.events().before_read()?;
        Ok(None)
    }

    /// The calling thread sleeps until a completion comes.
    #[must_use]
    pub fn sleep(self: &Arc<Self>) -> Asleep {
        self.progress.falls_asleep();
        Asleep(Arc::clone(self))
    }

    /// Destroys a completion queue; waits for acknowledgements.
    ///
    /// # Errors
    /// EBUSY: queue pairs use it.
    pub fn destroy_cq(&self, cq: &Cq) -> Result<(), Misuse> {
        let mut core = lock(&self.core);
        if cq.users.load(Ordering::Acquire) != 0 {
            return Err(Misuse::new(
                Errno::EBUSY,
                "destroy_cq: queue pairs still use it; destroy them first",
            ));
        }
        core.dir.remove_cq(cq.id);
        self.state_facts(&core);
        drop(core);
        cq.settle();
        Ok(())
    }
}

/// A thread of the application sleeps while this lives.
#[derive(Debug)]
pub struct Asleep(Arc<Runtime>);

impl Drop for Asleep {
    fn drop(&mut self) {
        self.0.progress.wakes_up();
    }
}
