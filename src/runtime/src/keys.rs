//! The key table: which memory a key opens, to whom, and for what.
//!
//! A key is a 24-bit index, drawn at random, and a random low byte: nothing about one key tells
//! another. Checks are overflow-safe (`offset = va - start; offset <= size; len <= size - offset`).
//! Copies happen while the table is locked for reading, so removing a key waits for copies under
//! way and stops later ones: [`KeyTable::remove`] is a hard fence.

mod window;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::RwLock;

use rocebud_objects::{
    Access, Errno, LocalFault, Misuse, PdId, RemoteFault, Scope, Window, offset_within,
};
use rocebud_wire::{LKey, Qpn, RKey};

use crate::random;
use crate::sync::{read, write};

pub use window::WINDOWS_MAX;

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
    /// No memory is behind it: what is written vanishes, what is read is zero. Local use only.
    pub is_null: bool,
}

/// Where bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spot {
    /// At this address of the process.
    At(usize),
    /// Nowhere: see [`Region::is_null`].
    Nowhere,
}

impl Region {
    /// Address in this process of `len` bytes at `va`; `None` if they leave the region.
    #[inline]
    fn locate(&self, va: u64, len: u64) -> Option<usize> {
        let offset = offset_within(self.iova, self.len, va, len)?;
        usize::try_from(self.addr.checked_add(offset)?).ok()
    }
}

/// All keys of the process.
#[derive(Debug, Default)]
pub struct KeyTable {
    tables: RwLock<Tables>,
}

type Map = HashMap<u32, Entry, BuildHasherDefault<Mix>>;

#[derive(Debug, Default)]
struct Tables {
    /// By index.
    map: Map,
    /// Windows among them.
    windows: usize,
    /// Windows that a queue pair alone serves: its number, and the window's index.
    bound: BTreeSet<(Qpn, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u32,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Region {
        region: Region,
        /// Windows that show a part of it.
        windows: u32,
    },
    /// With the address in this process of the region behind it; 0 while it shows nothing.
    Window { window: Window, addr: u64 },
}

/// Upper 24 bits of a key.
const fn index(key: u32) -> u32 {
    key >> 8
}

impl Tables {
    /// Adds an entry under a fresh key.
    fn add(&mut self, what: impl FnOnce(u32) -> What) -> u32 {
        loop {
            let key = random::u32();
            if index(key) != 0 && !self.map.contains_key(&index(key)) {
                let what = what(key);
                self.map.insert(index(key), Entry { key, what });
                return key;
            }
        }
    }

    fn region(&self, key: u32) -> Option<(&Region, u32)> {
        match self.map.get(&index(key)) {
            Some(Entry {
                key: whole,
                what: What::Region { region, windows },
            }) if *whole == key => Some((region, *windows)),
            _ => None,
        }
    }
}

const WINDOWS_BOUND: Misuse = Misuse::new(
    Errno::EBUSY,
    "memory windows are bound to this region; invalidate or deallocate them first",
);

impl KeyTable {
    /// Adds a region under a fresh key, the same for local and remote use.
    ///
    /// # Errors
    /// ENOMEM: [`REGIONS_MAX`] are there.
    pub fn insert(&self, region: Region) -> Result<u32, Misuse> {
        let mut tables = write(&self.tables);
        if tables.map.len() - tables.windows >= REGIONS_MAX {
            return Err(Misuse::new(
                Errno::ENOMEM,
                "reg_mr: as many memory regions as a process may have; deregister some",
            ));
        }
        let windows = 0;
        Ok(tables.add(|_| What::Region { region, windows }))
    }

    /// Takes a region out. When this returns, no copy through it is under way and none will
    /// begin.
    ///
    /// # Errors
    /// EBUSY: windows show parts of it. EINVAL: no region has this key.
    pub fn remove(&self, key: u32) -> Result<Region, Misuse> {
        let mut tables = write(&self.tables);
        let (region, windows) = tables
            .region(key)
            .ok_or(Misuse::invalid("no region has this key"))?;
        if windows != 0 {
            return Err(WINDOWS_BOUND);
        }
        let region = *region;
        tables.map.remove(&index(key));
        Ok(region)
    }

    /// As [`KeyTable::remove`], and windows on the region show nothing from now on.
    pub fn remove_with_windows(&self, key: u32) {
        let mut tables = write(&self.tables);
        if tables.region(key).is_some() {
            tables.unbind_all(|binding| binding.lkey == LKey(key));
            tables.map.remove(&index(key));
        }
    }

    /// The region that has this key.
    pub fn region(&self, key: u32) -> Option<Region> {
        read(&self.tables).region(key).map(|(region, _)| *region)
    }

    /// Makes a region another one under the same key. When this returns, no copy by the old rules
    /// is under way and none will begin.
    ///
    /// # Errors
    /// EBUSY: windows show parts of it. EINVAL: no region has this key. Nothing has changed.
    pub fn replace(&self, key: u32, new: Region) -> Result<(), Misuse> {
        let mut tables = write(&self.tables);
        match tables.map.get_mut(&index(key)) {
            Some(Entry {
                key: whole,
                what: What::Region { region, windows },
            }) if *whole == key => {
                if *windows != 0 {
                    return Err(WINDOWS_BOUND);
                }
                *region = new;
                Ok(())
            }
            _ => Err(Misuse::invalid("no region has this key")),
        }
    }

    /// Takes out every key of protection domains, in one pass.
    pub fn remove_pds(&self, gone: impl Fn(PdId) -> bool) {
        let mut tables = write(&self.tables);
        let Tables {
            map,
            windows,
            bound,
        } = &mut *tables;
        map.retain(|_, entry| match &entry.what {
            What::Region { region, .. } => !gone(region.pd),
            What::Window { window, .. } => {
                let stays = !gone(window.pd);
                *windows -= usize::from(!stays);
                stays
            }
        });
        bound.retain(|(_, index)| map.contains_key(index));
    }

    /// Regions there are.
    pub fn len(&self) -> usize {
        let tables = read(&self.tables);
        tables.map.len() - tables.windows
    }

    /// No region is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks local use and runs `act` with the place while the key cannot go away. Zero bytes
    /// need no key: then `act` gets address 0.
    #[inline]
    pub fn local<R>(
        &self,
        pd: PdId,
        lkey: LKey,
        va: u64,
        len: u64,
        writes: bool,
        act: impl FnOnce(Spot) -> Result<R, LocalFault>,
    ) -> Result<R, LocalFault> {
        if len == 0 {
            return act(Spot::At(0));
        }
        let tables = read(&self.tables);
        let (region, _) = tables.region(lkey.0).ok_or(LocalFault::Key)?;
        if region.pd != pd {
            return Err(LocalFault::Pd);
        }
        if writes && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(LocalFault::Access);
        }
        let at = region.locate(va, len).ok_or(LocalFault::Bounds)?;
        act(if region.is_null {
            Spot::Nowhere
        } else {
            Spot::At(at)
        })
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
        let tables = read(&self.tables);
        let entry = tables
            .map
            .get(&index(rkey.0))
            .filter(|entry| entry.key == rkey.0)
            .ok_or(RemoteFault::Key)?;
        let at = match &entry.what {
            What::Region { region, .. } => {
                check_rights(region, scope, need)?;
                region.locate(va, len).ok_or(RemoteFault::Bounds)?
            }
            What::Window { window, addr } => {
                let offset = window.check_use(scope, rkey, va, len, need)?;
                usize::try_from(addr + offset).map_err(|_| RemoteFault::Bounds)?
            }
        };
        act(at)
    }

    /// [`KeyTable::remote`] for a whole region: `act` gets its address and length.
    pub fn remote_whole<R>(
        &self,
        scope: Scope,
        rkey: RKey,
        need: Access,
        act: impl FnOnce(u64, u64) -> Result<R, RemoteFault>,
    ) -> Result<R, RemoteFault> {
        let tables = read(&self.tables);
        match tables.map.get(&index(rkey.0)).map(|e| (e.key, &e.what)) {
            Some((key, What::Region { region, .. })) if key == rkey.0 => {
                check_rights(region, scope, need)?;
                act(region.addr, region.len)
            }
            Some((_, What::Window { window, addr })) => {
                let shown = window.check_rights(scope, rkey, need)?;
                act(addr + shown.offset, shown.len)
            }
            _ => Err(RemoteFault::Key),
        }
    }
}

/// The order of checks: key, protection domain, permission (the caller then: range). The peer
/// sees no difference.
#[inline]
fn check_rights(region: &Region, scope: Scope, need: Access) -> Result<(), RemoteFault> {
    if region.pd != scope.pd {
        return Err(RemoteFault::Pd);
    }
    if !region.access.contains(need) {
        return Err(RemoteFault::Access);
    }
    Ok(())
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
