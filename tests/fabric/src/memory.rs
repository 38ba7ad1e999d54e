//! Memory of a simulated host: one arena, regions in it, guard bytes everywhere else.
//!
//! The rules of keys are those that a runtime holds: a key works in its protection domain, inside
//! its range, for the access it grants. Guard bytes are a function of their address, so that
//! anything written beside a region shows, whatever was written.

use std::collections::BTreeMap;

use rocebud_engine::{LocalFault, RemoteFault, Scope};
use rocebud_objects::{
    Access, BindFault, BindTarget, InvalidateFault, KEY_BYTE, MwBind, MwType, PdId, Window,
};
use rocebud_wire::{Qpn, RKey};

use crate::rng::{Rng, mix};

/// Bytes between two allocations.
const GUARD_BYTES: usize = 72;

/// A range of a host's arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// A registered region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Key, local and remote alike.
    pub key: u32,
    /// Where it works.
    pub pd: PdId,
    /// The bytes.
    pub span: Span,
    /// Address that users of the key name for the first byte.
    pub iova: u64,
    /// What it grants.
    pub access: Access,
    /// Queue pair that alone may use it remotely, as for a type-2 window.
    pub bound_to: Option<Qpn>,
    /// May be invalidated by the peer or by LOCAL_INV.
    pub invalidatable: bool,
    /// The pages behind it are gone: checks pass, accesses fault.
    pub unmapped: bool,
}

/// The arena and the key table.
#[derive(Debug)]
pub struct Memory {
    base: u64,
    bytes: Vec<u8>,
    spans: Vec<Span>,
    regions: BTreeMap<u32, Region>,
    /// By their keys' upper bits.
    windows: BTreeMap<u32, Window>,
    /// Binds that were carried out, oldest first.
    binds: Vec<(Qpn, MwBind)>,
    keys: Rng,
}

impl Memory {
    /// An empty arena whose first address is `base`.
    #[must_use]
    pub const fn new(base: u64, keys: Rng) -> Self {
        Self {
            base,
            bytes: Vec::new(),
            spans: Vec::new(),
            regions: BTreeMap::new(),
            windows: BTreeMap::new(),
            binds: Vec::new(),
            keys,
        }
    }

    /// Takes `len` bytes of arena, zeroed, with guards on both sides. Addresses are odd as often
    /// as even, unless `align` (a power of two) asks for more.
    pub fn allocate(&mut self, len: u64, align: u64) -> Span {
        let mut addr = self.base + (self.bytes.len() + GUARD_BYTES) as u64;
        addr += self.keys.below(16);
        addr = addr.next_multiple_of(align.max(1));
        let span = Span { addr, len };
        let start = (addr - self.base) as usize;
        self.guard_to(start);
        self.bytes.resize(start + len as usize, 0);
        self.guard_to(start + len as usize + GUARD_BYTES);
        self.spans.push(span);
        span
    }

    /// Lengthens the arena by guard bytes.
    fn guard_to(&mut self, end: usize) {
        for at in self.bytes.len()..end {
            self.bytes.push(guard_byte(self.base + at as u64));
        }
    }

    /// Registers `span` (or a part of one) and returns its key.
    pub fn register(&mut self, pd: PdId, span: Span, iova: u64, access: Access) -> u32 {
        let key = loop {
            let key = self.keys.next_u32();
            if key != 0 && !self.is_used(key) {
                break key;
            }
        };
        let region = Region {
            key,
            pd,
            span,
            iova,
            access,
            bound_to: None,
            invalidatable: false,
            unmapped: false,
        };
        self.regions.insert(key, region);
        key
    }

    /// Registers a key that may be invalidated, remotely usable through one queue pair only.
    pub fn register_window(
        &mut self,
        pd: PdId,
        span: Span,
        access: Access,
        qpn: Option<Qpn>,
    ) -> u32 {
        let key = self.register(pd, span, span.addr, access);
        if let Some(region) = self.regions.get_mut(&key) {
            region.bound_to = qpn;
            region.invalidatable = true;
        }
        key
    }

    /// Takes a key away; true if it was there.
    pub fn deregister(&mut self, key: u32) -> bool {
        self.regions.remove(&key).is_some()
    }

    /// Takes the pages behind a key away, or gives them back.
    pub fn set_unmapped(&mut self, key: u32, unmapped: bool) {
        if let Some(region) = self.regions.get_mut(&key) {
            region.unmapped = unmapped;
        }
    }

    /// The region behind a key.
    #[must_use]
    pub fn region(&self, key: u32) -> Option<&Region> {
        self.regions.get(&key)
    }

    /// A key that nobody has.
    pub fn unused_key(&mut self) -> u32 {
        loop {
            let key = self.keys.next_u32();
            if !self.is_used(key) {
                return key;
            }
        }
    }

    fn is_used(&self, key: u32) -> bool {
        self.regions.contains_key(&key) || self.windows.contains_key(&(key & !KEY_BYTE))
    }

    /// Makes a window that shows nothing; returns its first key.
    pub fn add_window(&mut self, pd: PdId, mw_type: MwType) -> RKey {
        let rkey = loop {
            let key = self.keys.next_u32();
            let taken = |k: &u32| (k ^ key) & !KEY_BYTE == 0;
            if key > KEY_BYTE && !self.is_used(key) && !self.regions.keys().any(taken) {
                break RKey(key);
            }
        };
        let window = Window::new(pd, mw_type, rkey);
        self.windows.insert(rkey.0 & !KEY_BYTE, window);
        rkey
    }

    /// The window that ever had this key.
    #[must_use]
    pub fn window(&self, rkey: RKey) -> Option<&Window> {
        self.windows.get(&(rkey.0 & !KEY_BYTE))
    }

    /// Binds that were carried out, oldest first: by which queue pair, and what.
    #[must_use]
    pub fn binds(&self) -> &[(Qpn, MwBind)] {
        &self.binds
    }

    /// Binds a window.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn bind(&mut self, scope: Scope, bind: &MwBind) -> Result<(), BindFault> {
        let region = self.regions.get(&bind.lkey.0).map(|r| BindTarget {
            pd: r.pd,
            iova: r.iova,
            len: r.span.len,
            access: r.access,
        });
        let at = bind.window.0 & !KEY_BYTE;
        let window = self.windows.get_mut(&at).ok_or(BindFault::Window)?;
        window.binding = window.check_bind(scope, bind, region.as_ref())?;
        window.rkey = bind.rkey;
        self.binds.push((scope.qpn, *bind));
        Ok(())
    }

    /// If a window has this very key, it shows nothing any more.
    pub fn unbind(&mut self, rkey: RKey) {
        for window in self.windows.values_mut().filter(|w| w.rkey == rkey) {
            window.binding = None;
        }
    }

    /// Windows that `qpn` alone serves show nothing any more.
    pub fn release(&mut self, qpn: Qpn) {
        for window in self.windows.values_mut() {
            window.binding.take_if(|b| b.qpn == Some(qpn));
        }
    }

    /// Invalidates a key: of a window, or of a region that was made for it.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn invalidate(&mut self, scope: Scope, rkey: RKey) -> Result<(), InvalidateFault> {
        if let Some(window) = self.windows.get_mut(&(rkey.0 & !KEY_BYTE)) {
            window.check_invalidate(scope, rkey)?;
            window.binding = None;
            return Ok(());
        }
        let region = self.regions.get(&rkey.0).ok_or(InvalidateFault::Key)?;
        if region.pd != scope.pd || region.bound_to.is_some_and(|qpn| qpn != scope.qpn) {
            return Err(InvalidateFault::Pd);
        }
        if !region.invalidatable {
            return Err(InvalidateFault::Kind);
        }
        self.deregister(rkey.0);
        Ok(())
    }

    /// Bytes at an address, as the application sees them.
    ///
    /// # Panics
    /// If the range is not in the arena.
    #[must_use]
    pub fn peek(&self, addr: u64, len: u64) -> &[u8] {
        let at = (addr - self.base) as usize;
        &self.bytes[at..at + len as usize]
    }

    /// Bytes at an address, for the application to write.
    ///
    /// # Panics
    /// If the range is not in the arena.
    pub fn poke(&mut self, addr: u64, len: u64) -> &mut [u8] {
        let at = (addr - self.base) as usize;
        &mut self.bytes[at..at + len as usize]
    }

    /// Address of the first guard byte that was overwritten.
    #[must_use]
    pub fn broken_guard(&self) -> Option<u64> {
        let mut from = 0;
        for span in &self.spans {
            let start = (span.addr - self.base) as usize;
            if let Some(addr) = self.broken_between(from, start) {
                return Some(addr);
            }
            from = start + span.len as usize;
        }
        self.broken_between(from, self.bytes.len())
    }

    fn broken_between(&self, from: usize, to: usize) -> Option<u64> {
        (from..to)
            .map(|at| (self.base + at as u64, self.bytes[at]))
            .find(|(addr, byte)| *byte != guard_byte(*addr))
            .map(|(addr, _)| addr)
    }

    /// The arena address of a local range.
    pub fn local(
        &self,
        pd: PdId,
        key: u32,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<u64, LocalFault> {
        let region = self.regions.get(&key).ok_or(LocalFault::Key)?;
        if region.pd != pd {
            return Err(LocalFault::Pd);
        }
        if write && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(LocalFault::Access);
        }
        region.place(addr, len).ok_or(LocalFault::Bounds)
    }

    /// The arena address of a range that the peer named.
    pub fn remote(
        &self,
        scope: Scope,
        key: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, RemoteFault> {
        if let Some(window) = self.windows.get(&(key & !KEY_BYTE)) {
            let offset = window.check_use(scope, RKey(key), va, len, need)?;
            let lkey = window.binding.map_or(0, |b| b.lkey.0);
            let region = self.regions.get(&lkey).ok_or(RemoteFault::Key)?;
            return Ok(region.span.addr + offset);
        }
        let region = self.regions.get(&key).ok_or(RemoteFault::Key)?;
        if region.pd != scope.pd || region.bound_to.is_some_and(|qpn| qpn != scope.qpn) {
            return Err(RemoteFault::Pd);
        }
        if !region.access.contains(need) {
            return Err(RemoteFault::Access);
        }
        region.place(va, len).ok_or(RemoteFault::Bounds)
    }
}

impl Region {
    /// Arena address of `va`, if the whole range is inside. Overflow-safe: the numbers come from
    /// the peer.
    fn place(&self, va: u64, len: u64) -> Option<u64> {
        let offset = va.checked_sub(self.iova)?;
        (offset <= self.span.len && len <= self.span.len - offset).then(|| self.span.addr + offset)
    }
}

/// What a guard byte holds.
const fn guard_byte(addr: u64) -> u8 {
    (mix(addr) >> 56) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(1);

    fn scope(qpn: u32) -> Scope {
        Scope {
            pd: PD,
            qpn: Qpn::new(qpn),
        }
    }

    #[test]
    fn a_byte_beside_a_region_shows() {
        let mut memory = Memory::new(0x1000, Rng::new(1));
        let span = memory.allocate(10, 1);
        memory.allocate(4096, 8);
        assert_eq!(memory.broken_guard(), None);
        memory.poke(span.addr, 10).fill(0xff);
        assert_eq!(memory.broken_guard(), None);
        memory.poke(span.addr + 10, 1)[0] ^= 1;
        assert_eq!(memory.broken_guard(), Some(span.addr + 10));
    }

    #[test]
    fn ranges_cannot_wrap() {
        let mut memory = Memory::new(0x1000, Rng::new(2));
        let span = memory.allocate(100, 1);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = memory.register(PD, span, span.addr, access);
        let need = Access::REMOTE_WRITE;
        let at = |va, len| memory.remote(scope(1), key, va, len, need);
        assert_eq!(at(span.addr, 100), Ok(span.addr));
        assert_eq!(at(span.addr + 100, 0), Ok(span.addr + 100));
        assert_eq!(at(span.addr + 1, 100), Err(RemoteFault::Bounds));
        assert_eq!(at(span.addr - 1, 2), Err(RemoteFault::Bounds));
        assert_eq!(at(u64::MAX - 1023, 1024), Err(RemoteFault::Bounds));
        assert_eq!(at(span.addr + 1, u64::MAX), Err(RemoteFault::Bounds));
        assert_eq!(
            memory.remote(scope(1), key, span.addr, 1, Access::REMOTE_READ),
            Err(RemoteFault::Access)
        );
    }

    #[test]
    fn a_window_works_through_its_queue_pair_only() {
        let mut memory = Memory::new(0x1000, Rng::new(3));
        let span = memory.allocate(100, 1);
        let qpn = Some(Qpn::new(7));
        let key = memory.register_window(PD, span, Access::REMOTE_READ, qpn);
        let need = Access::REMOTE_READ;
        assert!(memory.remote(scope(7), key, span.addr, 1, need).is_ok());
        assert_eq!(
            memory.remote(scope(8), key, span.addr, 1, need),
            Err(RemoteFault::Pd)
        );
        assert!(memory.deregister(key));
        assert_eq!(
            memory.remote(scope(7), key, span.addr, 1, need),
            Err(RemoteFault::Key)
        );
    }
}
