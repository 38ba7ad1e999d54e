//! The hosts that this process talks to, and what they say of themselves.
//!
//! Whoever is named here is asked by the daemon whether it runs rocebud, once for each address; what
//! it says comes as a notice, at once or later. Nothing waits for it: without it a host speaks the
//! standard.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use rocebud_ctl::{DeviceInfo, Herald, PeerHint, PeerNews, PeerWord};
use rocebud_objects::Path;
use rocebud_wire::Gid;

use crate::sync::lock;

/// Hosts that are named to the daemon; further ones are taken for hosts of the standard.
const HOSTS_MAX: usize = 1024;

/// Who was named.
#[derive(Debug)]
pub(crate) struct Named {
    herald: Herald,
    hosts: Mutex<HashSet<Gid>>,
}

impl Named {
    pub(crate) fn new(herald: Herald) -> Self {
        Self {
            herald,
            hosts: Mutex::default(),
        }
    }

    /// This process is going to talk to somebody. Own addresses are no news: who is there is known.
    pub(crate) fn name(&self, path: &Path, devices: &[DeviceInfo]) {
        let mut hosts = lock(&self.hosts);
        if hosts.contains(&path.dgid) || hosts.len() >= HOSTS_MAX || path.dgid.is_multicast() {
            return;
        }
        let mut own = devices.iter().flat_map(|d| d.gids.iter().flatten());
        if own.any(|entry| entry.gid() == path.dgid) {
            return;
        }
        let hint = PeerHint {
            ifindex: path.ifindex,
            local: path.sgid.0,
            remote: path.dgid.0,
            doubt: false,
        };
        // A daemon that is behind is told another time.
        if self.herald.say(hint) {
            hosts.insert(path.dgid);
        }
    }
}

/// What is known of hosts.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    list: HashMap<Gid, Host>,
}

#[derive(Debug, Default)]
struct Host {
    word: Option<PeerWord>,
    /// Slots of its processes that queue pairs of ours are connected to.
    slots: Vec<u16>,
}

impl Host {
    /// Receive buffer of each of its processes.
    fn buffer_bytes(&self) -> Option<u32> {
        let word = self.word.filter(|word| word.receive_buffer != 0);
        word.map(|word| word.receive_buffer)
    }
}

impl Hosts {
    /// A queue pair connects to a process there. The size of its receive buffer, if it is known and
    /// was not told before.
    pub(crate) fn joined(&mut self, to: Gid, slot: u16) -> Option<u32> {
        let host = self.host(to)?;
        if host.slots.contains(&slot) {
            return None;
        }
        host.slots.push(slot);
        host.buffer_bytes()
    }

    /// The daemon has heard of a host. The slots whose receive buffers it tells of, and their size.
    pub(crate) fn heard(&mut self, news: &PeerNews) -> (&[u16], Option<u32>) {
        let Some(host) = self.host(news.remote()) else {
            return (&[], None);
        };
        host.word = news.word;
        (&host.slots, host.buffer_bytes())
    }

    fn host(&mut self, gid: Gid) -> Option<&mut Host> {
        if self.list.len() >= HOSTS_MAX && !self.list.contains_key(&gid) {
            return None;
        }
        Some(self.list.entry(gid).or_default())
    }
}

#[cfg(test)]
mod tests;
