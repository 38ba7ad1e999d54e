//! Memory regions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rocebud_objects::{Access, Errno, Misuse};
use rocebud_runtime::keys::Region;
use rocebud_wire::{LKey, RKey};

use crate::Pd;
use crate::attrs::limits;
use crate::dm::DmUse;
use crate::pd::PdUse;

/// A memory region. When the last handle is dropped, windows bound to it show nothing any more.
#[derive(Clone, Debug)]
pub struct Mr {
    inner: Arc<MrInner>,
}

#[derive(Debug)]
struct MrInner {
    key: u32,
    kind: MrKind,
    /// Changes by re-registration.
    pd: Mutex<PdUse>,
    gone: AtomicBool,
}

/// What is behind a region.
#[derive(Debug)]
pub(crate) enum MrKind {
    /// The program's own memory.
    Memory,
    /// Nothing.
    Null,
    /// Device memory, which stays as long as the region.
    Device(DmUse),
}

/// What `ibv_rereg_mr` changes; `None` stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rereg<'a> {
    /// Another range of memory: address and bytes. It is called by its address from then on.
    pub range: Option<(u64, u64)>,
    /// Another protection domain.
    pub pd: Option<&'a Pd>,
    /// Other access flags.
    pub access: Option<Access>,
}

/// What pages of an on-demand region are prepared for; values of `enum ibv_advise_mr_advice`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Advice {
    /// Reading.
    Prefetch = 0,
    /// Writing.
    PrefetchWrite = 1,
    /// Reading, as far as the pages are in memory already.
    PrefetchNoFault = 2,
}

/// A piece of a region that an advice is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdvisedRange {
    /// Key.
    pub lkey: LKey,
    /// First byte, as SGEs name it.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

impl Mr {
    /// Key for SGEs.
    #[must_use]
    pub fn lkey(&self) -> LKey {
        LKey(self.inner.key)
    }

    /// Key for the peer; 0 for a null region, which has none.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        match self.inner.kind {
            MrKind::Null => RKey(0),
            _ => RKey(self.inner.key),
        }
    }

    /// Protection domain, as it is now.
    pub(crate) fn pd(&self) -> Pd {
        self.inner.pd()
    }

    /// `ibv_rereg_mr`. Keys stay, and so does memory that windows could show: it must have none
    /// bound. When this returns, nothing uses the region by its old rules any more.
    ///
    /// # Errors
    /// As [`Pd::reg_mr`] for what the region would become. EINVAL: nothing is to change, device
    /// memory, a null region. EBUSY: windows are bound to it. Nothing has changed.
    pub fn rereg(&self, change: &Rereg<'_>) -> Result<(), Misuse> {
        let inner = &self.inner;
        let mut held = inner.pd.lock().unwrap_or_else(PoisonError::into_inner);
        let context = held.pd().context().clone();
        context.check()?;
        if !matches!(inner.kind, MrKind::Memory) {
            return Err(Misuse::invalid(
                "rereg_mr: only ordinary memory regions can be registered anew",
            ));
        }
        let keys = context.runtime().keys();
        let old = keys
            .region(inner.key)
            .filter(|_| !inner.gone.load(Ordering::Acquire))
            .ok_or(Misuse::invalid("rereg_mr: the region was deregistered"))?;
        let new = rewritten(&old, change)?;
        if let Some(pd) = change.pd {
            pd.check()?;
            if !pd.context().is_related(&context) {
                return Err(Misuse::invalid(
                    "rereg_mr: the protection domain belongs to another open device",
                ));
            }
        }
        prepare(&new)?;
        keys.replace(inner.key, new)?;
        if let Some(pd) = change.pd {
            *held = pd.hold();
        }
        Ok(())
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
        let inner = &self.inner;
        let held = inner.pd.lock().unwrap_or_else(PoisonError::into_inner);
        let context = held.pd().context();
        if context.runtime().is_inherited() {
            return context.check();
        }
        if inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("dereg_mr: done already"));
        }
        if context.is_alive()
            && let Err(refused) = context.runtime().deregister(self.inner.key)
        {
            inner.gone.store(false, Ordering::Release);
            return Err(refused);
        }
        if let MrKind::Device(memory) = &inner.kind {
            memory.release();
        }
        held.release();
        Ok(())
    }
}

impl MrInner {
    fn pd(&self) -> Pd {
        let held = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        held.pd().clone()
    }
}

impl Drop for MrInner {
    fn drop(&mut self) {
        let pd = self.pd();
        let runtime = pd.context().runtime();
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
    /// With `ON_DEMAND` the memory may come and go: what is not there when it is used becomes an
    /// error of that use. Address 0 with length 2^64 - 1 is then the whole address space.
    ///
    /// # Errors
    /// EINVAL: flags (remote write or atomic without local write, unknown ones), wrapping range,
    /// iova and address not congruent modulo the page size. EFAULT: memory not there, or not
    /// writable with `LOCAL_WRITE`. ENOMEM: too many regions.
    pub fn reg_mr(&self, addr: u64, len: u64, iova: u64, access: Access) -> Result<Mr, Misuse> {
        self.check()?;
        let iova = if access.contains(Access::ZERO_BASED) {
            0
        } else {
            check_iova(addr, iova)?;
            iova
        };
        let region = Region {
            pd: self.id(),
            addr,
            iova,
            len,
            access,
            is_null: false,
        };
        prepare(&region)?;
        self.add_region(region, MrKind::Memory)
    }

    /// `ibv_alloc_null_mr`: a region of the greatest length whose local key takes any bytes and
    /// gives zeros. It has no key for the peer.
    ///
    /// # Errors
    /// ENOMEM: too many regions.
    pub fn alloc_null_mr(&self) -> Result<Mr, Misuse> {
        self.check()?;
        let region = Region {
            pd: self.id(),
            addr: 0,
            iova: 0,
            len: u64::MAX,
            access: Access::LOCAL_WRITE,
            is_null: true,
        };
        self.add_region(region, MrKind::Null)
    }

    pub(crate) fn add_region(&self, region: Region, kind: MrKind) -> Result<Mr, Misuse> {
        let key = self.context().runtime().register(region)?;
        Ok(Mr {
            inner: Arc::new(MrInner {
                key,
                kind,
                pd: Mutex::new(self.hold()),
                gone: AtomicBool::new(false),
            }),
        })
    }

    /// `ibv_advise_mr`: brings pages of on-demand regions in before they are used. With `wait`
    /// (`IBV_ADVISE_MR_FLAG_FLUSH`) the call tells whether that worked; otherwise the pages are
    /// brought in as far as possible.
    ///
    /// # Errors
    /// EFAULT: bad key, a range that leaves its region, a region that may not be written (for
    /// writing), or, with `wait`, memory that is not there. EINVAL: a region that is not on
    /// demand.
    pub fn advise_mr(
        &self,
        advice: Advice,
        wait: bool,
        ranges: &[AdvisedRange],
    ) -> Result<(), Misuse> {
        self.check()?;
        let write = advice == Advice::PrefetchWrite;
        let found: Vec<(u64, u64)> = ranges
            .iter()
            .map(|range| self.advised(range, write))
            .collect::<Result<_, _>>()?;
        if advice == Advice::PrefetchNoFault {
            return Ok(());
        }
        rocebud_runtime::ensure_in_front();
        for (addr, len) in found {
            let brought = probe(addr, len, write);
            if wait {
                brought.map_err(|_| {
                    Misuse::new(Errno::EFAULT, "advise_mr: the memory is not mapped")
                })?;
            }
        }
        Ok(())
    }

    /// Where the bytes of an advice are.
    fn advised(&self, range: &AdvisedRange, write: bool) -> Result<(u64, u64), Misuse> {
        let keys = self.context().runtime().keys();
        let bad = |why| Misuse::new(Errno::EFAULT, why);
        let region = keys
            .region(range.lkey.0)
            .ok_or_else(|| bad("advise_mr: no region has this lkey"))?;
        if region.pd != self.id() {
            return Err(bad("advise_mr: the region is of another protection domain"));
        }
        if !region.access.contains(Access::ON_DEMAND) {
            return Err(Misuse::invalid("advise_mr: the region is not on demand"));
        }
        if write && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(bad("advise_mr: the region may not be written"));
        }
        rocebud_objects::offset_within(region.iova, region.len, range.addr, range.len)
            .and_then(|offset| region.addr.checked_add(offset))
            .map(|addr| (addr, range.len))
            .ok_or_else(|| bad("advise_mr: the range leaves its region"))
    }
}

/// What a region becomes by re-registration.
fn rewritten(old: &Region, change: &Rereg<'_>) -> Result<Region, Misuse> {
    if change.range.is_none() && change.pd.is_none() && change.access.is_none() {
        return Err(Misuse::invalid("rereg_mr: nothing is to change"));
    }
    let mut new = *old;
    if let Some((addr, len)) = change.range {
        (new.addr, new.len, new.iova) = (addr, len, addr);
    }
    if let Some(access) = change.access {
        new.access = access;
    }
    if new.access.contains(Access::ZERO_BASED) {
        new.iova = 0;
    } else if old.access.contains(Access::ZERO_BASED) {
        new.iova = new.addr;
    }
    if let Some(pd) = change.pd {
        new.pd = pd.id();
    }
    Ok(new)
}

/// Checks everything about a region of the program's memory, and brings its pages in unless they
/// may come on demand.
fn prepare(region: &Region) -> Result<(), Misuse> {
    check_access(region.access)?;
    let on_demand = region.access.contains(Access::ON_DEMAND);
    let everything = on_demand && region.addr == 0 && region.len == u64::MAX;
    if !everything {
        check_range(region.addr, region.iova, region.len)?;
    }
    // Whoever installed a SIGSEGV handler since gets ours in front again.
    rocebud_runtime::ensure_in_front();
    if on_demand {
        return Ok(());
    }
    let write = region.access.contains(Access::LOCAL_WRITE);
    probe(region.addr, region.len, write).map_err(|_| {
        Misuse::new(
            Errno::EFAULT,
            "reg_mr: the memory is not mapped, or not writable although LOCAL_WRITE was asked for",
        )
    })
}

/// Bits that mean something to somebody below the optional range.
const KNOWN_ACCESS: u32 = 0x3ff;
/// Bits that may be ignored by whoever does not know them.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

pub(crate) fn check_access(access: Access) -> Result<(), Misuse> {
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

/// The memory is not there, or not for this use.
#[derive(Clone, Copy, Debug)]
struct NotThere;

fn probe(addr: u64, len: u64, write: bool) -> Result<(), NotThere> {
    let addr = usize::try_from(addr).map_err(|_| NotThere)?;
    let len = usize::try_from(len).map_err(|_| NotThere)?;
    rocebud_runtime::probe(addr, len, write).map_err(|_| NotThere)
}
