//! The hosts that this process talks to, and what they say of themselves.
//!
//! Whoever is named here is asked by the daemon whether it runs rocebud, once for each address; what
//! it says comes as a notice, at once or later. Nothing waits for it: without it a host speaks the
//! standard.
//!
//! A host may say that the IPv4 identifications of its packets are below a bound. An ICRC that fits
//! another identification only is then most likely a spoiled packet's; but another stack may have taken
//! the host's place, or sends beside it, and no good packet may be lost for good. So what such a packet
//! is depends on the path: where few packets came that no identification explains ([`SPOILED_MANY`]) it
//! is taken for a good one, otherwise it is dropped. In either case the host's word is in doubt from
//! then on: the daemon asks again, and until the host stands by its word the standard holds.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Mutex;

use rocebud_ctl::{DeviceInfo, Herald, PeerHint, PeerNews, PeerWord};
use rocebud_nic::RxFrame;
use rocebud_objects::Path;
use rocebud_wire::Gid;
use rocebud_wire::icrc::{DF, RecoveredId};

use crate::sync::lock;

/// Hosts that are named to the daemon; further ones are taken for hosts of the standard.
const HOSTS_MAX: usize = 1024;

/// Packets from a host that no identification explains, none of them [`CLEAN_NS`] after the one before:
/// where there are so many the path spoils packets. One spoiled packet in 2^15 fits some identification,
/// so once in 512 times one of these few does and is taken for a good one.
const SPOILED_MANY: u32 = 64;

/// A path that has spoiled nothing for so long is clean.
const CLEAN_NS: u64 = 10_000_000_000;

/// So long after it stood by its word a host has not become another on a path that spoils packets.
const FRESH_NS: u64 = 1_000_000_000;

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
        if devices.iter().any(|device| device.has_gid(path.dgid)) {
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
    /// Hosts that said a bound.
    bounds: usize,
    /// What the daemon is to be told.
    doubts: Vec<PeerHint>,
}

/// What a packet is whose ICRC fits an identification other than the one expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    /// As good as any.
    Good,
    /// Its host never sends this, as it says. Good all the same, for all that is known.
    Strange,
    /// Most likely spoiled.
    Spoiled,
}

#[derive(Debug, Default)]
struct Host {
    word: Option<PeerWord>,
    /// Slots of its processes that queue pairs of ours are connected to.
    slots: Vec<u16>,
    /// When the word came.
    said_ns: u64,
    /// Packets that no identification explains, and when the last one came.
    spoiled: u32,
    spoiled_ns: u64,
    /// It sent what it says it never sends.
    in_doubt: bool,
}

impl Host {
    /// The path to it spoils packets.
    fn is_spoiling(&self, now_ns: u64) -> bool {
        self.spoiled >= SPOILED_MANY && now_ns.saturating_sub(self.spoiled_ns) < CLEAN_NS
    }

    fn id_bound(&self) -> u16 {
        self.word.map_or(0, |word| word.id_bound)
    }

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
    pub(crate) fn heard(&mut self, news: &PeerNews, now_ns: u64) -> (&[u16], Option<u32>) {
        let remote = news.remote();
        if let Some(host) = self.host(remote) {
            host.word = news.word;
            host.said_ns = now_ns;
            host.in_doubt = false;
        }
        self.doubts.retain(|hint| hint.remote() != remote);
        let bounds = self.list.values().filter(|host| host.id_bound() != 0);
        self.bounds = bounds.count();
        match self.list.get(&remote) {
            Some(host) => (&host.slots, host.buffer_bytes()),
            None => (&[], None),
        }
    }

    /// A packet over IPv4 came whose ICRC fits this identification, and not the one expected.
    #[inline]
    pub(crate) fn fits(&mut self, frame: &RxFrame<'_>, id: &RecoveredId, now_ns: u64) -> Fit {
        if self.bounds == 0 {
            return Fit::Good;
        }
        self.judge(frame, id, now_ns)
    }

    fn judge(&mut self, frame: &RxFrame<'_>, id: &RecoveredId, now_ns: u64) -> Fit {
        let src = Gid::from_ip(frame.src.ip());
        let host = self.list.get_mut(&src).filter(|host| host.id_bound() != 0);
        let Some(host) = host else {
            return Fit::Good;
        };
        if id.id < host.id_bound() && id.flags_frag == DF {
            return Fit::Good;
        }
        let spoils = host.is_spoiling(now_ns);
        let fresh = now_ns.saturating_sub(host.said_ns) < FRESH_NS;
        if host.in_doubt {
            return Fit::Strange;
        }
        if !(spoils && fresh) {
            host.in_doubt = true;
            self.doubts.push(PeerHint {
                ifindex: frame.ifindex,
                local: Gid::from_ip(frame.dst).0,
                remote: src.0,
                doubt: true,
            });
        }
        if spoils { Fit::Spoiled } else { Fit::Strange }
    }

    /// A packet came whose ICRC fits no identification.
    #[cold]
    pub(crate) fn spoiled(&mut self, src: IpAddr, now_ns: u64) {
        if self.bounds != 0
            && let Some(host) = self.list.get_mut(&Gid::from_ip(src))
        {
            if now_ns.saturating_sub(host.spoiled_ns) >= CLEAN_NS {
                host.spoiled = 0;
            }
            host.spoiled = host.spoiled.saturating_add(1);
            host.spoiled_ns = now_ns;
        }
    }

    /// Somebody's word is in doubt, and the daemon does not know yet.
    #[inline]
    pub(crate) fn has_doubts(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// Tells the daemon. What it cannot take now waits.
    #[cold]
    pub(crate) fn tell_doubts(&mut self, herald: &Herald) {
        while let Some(hint) = self.doubts.pop() {
            if !herald.say(hint) {
                return self.doubts.push(hint);
            }
        }
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
