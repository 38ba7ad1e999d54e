//! The hosts that this process talks to, and what they say of themselves.
//!
//! Whoever is named here is asked by the daemon whether it runs rocebud, once for each address; what
//! it says comes as a notice, at once or later. Nothing waits for it: without it a host speaks the
//! standard.

use std::collections::HashSet;
use std::sync::Mutex;

use rocebud_ctl::{DeviceInfo, Herald, PeerHint};
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
