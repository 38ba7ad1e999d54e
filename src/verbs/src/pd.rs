//! Protection domains, memory regions, address handles.

use rocebud_objects::{Access, AhAttr, Misuse, Path, SrqAttr};
use rocebud_wire::{LKey, RKey};

use crate::{Qp, QpCreate, Srq};

/// A protection domain.
#[derive(Clone, Debug)]
pub struct Pd {}

impl Pd {
    /// `ibv_reg_mr_iova2`: `len` bytes at `addr` of this process, known to the peer (and to SGEs)
    /// as `iova`. For `ibv_reg_mr` give `iova = addr`, or 0 with `ZERO_BASED`.
    ///
    /// # Errors
    /// EINVAL: flags (remote write or atomic without local write, unknown ones), wrapping range,
    /// iova and address not congruent modulo the page size. EFAULT: memory not there, or not
    /// writable with `LOCAL_WRITE`. EOPNOTSUPP: on demand. ENOMEM: too many regions.
    pub fn reg_mr(&self, _addr: u64, _len: u64, _iova: u64, _access: Access) -> Result<Mr, Misuse> {
        todo!()
    }

    /// `ibv_create_srq`. `user` is what asynchronous events give back.
    ///
    /// # Errors
    /// EINVAL: sizes 0 or above the device's.
    pub fn create_srq(&self, _attr: &SrqAttr, _user: u64) -> Result<Srq, Misuse> {
        todo!()
    }

    /// `ibv_create_ah`.
    ///
    /// # Errors
    /// EINVAL: not global, bad port, empty GID index, address family does not fit.
    pub fn create_ah(&self, _attr: &AhAttr) -> Result<Ah, Misuse> {
        todo!()
    }

    /// `ibv_create_qp`. The granted sizes are in [`Qp::cap`].
    ///
    /// # Errors
    /// EINVAL: sizes above the device's, SRQ with UC, queues of another device. ENOMEM: no queue
    /// pair numbers left.
    pub fn create_qp(&self, _create: &QpCreate) -> Result<Qp, Misuse> {
        todo!()
    }

    /// `ibv_dealloc_pd`.
    ///
    /// # Errors
    /// EBUSY: regions, queue pairs, SRQs or address handles are left on it.
    pub fn dealloc(&self) -> Result<(), Misuse> {
        todo!()
    }
}

/// A memory region.
#[derive(Clone, Debug)]
pub struct Mr {}

impl Mr {
    /// Key for SGEs.
    #[must_use]
    pub fn lkey(&self) -> LKey {
        todo!()
    }

    /// Key for the peer.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        todo!()
    }

    /// `ibv_dereg_mr`: when it returns, nothing reads or writes through the region any more.
    ///
    /// # Errors
    /// EINVAL: done already. EBUSY: windows are bound to it.
    pub fn dereg(&self) -> Result<(), Misuse> {
        todo!()
    }
}

/// An address handle: a resolved destination.
#[derive(Clone, Debug)]
pub struct Ah {}

impl Ah {
    /// For [`UdAddress`](rocebud_objects::UdAddress).
    #[must_use]
    pub fn path(&self) -> Path {
        todo!()
    }

    /// As it was asked for.
    #[must_use]
    pub fn attr(&self) -> AhAttr {
        todo!()
    }

    /// `ibv_destroy_ah`. Requests posted with it are not affected.
    ///
    /// # Errors
    /// EINVAL: done already.
    pub fn destroy(&self) -> Result<(), Misuse> {
        todo!()
    }
}
