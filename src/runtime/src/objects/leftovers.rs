//! Objects dropped without destroy, and all of a context: nobody is left to acknowledge events, so
//! nobody is waited for.

use std::sync::Arc;

use crate::context::{ContextShared, QpHandle, QpShared, SrqShared};
use crate::core::{Core, now};
use crate::cq::Cq;
use crate::runtime::Runtime;
use crate::sync::lock;

impl Runtime {
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
}
