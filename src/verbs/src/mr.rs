//! Memory regions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rocebud_objects::{Access, Errno, Misuse};
use rocebud_runtime::keys::Region;
use rocebud_wire::{LKey, RKey};

use crate::Pd;
use crate::attrs::limits;
use crate::pd::PdUse;

/// A memory region. When the last handle is dropped, windows bound to it show nothing any more.
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

    pub(crate) fn pd(&self) -> &Pd {
        self.inner.pd.pd()
    }

    /// `ibv_import_mr`: the same region for another import of its open device.
    ///
    /// # Errors
    /// ENOENT: it was deregistered, or `into` is no import of its device.
    pub fn import(&self, into: &Pd) -> Result<Self, Misuse> {
        into.check()?;
        let related = self.pd().context().is_related(into.context());
        if self.inner.gone.load(Ordering::Acquire) || !related {
            return Err(Misuse::new(
                Errno::ENOENT,
                "import_mr: this open device has no memory region of that handle",
            ));
        }
        Ok(self.clone())
    }

    /// Its open device, or an import of it, is still open.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.pd().is_alive()
    }

    /// `ibv_dereg_mr`: when it returns, nothing reads or writes through the region any more.
    ///
    /// # Errors
    /// EBUSY: memory windows are bound to it. EINVAL: done already. EIO: a child made by fork.
    pub fn dereg(&self) -> Result<(), Misuse> {
        let context = self.inner.pd.pd().context();
        if context.runtime().is_inherited() {
            return context.check();
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("dereg_mr: done already"));
        }
        if context.is_alive()
            && let Err(refused) = context.runtime().deregister(self.inner.key)
        {
            self.inner.gone.store(false, Ordering::Release);
            return Err(refused);
        }
        self.inner.pd.release();
        Ok(())
    }
}

impl Drop for MrInner {
    fn drop(&mut self) {
        let runtime = self.pd.pd().context().runtime();
        if !self.gone.load(Ordering::Acquire) && !runtime.is_inherited() {
            runtime.drop_region(self.key);
        }
    }
}

impl Pd {
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
            pd: self.id(),
            addr,
            iova,
            len,
            access,
        };
        let key = self.context().runtime().register(region)?;
        Ok(Mr {
            inner: Arc::new(MrInner {
                key,
                pd: self.hold(),
                gone: AtomicBool::new(false),
            }),
        })
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
