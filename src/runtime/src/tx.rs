//! The way out: packets of the engine into batches, sealed, and sent.
//!
//! A batch is what one UDP send may carry: packets of one length (the last may be shorter) for one
//! destination process, of one traffic class, from one port. Segment `i` of a batch leaves with
//! IPv4 identification `i`, so it is sealed for that. Packets lie in the staging buffer one after
//! the other, so a batch grows in place.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rocebud_ctl::page::{Fact, QpCount};
use rocebud_engine::{Node, Transmit, limits::FRAME_BYTES_MAX};
use rocebud_nic::udp::UdpLink;
use rocebud_nic::{IdRule, PacketIo, TxBatch};
use rocebud_objects::Counter;
use rocebud_wire::icrc::{self, Sums};
use rocebud_wire::{BTH_LEN, Opcode, Operation};

use crate::env::World;
use crate::hooks::{Direction, Hooks, Verdict};
use crate::log::{self, Level};
use crate::near::Near;
use crate::sys::PageBuf;
use crate::window::{Finding, Run, Windows};

/// Bytes of packets prepared before they are given to the link. Small enough to stay in the
/// second-level cache between filling and sending.
const STAGING_BYTES: usize = 4 * 64 * 1024;

/// Batches prepared before they are given to the link.
const BATCHES_MAX: usize = 64;

/// Bytes of two packets that may change places; moving more costs more than it saves.
const SWAP_BYTES_MAX: usize = 1024;

/// Rounds of a turn, so that one turn does not hold the engine for long.
const ROUNDS_MAX: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Destination {
    src: IpAddr,
    dst: IpAddr,
    ifindex: u32,
    /// As the link really sends it; two wishes may lead to one port.
    sport: u16,
    traffic_class: u8,
    hop_limit: u8,
    /// Steering at the receiver looks at the first packet of a batch only.
    slot: u16,
}

#[derive(Clone, Debug)]
struct Batch {
    to: Destination,
    /// The port that was wished for.
    wanted: u16,
    bytes: Range<usize>,
    segment: usize,
    count: usize,
    count_max: usize,
    bytes_max: usize,
    id: IdRule,
    icrc: bool,
    /// Its packets leave one by one, whatever the link could do.
    singly: bool,
    /// Its last packet was shorter than the others, or it must stay alone.
    closed: bool,
    /// Its first packet is an acknowledgement.
    answers: bool,
    /// That one is not sealed yet: it may still change its place.
    unsealed: bool,
}

/// What a round took from the engine.
#[derive(Default)]
struct Filled {
    packets: usize,
    /// The last packets in a row to one process.
    run: Option<Run>,
    /// The engine had no more.
    is_last: bool,
}

/// Staging buffer and what waits in it.
pub(crate) struct Tx {
    staging: PageBuf,
    used: usize,
    batches: Vec<Batch>,
    sums: Sums,
    pub(crate) windows: Windows,
    pub(crate) near: Near,
    /// The program sleeps for events. So does its peer's, most likely: as a rule it is the same one.
    pub(crate) sleeps: Arc<AtomicBool>,
}

impl Tx {
    pub(crate) fn new() -> Self {
        Self {
            staging: PageBuf::new(STAGING_BYTES),
            used: 0,
            batches: Vec::with_capacity(BATCHES_MAX),
            sums: Sums::default(),
            windows: Windows::default(),
            near: Near::default(),
            sleeps: Arc::default(),
        }
    }

    /// Batches that the link could not take yet.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.batches.is_empty()
    }

    /// Sends what the engine has, a bounded amount. Returns packets sent.
    pub(crate) fn run(
        &mut self,
        node: &mut Node,
        link: &mut UdpLink,
        hooks: &mut Hooks,
        world: &mut World<'_>,
    ) -> usize {
        let mut packets = 0;
        for _ in 0..ROUNDS_MAX {
            let mut filled = Filled::default();
            if self.batches.is_empty() {
                filled = self.fill(node, link, hooks, world);
                packets += filled.packets;
            }
            let all_left = self.batches.is_empty() || self.flush(link, world);
            // Behind the send: nobody waits for what we learn from it.
            if let Some(run) = filled.run {
                self.learn(node, link, &run, world);
            }
            if !all_left || filled.is_last {
                break;
            }
        }
        packets
    }

    /// Without a link (the daemon is gone) packets are lost, but queue pairs still move on.
    pub(crate) fn discard(&mut self, node: &mut Node, world: &mut World<'_>) {
        self.batches.clear();
        self.used = 0;
        while node
            .poll_transmit(world.now, &mut self.staging, world)
            .is_some()
        {
            world.add(Counter::SendErr, 1);
        }
        world.flow.flush();
    }

    fn fill(
        &mut self,
        node: &mut Node,
        link: &mut UdpLink,
        hooks: &mut Hooks,
        world: &mut World<'_>,
    ) -> Filled {
        let mut filled = Filled::default();
        let run = &mut filled.run;
        while self.used + FRAME_BYTES_MAX <= self.staging.len() && self.batches.len() < BATCHES_MAX
        {
            if !node.wants_transmit() {
                filled.is_last = true;
                break;
            }
            let room = &mut self.staging[self.used..];
            let Some(out) = node.poll_transmit(world.now, room, world) else {
                filled.is_last = true;
                break;
            };
            filled.packets += 1;
            let asks = read_bytes(&self.staging[self.used..self.used + out.len]);
            if !run.as_mut().is_some_and(|r| r.takes(&out, asks))
                && let Some(ended) = run.replace(Run::new(&out, asks))
            {
                self.learn(node, link, &ended, world);
            }
            world.add_to_qp(out.src_qp, QpCount::SentPkts);
            if out.retransmit {
                world.add_to_qp(out.src_qp, QpCount::Retransmits);
            }
            let frame = &self.staging[self.used..self.used + out.len];
            if hooks.packet(Direction::Tx, frame) == Verdict::Drop {
                world.add(Counter::DropFault, 1);
                continue;
            }
            let merged = self.append(&out, link);
            let (to, dest) = (out.path.dgid, out.dest_qp);
            world.flow.sent(to, dest, out.len, merged);
        }
        world.flow.flush();
        filled
    }

    fn learn(&mut self, node: &mut Node, link: &mut UdpLink, run: &Run, world: &World<'_>) {
        if self.windows.sent(node, run, world.now.0) == Finding::BatchesAreLost
            && link.caps(run.destination()).segments_max > 1
        {
            link.set_gso(run.destination(), false);
            world.pages.fact(Fact::GsoLost).fetch_add(1, Relaxed);
            log::line(
                Level::Warn,
                format_args!(
                    "{}: batches of packets keep getting lost, sending them one by one from now on",
                    run.destination()
                ),
            );
        }
    }

    /// Takes the packet at the end of the staging buffer into the last batch or a new one. True if
    /// it then has another one before it.
    fn append(&mut self, out: &Transmit, link: &dyn PacketIo) -> bool {
        let src = out.path.sgid.ip();
        let to = Destination {
            src,
            dst: out.path.dgid.ip(),
            ifindex: out.path.ifindex,
            sport: link.real_sport(src.is_ipv6(), out.sport),
            traffic_class: out.path.traffic_class,
            hop_limit: out.path.hop_limit,
            slot: out.dest_qp.slot(),
        };
        let end = self.used + out.len;
        // Kernels and NICs that number packets differently may drop all but the first of a batch:
        // whatever was lost goes alone.
        let alone = out.lost;
        match self.batches.last_mut().filter(|_| !alone) {
            Some(last) if last.takes(&to, out.len) => {
                last.add(&mut self.staging, self.used..end, &mut self.sums);
            }
            Some(last)
                if last.may_go_behind(&to, out.len)
                    && !self.sleeps.load(Relaxed)
                    && self.near.arrives_whole(to.dst, to.ifindex) =>
            {
                last.go_behind(&mut self.staging, self.used..end, &mut self.sums);
            }
            _ => {
                let caps = link.caps(to.dst);
                let mut batch = Batch {
                    to,
                    wanted: out.sport,
                    bytes: self.used..self.used,
                    segment: out.len,
                    count: 0,
                    count_max: caps.segments_max,
                    bytes_max: caps.batch_bytes_max,
                    id: caps.ip_id,
                    icrc: caps.icrc,
                    singly: false,
                    closed: alone,
                    answers: is_acknowledgement(&self.staging[self.used..end]),
                    unsealed: false,
                };
                batch.begin(&mut self.staging, self.used..end, &mut self.sums);
                self.batches.push(batch);
            }
        }
        self.used = end;
        self.batches.last().is_some_and(|batch| batch.count > 1)
    }

    /// Gives the batches to the link. False if it could not take all: they wait.
    fn flush(&mut self, link: &mut UdpLink, world: &mut World<'_>) -> bool {
        while self.give(link, world)
            && let Some(refused) = self.batches.first_mut()
        {
            refused.seal_singly(&mut self.staging, &mut self.sums);
        }
        if self.batches.is_empty() {
            self.used = 0;
            world.flow.left();
            return true;
        }
        false
    }

    /// The same, once. True if the first that waits cannot leave as one.
    fn give(&mut self, link: &mut UdpLink, world: &World<'_>) -> bool {
        for batch in &mut self.batches {
            batch.settle(&mut self.staging, &mut self.sums);
        }
        let report = match self.batches.as_slice() {
            [only] => link.send(&[only.on_link(&self.staging)]),
            many => {
                let many: Vec<_> = many.iter().map(|b| b.on_link(&self.staging)).collect();
                link.send(&many)
            }
        };
        world.add(Counter::SentBatches, report.sent as u64);
        if report.failed != 0 {
            world.add(Counter::SendErr, report.failed as u64);
        }
        self.batches.drain(..report.sent.min(self.batches.len()));
        report.seal_singly
    }
}

impl Batch {
    fn takes(&self, to: &Destination, len: usize) -> bool {
        !self.closed
            && self.to == *to
            && len <= self.segment
            && self.count < self.count_max
            && self.bytes.len() + len <= self.bytes_max
    }

    /// Takes its first packet.
    fn begin(&mut self, staging: &mut [u8], range: Range<usize>, sums: &mut Sums) {
        if self.answers {
            self.bytes.end = range.end;
            self.count = 1;
            self.unsealed = true;
        } else {
            self.add(staging, range, sums);
        }
    }

    /// Nothing changes its place any more.
    fn settle(&mut self, staging: &mut [u8], sums: &mut Sums) {
        if std::mem::take(&mut self.unsealed) && self.icrc {
            let first = self.bytes.start..self.bytes.start + self.segment;
            self.seal(&mut staging[first], 0, sums);
        }
    }

    /// Takes the packet at `range`, which follows the batch.
    fn add(&mut self, staging: &mut [u8], range: Range<usize>, sums: &mut Sums) {
        self.settle(staging, sums);
        self.closed |= range.len() < self.segment;
        if self.icrc {
            self.seal(&mut staging[range.clone()], self.count, sums);
        }
        self.bytes.end = range.end;
        self.count += 1;
    }

    /// A lone acknowledgement can leave as the shorter last of a batch that a longer packet (the
    /// request posted just after) begins: one system call and one wake-up less. Nothing else may
    /// change places: packets of a queue pair leave in the order of their PSNs. Nor may this where the
    /// two arrive one by one: a program that sleeps for an event would see its request answered before
    /// it is complete, which no other device does (perftest's `_lat -e` then runs ahead, and ends). What
    /// is between the hosts nobody tells, so a program that sleeps itself, and gains nothing, is left out
    /// altogether.
    fn may_go_behind(&self, to: &Destination, len: usize) -> bool {
        self.answers
            && !self.closed
            && self.count == 1
            && self.count_max > 1
            && self.to == *to
            && len > self.segment
            && self.bytes.len() + len <= SWAP_BYTES_MAX
    }

    /// Exchanges the batch's only packet and the one at `range`, which follows it.
    fn go_behind(&mut self, staging: &mut [u8], range: Range<usize>, sums: &mut Sums) {
        let first = range.len();
        let shorter = self.segment;
        let start = self.bytes.start;
        staging[start..range.end].rotate_left(shorter);
        self.segment = first;
        self.count = 0;
        self.unsealed = false;
        self.bytes.end = start;
        self.add(staging, start..start + first, sums);
        self.add(staging, start + first..range.end, sums);
    }

    /// As the link wants it.
    fn on_link<'a>(&self, staging: &'a [u8]) -> TxBatch<'a> {
        TxBatch {
            src: self.to.src,
            dst: self.to.dst,
            ifindex: self.to.ifindex,
            sport: self.wanted,
            traffic_class: self.to.traffic_class,
            hop_limit: self.to.hop_limit,
            segment: u16::try_from(self.segment).unwrap_or(u16::MAX),
            data: &staging[self.bytes.clone()],
            singly: self.singly,
        }
    }

    /// Its packets leave one by one after all: each has identification 0.
    fn seal_singly(&mut self, staging: &mut [u8], sums: &mut Sums) {
        (self.id, self.singly) = (IdRule::Absent, true);
        let Some(data) = staging.get_mut(self.bytes.clone()).filter(|_| self.icrc) else {
            return;
        };
        for packet in data.chunks_mut(self.segment.max(1)) {
            self.seal(packet, 0, sums);
        }
    }

    /// Writes the ICRC of the packet that becomes segment `index`.
    fn seal(&self, frame: &mut [u8], index: usize, sums: &mut Sums) {
        let covered = icrc::covered(frame);
        let value = match (self.to.src, self.to.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let id = match self.id {
                    IdRule::SegmentIndex => u16::try_from(index).unwrap_or(0),
                    IdRule::Absent => 0,
                };
                let header = icrc::V4 {
                    src: src.octets(),
                    dst: dst.octets(),
                    id,
                    sport: self.to.sport,
                    ..Default::default()
                };
                sums.v4(&header, covered)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = icrc::V6 {
                    src: src.octets(),
                    dst: dst.octets(),
                    sport: self.to.sport,
                    ..Default::default()
                };
                sums.v6(&header, covered)
            }
            // Paths of mixed families are refused when they are made.
            _ => 0,
        };
        icrc::seal(value, frame);
    }
}

fn is_acknowledgement(frame: &[u8]) -> bool {
    let info = frame.first().and_then(|byte| Opcode(*byte).info());
    info.is_some_and(|info| info.operation == Operation::Acknowledge)
}

/// What a packet asks for if it is a READ request, else 0.
fn read_bytes(frame: &[u8]) -> u32 {
    let reth = match frame.first() {
        Some(&opcode) if opcode == Opcode::RC_READ_REQUEST.0 => BTH_LEN,
        // the XRCETH comes first
        Some(&opcode) if opcode == Opcode::XRC_READ_REQUEST.0 => BTH_LEN + 4,
        _ => return 0,
    };
    let length = frame.get(reth + 12..).and_then(|rest| rest.first_chunk());
    length.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

impl std::fmt::Debug for Tx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tx")
            .field("used", &self.used)
            .field("batches", &self.batches.len())
            .finish_non_exhaustive()
    }
}
