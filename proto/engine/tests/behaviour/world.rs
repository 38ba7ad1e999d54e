//! A model of memory, completion queues and events: one side's [`Env`].

use std::collections::{BTreeMap, BTreeSet};

use rocebud_engine::{CqOverrun, Env, LocalFault, RemoteFault, Scope};
use rocebud_objects::{
    Access, AsyncEvent, AtomicOp, BindFault, BindTarget, Counter, CqId, FlushPlacement,
    InvalidateFault, MwBind, MwType, Note, PdId, Wc, Window,
};
use rocebud_wire::{Gid, LKey, Qpn, RKey};

pub struct Region {
    pub pd: PdId,
    pub start: u64,
    pub bytes: Vec<u8>,
    pub access: Access,
    /// May be invalidated; ordinary regions refuse.
    pub window: bool,
}

/// Low bits of a key that do not name the window.
const KEY_BITS: u32 = 8;

#[derive(Default)]
pub struct World {
    pub regions: BTreeMap<u32, Region>,
    /// Memory windows by the upper bits of their keys.
    pub windows: BTreeMap<u32, Window>,
    pub wcs: BTreeMap<CqId, Vec<Wc>>,
    pub solicited: usize,
    pub cq_room: Option<usize>,
    pub events: Vec<AsyncEvent>,
    pub counters: BTreeMap<usize, u64>,
    pub notes: Vec<(Qpn, Note)>,
    pub flushes: Vec<(u64, u64, bool, u8)>,
    /// Bytes that the peer's buffer still takes, if it is known; `None` = not known.
    pub room: Option<u64>,
    /// The peer is known not to have read all.
    pub behind: bool,
    /// Pages that are "not there": any access gives a page fault.
    pub bad_pages: BTreeSet<u64>,
}

impl World {
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(&(counter as usize)).copied().unwrap_or(0)
    }

    fn range(
        &self,
        pd: PdId,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<usize, RemoteFault> {
        let region = self.regions.get(&key).ok_or(RemoteFault::Key)?;
        if region.pd != pd {
            return Err(RemoteFault::Pd);
        }
        if !region.access.contains(need) {
            return Err(RemoteFault::Access);
        }
        let size = region.bytes.len() as u64;
        let offset = addr.wrapping_sub(region.start);
        if offset > size || len > size - offset {
            return Err(RemoteFault::Bounds);
        }
        if self
            .bad_pages
            .range((addr & !4095)..addr.saturating_add(len))
            .next()
            .is_some()
        {
            return Err(RemoteFault::Page);
        }
        Ok(offset as usize)
    }

    fn slice(
        &mut self,
        pd: PdId,
        key: u32,
        addr: u64,
        len: usize,
        need: Access,
    ) -> Result<&mut [u8], RemoteFault> {
        let at = self.range(pd, key, addr, len as u64, need)?;
        Ok(&mut self.regions.get_mut(&key).unwrap().bytes[at..at + len])
    }

    pub fn add_window(&mut self, pd: PdId, mw_type: MwType, rkey: u32) {
        let window = Window::new(pd, mw_type, RKey(rkey));
        self.windows.insert(rkey >> KEY_BITS, window);
    }

    pub fn is_bound(&self, rkey: u32) -> bool {
        self.windows[&(rkey >> KEY_BITS)].binding.is_some()
    }

    /// The region's key and address behind what the peer named, which may be a window.
    fn remote(
        &self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<(PdId, u32, u64, Access), RemoteFault> {
        let Some(window) = self.windows.get(&(rkey.0 >> KEY_BITS)) else {
            return Ok((scope.pd, rkey.0, va, need));
        };
        let offset = window.check_use(scope, rkey, va, len, need)?;
        let lkey = window.binding.unwrap().lkey.0;
        let start = self.regions[&lkey].start;
        Ok((scope.pd, lkey, start + offset, Access::empty()))
    }

    fn remote_slice(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: usize,
        need: Access,
    ) -> Result<&mut [u8], RemoteFault> {
        let (pd, key, addr, need) = self.remote(scope, rkey, va, len as u64, need)?;
        self.slice(pd, key, addr, len, need)
    }

    /// Direct look at memory, by the test.
    pub fn peek(&self, key: u32, addr: u64, len: usize) -> &[u8] {
        let region = &self.regions[&key];
        let at = (addr - region.start) as usize;
        &region.bytes[at..at + len]
    }

    pub fn poke(&mut self, key: u32, addr: u64, bytes: &[u8]) {
        let region = self.regions.get_mut(&key).unwrap();
        let at = (addr - region.start) as usize;
        region.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

fn local(fault: RemoteFault) -> LocalFault {
    match fault {
        RemoteFault::Key => LocalFault::Key,
        RemoteFault::Pd => LocalFault::Pd,
        RemoteFault::Bounds => LocalFault::Bounds,
        RemoteFault::Access => LocalFault::Access,
        RemoteFault::Page => LocalFault::Page,
    }
}

impl Env for World {
    fn has_room(&mut self, _to: Gid, _slot: u16, bytes: u64) -> bool {
        let Some(room) = &mut self.room else {
            return true;
        };
        let left = room.checked_sub(bytes);
        *room = left.unwrap_or(*room);
        left.is_some()
    }

    fn is_behind(&mut self, _to: Gid, _slot: u16) -> bool {
        self.behind
    }

    fn check_local(
        &self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<(), LocalFault> {
        let need = if write {
            Access::LOCAL_WRITE
        } else {
            Access::empty()
        };
        self.range(pd, lkey.0, addr, len, need)
            .map(|_| ())
            .map_err(local)
    }

    fn check_remote(
        &self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<(), RemoteFault> {
        let (pd, key, addr, need) = self.remote(scope, rkey, va, len, need)?;
        self.range(pd, key, addr, len, need).map(|_| ())
    }

    fn read_local(
        &mut self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), LocalFault> {
        let src = self
            .slice(pd, lkey.0, addr, dst.len(), Access::empty())
            .map_err(local)?;
        dst.copy_from_slice(src);
        Ok(())
    }

    fn write_local(
        &mut self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), LocalFault> {
        let dst = self
            .slice(pd, lkey.0, addr, src.len(), Access::LOCAL_WRITE)
            .map_err(local)?;
        dst.copy_from_slice(src);
        Ok(())
    }

    fn read_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), RemoteFault> {
        dst.copy_from_slice(self.remote_slice(scope, rkey, va, dst.len(), Access::REMOTE_READ)?);
        Ok(())
    }

    fn write_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        src: &[u8],
    ) -> Result<(), RemoteFault> {
        self.remote_slice(scope, rkey, va, src.len(), Access::REMOTE_WRITE)?
            .copy_from_slice(src);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, RemoteFault> {
        let word = self.remote_slice(scope, rkey, va, 8, Access::REMOTE_ATOMIC)?;
        let old = u64::from_ne_bytes(word.try_into().unwrap());
        let new = match op {
            AtomicOp::CmpSwap { compare, swap } if old == compare => swap,
            AtomicOp::CmpSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        };
        word.copy_from_slice(&new.to_ne_bytes());
        Ok(old)
    }

    fn atomic_write_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        value: [u8; 8],
    ) -> Result<(), RemoteFault> {
        self.remote_slice(scope, rkey, va, 8, Access::REMOTE_WRITE)?
            .copy_from_slice(&value);
        Ok(())
    }

    fn flush_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        whole_region: bool,
        placement: u8,
    ) -> Result<(), RemoteFault> {
        let need = FlushPlacement(placement).needs();
        if whole_region {
            let region = self.regions.get(&rkey.0).ok_or(RemoteFault::Key)?;
            self.range(scope.pd, rkey.0, region.start, 0, need)?;
        } else {
            self.range(scope.pd, rkey.0, va, len, need)?;
        }
        self.flushes.push((va, len, whole_region, placement));
        Ok(())
    }

    fn invalidate(&mut self, scope: Scope, rkey: RKey) -> Result<(), InvalidateFault> {
        if let Some(window) = self.windows.get_mut(&(rkey.0 >> KEY_BITS)) {
            window.check_invalidate(scope, rkey)?;
            window.binding = None;
            return Ok(());
        }
        match self.regions.get(&rkey.0) {
            Some(region) if region.window => {
                self.regions.remove(&rkey.0);
                Ok(())
            }
            Some(_) => Err(InvalidateFault::Kind),
            None => Err(InvalidateFault::Key),
        }
    }

    fn bind_window(&mut self, scope: Scope, bind: &MwBind) -> Result<(), BindFault> {
        let region = self.regions.get(&bind.lkey.0).map(|r| BindTarget {
            pd: r.pd,
            iova: r.start,
            len: r.bytes.len() as u64,
            access: r.access,
        });
        let window = self
            .windows
            .get_mut(&(bind.window.0 >> KEY_BITS))
            .ok_or(BindFault::Window)?;
        window.binding = window.check_bind(scope, bind, region.as_ref())?;
        window.rkey = bind.rkey;
        Ok(())
    }

    fn unbind_window(&mut self, rkey: RKey) {
        for window in self.windows.values_mut().filter(|w| w.rkey == rkey) {
            window.binding = None;
        }
    }

    fn release_windows(&mut self, qpn: Qpn) {
        for window in self.windows.values_mut() {
            window.binding.take_if(|b| b.qpn == Some(qpn));
        }
    }

    fn complete(&mut self, cq: CqId, wc: Wc, solicited: bool) -> Result<(), CqOverrun> {
        let queue = self.wcs.entry(cq).or_default();
        if self.cq_room.is_some_and(|room| queue.len() >= room) {
            return Err(CqOverrun);
        }
        queue.push(wc);
        self.solicited += usize::from(solicited);
        Ok(())
    }

    fn event(&mut self, event: AsyncEvent) {
        self.events.push(event);
    }

    fn count(&mut self, counter: Counter, n: u64) {
        *self.counters.entry(counter as usize).or_default() += n;
    }

    fn note(&mut self, qpn: Qpn, note: Note) {
        self.notes.push((qpn, note));
    }
}
