//! Queue pairs: their numbers, their states, their end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use rocebud_ctl::page::QpIdentity;
use rocebud_objects::{AttrMask, Errno, Misuse, Path, QpAttr, QpInit, QpState, RateLimit};
use rocebud_wire::Qpn;

use crate::context::{ContextShared, QpHandle, QpShared};
use crate::core::{Core, now};
use crate::cq::Cq;
use crate::runtime::Runtime;
use crate::sync::lock;

impl Runtime {
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
            if let Some(path) = path.filter(|_| init.qp_type.is_reliable()) {
                core.joined(path.dgid, attr.dest_qp_num.slot());
            }
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
    pub(super) fn forget_qp(&self, core: &mut Core, qp: &QpShared) {
        core.dir.qps.remove(&qp.qpn);
        core.qpns.free(qp.qpn, now().0);
        qp.purge();
        qp.release_cqs();
        if let Some(record) = self.shared.pages.qp_record(qp.qpn) {
            record.end();
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
