//! An open device.

use std::os::fd::RawFd;

use rocebud_ctl::DeviceInfo;
use rocebud_objects::{EventKind, Misuse};
use rocebud_wire::{Gid, PKey};

use crate::{AsyncEventOut, CompChannel, Cq, DeviceAttr, Pd, PortAttr};

/// An entry of a GID table; `struct ibv_gid_entry`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct GidTableEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    /// 2 = RoCE v2.
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// An open device.
#[derive(Clone, Debug)]
pub struct Context {}

impl Context {
    /// The device as it is now.
    #[must_use]
    pub fn device_info(&self) -> DeviceInfo {
        todo!()
    }

    /// `ibv_query_device`.
    #[must_use]
    pub fn query_device(&self) -> DeviceAttr {
        todo!()
    }

    /// `ibv_query_port`.
    ///
    /// # Errors
    /// EINVAL: the port is not 1.
    pub fn query_port(&self, _port: u8) -> Result<PortAttr, Misuse> {
        todo!()
    }

    /// `ibv_query_gid`: an empty slot inside the table gives the zero GID.
    ///
    /// # Errors
    /// EINVAL: bad port, or index outside the table.
    pub fn query_gid(&self, _port: u8, _index: u32) -> Result<Gid, Misuse> {
        todo!()
    }

    /// `ibv_query_gid_ex`.
    ///
    /// # Errors
    /// ENODATA: empty or outside the table. EINVAL: bad port.
    pub fn query_gid_entry(&self, _port: u32, _index: u32) -> Result<GidTableEntry, Misuse> {
        todo!()
    }

    /// `ibv_query_gid_table`: the entries that are not empty.
    #[must_use]
    pub fn gid_table(&self) -> Vec<GidTableEntry> {
        todo!()
    }

    /// `ibv_query_pkey`: one entry, 0xffff.
    ///
    /// # Errors
    /// EINVAL: bad port or index.
    pub fn query_pkey(&self, _port: u8, _index: u32) -> Result<PKey, Misuse> {
        todo!()
    }

    /// Becomes readable when an asynchronous event waits.
    #[must_use]
    pub fn async_fd(&self) -> RawFd {
        todo!()
    }

    /// `ibv_get_async_event`: blocks unless the descriptor has O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN: non-blocking and nothing there. EINTR as errno 4: a signal. EIO: the device is dead
    /// and everything was told.
    pub fn next_async_event(&self) -> Result<AsyncEventOut, Misuse> {
        todo!()
    }

    /// Raises an event about this device's port or the device itself, for tests.
    #[doc(hidden)]
    pub fn raise(&self, _kind: EventKind) {
        todo!()
    }

    /// `ibv_alloc_pd`.
    ///
    /// # Errors
    /// ENOMEM: too many. EIO: the device is dead.
    pub fn alloc_pd(&self) -> Result<Pd, Misuse> {
        todo!()
    }

    /// `ibv_create_comp_channel`.
    ///
    /// # Errors
    /// EMFILE as errno 24: no descriptor left.
    pub fn create_comp_channel(&self) -> Result<CompChannel, Misuse> {
        todo!()
    }

    /// `ibv_create_cq`: `cqe` entries at least; `user` is what [`CqEvent::user`](crate::CqEvent)
    /// gives back.
    ///
    /// # Errors
    /// EINVAL: `cqe` 0 or above `max_cqe`, or no such completion vector.
    pub fn create_cq(
        &self,
        _cqe: u32,
        _channel: Option<&CompChannel>,
        _comp_vector: u32,
        _user: u64,
    ) -> Result<Cq, Misuse> {
        todo!()
    }

    /// `ibv_close_device`: destroys whatever of it is left. Later calls on its objects fail.
    pub fn close(&self) {
        todo!()
    }

    /// The word that the layer above keeps here.
    #[must_use]
    pub fn user(&self) -> u64 {
        todo!()
    }

    /// Sets [`Context::user`].
    pub fn set_user(&self, _user: u64) {
        todo!()
    }
}
