//! Protection domains, memory regions, address handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rocebud_objects::{Access, AhAttr, Errno, Misuse, Path, PdId, SrqAttr};
use rocebud_runtime::keys::Region;
use rocebud_runtime::ports;
use rocebud_wire::{LKey, RKey};

use crate::attrs::limits;
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

    /// `ibv_reg_mr_iova2`: `len` bytes at `addr` of this process, known to the peer (and to SGEs)
    /// as `iova`. For `ibv_reg_mr` give `iova = addr`; with `ZERO_BASED` addresses are offsets
    /// from the region's start and `iova` is not looked at.
    ///
    /// # Errors
    /// EINVAL: flags (remote write or atomic without local write, unknown ones), wrapping range,
    /// iova and address not congruent modulo the page size. EFAULT: memory not there, or not
    /// writable with `LOCAL_WRITE`. EOPNOTSUPP: on demand. ENOMEM: too many regions.
    pub fn reg_mr(&self, addr: u64, len: u64, iova: u64, access: Access) -> Result<Mr, Misuse> {
        self.check()?;
        check_access(access)?;
        let iova = if access.contains(Access::ZERO_BASED) {
            0
        } else {
            check_iova(addr, iova)?;
            iova
        };
        check_range(addr, iova, len)?;
        // Whoever installed a SIGSEGV handler since gets ours in front again.
        rocebud_runtime::ensure_in_front();
        probe(addr, len, access.contains(Access::LOCAL_WRITE))?;
        let region = Region {
            pd: self.inner.id,
            addr,
            iova,
            len,
            access,
        };
        let key = self.inner.context.runtime().register(region)?;
        Ok(Mr {
            inner: Arc::new(MrInner {
                key,
                pd: self.hold(),
                gone: AtomicBool::new(false),
            }),
        })
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
    /// EBUSY: regions, queue pairs, SRQs or address handles are left on it. EINVAL: done already.
    pub fn dealloc(&self) -> Result<(), Misuse> {
        if self.inner.context.runtime().is_inherited() {
            return self.inner.context.check();
        }
        if self.inner.users.load(Ordering::Acquire) != 0 && self.inner.context.is_open() {
            return Err(Misuse::new(
                Errno::EBUSY,
                "dealloc_pd: regions, queue pairs, SRQs or address handles are left on it",
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

/// Bits that mean something to somebody below the optional range.
const KNOWN_ACCESS: u32 = 0x3ff;
/// Bits that may be ignored by whoever does not know them.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

fn check_access(access: Access) -> Result<(), Misuse> {
    if access.bits() & !(KNOWN_ACCESS | OPTIONAL_ACCESS) != 0 {
        return Err(Misuse::invalid("reg_mr: unknown access flags"));
    }
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        && !access.contains(Access::LOCAL_WRITE)
    {
        return Err(Misuse::invalid(
            "reg_mr: remote write and remote atomic need LOCAL_WRITE too",
        ));
    }
    if access.contains(Access::ON_DEMAND) {
        return Err(Misuse::new(
            Errno::EOPNOTSUPP,
            "reg_mr: on-demand paging is not offered; register without ON_DEMAND",
        ));
    }
    Ok(())
}

fn check_iova(addr: u64, iova: u64) -> Result<(), Misuse> {
    if !(addr ^ iova).is_multiple_of(rocebud_runtime::page_size()) {
        return Err(Misuse::invalid(
            "reg_mr: iova and address must agree modulo the page size",
        ));
    }
    Ok(())
}

fn check_range(addr: u64, iova: u64, len: u64) -> Result<(), Misuse> {
    if len > limits::MR_BYTES_MAX
        || addr.checked_add(len).is_none()
        || iova.checked_add(len).is_none()
    {
        return Err(Misuse::invalid(
            "reg_mr: the range wraps around, or is longer than max_mr_size",
        ));
    }
    Ok(())
}

fn probe(addr: u64, len: u64, write: bool) -> Result<(), Misuse> {
    const FAULT: Misuse = Misuse::new(
        Errno::EFAULT,
        "reg_mr: the memory is not mapped, or not writable although LOCAL_WRITE was asked for",
    );
    let (Ok(addr), Ok(len)) = (usize::try_from(addr), usize::try_from(len)) else {
        return Err(FAULT);
    };
    rocebud_runtime::probe(addr, len, write).map_err(|_| FAULT)
}

/// A memory region.
#[derive(Clone, Debug)]
pub struct Mr {
    inner: Arc<MrInner>,
}

#[derive(Debug)]
struct MrInner {
    key: u32,
    pd: PdUse,
    gone: AtomicBool,
}

impl Mr {
    /// Key for SGEs.
    #[must_use]
    pub fn lkey(&self) -> LKey {
        LKey(self.inner.key)
    }

    /// Key for the peer.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        RKey(self.inner.key)
    }

    /// `ibv_dereg_mr`: when it returns, nothing reads or writes through the region any more.
    ///
    /// # Errors
    /// EINVAL: done already. EIO: a child made by fork.
    pub fn dereg(&self) -> Result<(), Misuse> {
        if self.inner.pd.pd.inner.context.runtime().is_inherited() {
            return self.inner.pd.pd.inner.context.check();
        }
        if !self.inner.dereg() {
            return Err(Misuse::invalid("dereg_mr: done already"));
        }
        Ok(())
    }
}

impl MrInner {
    fn dereg(&self) -> bool {
        if self.gone.swap(true, Ordering::AcqRel) {
            return false;
        }
        let runtime = self.pd.pd.inner.context.runtime();
        runtime.deregister(self.key);
        self.pd.release();
        true
    }
}

impl Drop for MrInner {
    fn drop(&mut self) {
        if !self.pd.pd.inner.context.runtime().is_inherited() {
            self.dereg();
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
