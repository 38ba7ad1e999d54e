//! Windows in the key table: made, bound, invalidated, released.

use rocebud_objects::{
    BindFault, BindTarget, Binding, Errno, InvalidateFault, Misuse, MwBind, MwType, PdId, Scope,
    Window,
};
use rocebud_wire::{Qpn, RKey};

use super::{Entry, KeyTable, Tables, What, index};
use crate::sync::write;

/// Windows that a process may have.
pub const WINDOWS_MAX: usize = 524_287;

impl KeyTable {
    /// Adds a window that shows nothing; returns its first key.
    ///
    /// # Errors
    /// ENOMEM: [`WINDOWS_MAX`] are there.
    pub fn insert_window(&self, pd: PdId, mw_type: MwType) -> Result<RKey, Misuse> {
        let mut tables = write(&self.tables);
        if tables.windows >= WINDOWS_MAX {
            return Err(Misuse::new(
                Errno::ENOMEM,
                "alloc_mw: as many memory windows as a process may have; deallocate some",
            ));
        }
        let key = tables.add(|key| What::Window {
            window: Window::new(pd, mw_type, RKey(key)),
            addr: 0,
        });
        tables.windows += 1;
        Ok(RKey(key))
    }

    /// Takes a window out, by any key that it ever had. When this returns, no copy through it is
    /// under way and none will begin. False: there is none.
    pub fn remove_window(&self, rkey: RKey) -> bool {
        let mut tables = write(&self.tables);
        if tables.window(rkey).is_none() {
            return false;
        }
        tables.unbind(index(rkey.0));
        tables.map.remove(&index(rkey.0));
        tables.windows -= 1;
        true
    }

    /// Binds a window.
    ///
    /// # Errors
    /// [`BindFault`]; the window is as before.
    pub fn bind_window(&self, scope: Scope, bind: &MwBind) -> Result<(), BindFault> {
        let mut tables = write(&self.tables);
        let region = tables.region(bind.lkey.0).map(|(region, _)| *region);
        let target = region.map(|r| BindTarget {
            pd: r.pd,
            iova: r.iova,
            len: r.len,
            access: r.access,
        });
        let window = tables.window(bind.window).ok_or(BindFault::Window)?;
        let binding = window.check_bind(scope, bind, target.as_ref())?;
        let at = index(bind.window.0);
        tables.unbind(at);
        if let Some(binding) = &binding {
            tables.count_on_region(binding, true);
            if let Some(qpn) = binding.qpn {
                tables.bound.insert((qpn, at));
            }
        }
        if let Some(entry) = tables.map.get_mut(&at)
            && let What::Window { window, addr } = &mut entry.what
        {
            entry.key = bind.rkey.0;
            window.rkey = bind.rkey;
            window.binding = binding;
            *addr = region.map_or(0, |r| r.addr);
        }
        Ok(())
    }

    /// Invalidates a window. When this returns, no copy through it is under way.
    ///
    /// # Errors
    /// [`InvalidateFault`].
    pub fn invalidate(&self, scope: Scope, rkey: RKey) -> Result<(), InvalidateFault> {
        let mut tables = write(&self.tables);
        match tables.map.get(&index(rkey.0)).map(|entry| &entry.what) {
            None => return Err(InvalidateFault::Key),
            Some(What::Region { .. }) => return Err(InvalidateFault::Kind),
            Some(What::Window { window, .. }) => window.check_invalidate(scope, rkey)?,
        }
        tables.unbind(index(rkey.0));
        Ok(())
    }

    /// Takes a bind back: if the window still has this key, it shows nothing any more.
    pub fn unbind_window(&self, rkey: RKey) {
        let mut tables = write(&self.tables);
        if tables.window(rkey).is_some_and(|w| w.rkey == rkey) {
            tables.unbind(index(rkey.0));
        }
    }

    /// Windows that only `qpn` serves show nothing any more.
    pub fn release_windows(&self, qpn: Qpn) {
        let mut tables = write(&self.tables);
        let first = (qpn, 0);
        while let Some(&(owner, at)) = tables.bound.range(first..).next()
            && owner == qpn
        {
            tables.unbind(at);
        }
    }
}

impl Tables {
    fn window(&self, rkey: RKey) -> Option<&Window> {
        match &self.map.get(&index(rkey.0))?.what {
            What::Window { window, .. } => Some(window),
            What::Region { .. } => None,
        }
    }

    /// The window with this index shows nothing any more.
    fn unbind(&mut self, at: u32) {
        let Some(Entry {
            what: What::Window { window, addr },
            ..
        }) = self.map.get_mut(&at)
        else {
            return;
        };
        *addr = 0;
        let Some(binding) = window.binding.take() else {
            return;
        };
        if let Some(qpn) = binding.qpn {
            self.bound.remove(&(qpn, at));
        }
        self.count_on_region(&binding, false);
    }

    /// Every window with such a binding shows nothing any more.
    pub(super) fn unbind_all(&mut self, such: impl Fn(&Binding) -> bool) {
        let is_such = |what: &What| match what {
            What::Window { window, .. } => window.binding.as_ref().is_some_and(&such),
            What::Region { .. } => false,
        };
        let found: Vec<u32> = (self.map.iter())
            .filter(|(_, entry)| is_such(&entry.what))
            .map(|(at, _)| *at)
            .collect();
        for at in found {
            self.unbind(at);
        }
    }

    fn count_on_region(&mut self, binding: &Binding, more: bool) {
        if let Some(Entry {
            what: What::Region { windows, .. },
            ..
        }) = self.map.get_mut(&index(binding.lkey.0))
        {
            *windows = if more {
                windows.saturating_add(1)
            } else {
                windows.saturating_sub(1)
            };
        }
    }
}
