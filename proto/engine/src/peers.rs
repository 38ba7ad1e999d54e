//! Budgets of bytes in flight towards one receive buffer, shared by queue pairs.
//!
//! The buffer that overflows is the *process's* at the other end, and every queue pair that ends
//! there shares it: (peer address, slot of the destination QPN). Our own buffer, into which READ
//! responses come, is guarded by the same kind of budget.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use rocebud_wire::Gid;

use crate::ready::{Index, Ready};

/// A budget and who waits for it. One that got something waits behind those that got nothing, so
/// turns go round whatever the sizes are.
#[derive(Debug, Default)]
pub(crate) struct Window {
    limit: u64,
    used: u64,
    /// Got nothing since they were last woken: these come first. In order of arrival, with the
    /// bytes that each wants.
    hungry: VecDeque<(Index, u64)>,
    /// Got some, and want more.
    served: VecDeque<(Index, u64)>,
    /// By index: in one of the two.
    waits: Vec<bool>,
}

impl Window {
    /// May a holder of `own` bytes take `cost` more? One who holds nothing always may, so nobody
    /// starves.
    pub(crate) const fn admits(&self, own: u64, cost: u64) -> bool {
        own == 0 || self.has_room(cost)
    }

    /// There is room for `cost` more.
    pub(crate) const fn has_room(&self, cost: u64) -> bool {
        self.used.saturating_add(cost) <= self.limit
    }

    pub(crate) fn take(&mut self, cost: u64) {
        self.used = self.used.saturating_add(cost);
    }

    /// Gives back, and lets those who wait longest try again.
    pub(crate) fn release(&mut self, cost: u64, ready: &mut Ready) {
        self.used = self.used.saturating_sub(cost);
        if cost != 0 {
            self.wake(ready);
        }
    }

    /// `index` is to be tried again when `cost` bytes are free. `got` = it took some since it was
    /// last woken.
    pub(crate) fn wait(&mut self, index: Index, cost: u64, got: bool) {
        let at = index as usize;
        if self.waits.len() <= at {
            self.waits.resize(at + 1, false);
        }
        if let Some(flag) = self.waits.get_mut(at)
            && !core::mem::replace(flag, true)
        {
            let line = if got {
                &mut self.served
            } else {
                &mut self.hungry
            };
            line.push_back((index, cost));
        }
    }

    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn set_limit(&mut self, limit: u64, ready: &mut Ready) {
        self.limit = limit;
        self.wake(ready);
    }

    /// Wakes no more than what is free may serve: of thousands that wait, each packet given back
    /// wakes one. Whoever is woken for nothing (somebody else was quicker) waits again. When nothing
    /// is taken any more all wake: nothing will be given back that could wake the rest.
    fn wake(&mut self, ready: &mut Ready) {
        let mut free = match self.used {
            0 => u64::MAX,
            used => self.limit.saturating_sub(used),
        };
        loop {
            let line = if self.hungry.is_empty() {
                &mut self.served
            } else {
                &mut self.hungry
            };
            let Some(&(index, cost)) = line.front() else {
                return;
            };
            let Some(rest) = free.checked_sub(cost) else {
                return;
            };
            free = rest;
            line.pop_front();
            if let Some(flag) = self.waits.get_mut(index as usize) {
                *flag = false;
            }
            ready.push(index);
        }
    }
}

#[derive(Debug)]
struct Peer {
    gid: Gid,
    slot: u16,
    users: u32,
    /// Told by the runtime; outlives its users.
    told: Option<u32>,
    window: Window,
}

/// Handle of a peer's window.
pub(crate) type PeerId = u32;

/// The windows of all peers. Entries are looked up when a queue pair connects, never per packet.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    list: Vec<Peer>,
}

impl Peers {
    fn entry(&mut self, gid: Gid, slot: u16, limit: u32) -> usize {
        if let Some(at) = self
            .list
            .iter()
            .position(|p| p.gid == gid && p.slot == slot)
        {
            return at;
        }
        let fresh = Peer {
            gid,
            slot,
            users: 0,
            told: None,
            window: Window::default(),
        };
        let free = self
            .list
            .iter()
            .position(|p| p.users == 0 && p.told.is_none());
        let at = match free.and_then(|at| self.list.get_mut(at).map(|p| (at, p))) {
            Some((at, place)) => {
                *place = fresh;
                at
            }
            None => {
                self.list.push(fresh);
                self.list.len() - 1
            }
        };
        if let Some(peer) = self.list.get_mut(at) {
            peer.window.limit = u64::from(limit);
        }
        at
    }

    /// A queue pair connects to this peer.
    pub(crate) fn attach(&mut self, gid: Gid, slot: u16, default_limit: u32) -> PeerId {
        let at = self.entry(gid, slot, default_limit);
        if let Some(peer) = self.list.get_mut(at) {
            peer.users += 1;
        }
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// It is gone. What it held must have been released.
    pub(crate) fn detach(&mut self, id: PeerId) {
        if let Some(peer) = self.list.get_mut(id as usize) {
            peer.users = peer.users.saturating_sub(1);
        }
    }

    /// Bytes in flight towards all peers.
    pub(crate) fn used(&self) -> u64 {
        self.list.iter().map(|p| p.window.used()).sum()
    }

    pub(crate) fn window(&mut self, id: PeerId) -> Option<&mut Window> {
        self.list.get_mut(id as usize).map(|p| &mut p.window)
    }

    /// What the runtime knows about the peer's receive buffer.
    pub(crate) fn tell(&mut self, gid: Gid, slot: u16, bytes: u32, ready: &mut Ready) {
        let at = self.entry(gid, slot, bytes);
        if let Some(peer) = self.list.get_mut(at) {
            peer.told = Some(bytes);
            peer.window.set_limit(u64::from(bytes), ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_shared_and_its_release_wakes_who_waits() {
        let mut ready = Ready::default();
        let mut peers = Peers::default();
        let gid = Gid::from_v4([10, 0, 0, 1]);
        let a = peers.attach(gid, 3, 1000);
        let b = peers.attach(gid, 3, 1000);
        assert_eq!(a, b, "same process, same window");
        assert_ne!(
            peers.attach(gid, 4, 1000),
            a,
            "another slot is another process"
        );
        let window = peers.window(a).unwrap();
        window.take(900);
        assert!(window.admits(0, 500), "nobody starves");
        assert!(!window.admits(1, 500));
        window.wait(8, 500, false);
        window.wait(8, 500, false);
        window.release(900, &mut ready);
        assert_eq!(ready.front(), Some(8));
        ready.pop();
        assert!(ready.is_empty());
    }

    #[test]
    fn what_comes_free_wakes_as_many_as_it_may_serve_longest_waiting_first() {
        let (mut ready, mut window) = (Ready::default(), Window::default());
        window.set_limit(100_000, &mut ready);
        window.take(100_000);
        (0..4096).for_each(|index| window.wait(index, 1000, false));
        window.release(999, &mut ready);
        assert!(ready.is_empty(), "not enough for anybody");
        window.release(2001, &mut ready);
        let woken: Vec<Index> = core::iter::from_fn(|| {
            let index = ready.front();
            ready.pop();
            index
        })
        .collect();
        assert_eq!(woken, [0, 1, 2]);
        window.wait(0, 1000, false);
        assert_eq!(window.hungry.back(), Some(&(0, 1000)), "at the end again");
    }

    #[test]
    fn who_got_some_stands_behind_who_got_nothing() {
        let (mut ready, mut window) = (Ready::default(), Window::default());
        window.take(100);
        window.wait(1, 20, true);
        window.wait(2, 10, false);
        window.wait(3, 10, false);
        window.set_limit(110, &mut ready);
        window.wait(2, 10, true);
        window.set_limit(120, &mut ready);
        window.release(100, &mut ready);
        let woken: Vec<Index> = core::iter::from_fn(|| {
            let index = ready.front();
            ready.pop();
            index
        })
        .collect();
        assert_eq!(
            woken,
            [2, 3, 1],
            "at the end nothing is taken, and nobody left in line"
        );
    }

    #[test]
    fn an_unused_entry_is_reused() {
        let mut peers = Peers::default();
        let a = peers.attach(Gid::from_v4([1, 1, 1, 1]), 1, 10);
        peers.detach(a);
        assert_eq!(peers.attach(Gid::from_v4([2, 2, 2, 2]), 1, 10), a);
    }
}
