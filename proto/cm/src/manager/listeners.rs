//! Who offers what, and how many requests wait there.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rocebud_objects::{Errno, Misuse};
use rocebud_wire::Gid;

use crate::limits::{BACKLOG_DEFAULT, BACKLOG_MAX, BACKLOG_RESERVE, LISTENERS_MAX};
use crate::types::{Bind, Listen, ListenerId, Peer};

#[derive(Debug)]
struct Listener {
    what: Listen,
    /// Requests that wait for the application, by peer and in all.
    waiting_of: BTreeMap<Peer, u32>,
    waiting: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    all: BTreeMap<ListenerId, Listener>,
    /// Listeners by mask and masked service id.
    by_service: BTreeMap<(u64, u64), Vec<ListenerId>>,
    /// How many listeners use a mask.
    masks: BTreeMap<u64, u32>,
    last: u32,
}

impl Listeners {
    pub(crate) fn add(&mut self, mut what: Listen) -> Result<ListenerId, Misuse> {
        what.service_id &= what.mask;
        what.backlog = match what.backlog {
            0 => BACKLOG_DEFAULT,
            n => n.min(BACKLOG_MAX),
        };
        let key = (what.mask, what.service_id);
        let same = |id: &ListenerId| self.all.get(id).is_some_and(|l| l.what.bind == what.bind);
        if self
            .by_service
            .get(&key)
            .is_some_and(|ids| ids.iter().any(same))
        {
            return Err(Misuse::new(
                Errno::EADDRINUSE,
                "somebody listens on this service id at this address already",
            ));
        }
        if self.all.len() >= LISTENERS_MAX {
            return Err(Misuse::new(Errno::ENOMEM, "too many listeners"));
        }
        let id = self.free_id();
        self.by_service.entry(key).or_default().push(id);
        *self.masks.entry(what.mask).or_default() += 1;
        self.all.insert(
            id,
            Listener {
                what,
                waiting_of: BTreeMap::new(),
                waiting: 0,
            },
        );
        Ok(id)
    }

    fn free_id(&mut self) -> ListenerId {
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.all.contains_key(&ListenerId(self.last)) {
                return ListenerId(self.last);
            }
        }
    }

    /// False if there is none of this name.
    pub(crate) fn remove(&mut self, id: ListenerId) -> bool {
        let Some(Listener { what, .. }) = self.all.remove(&id) else {
            return false;
        };
        let key = (what.mask, what.service_id);
        if let Some(ids) = self.by_service.get_mut(&key) {
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                self.by_service.remove(&key);
            }
        }
        if let Some(users) = self.masks.get_mut(&what.mask) {
            *users -= 1;
            if *users == 0 {
                self.masks.remove(&what.mask);
            }
        }
        true
    }

    /// Somebody offers the service, at whatever address.
    pub(crate) fn offered(&self, service_id: u64) -> bool {
        self.of_service(service_id).next().is_some()
    }

    /// Who offers the service at this address: of the most specific addresses the one with the
    /// narrowest mask.
    pub(crate) fn find(&self, service_id: u64, local: Gid, port: u32) -> Option<ListenerId> {
        self.of_service(service_id)
            .map(|(id, listener)| (fit(&listener.what.bind, local, port), id))
            .filter(|&(fit, _)| fit > 0)
            .min_by_key(|&(fit, _)| core::cmp::Reverse(fit))
            .map(|(_, id)| id)
    }

    /// The widest masks last.
    fn of_service(&self, service_id: u64) -> impl Iterator<Item = (ListenerId, &Listener)> {
        let keys = self.masks.keys().rev().map(move |&m| (m, service_id & m));
        keys.filter_map(|key| self.by_service.get(&key))
            .flatten()
            .filter_map(|&id| Some((id, self.all.get(&id)?)))
    }

    /// Takes a place in the backlog. False if there is none for this peer: the last places are
    /// for peers of which no request waits.
    pub(crate) fn take_place(&mut self, id: ListenerId, peer: Peer) -> bool {
        let Some(listener) = self.all.get_mut(&id) else {
            return false;
        };
        let backlog = listener.what.backlog;
        let limit = match listener.waiting_of.get(&peer) {
            Some(_) => backlog - (backlog / 8).min(BACKLOG_RESERVE),
            None => backlog,
        };
        if listener.waiting >= limit {
            return false;
        }
        listener.waiting += 1;
        *listener.waiting_of.entry(peer).or_default() += 1;
        true
    }

    /// Places taken, of all listeners.
    pub(crate) fn waiting(&self) -> usize {
        self.all.values().map(|l| l.waiting as usize).sum()
    }

    /// Gives a place back.
    pub(crate) fn give_place(&mut self, id: ListenerId, peer: Peer) {
        let Some(listener) = self.all.get_mut(&id) else {
            return;
        };
        listener.waiting = listener.waiting.saturating_sub(1);
        if let Some(count) = listener.waiting_of.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                listener.waiting_of.remove(&peer);
            }
        }
    }
}

/// How well a listener's address fits: 0 = not at all.
fn fit(bind: &Bind, local: Gid, at_port: u32) -> u8 {
    let is_v4 = local.v4().is_some();
    match *bind {
        Bind::Any => 1,
        Bind::AnyV4 => 2 * u8::from(is_v4),
        Bind::AnyV6 => 2 * u8::from(!is_v4),
        Bind::Addr { gid, .. } if gid != local => 0,
        Bind::Addr { port: None, .. } => 3,
        Bind::Addr {
            port: Some(port), ..
        } => 4 * u8::from(port == at_port),
    }
}
