//! Device memory: plain memory of ours behind the calls of `ibv_alloc_dm`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rocebud_objects::{Access, Errno, Misuse, offset_within};
use rocebud_runtime::Pages;
use rocebud_runtime::keys::Region;

use crate::attrs::limits;
use crate::mr::{MrKind, check_access};
use crate::{Context, Mr, Pd};

/// Device memory. Copies to and from it go by offset.
#[derive(Clone, Debug)]
pub struct Dm {
    inner: Arc<DmInner>,
}

#[derive(Debug)]
struct DmInner {
    context: Context,
    pages: Pages,
    len: u64,
    regions: AtomicU32,
    gone: AtomicBool,
}

/// Keeps device memory from being freed while it is registered.
#[derive(Debug)]
pub(crate) struct DmUse {
    dm: Dm,
    released: AtomicBool,
}

impl DmUse {
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.dm.inner.regions.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for DmUse {
    fn drop(&mut self) {
        self.release();
    }
}

/// What regions of device memory may be used for.
const DM_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::ZERO_BASED);
/// Flags that whoever does not know them may ignore.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

/// Copies go through a buffer of so many bytes.
const COPY_BYTES: usize = 1 << 16;

impl Context {
    /// `ibv_alloc_dm`: `len` zeroed bytes at a multiple of 2^`log_align`.
    ///
    /// A child made by fork may do this with its parent's device: the memory is its own.
    ///
    /// # Errors
    /// EINVAL: length 0 or above `max_dm_size`, alignment above 2^21. ENOMEM.
    pub fn alloc_dm(&self, len: u64, log_align: u32) -> Result<Dm, Misuse> {
        if !self.runtime().is_inherited() {
            self.check()?;
        }
        if len == 0 || len > limits::DM_BYTES_MAX {
            return Err(Misuse::invalid(
                "alloc_dm: length is 0 or above max_dm_size of query_device_ex",
            ));
        }
        if log_align > limits::DM_LOG_ALIGN_MAX {
            return Err(Misuse::invalid("alloc_dm: log_align_req is above 21"));
        }
        let no_memory = || Misuse::new(Errno::ENOMEM, "alloc_dm: the system has no memory for it");
        let bytes = usize::try_from(len).map_err(|_| no_memory())?;
        let pages = Pages::new(bytes, 1 << log_align).map_err(|_| no_memory())?;
        Ok(Dm {
            inner: Arc::new(DmInner {
                context: self.clone(),
                pages,
                len,
                regions: AtomicU32::new(0),
                gone: AtomicBool::new(false),
            }),
        })
    }
}

impl Dm {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// Never: it has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `ibv_memcpy_to_dm`: copies `len` bytes of this process at `host` to `offset`.
    ///
    /// # Errors
    /// EFAULT: beyond the end, or no memory at `host`. EINVAL: offset or length is no multiple of
    /// four, or freed already.
    pub fn copy_to(&self, offset: u64, host: u64, len: u64) -> Result<(), Misuse> {
        let at = self.locate(offset, len)?;
        copy(at, host, len)
    }

    /// `ibv_memcpy_from_dm`: copies `len` bytes at `offset` to this process at `host`.
    ///
    /// # Errors
    /// As [`Dm::copy_to`].
    pub fn copy_from(&self, offset: u64, host: u64, len: u64) -> Result<(), Misuse> {
        let at = self.locate(offset, len)?;
        copy(host, at, len)
    }

    /// `ibv_import_dm`: the same memory for another import of its open device.
    ///
    /// # Errors
    /// ENOENT: it was freed, or `into` is no import of its device.
    pub fn import(&self, into: &Context) -> Result<Self, Misuse> {
        into.check()?;
        let related = self.inner.context.is_related(into);
        if self.inner.gone.load(Ordering::Acquire) || !related {
            return Err(Misuse::new(
                Errno::ENOENT,
                "import_dm: this open device has no device memory of that handle",
            ));
        }
        Ok(self.clone())
    }

    /// Its open device, or an import of it, is still open.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.inner.context.is_alive()
    }

    fn locate(&self, offset: u64, len: u64) -> Result<u64, Misuse> {
        if self.inner.gone.load(Ordering::Acquire) {
            return Err(Misuse::invalid("the device memory was freed"));
        }
        if !(offset | len).is_multiple_of(4) {
            return Err(Misuse::invalid(
                "device memory is copied in whole words: offset and length are multiples of 4",
            ));
        }
        offset_within(0, self.inner.len, offset, len)
            .map(|offset| self.inner.pages.addr() + offset)
            .ok_or(Misuse::new(
                Errno::EFAULT,
                "the copy leaves the device memory",
            ))
    }

    fn hold(&self) -> DmUse {
        self.inner.regions.fetch_add(1, Ordering::AcqRel);
        DmUse {
            dm: self.clone(),
            released: AtomicBool::new(false),
        }
    }

    /// `ibv_free_dm`.
    ///
    /// # Errors
    /// EBUSY: it is registered. EINVAL: done already.
    pub fn free(&self) -> Result<(), Misuse> {
        let inner = &self.inner;
        if inner.regions.load(Ordering::Acquire) != 0 && self.is_alive() {
            return Err(Misuse::new(
                Errno::EBUSY,
                "free_dm: it is registered; deregister its regions first",
            ));
        }
        if inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("free_dm: done already"));
        }
        Ok(())
    }
}

impl Pd {
    /// `ibv_reg_dm_mr`: `len` bytes of device memory from `offset`; SGEs and the peer count from
    /// the region's first byte.
    ///
    /// # Errors
    /// EINVAL: no `ZERO_BASED`, other flags than for local and remote access, a range beyond the
    /// end, memory of another device. ENOMEM: too many regions.
    pub fn reg_dm_mr(&self, dm: &Dm, offset: u64, len: u64, access: Access) -> Result<Mr, Misuse> {
        self.check()?;
        check_access(access)?;
        let named = Access::from_bits_retain(access.bits() & !OPTIONAL_ACCESS);
        if !access.contains(Access::ZERO_BASED) || !DM_ACCESS.contains(named) {
            return Err(Misuse::invalid(
                "reg_dm_mr: needs ZERO_BASED and takes only LOCAL_WRITE and REMOTE_* beside it",
            ));
        }
        let inner = &dm.inner;
        if !inner.context.is_related(self.context()) || inner.gone.load(Ordering::Acquire) {
            return Err(Misuse::invalid(
                "reg_dm_mr: the device memory was freed or belongs to another open device",
            ));
        }
        let offset = offset_within(0, inner.len, offset, len).ok_or(Misuse::invalid(
            "reg_dm_mr: the range leaves the device memory",
        ))?;
        let region = Region {
            pd: self.id(),
            addr: inner.pages.addr() + offset,
            iova: 0,
            len,
            access,
            is_null: false,
        };
        self.add_region(region, MrKind::Device(dm.hold()))
    }
}

/// Guarded on both ends: the program's may not be there, ours may be in use by the peer.
fn copy(to: u64, from: u64, len: u64) -> Result<(), Misuse> {
    const FAULT: Misuse = Misuse::new(Errno::EFAULT, "the memory to copy is not mapped");
    let address = |base: u64, done: u64| {
        let at = base.checked_add(done).ok_or(FAULT)?;
        usize::try_from(at).map_err(|_| FAULT)
    };
    rocebud_runtime::ensure_in_front();
    let step = len.min(COPY_BYTES as u64);
    let mut buffer = vec![0; usize::try_from(step).unwrap_or(COPY_BYTES)];
    let mut done = 0;
    while done < len {
        let n = usize::try_from(len - done).map_or(buffer.len(), |left| left.min(buffer.len()));
        let piece = &mut buffer[..n];
        rocebud_runtime::copy_in(piece, address(from, done)?).map_err(|_| FAULT)?;
        rocebud_runtime::copy_out(address(to, done)?, piece).map_err(|_| FAULT)?;
        done += n as u64;
    }
    Ok(())
}
