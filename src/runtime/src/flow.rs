//! Back-pressure between processes of one host.
//!
//! Their daemon's [`Ledger`] tells what is on its way to each of them and how large its buffer is.
//! A packet for a neighbour leaves only when room was reserved for it, whatever its service: UC and
//! UD, which have no acknowledgements, are held back by nothing else. Reservations are charged what
//! the kernel will charge at worst, so that a buffer cannot overflow, however many send to it.
//!
//! A neighbour may be stopped, or its line may be nonsense: one that reads nothing for [`STUCK_NS`]
//! holds back nobody until it reads again. While a refused sender waits for more room than it needs,
//! one packet goes all the same now and then, at longer and longer intervals.

use std::collections::{HashMap, HashSet};

use rocebud_ctl::{DeviceInfo, Ledger, Line};
use rocebud_wire::{Gid, Qpn};

/// Most bytes on their way to a neighbour. More would only lie in its buffer.
const BUDGET_BYTES_MAX: u64 = 4 << 20;

/// Of a buffer this many eighths are given out. The kernel takes up to a quarter of a buffer for full
/// although it was read: it returns what was read in portions of that size.
const BUDGET_EIGHTHS: u64 = 6;

/// Who was refused goes on when this part of the budget is free again: packets that leave one by one,
/// each as soon as it has room, cost more than those that leave together.
const RESUME_PARTS: u64 = 4;

/// Or after this long, so that others who are never refused starve nobody.
const RESUME_NS: u64 = 1_000_000;

/// Network headers, room for a link header and the kernel's own record at the end of a datagram's
/// memory.
const DATAGRAM_COST_BYTES: u64 = 400;

/// What a packet behind another one of its batch costs beyond its bytes, at most.
const MERGED_COST_BYTES: u64 = 256;

/// The kernel's record of a datagram beside its memory.
const RECORD_BYTES: u64 = 256;

/// Transport headers and ICRC beside a packet's payload, at most.
const HEADERS_BYTES_MAX: u64 = 64;

/// Bytes that are entered in the ledger together, and reserved together once packets come in runs.
const ENTRY_BYTES_MAX: u64 = 16 * 1024;

/// What has left is lost if the owner's sockets were dry for so long. The kernel delivers within a
/// millisecond, unless it has no turn itself.
const WRITE_OFF_NS: u64 = 20_000_000;

/// What was reserved and did not leave within this time was reserved by a process that is gone.
const ABANDONED_NS: u64 = 1_000_000_000;

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
    /// Lanes with packets that were not handed to the kernel yet.
    leaving: Vec<usize>,
}

/// One of our slots, as its owner.
#[derive(Debug)]
struct OwnSlot {
    slot: u16,
    /// Read, and not entered yet.
    read: u64,
    /// The sockets are dry since then.
    dry: Option<Dry>,
    /// Least that was seen reserved and not left, and since when it is looked for.
    idle: Option<Idle>,
}

#[derive(Clone, Copy, Debug)]
struct Dry {
    /// What had left then.
    left: u64,
    since_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Idle {
    bytes: u64,
    since_ns: u64,
}

/// The way to a process.
#[derive(Debug)]
struct Lane {
    key: Key,
    /// It is on this host.
    here: bool,
    /// Reserved, and not sent yet.
    reserved: u64,
    /// Sent without reservation, and not entered yet.
    sent: u64,
    /// Sent, and not handed to the kernel yet.
    leaving: u64,
    /// Something was sent since the last [`Flow::flush`]: more may follow.
    in_run: bool,
    /// Since when everything was refused.
    refused_ns: Option<u64>,
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
        self.own = devices.iter().flat_map(DeviceInfo::addresses).collect();
        self.forget_lanes();
    }

    /// One more slot is ours.
    pub(crate) fn add_slot(&mut self, slot: u16) {
        self.slots.push(OwnSlot {
            slot,
            read: 0,
            dry: None,
            idle: None,
        });
    }

    // ---- as a sender

    /// Is there room for a packet with `bytes` of payload? If so, it is reserved.
    pub(crate) fn has_room(&mut self, to: Gid, slot: u16, bytes: u64, now_ns: u64) -> bool {
        let at = self.lane(to, slot);
        let cost = charge(bytes + HEADERS_BYTES_MAX);
        if self.lanes[at].reserved >= cost {
            return true;
        }
        let Some(line) = neighbour(self.ledger.as_ref(), &self.lanes[at]) else {
            return true;
        };
        let Some(buffer) = line.buffer_bytes() else {
            return true;
        };
        self.lanes[at].admits(line, buffer, cost, now_ns)
    }

    /// A packet of `bytes` leaves; `merged`: behind another one of its batch.
    pub(crate) fn sent(&mut self, to: Gid, dest: Qpn, bytes: usize, merged: bool) {
        let at = self.lane(to, dest.slot());
        let lane = &mut self.lanes[at];
        if !lane.here {
            return;
        }
        let cost = charge_of(bytes as u64, merged);
        let reserved = cost.min(lane.reserved);
        lane.reserved -= reserved;
        lane.sent += cost - reserved;
        if lane.leaving == 0 {
            self.leaving.push(at);
        }
        lane.leaving += cost;
        lane.in_run = true;
        if lane.sent >= ENTRY_BYTES_MAX {
            lane.enter(self.ledger.as_ref());
        }
    }

    /// What was sent is about to leave: others must see it. Nothing follows at once: what is still
    /// reserved is given back.
    pub(crate) fn flush(&mut self) {
        if let Some(lane) = self.lanes.get_mut(self.last) {
            lane.enter(self.ledger.as_ref());
            lane.give_back(self.ledger.as_ref());
        }
    }

    /// What was sent was handed to the kernel.
    pub(crate) fn left(&mut self) {
        while let Some(at) = self.leaving.pop() {
            let Some(lane) = self.lanes.get_mut(at) else {
                continue;
            };
            let bytes = std::mem::take(&mut lane.leaving);
            if let Some(line) = neighbour(self.ledger.as_ref(), lane) {
                line.add_left(bytes);
            }
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
            reserved: 0,
            sent: 0,
            leaving: 0,
            in_run: false,
            refused_ns: None,
            wait: None,
            stuck_at: None,
        });
        self.by_key.insert(key, self.last);
        self.last
    }

    fn forget_lanes(&mut self) {
        self.flush();
        self.left();
        self.lanes.clear();
        self.by_key.clear();
        self.last = 0;
    }

    // ---- as an owner

    /// A frame for one of our slots was read; `merged`: behind another one of its batch.
    pub(crate) fn received(&mut self, dest: Qpn, bytes: usize, merged: bool) {
        let slot = dest.slot();
        if let Some(own) = self.slots.iter_mut().find(|own| own.slot == slot) {
            own.read += charge_of(bytes as u64, merged);
            own.dry = None;
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

    /// What neighbours said to have sent has been read.
    pub(crate) fn is_settled(&self) -> bool {
        let Some(ledger) = &self.ledger else {
            return true;
        };
        let mut lines = self.slots.iter().filter_map(|own| ledger.line(own.slot));
        lines.all(|line| line.under_way() == 0)
    }

    /// Every socket is dry. What had left when they became so, and has not come for a while, will
    /// not come.
    pub(crate) fn dry(&mut self, now_ns: u64) {
        let Some(ledger) = &self.ledger else { return };
        for own in &mut self.slots {
            let Some(line) = ledger.line(own.slot) else {
                continue;
            };
            if line.under_way() == 0 {
                line.correct_read();
                own.dry = None;
                own.idle = None;
            } else {
                own.look(line, now_ns);
            }
        }
    }
}

impl OwnSlot {
    /// Something is said to be under way, and nothing is there.
    fn look(&mut self, line: &Line, now_ns: u64) {
        let fresh = Dry {
            left: line.left(),
            since_ns: now_ns,
        };
        let dry = *self.dry.get_or_insert(fresh);
        if now_ns.saturating_sub(dry.since_ns) >= WRITE_OFF_NS {
            line.write_off(dry.left);
            self.dry = Some(fresh);
        }
        // Whoever lives sends within the second, or gives back: the least that is seen stays at 0.
        let bytes = line.about_to_leave();
        let idle = self.idle.get_or_insert(Idle {
            bytes,
            since_ns: now_ns,
        });
        idle.bytes = idle.bytes.min(bytes);
        if idle.bytes == 0 {
            self.idle = None;
        } else if now_ns.saturating_sub(idle.since_ns) >= ABANDONED_NS {
            line.add_left(idle.bytes);
            self.idle = None;
        }
    }
}

impl Lane {
    /// Reserves `cost`, or says whether a packet may go without.
    fn admits(&mut self, line: &Line, buffer: u64, cost: u64, now_ns: u64) -> bool {
        let budget = (buffer / 8 * BUDGET_EIGHTHS).min(BUDGET_BYTES_MAX);
        let waits = |since: u64| now_ns.saturating_sub(since) < RESUME_NS;
        let resume = if self.refused_ns.is_some_and(waits) {
            budget / RESUME_PARTS
        } else {
            0
        };
        let limit = budget.saturating_sub(self.sent + resume);
        let missing = cost - self.reserved;
        // A lone packet reserves what it needs, so that nothing is to be given back.
        let many = if self.in_run { ENTRY_BYTES_MAX } else { 0 };
        for bytes in [missing.max(many), missing] {
            if line.reserve(bytes, limit) {
                self.reserved += bytes;
                self.refused_ns = None;
                self.wait = None;
                return true;
            }
        }
        self.refused_ns.get_or_insert(now_ns);
        let fits = line.under_way() + self.sent + missing <= budget;
        self.goes_all_the_same(line, fits, now_ns)
    }

    /// There is no room. One packet now and then goes if it `fits` into the buffer, and all of them
    /// when nothing is read for long.
    fn goes_all_the_same(&mut self, line: &Line, fits: bool, now_ns: u64) -> bool {
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
        let probe = fits && now_ns >= wait.probe_ns;
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

    fn give_back(&mut self, ledger: Option<&Ledger>) {
        self.in_run = false;
        if self.reserved != 0
            && let Some(line) = neighbour(ledger, self)
        {
            line.give_back(self.reserved);
        }
        self.reserved = 0;
    }
}

/// What a packet of `bytes` costs in a receive buffer when it comes alone, or first in its batch: the
/// kernel gives it memory by powers of two.
fn charge(bytes: u64) -> u64 {
    (bytes + DATAGRAM_COST_BYTES).next_power_of_two() + RECORD_BYTES
}

/// Behind another one it costs its bytes, and a share of what describes them. Batches stay whole
/// between processes of one host, so both ends charge the same.
fn charge_of(bytes: u64, merged: bool) -> u64 {
    if merged {
        bytes + MERGED_COST_BYTES
    } else {
        charge(bytes)
    }
}

/// The line of a process that is on this host.
fn neighbour<'a>(ledger: Option<&'a Ledger>, lane: &Lane) -> Option<&'a Line> {
    ledger.filter(|_| lane.here)?.line(lane.key.1)
}

#[cfg(test)]
mod tests;
