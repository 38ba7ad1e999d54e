//! Shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rocebud_objects::{Misuse, RecvWr, SrqAttr, SrqId, SrqInit, XrcSrq};
use rocebud_runtime::context::SrqShared;

pub use rocebud_runtime::SrqMask;

use crate::attrs::limits;
use crate::pd::PdUse;
use crate::xrc::XrcdUse;
use crate::{Context, Cq, Pd, PostError, Xrcd};

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct Srq {
    inner: Arc<SrqInner>,
}

#[derive(Debug)]
struct SrqInner {
    context: Context,
    pd: PdUse,
    /// Keeps its domain and its completion queue.
    xrc: Option<(XrcdUse, Cq)>,
    shared: Arc<SrqShared>,
    gone: AtomicBool,
}

impl Srq {
    /// `xrc`: domain and completion queue, for a queue of the type XRC.
    pub(crate) fn create(
        pd: &Pd,
        attr: &SrqAttr,
        xrc: Option<(&Xrcd, &Cq)>,
        user: u64,
    ) -> Result<Self, Misuse> {
        if attr.max_wr == 0 || attr.max_sge == 0 {
            return Err(Misuse::invalid(
                "create_srq: max_wr and max_sge must not be 0",
            ));
        }
        check_sizes(attr)?;
        let init = SrqInit {
            pd: pd.id(),
            attr: *attr,
            xrc: xrc.map(|(xrcd, cq)| XrcSrq {
                xrcd: xrcd.id(),
                cq: cq.shared().id,
            }),
        };
        let context = pd.context().clone();
        if let Some((xrcd, cq)) = xrc {
            xrcd.check(&context)?;
            if !cq.is_of(&context) {
                return Err(Misuse::invalid(
                    "create_srq: the completion queue was destroyed or is of another open device",
                ));
            }
        }
        let cq = xrc.map(|(_, cq)| Arc::clone(cq.shared()));
        let runtime = context.runtime();
        let shared = runtime.create_srq(context.shared(), init, cq, user)?;
        Ok(Self {
            inner: Arc::new(SrqInner {
                context,
                pd: pd.hold(),
                xrc: xrc.map(|(xrcd, cq)| (xrcd.hold(), cq.clone())),
                shared,
                gone: AtomicBool::new(false),
            }),
        })
    }

    pub(crate) fn id(&self) -> SrqId {
        self.inner.shared.id
    }

    pub(crate) fn is_of(&self, context: &Context) -> bool {
        Arc::ptr_eq(self.inner.context.shared(), context.shared())
            && !self.inner.gone.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<(), Misuse> {
        self.inner.context.check()?;
        if self.inner.gone.load(Ordering::Acquire) {
            return Err(Misuse::invalid("the shared receive queue was destroyed"));
        }
        Ok(())
    }

    /// `ibv_post_srq_recv` of one request.
    ///
    /// # Errors
    /// EINVAL: too many SGEs. ENOMEM: full.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), Misuse> {
        self.post_recv_list([Ok(wr)]).map_err(|e| e.misuse)
    }

    /// `ibv_post_srq_recv` of a list: stops at the first that is refused; earlier ones stay. The
    /// iterator must call no verb.
    ///
    /// # Errors
    /// As [`Srq::post_recv`], with the position.
    pub fn post_recv_list(
        &self,
        wrs: impl IntoIterator<Item = Result<RecvWr, Misuse>>,
    ) -> Result<(), PostError> {
        self.check()
            .map_err(|misuse| PostError { posted: 0, misuse })?;
        let runtime = self.inner.context.runtime();
        runtime.post_srq_recv(self.inner.shared.id, wrs)
    }

    /// `ibv_modify_srq`.
    ///
    /// # Errors
    /// EINVAL: limit above the size, size below what is posted or above the device's.
    pub fn modify(&self, attr: &SrqAttr, mask: SrqMask) -> Result<(), Misuse> {
        self.check()?;
        if mask.0 & SrqMask::MAX_WR != 0 {
            check_sizes(&SrqAttr {
                max_sge: 1,
                ..*attr
            })?;
        }
        let runtime = self.inner.context.runtime();
        runtime.modify_srq(self.inner.shared.id, attr, mask)
    }

    /// `ibv_query_srq`.
    ///
    /// # Errors
    /// EIO: the device is dead. EINVAL: destroyed.
    pub fn query(&self) -> Result<SrqAttr, Misuse> {
        self.check()?;
        let runtime = self.inner.context.runtime();
        runtime.query_srq(self.inner.shared.id)
    }

    /// `ibv_get_srq_num`.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.shared.id.0
    }

    /// `ibv_destroy_srq`: waits until every event taken was acknowledged.
    ///
    /// # Errors
    /// EBUSY: queue pairs use it. EINVAL: done already.
    pub fn destroy(&self) -> Result<(), Misuse> {
        if self.inner.context.runtime().is_inherited() {
            return self.inner.context.check();
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("destroy_srq: done already"));
        }
        if self.inner.context.is_open() {
            let runtime = self.inner.context.runtime();
            if let Err(refused) = runtime.destroy_srq(&self.inner.shared) {
                self.inner.gone.store(false, Ordering::Release);
                return Err(refused);
            }
        }
        if let Some((xrcd, _)) = &self.inner.xrc {
            xrcd.release();
        }
        self.inner.pd.release();
        Ok(())
    }

    /// `ibv_ack_async_event`, by object: acknowledges `n` asynchronous events taken.
    pub fn ack_async_events(&self, n: u32) {
        if !self.inner.context.runtime().is_inherited() {
            self.inner.shared.acks.ack(n);
        }
    }

    /// The word that events carry.
    #[must_use]
    pub fn user(&self) -> u64 {
        self.inner.shared.user.load(Ordering::Acquire)
    }

    /// Sets [`Srq::user`].
    pub fn set_user(&self, user: u64) {
        self.inner.shared.user.store(user, Ordering::Release);
    }
}

fn check_sizes(attr: &SrqAttr) -> Result<(), Misuse> {
    if attr.max_wr > limits::QP_WR_MAX || attr.max_sge > limits::SGE_MAX {
        return Err(Misuse::invalid(
            "shared receive queue: larger than max_srq_wr or max_srq_sge of query_device",
        ));
    }
    Ok(())
}

impl Drop for SrqInner {
    /// The last handle went without `destroy`; queue pairs hold handles, so none uses it.
    fn drop(&mut self) {
        if self.context.runtime().is_inherited()
            || self.gone.load(Ordering::Acquire)
            || !self.context.is_open()
        {
            return;
        }
        self.context.runtime().abandon_srq(&self.shared);
    }
}
