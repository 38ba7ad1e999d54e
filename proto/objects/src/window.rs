//! Memory windows: a part of a region under a key of its own, given and taken by work requests.
//!
//! * Type 1 is bound by `ibv_bind_mw`, again and again; each bind gives a new key; binding nothing
//!   takes it away. Any queue pair of the protection domain may serve it.
//! * Type 2 is bound by `IBV_WR_BIND_MW` under a key byte of the program's choice, and must be
//!   invalidated before it is bound again. Only the queue pair that bound it serves it, within
//!   its protection domain (what verbs call type 2B).

use rocebud_wire::{LKey, Qpn, RKey};

use crate::{Access, PdId, RemoteFault, Scope, offset_within};

/// Low byte of a key: the program's own. The rest names the window.
pub const KEY_BYTE: u32 = 0xff;

/// Values of `enum ibv_mw_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum MwType {
    /// Bound by a call.
    One = 1,
    /// Bound by a work request, to the queue pair that it was posted to.
    Two = 2,
}

/// What a window is asked to become; `struct ibv_mw_bind_info` and its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MwBind {
    /// The window: any key that it ever had.
    pub window: RKey,
    /// Key from now on; differs from `window` in the low byte only.
    pub rkey: RKey,
    /// Region behind it; 0 with length 0.
    pub lkey: LKey,
    /// First byte, as users of the region name it.
    pub addr: u64,
    /// Bytes; 0 takes a type 1 window away.
    pub len: u64,
    /// What it grants.
    pub access: Access,
}

/// The part of a region that a bind looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BindTarget {
    /// Protection domain.
    pub pd: PdId,
    /// What its first byte is called.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// What it was registered for.
    pub access: Access,
}

/// Why a window was not bound. All become `MW_BIND_ERR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindFault {
    /// No such window, or the key asked for is not one of its 256.
    Window,
    /// Type 2, and bound already.
    State,
    /// No such region, or one that cannot have windows (zero-based).
    Region,
    /// Window, region and queue pair are not of one protection domain.
    Pd,
    /// The range leaves the region, or is empty (type 2).
    Bounds,
    /// The region lacks MW_BIND, or LOCAL_WRITE for a window that may be written, or the flags
    /// are not those of a window.
    Access,
}

/// Why a key was not invalidated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidateFault {
    /// No such key.
    Key,
    /// It belongs to another protection domain or queue pair.
    Pd,
    /// It is not of a kind that can be invalidated: a region, or a type 1 window.
    Kind,
}

/// What a window shows while it is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    /// Region behind it.
    pub lkey: LKey,
    /// Where in the region it begins.
    pub offset: u64,
    /// What the peer calls its first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// What it grants.
    pub access: Access,
    /// The queue pair that serves it; `None` = any of the protection domain.
    pub qpn: Option<Qpn>,
}

/// A memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Protection domain.
    pub pd: PdId,
    /// How it is bound.
    pub mw_type: MwType,
    /// Its key now.
    pub rkey: RKey,
    /// What it shows; `None` = nothing.
    pub binding: Option<Binding>,
}

/// Flags that a window may have. LOCAL_WRITE is accepted and means nothing.
const WINDOW_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::ZERO_BASED)
    .union(Access::RELAXED_ORDERING);

impl Window {
    /// A fresh window under `rkey`.
    #[must_use]
    pub const fn new(pd: PdId, mw_type: MwType, rkey: RKey) -> Self {
        Self {
            pd,
            mw_type,
            rkey,
            binding: None,
        }
    }

    /// Check only: what the window becomes. `None` = it is taken away (type 1, length 0).
    /// `region` is the one that `bind.lkey` names.
    ///
    /// # Errors
    /// [`BindFault`]; by the order of checks the first rule that is broken.
    pub fn check_bind(
        &self,
        scope: Scope,
        bind: &MwBind,
        region: Option<&BindTarget>,
    ) -> Result<Option<Binding>, BindFault> {
        if (bind.rkey.0 ^ self.rkey.0) & !KEY_BYTE != 0 {
            return Err(BindFault::Window);
        }
        if self.pd != scope.pd {
            return Err(BindFault::Pd);
        }
        let by_request = self.mw_type == MwType::Two;
        if by_request && self.binding.is_some() {
            return Err(BindFault::State);
        }
        if bind.len == 0 {
            return if by_request {
                Err(BindFault::Bounds)
            } else {
                Ok(None)
            };
        }
        let region = region.ok_or(BindFault::Region)?;
        if region.pd != scope.pd {
            return Err(BindFault::Pd);
        }
        let zero_based = bind.access.contains(Access::ZERO_BASED);
        if region.access.contains(Access::ZERO_BASED) {
            return Err(BindFault::Region);
        }
        check_access(bind.access, region.access, by_request)?;
        let offset =
            offset_within(region.iova, region.len, bind.addr, bind.len).ok_or(BindFault::Bounds)?;
        Ok(Some(Binding {
            lkey: bind.lkey,
            offset,
            iova: if zero_based { 0 } else { bind.addr },
            len: bind.len,
            access: bind.access,
            qpn: by_request.then_some(scope.qpn),
        }))
    }

    /// Check only: may `scope` invalidate the window by `rkey`? A type 2 window that shows nothing
    /// may be invalidated again.
    ///
    /// # Errors
    /// [`InvalidateFault`].
    pub fn check_invalidate(&self, scope: Scope, rkey: RKey) -> Result<(), InvalidateFault> {
        if self.rkey != rkey {
            return Err(InvalidateFault::Key);
        }
        if self.pd != scope.pd || self.is_of_another(scope.qpn) {
            return Err(InvalidateFault::Pd);
        }
        match self.mw_type {
            MwType::One => Err(InvalidateFault::Kind),
            MwType::Two => Ok(()),
        }
    }

    /// Check only: how far into its region the `len` bytes at `va` begin. The window's own range
    /// and rights count, not the region's.
    ///
    /// # Errors
    /// [`RemoteFault`], never `Page`.
    pub fn check_use(
        &self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, RemoteFault> {
        let binding = self.check_rights(scope, rkey, need)?;
        let within =
            offset_within(binding.iova, binding.len, va, len).ok_or(RemoteFault::Bounds)?;
        Ok(binding.offset + within)
    }

    /// [`Window::check_use`] without a range: what the window shows.
    ///
    /// # Errors
    /// [`RemoteFault`], never `Page` or `Bounds`.
    pub fn check_rights(
        &self,
        scope: Scope,
        rkey: RKey,
        need: Access,
    ) -> Result<&Binding, RemoteFault> {
        let binding = self
            .binding
            .as_ref()
            .filter(|_| self.rkey == rkey)
            .ok_or(RemoteFault::Key)?;
        if self.pd != scope.pd || self.is_of_another(scope.qpn) {
            return Err(RemoteFault::Pd);
        }
        if !binding.access.contains(need) {
            return Err(RemoteFault::Access);
        }
        Ok(binding)
    }

    fn is_of_another(&self, qpn: Qpn) -> bool {
        let owner = self.binding.and_then(|b| b.qpn);
        owner.is_some_and(|owner| owner != qpn)
    }
}

fn check_access(asked: Access, region: Access, by_request: bool) -> Result<(), BindFault> {
    let writes = asked.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let fits = WINDOW_ACCESS.contains(asked)
        && region.contains(Access::MW_BIND)
        && (!writes || region.contains(Access::LOCAL_WRITE))
        && (by_request || !asked.contains(Access::ZERO_BASED));
    if fits { Ok(()) } else { Err(BindFault::Access) }
}

#[cfg(test)]
mod tests;
