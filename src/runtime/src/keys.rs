//! The key table: which memory a key opens, to whom, and for what.
//!
//! A key is a 24-bit index, drawn at random, and a random low byte: nothing about one key tells
//! another. Checks are overflow-safe (`offset = va - start; offset <= size; len <= size - offset`).
//! Copies happen while the table is locked for reading, so removing a key waits for copies under
//! way and stops later ones: [`KeyTable::remove`] is a hard fence.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::RwLock;

use rocebud_engine::{LocalFault, RemoteFault, Scope};
use rocebud_objects::{Access, Errno, Misuse, PdId};
use rocebud_wire::{LKey, RKey};

use crate::random;
use crate::sync::{read, write};

/// Regions that a process may have.
pub const REGIONS_MAX: usize = 524_287;

/// Registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Protection domain.
    pub pd: PdId,
    /// Where it is in this process.
    pub addr: u64,
    /// What its first byte is called by SGEs and the peer.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// What it may be used for.
    pub access: Access,
}

impl Region {
    /// Address in this process of `len` bytes at `va`; `None` if they leave the region.
    #[inline]
    fn locate(&self, va: u64, len: u64) -> Option<usize> {
        let offset = va.checked_sub(self.iova)?;
        if offset > self.len || len > self.len - offset {
            return None;
        }
        usize::try_from(self.addr.checked_add(offset)?).ok()
    }
}

/// All keys of the process.
#[derive(Debug, Default)]
pub struct KeyTable {
    map: RwLock<HashMap<u32, Entry, BuildHasherDefault<Mix>>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u32,
    region: Region,
}

impl KeyTable {
    /// Adds a region under a fresh key, the same for local and remote use.
    ///
    /// # Errors
    /// ENOMEM: [`REGIONS_MAX`] are there.
    pub fn insert(&self, region: Region) -> Result<u32, Misuse> {
        let mut map = write(&self.map);
        if map.len() >= REGIONS_MAX {
            return Err(Misuse::new(
                Errno::ENOMEM,
                "reg_mr: as many memory regions as a process may have; deregister some",
            ));
        }
        loop {
            let key = random::u32();
            let index = key >> 8;
            if index != 0 && !map.contains_key(&index) {
                map.insert(index, Entry { key, region });
                return Ok(key);
            }
        }
    }

    /// Takes a key out. When this returns, no copy through it is under way and none will begin.
    pub fn remove(&self, key: u32) -> Option<Region> {
        let mut map = write(&self.map);
        if map.get(&(key >> 8))?.key != key {
            return None;
        }
        map.remove(&(key >> 8)).map(|e| e.region)
    }

    /// Takes out every key of a protection domain.
    pub fn remove_pd(&self, pd: PdId) {
        write(&self.map).retain(|_, e| e.region.pd != pd);
    }

    /// Regions there are.
    pub fn len(&self) -> usize {
        read(&self.map).len()
    }

    /// No region is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks local use and runs `act` with the address while the key cannot go away. Zero bytes
    /// need no key: then `act` gets address 0.
    #[inline]
    pub fn local<R>(
        &self,
        pd: PdId,
        lkey: LKey,
        va: u64,
        len: u64,
        writes: bool,
        act: impl FnOnce(usize) -> Result<R, LocalFault>,
    ) -> Result<R, LocalFault> {
        if len == 0 {
            return act(0);
        }
        let map = read(&self.map);
        let entry = map.get(&(lkey.0 >> 8)).filter(|e| e.key == lkey.0);
        let region = &entry.ok_or(LocalFault::Key)?.region;
        if region.pd != pd {
            return Err(LocalFault::Pd);
        }
        if writes && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(LocalFault::Access);
        }
        act(region.locate(va, len).ok_or(LocalFault::Bounds)?)
    }

    /// Checks use by the peer and runs `act` with the address while the key cannot go away.
    /// Zero bytes need no key: then `act` gets address 0.
    #[inline]
    pub fn remote<R>(
        &self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        need: Access,
        act: impl FnOnce(usize) -> Result<R, RemoteFault>,
    ) -> Result<R, RemoteFault> {
        if len == 0 {
            return act(0);
        }
        let map = read(&self.map);
        let region = Self::remote_region(&map, scope, rkey, need)?;
        act(region.locate(va, len).ok_or(RemoteFault::Bounds)?)
    }

    /// [`KeyTable::remote`] for a whole region: `act` gets its address and length.
    pub fn remote_whole<R>(
        &self,
        scope: Scope,
        rkey: RKey,
        need: Access,
        act: impl FnOnce(u64, u64) -> Result<R, RemoteFault>,
    ) -> Result<R, RemoteFault> {
        let map = read(&self.map);
        let region = Self::remote_region(&map, scope, rkey, need)?;
        act(region.addr, region.len)
    }

    /// The order of checks: key, protection domain, permission (the caller then: range). The peer
    /// sees no difference.
    #[inline]
    fn remote_region(
        map: &HashMap<u32, Entry, BuildHasherDefault<Mix>>,
        scope: Scope,
        rkey: RKey,
        need: Access,
    ) -> Result<&Region, RemoteFault> {
        let entry = map.get(&(rkey.0 >> 8)).filter(|e| e.key == rkey.0);
        let region = &entry.ok_or(RemoteFault::Key)?.region;
        if region.pd != scope.pd {
            return Err(RemoteFault::Pd);
        }
        if !region.access.contains(need) {
            return Err(RemoteFault::Access);
        }
        Ok(region)
    }
}

/// One multiplication: indices are random already, an attacker does not choose them.
#[derive(Clone, Copy, Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests;
