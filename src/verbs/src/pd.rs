//! Protection domains and address handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rocebud_objects::{AhAttr, Errno, Misuse, Path, PdId, SrqAttr};
use rocebud_runtime::ports;

use crate::{Context, Qp, QpCreate, Srq};

/// A protection domain.
#[derive(Clone, Debug)]
pub struct Pd {
    inner: Arc<PdInner>,
}

#[derive(Debug)]
struct PdInner {
    context: Context,
    id: PdId,
    users: AtomicU32,
    gone: AtomicBool,
}

/// Keeps a protection domain from being deallocated.
#[derive(Debug)]
pub(crate) struct PdUse {
    pd: Pd,
    released: AtomicBool,
}

impl PdUse {
    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.pd.inner.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for PdUse {
    fn drop(&mut self) {
        self.release();
    }
}

impl Pd {
    pub(crate) fn new(context: Context, id: PdId) -> Self {
        Self {
            inner: Arc::new(PdInner {
                context,
                id,
                users: AtomicU32::new(0),
                gone: AtomicBool::new(false),
            }),
        }
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }

    pub(crate) fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(crate) fn check(&self) -> Result<(), Misuse> {
        self.inner.context.check()?;
        if self.inner.gone.load(Ordering::Acquire) {
            return Err(Misuse::invalid("the protection domain was deallocated"));
        }
        Ok(())
    }

    pub(crate) fn hold(&self) -> PdUse {
        self.inner.users.fetch_add(1, Ordering::AcqRel);
        PdUse {
            pd: self.clone(),
            released: AtomicBool::new(false),
        }
    }

    /// `ibv_create_srq`. `user` is what asynchronous events give back.
    ///
    /// # Errors
    /// EINVAL: sizes 0 or above the device's.
    pub fn create_srq(&self, attr: &SrqAttr, user: u64) -> Result<Srq, Misuse> {
        self.check()?;
        Srq::create(self, attr, user)
    }

    /// `ibv_create_ah`.
    ///
    /// # Errors
    /// EINVAL: not global, bad port, empty GID index, address family does not fit.
    /// ENETUNREACH, EHOSTUNREACH: no route.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah, Misuse> {
        self.check()?;
        let device = self.inner.context.device_info();
        let path = ports::resolve(Some(&device), attr)?;
        self.inner.context.runtime().check_route(&path)?;
        Ok(Ah {
            inner: Arc::new(AhInner {
                path,
                attr: *attr,
                pd: self.hold(),
                gone: AtomicBool::new(false),
            }),
        })
    }

    /// `ibv_create_qp`. The granted sizes are in [`Qp::cap`].
    ///
    /// # Errors
    /// EINVAL: sizes above the device's, SRQ with UC, queues of another device. ENOMEM: no queue
    /// pair numbers left.
    pub fn create_qp(&self, create: &QpCreate) -> Result<Qp, Misuse> {
        self.check()?;
        Qp::create(self, create)
    }

    /// `ibv_dealloc_pd`.
    ///
    /// # Errors
    /// EBUSY: regions, windows, queue pairs, SRQs or address handles are left on it. EINVAL: done already.
    pub fn dealloc(&self) -> Result<(), Misuse> {
        if self.inner.context.runtime().is_inherited() {
            return self.inner.context.check();
        }
        if self.inner.users.load(Ordering::Acquire) != 0 && self.inner.context.is_open() {
            return Err(Misuse::new(
                Errno::EBUSY,
                "dealloc_pd: regions, windows, queue pairs, SRQs or address handles are left on it",
            ));
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("dealloc_pd: done already"));
        }
        self.inner.context.forget_pd(self.inner.id);
        Ok(())
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if !self.context.runtime().is_inherited() {
            self.context.forget_pd(self.id);
        }
    }
}

/// An address handle: a resolved destination.
#[derive(Clone, Debug)]
pub struct Ah {
    inner: Arc<AhInner>,
}

#[derive(Debug)]
struct AhInner {
    path: Path,
    attr: AhAttr,
    pd: PdUse,
    gone: AtomicBool,
}

impl Ah {
    /// For [`UdAddress`](rocebud_objects::UdAddress).
    #[must_use]
    pub fn path(&self) -> Path {
        self.inner.path
    }

    /// As it was asked for.
    #[must_use]
    pub fn attr(&self) -> AhAttr {
        self.inner.attr
    }

    /// `ibv_destroy_ah`. Requests posted with it are not affected.
    ///
    /// # Errors
    /// EINVAL: done already.
    pub fn destroy(&self) -> Result<(), Misuse> {
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("destroy_ah: done already"));
        }
        self.inner.pd.release();
        Ok(())
    }
}
