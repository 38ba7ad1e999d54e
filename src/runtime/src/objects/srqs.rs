//! Shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rocebud_engine::SrqMask;
use rocebud_objects::{Errno, Misuse, RecvWr, SrqAttr, SrqId, SrqInit};

use super::PostError;
use crate::channel::Acks;
use crate::context::{ContextShared, SrqShared};
use crate::cq::Cq;
use crate::runtime::Runtime;
use crate::sync::lock;

/// Shared receive queues of a process.
pub const SRQS_MAX: u32 = 1 << 16;

impl Runtime {
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
}
