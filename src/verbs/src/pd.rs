//! Protection domains (plain, imported, parent) and address handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rocebud_objects::{AhAttr, Errno, Misuse, Path, PdId, RxHash, SrqAttr};
use rocebud_runtime::ports;

use crate::context::Family;
use crate::td::TdUse;
use crate::{Context, IndTable, Qp, QpCreate, Srq, Td};

/// A protection domain.
#[derive(Clone, Debug)]
pub struct Pd {
    inner: Arc<PdInner>,
}

#[derive(Debug)]
struct PdInner {
    context: Context,
    root: Arc<Root>,
    /// What a parent domain stands on.
    base: Option<PdUse>,
    td: Option<TdUse>,
}

/// What a protection domain and its imports are together. A parent domain has one of its own, with
/// the number of the domain that it stands on.
#[derive(Debug)]
struct Root {
    id: PdId,
    users: AtomicU32,
    gone: AtomicBool,
    /// Who counts the number; nobody for a parent domain.
    family: Option<Arc<Family>>,
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Some(family) = &self.family {
            family.forget_pd(self.id);
        }
    }
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
            self.pd.inner.root.users.fetch_sub(1, Ordering::AcqRel);
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
        let family = Some(Arc::clone(context.family()));
        Self::with(context, id, family, None, None)
    }

    fn with(
        context: Context,
        id: PdId,
        family: Option<Arc<Family>>,
        base: Option<PdUse>,
        td: Option<TdUse>,
    ) -> Self {
        let root = Arc::new(Root {
            id,
            users: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            family,
        });
        Self {
            inner: Arc::new(PdInner {
                context,
                root,
                base,
                td,
            }),
        }
    }

    /// `ibv_alloc_parent_domain`: the same protection domain, and what stands on it may come from
    /// one thread at a time, if there is a thread domain.
    ///
    /// # Errors
    /// EINVAL: one of them was deallocated, or belongs to another open device.
    pub fn parent(&self, td: Option<&Td>) -> Result<Self, Misuse> {
        self.check()?;
        let context = self.context();
        let td = td.map(|td| td.hold(context)).transpose()?;
        let base = Some(self.hold());
        Ok(Self::with(context.clone(), self.id(), None, base, td))
    }

    /// `ibv_import_pd`: the same protection domain for another import of its open device.
    ///
    /// # Errors
    /// ENOENT: it was deallocated, or `into` is no import of its device.
    pub fn import(&self, into: &Context) -> Result<Self, Misuse> {
        into.check()?;
        let root = &self.inner.root;
        if root.gone.load(Ordering::Acquire) || !self.context().is_related(into) {
            return Err(NO_SUCH_PD);
        }
        Ok(Self {
            inner: Arc::new(PdInner {
                context: into.clone(),
                root: Arc::clone(root),
                base: None,
                td: None,
            }),
        })
    }

    /// It stands on another.
    #[must_use]
    pub fn is_parent(&self) -> bool {
        self.inner.base.is_some()
    }

    /// The program uses what stands on it from one thread at a time.
    #[must_use]
    pub fn is_single_threaded(&self) -> bool {
        self.inner.td.is_some()
    }

    /// Its open device, or an import of it, is still open.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.context().is_alive()
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.root.id
    }

    pub(crate) fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(crate) fn check(&self) -> Result<(), Misuse> {
        self.inner.context.check()?;
        if self.inner.root.gone.load(Ordering::Acquire) {
            return Err(Misuse::invalid("the protection domain was deallocated"));
        }
        Ok(())
    }

    pub(crate) fn hold(&self) -> PdUse {
        self.inner.root.users.fetch_add(1, Ordering::AcqRel);
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
        Srq::create(self, attr, None, user)
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
        self.inner.context.runtime().meet(&path);
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

    /// `ibv_create_qp_ex` with an indirection table: a raw packet queue pair whose frames are spread
    /// over other queues.
    ///
    /// # Errors
    /// EINVAL: no such table, or a hash of unlike protocols. EPERM, EOPNOTSUPP: this process may
    /// not carry raw packets.
    pub fn create_spreading_qp(
        &self,
        table: &IndTable,
        hash: RxHash,
        user: u64,
    ) -> Result<Qp, Misuse> {
        self.check()?;
        Qp::create_spreading(self, table, hash, user)
    }

    /// `ibv_dealloc_pd`.
    ///
    /// # Errors
    /// EBUSY: regions, windows, queue pairs, SRQs, address handles or parent domains are left on
    /// it. EINVAL: done already.
    pub fn dealloc(&self) -> Result<(), Misuse> {
        if self.inner.context.runtime().is_inherited() {
            return self.inner.context.check();
        }
        let root = &self.inner.root;
        if root.users.load(Ordering::Acquire) != 0 && self.inner.context.is_open() {
            return Err(Misuse::new(
                Errno::EBUSY,
                "dealloc_pd: regions, windows, queue pairs, SRQs, address handles or parent domains \
                 are left on it",
            ));
        }
        if root.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("dealloc_pd: done already"));
        }
        if let Some(family) = &root.family {
            family.forget_pd(root.id);
        }
        if let Some(base) = &self.inner.base {
            base.release();
        }
        if let Some(td) = &self.inner.td {
            td.release();
        }
        Ok(())
    }
}

const NO_SUCH_PD: Misuse = Misuse::new(
    Errno::ENOENT,
    "import_pd: this open device has no protection domain of that handle",
);

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
