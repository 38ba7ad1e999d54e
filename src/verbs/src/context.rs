//! An open device.

use std::collections::HashSet;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rocebud_ctl::DeviceInfo;
use rocebud_objects::{Counter, Errno, EventKind, Misuse, PdId};
use rocebud_runtime::Runtime;
use rocebud_runtime::context::{ContextShared, Element};
use rocebud_wire::{Gid, PKey};

use crate::attrs::{self, limits};
use crate::raw::is_no_right;
use crate::{AsyncEventOut, CompChannel, Cq, CqCreate, DeviceAttr, Pd, PortAttr, Td};

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
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    runtime: Arc<Runtime>,
    shared: Arc<ContextShared>,
    /// As it was when it was opened: for what never changes.
    opened: DeviceInfo,
    /// Whether its attributes speak of raw packets: as it was when they were first asked for. To
    /// find out takes the kernel up to 20 ms, and programs ask for each connection.
    raw: OnceLock<bool>,
    family: Arc<Family>,
}

/// What an open device and its imports have together. It ends when the last of them is closed.
#[derive(Debug)]
pub(crate) struct Family {
    runtime: Arc<Runtime>,
    /// Members that are open.
    open: AtomicUsize,
    pds: Mutex<HashSet<PdId>>,
}

impl Family {
    fn pds(&self) -> std::sync::MutexGuard<'_, HashSet<PdId>> {
        self.pds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget_pd(&self, id: PdId) {
        if !self.runtime.is_inherited() {
            self.pds().remove(&id);
        }
    }

    fn leave(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            let pds = self.pds();
            self.runtime.deregister_pds(|pd| pds.contains(&pd));
        }
    }
}

const NO_PORT: Misuse = Misuse::invalid("the only port of a device is 1");
const CLOSED: Misuse = Misuse::invalid("the device was closed");
const GONE: Misuse = Misuse::new(
    Errno::ENODEV,
    "the interface of this device was removed: close it and open another",
);

impl Context {
    pub(crate) fn new(
        runtime: Arc<Runtime>,
        shared: Arc<ContextShared>,
        opened: DeviceInfo,
    ) -> Self {
        let family = Arc::new(Family {
            runtime: Arc::clone(&runtime),
            open: AtomicUsize::new(1),
            pds: Mutex::default(),
        });
        let inner = Arc::new(Inner {
            runtime,
            shared,
            opened,
            raw: OnceLock::new(),
            family,
        });
        Self { inner }
    }

    /// `ibv_import_device`, within the process: another open device of the same family, with
    /// events of its own. Protection domains and regions can be imported between them, and stay
    /// until the last is closed.
    ///
    /// # Errors
    /// EIO, ENODEV: the device is dead. EMFILE: no descriptor left.
    pub fn import(&self) -> Result<Self, Misuse> {
        self.inner.runtime.check()?;
        let shared = self.inner.runtime.open(self.inner.shared.ifindex)?;
        let family = Arc::clone(&self.inner.family);
        family.open.fetch_add(1, Ordering::AcqRel);
        let inner = Arc::new(Inner {
            runtime: Arc::clone(&self.inner.runtime),
            shared,
            opened: self.inner.opened.clone(),
            raw: self.inner.raw.clone(),
            family,
        });
        Ok(Self { inner })
    }

    pub(crate) fn family(&self) -> &Arc<Family> {
        &self.inner.family
    }

    /// The very same open device.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner.shared, &other.inner.shared)
    }

    /// The same open device, or one is an import of the other.
    pub(crate) fn is_related(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner.family, &other.inner.family)
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.inner.runtime
    }

    pub(crate) fn shared(&self) -> &Arc<ContextShared> {
        &self.inner.shared
    }

    /// Every call that uses the device begins here.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Misuse> {
        self.inner.runtime.check()?;
        if self.inner.shared.is_closed() {
            return Err(CLOSED);
        }
        if self.inner.shared.is_gone() {
            return Err(GONE);
        }
        Ok(())
    }

    /// Something may be made on it: it is open, its interface and the daemon are there, and this
    /// process has opened it.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.check().is_ok()
    }

    /// Nothing more will come of it. Unlike [`Context::check`] this holds back until everything
    /// that was posted is flushed.
    pub(crate) fn check_lost(&self) -> Result<(), Misuse> {
        let shared = &self.inner.shared;
        if shared.is_gone() || shared.is_closed() || self.inner.runtime.is_inherited() {
            return self.check();
        }
        Ok(())
    }

    /// Its objects still exist, as far as it is concerned; true also when the daemon is gone.
    pub(crate) fn is_open(&self) -> bool {
        !self.inner.runtime.is_inherited() && !self.inner.shared.is_closed()
    }

    /// This process may use the open device at all.
    ///
    /// # Errors
    /// EIO: a child made by fork.
    pub fn check_process(&self) -> Result<(), Misuse> {
        if self.inner.runtime.is_inherited() {
            return self.inner.runtime.check();
        }
        Ok(())
    }

    /// It or an import of it is still open.
    pub(crate) fn is_alive(&self) -> bool {
        !self.inner.runtime.is_inherited() && self.inner.family.open.load(Ordering::Acquire) != 0
    }

    /// The device as it is now; as it last was, if its interface is gone.
    #[must_use]
    pub fn device_info(&self) -> DeviceInfo {
        self.current().unwrap_or_else(|| self.inner.opened.clone())
    }

    fn current(&self) -> Option<DeviceInfo> {
        if self.inner.runtime.is_inherited() {
            return None;
        }
        self.inner.runtime.device(self.inner.shared.ifindex)
    }

    /// `ibv_query_device`.
    #[must_use]
    pub fn query_device(&self) -> DeviceAttr {
        let raw = self.check().is_ok() && self.may_carry_raw();
        attrs::device_attr(self.inner.opened.guid, raw)
    }

    /// Stays as it was found first; but who had no descriptor to ask with asks again.
    fn may_carry_raw(&self) -> bool {
        if let Some(known) = self.inner.raw.get() {
            return *known;
        }
        match self.inner.runtime.check_raw() {
            Err(why) if !is_no_right(&why) => false,
            answer => *self.inner.raw.get_or_init(|| answer.is_ok()),
        }
    }

    /// `ibv_query_port`. The port is DOWN when the interface or the daemon is gone.
    ///
    /// # Errors
    /// EINVAL: the port is not 1.
    pub fn query_port(&self, port: u8) -> Result<PortAttr, Misuse> {
        if port != 1 {
            return Err(NO_PORT);
        }
        let lost = self.inner.runtime.is_dead() || self.inner.shared.is_gone();
        let device = self.current().filter(|_| !lost);
        Ok(attrs::port_attr(device.as_ref()))
    }

    /// `ibv_query_gid`: an empty slot inside the table gives the zero GID.
    ///
    /// # Errors
    /// EINVAL: bad port, or index outside the table.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Gid, Misuse> {
        if port != 1 {
            return Err(NO_PORT);
        }
        let entry = self.device_info().gids.get(index as usize).copied();
        let entry = entry.ok_or(Misuse::invalid(
            "query_gid: the index is outside the GID table",
        ))?;
        Ok(entry.map_or(Gid::ZERO, |e| e.gid()))
    }

    /// `ibv_query_gid_ex`.
    ///
    /// # Errors
    /// ENODATA: empty or outside the table. EINVAL: bad port.
    pub fn query_gid_entry(&self, port: u32, index: u32) -> Result<GidTableEntry, Misuse> {
        if port != 1 {
            return Err(NO_PORT);
        }
        let entries = self.gid_table();
        let entry = entries.into_iter().find(|e| e.gid_index == index);
        entry.ok_or(Misuse::new(
            Errno::ENODATA,
            "query_gid_ex: no GID at this index",
        ))
    }

    /// `ibv_query_gid_table`: the entries that are not empty.
    #[must_use]
    pub fn gid_table(&self) -> Vec<GidTableEntry> {
        let device = self.device_info();
        let entries = device.gids.iter().enumerate();
        entries
            .filter_map(|(index, entry)| {
                let entry = (*entry)?;
                Some(GidTableEntry {
                    gid: entry.gid(),
                    gid_index: u32::try_from(index).ok()?,
                    port_num: 1,
                    gid_type: 2,
                    ndev_ifindex: entry.ifindex,
                })
            })
            .collect()
    }

    /// `ibv_query_pkey`: one entry, 0xffff.
    ///
    /// # Errors
    /// EINVAL: bad port or index.
    pub fn query_pkey(&self, port: u8, index: u32) -> Result<PKey, Misuse> {
        match (port, index) {
            (1, 0) => Ok(PKey::DEFAULT),
            (1, _) => Err(Misuse::invalid("query_pkey: the table has one entry")),
            _ => Err(NO_PORT),
        }
    }

    /// A counter of this process (of all its devices together).
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.inner.runtime.counter(counter)
    }

    /// Becomes readable when an asynchronous event waits.
    #[must_use]
    pub fn async_fd(&self) -> RawFd {
        self.inner.shared.async_fd()
    }

    /// `ibv_get_async_event`: blocks unless the descriptor has O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN: non-blocking and nothing there. EINTR as errno 4: a signal. EIO: a child made by
    /// fork.
    pub fn next_async_event(&self) -> Result<AsyncEventOut, Misuse> {
        if self.inner.runtime.is_inherited() {
            self.inner.runtime.check()?;
        }
        let notice = self.inner.runtime.next_async_event(&self.inner.shared)?;
        Ok(AsyncEventOut::new(notice))
    }

    /// As [`Context::next_async_event`], for callers that wait themselves: `None` means that eight
    /// bytes are to be read from the descriptor, and the outcome brought here.
    ///
    /// # Errors
    /// As [`Context::next_async_event`].
    pub fn async_event(
        &self,
        read: Option<std::io::Result<()>>,
    ) -> Result<Option<AsyncEventOut>, Misuse> {
        if self.inner.runtime.is_inherited() {
            self.inner.runtime.check()?;
        }
        let notice = self.inner.runtime.async_event(&self.inner.shared, read)?;
        Ok(notice.map(AsyncEventOut::new))
    }

    /// Raises an event about this device's port or the device itself, for tests.
    #[doc(hidden)]
    pub fn raise(&self, kind: EventKind) {
        let element = match kind {
            EventKind::DeviceFatal => Element::Device,
            _ => Element::Port(1),
        };
        self.inner.shared.raise(kind, element);
    }

    /// `ibv_alloc_pd`.
    ///
    /// # Errors
    /// EIO: the device is dead. ENOMEM: too many.
    pub fn alloc_pd(&self) -> Result<Pd, Misuse> {
        self.check()?;
        let mut pds = self.inner.family.pds();
        if pds.len() >= limits::PD_MAX as usize {
            return Err(Misuse::new(
                Errno::ENOMEM,
                "alloc_pd: too many protection domains",
            ));
        }
        let id = self.inner.runtime.next_pd();
        pds.insert(id);
        drop(pds);
        Ok(Pd::new(self.clone(), id))
    }

    /// `ibv_alloc_td`.
    ///
    /// # Errors
    /// EIO: the device is dead.
    pub fn alloc_td(&self) -> Result<Td, Misuse> {
        self.check()?;
        Ok(Td::new(self.clone()))
    }

    /// `ibv_create_comp_channel`.
    ///
    /// # Errors
    /// EMFILE as errno 24: no descriptor left.
    pub fn create_comp_channel(&self) -> Result<CompChannel, Misuse> {
        self.check()?;
        let shared = self.inner.runtime.create_channel(&self.inner.shared)?;
        Ok(CompChannel::new(self.clone(), shared))
    }

    /// `ibv_create_cq`: `cqe` entries at least; `user` is what [`CqEvent::user`](crate::CqEvent)
    /// gives back.
    ///
    /// # Errors
    /// EINVAL: `cqe` 0 or above `max_cqe`, or no such completion vector.
    pub fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&CompChannel>,
        comp_vector: u32,
        user: u64,
    ) -> Result<Cq, Misuse> {
        self.create_cq_ex(CqCreate {
            cqe,
            channel: channel.cloned(),
            comp_vector,
            user,
            ..CqCreate::default()
        })
    }

    /// `ibv_create_cq_ex`.
    ///
    /// # Errors
    /// As [`Context::create_cq`].
    pub fn create_cq_ex(&self, create: CqCreate) -> Result<Cq, Misuse> {
        Cq::create(self, create)
    }

    /// `ibv_query_rt_values_ex`: the clock of completions' timestamps, in nanoseconds.
    ///
    /// # Errors
    /// EIO: the device is dead.
    pub fn clock_ns(&self) -> Result<u64, Misuse> {
        self.check()?;
        Ok(self.inner.runtime.clock_ns())
    }

    /// `ibv_close_device`: destroys whatever of it is left, without waiting for acknowledgements.
    /// Later calls on its objects fail.
    pub fn close(&self) {
        self.inner.close();
    }

    /// The word that the layer above keeps here.
    #[must_use]
    pub fn user(&self) -> u64 {
        self.inner.shared.user.load(Ordering::Acquire)
    }

    /// Sets [`Context::user`].
    pub fn set_user(&self, user: u64) {
        self.inner.shared.user.store(user, Ordering::Release);
    }
}

impl Inner {
    fn close(&self) {
        if self.runtime.is_inherited() || !self.shared.mark_closed() {
            return;
        }
        self.runtime.destroy_context(&self.shared);
        self.family.leave();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}
