//! The router, the virtual clock and the event queue.
//!
//! [`Fabric::step`] does the one thing that comes next: a frame arrives, a host's timer runs out,
//! a host's link takes a batch from its engine, or an alarm of the application rings. Equal times
//! are settled by a fixed order, so a run depends on its seed alone.

use std::collections::BTreeMap;

use rocebud_objects::{Counter, Instant};
use rocebud_wire::{Gid, Packet};

use crate::frame::{Frame, Verified};
use crate::host::{Host, HostConfig};
use crate::rng::Rng;
use crate::rule::{Rule, Sight, Verdict};
use crate::trace;

/// A host of the fabric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub usize);

/// What one step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The engine of a host saw a frame or a timer, or gave frames away.
    Host(HostId),
    /// An alarm set with [`Fabric::alarm`] rang.
    Alarm(u64),
    /// Nothing is left to happen.
    Idle,
}

/// Sees every frame that leaves a host, before the rules have had it. Judges from outside.
pub trait Tap {
    /// A frame and its fate.
    fn sent(&mut self, sight: &Sight<'_>, fate: Verdict);
}

/// Watches nothing.
impl Tap for () {
    fn sent(&mut self, _: &Sight<'_>, _: Verdict) {}
}

/// How much happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Frames that left a host.
    pub frames: u64,
    /// Lost by a rule.
    pub dropped: u64,
    /// Copies made by a rule.
    pub duplicated: u64,
    /// Changed by a rule.
    pub corrupted: u64,
    /// Changed so that the ICRC did not show it (discarded by the fabric).
    pub undetected: u64,
    /// Held back or delayed by a rule.
    pub disordered: u64,
    /// Steps made.
    pub steps: u64,
}

#[derive(Debug)]
enum Event {
    Arrive(HostId, Frame),
    /// Time is up for a held frame.
    Release(u64),
    Alarm(u64),
}

/// A frame that waits for others to overtake it.
#[derive(Debug)]
struct Held {
    from: HostId,
    to: HostId,
    frame: Frame,
    behind: u8,
}

enum Next {
    Queue,
    Timeout(usize),
    Transmit(usize),
    /// Queue pairs that the world refused room try again.
    Retry(usize),
}

/// A network of hosts.
pub struct Fabric {
    hosts: Vec<Host>,
    rules: Vec<Box<dyn Rule>>,
    /// By time, then by order of scheduling.
    queue: BTreeMap<(Instant, u64), Event>,
    held: Vec<Held>,
    now: Instant,
    scheduled: u64,
    latency_ns: u64,
    faults: Rng,
    jitter: Rng,
    owners: BTreeMap<Gid, HostId>,
    stats: Stats,
    verbose: bool,
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric")
            .field("now", &self.now)
            .field("hosts", &self.hosts.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// A held frame goes on after this time even if nothing overtakes it.
const HELD_NS_MAX: u64 = 1_000_000;

/// After this long those that the world refused room try again.
const HELD_RETRY_NS: u64 = 50_000;

impl Fabric {
    /// An empty network whose links take `latency_ns`, at time 0.
    #[must_use]
    pub fn new(rng: &mut Rng, latency_ns: u64) -> Self {
        Self {
            hosts: Vec::new(),
            rules: Vec::new(),
            queue: BTreeMap::new(),
            held: Vec::new(),
            now: Instant(0),
            scheduled: 0,
            latency_ns,
            faults: rng.fork(0xfa),
            jitter: rng.fork(0x71),
            owners: BTreeMap::new(),
            stats: Stats::default(),
            verbose: false,
        }
    }

    /// Prints every frame.
    pub const fn set_verbose(&mut self, on: bool) {
        self.verbose = on;
    }

    /// Adds a host.
    pub fn add_host(&mut self, config: HostConfig) -> HostId {
        let id = HostId(self.hosts.len());
        self.owners.insert(config.v4, id);
        self.owners.insert(config.v6, id);
        let rng = self.jitter.fork(id.0 as u64);
        self.hosts.push(Host::new(id.0, config, rng));
        id
    }

    /// Adds a rule behind the others.
    pub fn add_rule(&mut self, rule: impl Rule + 'static) {
        self.rules.push(Box::new(rule));
    }

    /// Removes all rules.
    pub fn clear_rules(&mut self) {
        self.rules.clear();
    }

    /// Virtual time; starts at 0.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// What happened so far.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// A host.
    ///
    /// # Panics
    /// If it is not of this fabric.
    #[must_use]
    pub fn host(&self, id: HostId) -> &Host {
        &self.hosts[id.0]
    }

    /// A host, for an application to call its engine.
    ///
    /// # Panics
    /// If it is not of this fabric.
    pub fn host_mut(&mut self, id: HostId) -> &mut Host {
        let host = &mut self.hosts[id.0];
        // Whatever the caller does may give the engine something to send.
        host.exhausted = false;
        host
    }

    /// All hosts in order.
    pub fn hosts(&self) -> impl Iterator<Item = (HostId, &Host)> {
        self.hosts.iter().enumerate().map(|(i, h)| (HostId(i), h))
    }

    /// Asks for [`Step::Alarm`] with `token`, `delay_ns` from now.
    pub fn alarm(&mut self, delay_ns: u64, token: u64) {
        self.schedule(self.now + delay_ns, Event::Alarm(token));
    }

    /// Frames under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let arriving = |e: &&Event| matches!(e, Event::Arrive(..));
        self.held.len() + self.queue.values().filter(arriving).count()
    }

    /// Stops a host for `ns`: frames wait in its socket, timers run late.
    pub fn freeze(&mut self, host: HostId, ns: u64) {
        let until = self.now + ns;
        let host = &mut self.hosts[host.0];
        host.frozen_until = host.frozen_until.max(until);
    }

    /// Lets a frame that no engine sent arrive at a host, one latency from now.
    pub fn inject(&mut self, to: HostId, frame: Frame) {
        self.schedule(self.now + self.latency_ns, Event::Arrive(to, frame));
    }

    /// Does what comes next.
    pub fn step(&mut self, tap: &mut dyn Tap) -> Step {
        let Some((time, next)) = self.next() else {
            (0..self.hosts.len()).for_each(|at| self.check_liveness(HostId(at)));
            return Step::Idle;
        };
        self.now = self.now.max(time);
        self.stats.steps += 1;
        let step = match next {
            Next::Queue => self.step_queue(),
            Next::Timeout(index) => {
                let host = &mut self.hosts[index];
                host.exhausted = false;
                host.node.on_timeout(self.now, &mut host.env);
                Step::Host(HostId(index))
            }
            Next::Retry(index) => {
                let host = &mut self.hosts[index];
                host.exhausted = false;
                host.node.retry_held();
                Step::Host(HostId(index))
            }
            Next::Transmit(index) => {
                self.transmit(HostId(index), tap);
                Step::Host(HostId(index))
            }
        };
        if let Step::Host(id) = step {
            self.check_liveness(id);
        }
        step
    }

    /// Whatever the network does, no queue pair waits for what cannot come.
    fn check_liveness(&self, id: HostId) {
        if let Some(qpn) = self.hosts[id.0].node.forgotten() {
            panic!("{qpn} of {id:?} has work, and nothing will bring it on");
        }
    }

    fn next(&self) -> Option<(Instant, Next)> {
        let queued = self.queue.first_key_value().map(|(key, _)| key.0);
        let mut best = queued.map(|time| (time, Next::Queue));
        let mut offer = |time: Instant, next: Next| {
            if best.as_ref().is_none_or(|(t, _)| time < *t) {
                best = Some((time, next));
            }
        };
        for (index, host) in self.hosts.iter().enumerate() {
            let awake = host.frozen_until.max(self.now);
            if let Some(time) = host.node.next_timeout() {
                offer(time.max(awake), Next::Timeout(index));
            }
            if host.node.has_held() {
                offer(awake + HELD_RETRY_NS, Next::Retry(index));
            }
            if !host.exhausted && host.node.wants_transmit() {
                offer(host.link_free.max(awake), Next::Transmit(index));
            }
        }
        best
    }

    fn step_queue(&mut self) -> Step {
        let Some((_, event)) = self.queue.pop_first() else {
            return Step::Idle;
        };
        match event {
            // Frames of a frozen host wait; they come before its timers when it goes on.
            Event::Arrive(to, frame) if self.hosts[to.0].frozen_until > self.now => {
                let thaw = self.hosts[to.0].frozen_until;
                self.schedule(thaw, Event::Arrive(to, frame));
                Step::Host(to)
            }
            Event::Arrive(to, frame) => {
                self.arrive(to, &frame);
                Step::Host(to)
            }
            Event::Release(number) => {
                let held = self.held.iter().position(|h| h.frame.number == number);
                if let Some(at) = held {
                    let held = self.held.remove(at);
                    self.schedule(self.now, Event::Arrive(held.to, held.frame));
                }
                Step::Host(HostId(0))
            }
            Event::Alarm(token) => Step::Alarm(token),
        }
    }

    /// A frame reaches its host: verify, parse, hand to the engine.
    fn arrive(&mut self, to: HostId, frame: &Frame) {
        let host = &mut self.hosts[to.0];
        let (id, flags) = match frame.verify() {
            Verified::Good { id, flags } => (id, flags),
            Verified::Undetected => {
                self.stats.undetected += 1;
                return;
            }
            Verified::Bad => {
                assert!(
                    frame.pristine.is_some(),
                    "a frame sealed by us fails its own check"
                );
                use rocebud_engine::Env as _;
                host.env.count(Counter::DropIcrc, 1);
                return;
            }
        };
        // Flips in BTH byte 4 alone leave a good frame whose lengths parse as before.
        match Packet::parse(&frame.bytes) {
            Ok(packet) => {
                host.exhausted = false;
                let meta = frame.meta(id, flags);
                host.node.on_frame(self.now, &meta, &packet, &mut host.env);
            }
            Err(_) if frame.forged => {
                use rocebud_engine::Env as _;
                host.env.count(Counter::DropMalformed, 1);
            }
            Err(why) => panic!("an engine sent what does not parse: {why:?} {frame:?}"),
        }
    }

    /// A host's link takes a batch from its engine.
    fn transmit(&mut self, from: HostId, tap: &mut dyn Tap) {
        let batch_max = self.hosts[from.0].config.batch_max;
        let batch = self.jitter.range(1, u64::from(batch_max.max(1))) as u16;
        let mut departs = self.now;
        for position in 0..batch {
            let host = &mut self.hosts[from.0];
            let Some((_, frame)) = host.next_frame(self.now, position) else {
                host.exhausted = true;
                break;
            };
            departs = departs + host.airtime_ns(&frame);
            self.route(from, frame, departs, tap);
        }
        self.hosts[from.0].link_free = departs;
    }

    /// Decides a frame's fate and schedules its arrival.
    fn route(&mut self, from: HostId, mut frame: Frame, departs: Instant, tap: &mut dyn Tap) {
        self.stats.frames += 1;
        frame.number = self.stats.frames;
        let Some(&to) = self.owners.get(&frame.dst) else {
            return;
        };
        let fate = {
            let packet = match Packet::parse(&frame.bytes) {
                Ok(packet) => packet,
                Err(why) => panic!("an engine sent what does not parse: {why:?} {frame:?}"),
            };
            let sight = Sight {
                now: self.now,
                from,
                to,
                frame: &frame,
                packet: &packet,
            };
            let fate = judge(&mut self.rules, &sight, &mut self.faults);
            tap.sent(&sight, fate);
            if self.verbose {
                println!("{}", trace::line(self.now, from, to, &frame, &packet, fate));
            }
            fate
        };
        let arrives = departs + self.latency_ns;
        self.apply(from, to, frame, arrives, fate);
        // A frame held back does not overtake itself.
        if !matches!(fate, Verdict::Reorder { .. }) {
            self.overtake(from, to, arrives);
        }
    }

    fn apply(
        &mut self,
        from: HostId,
        to: HostId,
        mut frame: Frame,
        arrives: Instant,
        fate: Verdict,
    ) {
        match fate {
            Verdict::Pass => self.schedule(arrives, Event::Arrive(to, frame)),
            Verdict::Drop => self.stats.dropped += 1,
            Verdict::Deliver { delay_ns } => {
                self.stats.disordered += 1;
                self.schedule(arrives + delay_ns, Event::Arrive(to, frame));
            }
            Verdict::Duplicate { delay_ns } => {
                self.stats.duplicated += 1;
                self.schedule(arrives, Event::Arrive(to, frame.clone()));
                self.schedule(arrives + delay_ns, Event::Arrive(to, frame));
            }
            Verdict::Corrupt { bits } => {
                self.stats.corrupted += 1;
                for _ in 0..bits {
                    let bit = self.faults.below(frame.bytes.len() as u64 * 8);
                    frame.flip(bit as usize);
                }
                self.schedule(arrives, Event::Arrive(to, frame));
            }
            Verdict::Reorder { behind } => {
                self.stats.disordered += 1;
                self.schedule(arrives + HELD_NS_MAX, Event::Release(frame.number));
                self.held.push(Held {
                    from,
                    to,
                    frame,
                    behind,
                });
            }
        }
    }

    /// A frame of this direction went by: held ones that were waiting for it come after it.
    fn overtake(&mut self, from: HostId, to: HostId, arrives: Instant) {
        let mut at = 0;
        while at < self.held.len() {
            let held = &mut self.held[at];
            if held.from == from && held.to == to {
                held.behind = held.behind.saturating_sub(1);
                if held.behind == 0 {
                    let frame = self.held.remove(at).frame;
                    self.schedule(arrives + 1, Event::Arrive(to, frame));
                    continue;
                }
            }
            at += 1;
        }
    }

    fn schedule(&mut self, time: Instant, event: Event) {
        self.scheduled += 1;
        self.queue.insert((time, self.scheduled), event);
    }
}

/// The first rule with an opinion decides.
fn judge(rules: &mut [Box<dyn Rule>], sight: &Sight<'_>, rng: &mut Rng) -> Verdict {
    rules
        .iter_mut()
        .map(|rule| rule.judge(sight, rng))
        .find(|verdict| *verdict != Verdict::Pass)
        .unwrap_or(Verdict::Pass)
}
