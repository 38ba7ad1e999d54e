//! Back-pressure between processes of one host.
//!
//! Their daemon's [`Ledger`] tells what is on its way to each of them and how large its buffer is.
//! A packet for a neighbour leaves only when there is room, whatever its service: UC and UD, which
//! have no acknowledgements, are held back by nothing else.
//!
//! A neighbour may be stopped, or its line may be nonsense. So one packet goes all the same now
//! and then, at longer and longer intervals (it also wakes an owner whose line went wrong), and a
//! neighbour that reads nothing for [`STUCK_NS`] holds back nobody until it reads again.

use std::collections::{HashMap, HashSet};

use rocebud_ctl::{DeviceInfo, Ledger, Line};
use rocebud_wire::{Gid, Qpn};

/// Most bytes on their way to a neighbour. More would only lie in its buffer.
const BUDGET_BYTES_MAX: u64 = 4 << 20;

/// What a packet costs in a receive buffer beyond its bytes; see the engine's limits.
const PACKET_COST_BYTES: u64 = rocebud_engine::limits::PACKET_COST_BYTES;

/// Bytes that are entered in the ledger together. Others must not overlook more.
const ENTRY_BYTES_MAX: u64 = 16 * 1024;

/// After this long without room the first packet goes all the same; the interval doubles.
const PROBE_NS: u64 = 5_000_000;

/// A neighbour that has read nothing for this long is stuck.
const STUCK_NS: u64 = 500_000_000;

/// Neighbours remembered; beyond them all are forgotten and looked up anew.
const LANES_MAX: usize = 1024;

type Key = (Gid, u16);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    ledger: Option<Ledger>,
    /// Addresses of this host.
    own: HashSet<Gid>,
    slots: Vec<OwnSlot>,
    lanes: Vec<Lane>,
    by_key: HashMap<Key, usize>,
    /// The lane that was used last: packets come in runs.
    last: usize,
}

/// One of our slots, as its owner.
#[derive(Debug)]
struct OwnSlot {
    slot: u16,
    /// Read, and not entered yet.
    read: u64,
    /// What had been sent when the sockets were last found dry.
    sent_when_dry: Option<u64>,
}

/// The way to a process.
#[derive(Debug)]
struct Lane {
    key: Key,
    /// It is on this host.
    here: bool,
    /// Sent, and not entered yet.
    sent: u64,
    wait: Option<Wait>,
    /// It read nothing beyond this for too long.
    stuck_at: Option<u64>,
}

/// There is no room.
#[derive(Clone, Copy, Debug)]
struct Wait {
    /// What it had read when the wait began or was begun anew.
    read: u64,
    since_ns: u64,
    probe_ns: u64,
    interval_ns: u64,
}

impl Flow {
    /// Takes the ledger into use.
    pub(crate) fn begin(&mut self, ledger: Ledger) {
        self.ledger = Some(ledger);
    }

    /// The addresses of this host have changed.
    pub(crate) fn set_devices(&mut self, devices: &[DeviceInfo]) {
        let entries = devices.iter().flat_map(|d| d.gids.iter().flatten());
        self.own = entries.map(rocebud_ctl::GidEntry::gid).collect();
        self.forget_lanes();
    }

    /// One more slot is ours.
    pub(crate) fn add_slot(&mut self, slot: u16) {
        self.slots.push(OwnSlot {
            slot,
            read: 0,
            sent_when_dry: None,
        });
    }

    // ---- as a sender

    /// Is there room for a packet of `bytes`?
    pub(crate) fn has_room(&mut self, to: Gid, slot: u16, bytes: u64, now_ns: u64) -> bool {
        let lane = self.lane(to, slot);
        let Some(line) = neighbour(self.ledger.as_ref(), &self.lanes[lane]) else {
            return true;
        };
        let Some(buffer) = line.buffer_bytes() else {
            return true;
        };
        self.lanes[lane].admits(line, buffer, bytes + PACKET_COST_BYTES, now_ns)
    }

    /// A packet of `bytes` leaves.
    pub(crate) fn sent(&mut self, to: Gid, dest: Qpn, bytes: usize) {
        let at = self.lane(to, dest.slot());
        let lane = &mut self.lanes[at];
        if lane.here {
            lane.sent += bytes as u64 + PACKET_COST_BYTES;
            if lane.sent >= ENTRY_BYTES_MAX {
                lane.enter(self.ledger.as_ref());
            }
        }
    }

    /// What was sent is about to leave: others must see it.
    pub(crate) fn flush(&mut self) {
        if let Some(lane) = self.lanes.get_mut(self.last) {
            lane.enter(self.ledger.as_ref());
        }
    }

    /// A neighbour has not read all that was sent to it: no answer can be expected yet.
    pub(crate) fn is_behind(&mut self, to: Gid, slot: u16) -> bool {
        let lane = self.lane(to, slot);
        neighbour(self.ledger.as_ref(), &self.lanes[lane])
            .is_some_and(|line| line.buffer_bytes().is_some() && line.under_way() != 0)
    }

    /// Index of the lane, made if it is new.
    fn lane(&mut self, to: Gid, slot: u16) -> usize {
        let key = (to, slot);
        if self.lanes.get(self.last).is_some_and(|l| l.key == key) {
            return self.last;
        }
        self.flush();
        if let Some(&at) = self.by_key.get(&key) {
            self.last = at;
            return at;
        }
        if self.lanes.len() >= LANES_MAX {
            self.forget_lanes();
        }
        self.last = self.lanes.len();
        self.lanes.push(Lane {
            key,
            here: self.own.contains(&to),
            sent: 0,
            wait: None,
            stuck_at: None,
        });
        self.by_key.insert(key, self.last);
        self.last
    }

    fn forget_lanes(&mut self) {
        self.flush();
        self.lanes.clear();
        self.by_key.clear();
        self.last = 0;
    }

    // ---- as an owner

    /// A frame for one of our slots was read.
    pub(crate) fn received(&mut self, dest: Qpn, bytes: usize) {
        let slot = dest.slot();
        if let Some(own) = self.slots.iter_mut().find(|own| own.slot == slot) {
            own.read += bytes as u64 + PACKET_COST_BYTES;
            own.sent_when_dry = None;
        }
    }

    /// Enters what was read.
    pub(crate) fn enter_read(&mut self) {
        let Some(ledger) = &self.ledger else { return };
        for own in self.slots.iter_mut().filter(|own| own.read != 0) {
            if let Some(line) = ledger.line(own.slot) {
                line.add_read(own.read);
            }
            own.read = 0;
        }
    }

    /// Every socket is dry. What had been sent when they were dry before, and has not come since,
    /// will not come.
    pub(crate) fn dry(&mut self) {
        let Some(ledger) = &self.ledger else { return };
        for own in &mut self.slots {
            let Some(line) = ledger.line(own.slot) else {
                continue;
            };
            if let Some(sent) = own.sent_when_dry
                && line.under_way() != 0
            {
                line.set_read(sent);
            }
            own.sent_when_dry = Some(line.sent());
        }
    }
}

impl Lane {
    fn admits(&mut self, line: &Line, buffer: u64, cost: u64, now_ns: u64) -> bool {
        let budget = (buffer / 2).min(BUDGET_BYTES_MAX);
        if line.under_way() + self.sent + cost <= budget {
            self.wait = None;
            return true;
        }
        let read = line.read();
        if self.stuck_at == Some(read) {
            return true;
        }
        self.stuck_at = None;
        let fresh = Wait {
            read,
            since_ns: now_ns,
            probe_ns: now_ns + PROBE_NS,
            interval_ns: PROBE_NS,
        };
        let wait = self.wait.filter(|wait| wait.read == read).unwrap_or(fresh);
        if now_ns.saturating_sub(wait.since_ns) > STUCK_NS {
            self.wait = None;
            self.stuck_at = Some(read);
            return true;
        }
        let probe = now_ns >= wait.probe_ns;
        self.wait = Some(if probe {
            Wait {
                probe_ns: now_ns + wait.interval_ns * 2,
                interval_ns: wait.interval_ns * 2,
                ..wait
            }
        } else {
            wait
        });
        probe
    }

    fn enter(&mut self, ledger: Option<&Ledger>) {
        if self.sent != 0
            && let Some(line) = neighbour(ledger, self)
        {
            line.add_sent(self.sent);
        }
        self.sent = 0;
    }
}

/// The line of a process that is on this host.
fn neighbour<'a>(ledger: Option<&'a Ledger>, lane: &Lane) -> Option<&'a Line> {
    ledger.filter(|_| lane.here)?.line(lane.key.1)
}

#[cfg(test)]
mod tests;
