//! Making, using and destroying the engine's objects.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use rocebud_ctl::page::QpIdentity;
use rocebud_engine::SrqMask;
use rocebud_objects::{
    AttrMask, Errno, Instant, Misuse, Path, QpAttr, QpInit, QpState, RateLimit, RecvWr, SendWr,
    SrqAttr, SrqId, SrqInit, Wc,
};
use rocebud_wire::{Gid, Qpn};

use crate::channel::Acks;
use crate::context::{AsyncNotice, ContextShared, QpHandle, QpShared, SrqShared};
use crate::core::{Core, now};
use crate::cq::{CQS_MAX, CompChannel, Completion, Cq, CqNotice, CqOptions};
use crate::runtime::{Runtime, no_descriptor};
use crate::sync::lock;

/// Posts up to this many bytes may wait for a batch: one by one they would pay more for their system
/// calls than for their bytes.
const SMALL_POST_BYTES: u64 = 8192;

/// Shared receive queues of a process.
pub const SRQS_MAX: u32 = 1 << 16;

/// A list of requests was refused in the middle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostError {
    /// Requests posted before it; also the position of the bad one.
    pub posted: usize,
    /// Why.
    pub misuse: Misuse,
}

impl Runtime {
    // ---- completion queues

    /// A completion channel.
    ///
    /// # Errors
    /// EMFILE: no descriptor left.
    pub fn create_channel(&self, context: &ContextShared) -> Result<Arc<CompChannel>, Misuse> {
        self.check()?;
        context.new_channel().map_err(no_descriptor)
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

    // ---- shared receive queues

    /// A shared receive queue. Sizes were checked by the layer above.
    ///
    /// # Errors
    /// EIO: the daemon is gone. ENOMEM: [`SRQS_MAX`] are there.
    pub fn create_srq(
        &self,
        context: &Arc<ContextShared>,
        init: SrqInit,
        cq: Option<Arc<Cq>>,
        user: u64,
    ) -> Result<Arc<SrqShared>, Misuse> {
        self.check()?;
        let mut core = lock(&self.core);
        if core.dir.srqs.len() >= SRQS_MAX as usize {
            return Err(Misuse::new(
                Errno::ENOMEM,
                "create_srq: as many shared receive queues as a process may have; destroy some",
            ));
        }
        let id = loop {
            // Packets name it by 24 bits.
            let next = self.next_srq.fetch_add(1, Ordering::Relaxed) & 0x00ff_ffff;
            if next != 0 && !core.dir.srqs.contains_key(&SrqId(next)) {
                break SrqId(next);
            }
        };
        core.node.create_srq(id, init)?;
        if let Some(cq) = &cq {
            cq.users.fetch_add(1, Ordering::AcqRel);
        }
        let srq = Arc::new(SrqShared {
            id,
            user: AtomicU64::new(user),
            acks: Acks::default(),
            context: Arc::clone(context),
            cq,
        });
        core.dir.srqs.insert(id, Arc::clone(&srq));
        Ok(srq)
    }

    /// `ibv_modify_srq`.
    ///
    /// # Errors
    /// EINVAL.
    pub fn modify_srq(&self, id: SrqId, attr: &SrqAttr, mask: SrqMask) -> Result<(), Misuse> {
        lock(&self.core).node.modify_srq(id, attr, mask)
    }

    /// `ibv_query_srq`.
    ///
    /// # Errors
    /// EINVAL: destroyed.
    pub fn query_srq(&self, id: SrqId) -> Result<SrqAttr, Misuse> {
        lock(&self.core).node.query_srq(id)
    }

    /// `ibv_post_srq_recv`.
    ///
    /// # Errors
    /// EINVAL, ENOMEM, with the position.
    pub fn post_srq_recv(
        &self,
        id: SrqId,
        wrs: impl IntoIterator<Item = Result<RecvWr, Misuse>>,
    ) -> Result<(), PostError> {
        let mut core = lock(&self.core);
        for (posted, wr) in wrs.into_iter().enumerate() {
            let done = wr.and_then(|wr| core.node.post_srq_recv(id, wr));
            done.map_err(|misuse| PostError { posted, misuse })?;
        }
        // Messages may have waited for these receives, and the program may go to sleep now.
        if core.node.wants_transmit() {
            self.kick(&mut core);
        }
        Ok(())
    }

    /// Destroys a shared receive queue; waits for acknowledgements.
    ///
    /// # Errors
    /// EBUSY: queue pairs use it.
    pub fn destroy_srq(&self, srq: &SrqShared) -> Result<(), Misuse> {
        let mut core = lock(&self.core);
        core.node.destroy_srq(srq.id)?;
        core.dir.srqs.remove(&srq.id);
        srq.release_cq();
        drop(core);
        srq.context.purge_srq(srq.id);
        srq.acks.wait_settled();
        Ok(())
    }

    // ---- queue pairs

    /// A queue pair. Sizes were checked by the layer above.
    ///
    /// # Errors
    /// EIO, ENOMEM: no daemon or no numbers left. EINVAL: as the engine says.
    pub fn create_qp(
        &self,
        context: &Arc<ContextShared>,
        init: QpInit,
        cqs: Vec<Arc<Cq>>,
        user: u64,
    ) -> Result<(Arc<QpShared>, Arc<QpHandle>), Misuse> {
        self.check()?;
        let (mut core, qpn) = self.allocate_qpn()?;
        if let Err(refused) = core.node.create_qp(qpn, init) {
            core.qpns.free(qpn, now().0);
            return Err(refused);
        }
        if let Some(device) = self.device(context.ifindex) {
            core.node.set_port_mtu(qpn, device.mtu())?;
        }
        Ok(self.enter_qp(&mut core, qpn, context, &init, cqs, user))
    }

    /// Lets events and `rocebud status` know a queue pair that was made.
    pub(crate) fn enter_qp(
        &self,
        core: &mut Core,
        qpn: Qpn,
        context: &Arc<ContextShared>,
        init: &QpInit,
        cqs: Vec<Arc<Cq>>,
        user: u64,
    ) -> (Arc<QpShared>, Arc<QpHandle>) {
        for cq in &cqs {
            cq.users.fetch_add(1, Ordering::AcqRel);
        }
        let qp = Arc::new(QpShared::new(qpn, context.ifindex, cqs));
        let handle = qp.add_handle(context, user);
        core.dir.qps.insert(qpn, Arc::clone(&qp));
        if let Some(record) = self.shared.pages.qp_record(qpn) {
            record.begin(qpn, now(), &identity(init, None));
        }
        self.state_facts(core);
        (qp, handle)
    }

    /// Another handle of a queue pair; `None` if it is destroyed.
    pub fn open_qp(
        &self,
        qp: &QpShared,
        context: &Arc<ContextShared>,
        user: u64,
    ) -> Option<Arc<QpHandle>> {
        let _core = lock(&self.core);
        (qp.handles() != 0).then(|| qp.add_handle(context, user))
    }

    /// A fresh number, with the engine locked. While the daemon is asked for a further slot the
    /// engine is not: other queue pairs go on.
    pub(crate) fn allocate_qpn(&self) -> Result<(MutexGuard<'_, Core>, Qpn), Misuse> {
        let allocate = || {
            let mut core = lock(&self.core);
            let qpn = core.qpns.allocate(now().0)?;
            Some((core, qpn))
        };
        if let Some(found) = allocate() {
            return Ok(found);
        }
        // Ten threads that find no number want one slot, not ten.
        let _asking = lock(&self.asking);
        if let Some(found) = allocate() {
            return Ok(found);
        }
        let refused = self.take_slot().err();
        if let Some(found) = allocate() {
            return Ok(found);
        }
        // No further slot: a number that should rest longer is better than none.
        let mut core = lock(&self.core);
        match (core.qpns.allocate_rested(), refused) {
            (Some(qpn), _) => Ok((core, qpn)),
            (None, Some(refused)) => Err(refused),
            (None, None) => Err(Misuse::new(
                Errno::ENOMEM,
                "create_qp: no queue pair numbers left; destroy some",
            )),
        }
    }

    /// `ibv_modify_qp`; `path` is the resolved address vector if the mask has AV.
    ///
    /// # Errors
    /// EINVAL; nothing has changed.
    pub fn modify_qp(
        &self,
        qp: &QpShared,
        attr: &QpAttr,
        mask: AttrMask,
        path: Option<Path>,
    ) -> Result<(), Misuse> {
        self.check()?;
        let mut core = lock(&self.core);
        if mask.contains(AttrMask::STATE) {
            self.kick(&mut core); // ACKs that are due leave before a state that sends none.
        }
        if core.raw.has(qp.qpn) {
            return self.modify_raw(&mut core, qp, attr, mask);
        }
        let (node, mut world) = core.split(&self.shared);
        node.modify_qp(world.now, qp.qpn, attr, mask, path, &mut world)?;
        if mask.contains(AttrMask::STATE) && attr.qp_state == QpState::Reset {
            // A queue pair taken to RESET starts clean; the specification leaves this open, but
            // hardware does it and programs rely on it.
            qp.purge();
        }
        if mask.intersects(AttrMask::AV | AttrMask::DEST_QPN)
            && let Ok((attr, init)) = core.node.query_qp(qp.qpn)
            && let Some(record) = self.shared.pages.qp_record(qp.qpn)
        {
            record.set_identity(&identity(&init, path.map(|p| (p, attr.dest_qp_num))));
        }
        self.kick(&mut core);
        Ok(())
    }

    /// `ibv_modify_qp_rate_limit`.
    ///
    /// # Errors
    /// EINVAL: not in RTS.
    pub fn set_rate_limit(&self, qpn: Qpn, limit: RateLimit) -> Result<(), Misuse> {
        self.check()?;
        let mut core = lock(&self.core);
        if core.raw.has(qpn) {
            return self.set_rate_limit_raw(&mut core, qpn, limit);
        }
        let (node, mut world) = core.split(&self.shared);
        node.set_rate_limit(world.now, qpn, limit, &mut world)?;
        self.kick(&mut core);
        Ok(())
    }

    /// `ibv_query_qp`.
    ///
    /// # Errors
    /// EINVAL: destroyed.
    pub fn query_qp(&self, qpn: Qpn) -> Result<(QpAttr, QpInit), Misuse> {
        let core = lock(&self.core);
        let raw = core.raw.query(qpn);
        raw.map_or_else(|| core.node.query_qp(qpn), Ok)
    }

    /// State now.
    pub fn qp_state(&self, qpn: Qpn) -> Option<QpState> {
        let core = lock(&self.core);
        core.raw.state(qpn).or_else(|| core.node.qp_state(qpn))
    }

    /// `ibv_post_send`: requests are posted together and leave together.
    ///
    /// # Errors
    /// EINVAL, ENOMEM, with the position.
    pub fn post_send(
        &self,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = Result<SendWr, Misuse>>,
    ) -> Result<(), PostError> {
        let mut core = lock(&self.core);
        if core.raw.has(qpn) {
            return self.post_send_raw(&mut core, qpn, wrs);
        }
        let mut refused = None;
        let mut bytes = 0;
        let now;
        {
            let (node, mut world) = core.split(&self.shared);
            now = world.now;
            self.progress.posted(now.0);
            for (posted, wr) in wrs.into_iter().enumerate() {
                let done = wr.and_then(|wr| {
                    bytes += wr.payload.len();
                    node.post_send(world.now, qpn, wr, &mut world)
                });
                if let Err(misuse) = done {
                    refused = Some(PostError { posted, misuse });
                    break;
                }
            }
        }
        self.send_soon(&mut core, bytes, now);
        refused.map_or(Ok(()), Err)
    }

    /// `ibv_wr_complete`: posts all requests, taking them out of `wrs`, or, when one is refused,
    /// none.
    ///
    /// # Errors
    /// EINVAL, ENOMEM.
    pub fn post_sends(&self, qpn: Qpn, wrs: &mut Vec<SendWr>) -> Result<(), Misuse> {
        let bytes = wrs.iter().map(|wr| wr.payload.len()).sum();
        let mut core = lock(&self.core);
        if core.raw.has(qpn) {
            return self.post_sends_raw(&mut core, qpn, wrs);
        }
        let (node, mut world) = core.split(&self.shared);
        let now = world.now;
        self.progress.posted(now.0);
        node.post_sends(now, qpn, wrs, &mut world)?;
        self.send_soon(&mut core, bytes, now);
        Ok(())
    }

    /// Sends what was posted, `bytes` in all, unless it may wait for more. Waiting needs somebody
    /// who sends in the end: the program's next call, or the progress thread.
    fn send_soon(&self, core: &mut Core, bytes: u64, now: Instant) {
        core.later.called();
        let waits = bytes <= SMALL_POST_BYTES && !self.progress.is_away() && core.may_wait(now.0);
        if waits {
            return;
        }
        if core.transmit_at(&self.shared, now) != 0 && core.has_more() {
            self.kick(core);
        } else {
            self.progress.rearm(core);
        }
    }

    /// `ibv_post_recv`.
    ///
    /// # Errors
    /// EINVAL, ENOMEM, with the position.
    pub fn post_recv(
        &self,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = Result<RecvWr, Misuse>>,
    ) -> Result<(), PostError> {
        let mut core = lock(&self.core);
        if core.raw.has(qpn) {
            return self.post_recv_raw(&mut core, qpn, wrs);
        }
        let (node, mut world) = core.split(&self.shared);
        let done = wrs.into_iter().enumerate().try_for_each(|(posted, wr)| {
            wr.and_then(|wr| node.post_recv(world.now, qpn, wr, &mut world))
                .map_err(|misuse| PostError { posted, misuse })
        });
        // Receives flushed at once may have made an event that is held back.
        if core.dir.due_ns().is_some() {
            self.progress.rearm(&core);
        }
        done
    }

    /// `ibv_attach_mcast`, on the network too.
    ///
    /// # Errors
    /// EINVAL: not UD and not raw packets, or no group. ENOMEM: too many. ENODEV: the network does not join.
    pub fn attach_mcast(&self, qp: &QpShared, group: Gid) -> Result<(), Misuse> {
        self.check()?;
        if lock(&self.core).raw.has(qp.qpn) {
            return self.attach_raw(qp, group);
        }
        let mut core = lock(&self.core);
        core.node.attach_mcast(qp.qpn, group)?;
        let Core { groups, link, .. } = &mut *core;
        let users = groups.entry((group, qp.ifindex)).or_insert(0);
        *users += 1;
        let joined = match link {
            Some(link) if *users == 1 => link.join(group.ip(), qp.ifindex),
            _ => Ok(()),
        };
        if let Err(error) = joined {
            groups.remove(&(group, qp.ifindex));
            core.node.detach_mcast(qp.qpn, group)?;
            return Err(not_joined(&error));
        }
        Ok(())
    }

    /// `ibv_detach_mcast`.
    ///
    /// # Errors
    /// EINVAL: not attached.
    pub fn detach_mcast(&self, qp: &QpShared, group: Gid) -> Result<(), Misuse> {
        self.check()?;
        if lock(&self.core).raw.has(qp.qpn) {
            return self.detach_raw(qp, group);
        }
        let mut core = lock(&self.core);
        core.node.detach_mcast(qp.qpn, group)?;
        let Core { groups, link, .. } = &mut *core;
        leave(groups, link.as_ref(), group, qp.ifindex);
        Ok(())
    }

    /// Gives up a handle of a queue pair. With the last one it is destroyed, and its completions
    /// vanish. Waits for acknowledgements of the handle's events. True if it was the last.
    ///
    /// # Errors
    /// EBUSY: the last, and attached to a multicast group or flow rules steer to it. EINVAL: done already.
    pub fn destroy_qp(&self, qp: &QpShared, handle: &Arc<QpHandle>) -> Result<bool, Misuse> {
        let mut core = lock(&self.core);
        if !qp.has_handle(handle) {
            return Err(Misuse::invalid("destroy_qp: done already"));
        }
        let last = qp.handles() == 1;
        if last {
            self.kick(&mut core); // The peer waits for the ACK of what we have taken.
            if core.raw.has(qp.qpn) {
                core.raw.check_removable(qp.qpn)?;
                self.remove_raw(&mut core, qp.qpn);
            } else {
                let (node, mut world) = core.split(&self.shared);
                node.destroy_qp(qp.qpn, &mut world)?;
            }
            self.forget_qp(&mut core, qp);
            self.state_facts(&core);
            self.kick(&mut core);
        }
        qp.remove_handle(handle);
        drop(core);
        handle.context.purge_qp(handle);
        handle.acks.wait_settled();
        Ok(last)
    }

    /// Takes a queue pair that the engine no longer has out of the books.
    fn forget_qp(&self, core: &mut Core, qp: &QpShared) {
        core.dir.qps.remove(&qp.qpn);
        core.qpns.free(qp.qpn, now().0);
        qp.purge();
        qp.release_cqs();
        if let Some(record) = self.shared.pages.qp_record(qp.qpn) {
            record.end();
        }
    }

    // ---- handles dropped without destroy: nobody is left to acknowledge, so nobody is waited for

    /// Gives up a handle that was dropped; destroys the queue pair with its last one.
    pub fn abandon_qp(&self, qp: &QpShared, handle: &Arc<QpHandle>) {
        let mut core = lock(&self.core);
        if !qp.has_handle(handle) {
            return;
        }
        qp.remove_handle(handle);
        if qp.handles() == 0 {
            self.destroy_left_over(&mut core, qp);
            self.state_facts(&core);
        }
        drop(core);
        handle.context.purge_qp(handle);
    }

    /// Destroys a completion queue whose last handle went.
    pub fn abandon_cq(&self, cq: &Cq) {
        let mut core = lock(&self.core);
        core.dir.remove_cq(cq.id);
        self.state_facts(&core);
        drop(core);
        cq.purge_events();
    }

    /// Destroys a shared receive queue whose last handle went.
    pub fn abandon_srq(&self, srq: &SrqShared) {
        let mut core = lock(&self.core);
        let _ = core.node.destroy_srq(srq.id);
        core.dir.srqs.remove(&srq.id);
        srq.release_cq();
        drop(core);
        srq.context.purge_srq(srq.id);
    }

    // ---- all of a context

    /// Destroys what is left of a context, without waiting for acknowledgements: nobody is there
    /// to give them.
    pub fn destroy_context(&self, context: &Arc<ContextShared>) {
        let mut core = lock(&self.core);
        let mine = |c: &Arc<ContextShared>| Arc::ptr_eq(c, context);
        let lost = |qp: &&Arc<QpShared>| qp.remove_handles_of(context) && qp.handles() == 0;
        let qps: Vec<_> = core.dir.qps.values().filter(lost).cloned().collect();
        for qp in qps {
            self.destroy_left_over(&mut core, &qp);
        }
        let Core { dir, node, .. } = &mut *core;
        dir.srqs.retain(|id, srq| {
            if mine(&srq.context) {
                let _ = node.destroy_srq(*id);
            }
            !mine(&srq.context)
        });
        let wqs = core.raw.remove_of(|cq| mine(&cq.context));
        let rested = now().0;
        wqs.into_iter().for_each(|wq| core.qpns.free(wq, rested));
        core.dir.remove_cqs_of(context);
        self.state_facts(&core);
        drop(core);
        context.purge_all();
    }

    fn destroy_left_over(&self, core: &mut Core, qp: &QpShared) {
        self.kick(core);
        if core.raw.has(qp.qpn) {
            self.remove_raw(core, qp.qpn);
        }
        let (node, mut world) = core.split(&self.shared);
        if node.destroy_qp(qp.qpn, &mut world).is_err() {
            Self::detach_all(core, qp);
            let (node, mut world) = core.split(&self.shared);
            let _ = node.destroy_qp(qp.qpn, &mut world);
        }
        self.forget_qp(core, qp);
    }

    fn detach_all(core: &mut Core, qp: &QpShared) {
        let groups: Vec<Gid> = core.groups.keys().map(|(group, _)| *group).collect();
        for group in groups {
            if core.node.detach_mcast(qp.qpn, group).is_ok() {
                let Core { groups, link, .. } = &mut *core;
                leave(groups, link.as_ref(), group, qp.ifindex);
            }
        }
    }
}

/// Why a group was not joined, in the words of verbs.
fn not_joined(error: &io::Error) -> Misuse {
    match error.raw_os_error() {
        Some(libc::ENOBUFS) => Misuse::new(
            Errno::ENOMEM,
            "attach_mcast: as many groups as a process may join; raise net.ipv4.igmp_max_memberships \
             or net.core.optmem_max",
        ),
        code => Misuse::new(
            Errno(code.unwrap_or(Errno::EIO.0)),
            "attach_mcast: the interface did not join the group",
        ),
    }
}

fn leave(
    groups: &mut HashMap<(Gid, u32), u32>,
    link: Option<&rocebud_nic::udp::UdpLink>,
    group: Gid,
    ifindex: u32,
) {
    let Some(users) = groups.get_mut(&(group, ifindex)) else {
        return;
    };
    *users -= 1;
    if *users == 0 {
        groups.remove(&(group, ifindex));
        let ip: IpAddr = group.ip();
        if let Some(link) = link {
            // Failing to leave costs a few unwanted packets and nothing else.
            let _ = link.leave(ip, ifindex);
        }
    }
}

fn identity(init: &QpInit, peer: Option<(Path, Qpn)>) -> QpIdentity {
    let (path, dest_qpn) = peer.unwrap_or_default();
    QpIdentity {
        qp_type: init.qp_type as u32,
        dest_qpn,
        sgid: path.sgid,
        dgid: path.dgid,
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
