//! What the engine's lock guards, and one turn of the crank.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rocebud_ctl::forward::{self, Outbox};
use rocebud_ctl::{DeviceInfo, Herald, PageSet, PeerNews, SlotGrant};
use rocebud_engine::{Node, NodeConfig};
use rocebud_nic::udp::{Ring, RingFds, Rings, SlotSockets, UdpLink};
use rocebud_nic::{PacketIo, RxFrame};
use rocebud_objects::{Counter, Instant};
use rocebud_wire::Gid;
use rocebud_wire::icrc::Sums;

use crate::env::{Directory, World};
use crate::flow::Flow;
use crate::hooks::Hooks;
use crate::hosts::Hosts;
use crate::keys::KeyTable;
use crate::later::Later;
use crate::qpn::QpnPool;
use crate::raw::Raw;
use crate::runtime::Sockets;
use crate::rx::Rx;
use crate::sys;
use crate::tx::Tx;

/// Batches received in one turn: as many as the link has buffers for.
const RX_BATCHES: usize = 4;

/// Receive calls that a late timer may make before it acts. A socket that is not dry after this
/// many is being flooded, and timers must run all the same.
const DRAIN_ROUNDS_MAX: usize = 64;

/// Most bytes of READ responses asked for at a time. More would not come faster: it would wait at
/// the responder, where the last request of a long line comes up after its timer has run out.
const READ_WINDOW_MAX: u32 = 2 << 20;

/// When to try again what the link or a neighbour's buffer could not take.
const STUCK_RETRY_NS: u64 = 100_000;

/// How long after it was received from a socket's losses are known at the latest.
const LOSSES_KNOWN_NS: u64 = 100_000_000;

/// Small posts between two polls that leave at once, and how many more may wait.
const POSTS_AT_ONCE: u32 = 2;
const POSTS_WAITING_MAX: u32 = 32;

/// How long a program that ends tries to hand on what belongs to others: since the daemon last
/// took something, and altogether; and the pauses.
const LAST_WAIT_NS: u64 = 200_000_000;
const LAST_WAIT_MAX_NS: u64 = 2_000_000_000;
const LAST_PAUSE: std::time::Duration = std::time::Duration::from_micros(100);

/// Frames taken from the daemon in one turn.
const FORWARDED_MAX: usize = 64;

/// What turns may use without the lock being theirs.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keys: KeyTable,
    pub(crate) pages: Arc<PageSet>,
}

/// Everything that the engine's lock guards.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) node: Node,
    pub(crate) dir: Directory,
    pub(crate) qpns: QpnPool,
    /// Queue pairs attached to each multicast group on each interface.
    pub(crate) groups: HashMap<(Gid, u32), u32>,
    pub(crate) link: Option<UdpLink>,
    /// Queue pairs that carry whole frames.
    pub(crate) raw: Raw,
    /// Room at processes of this host.
    pub(crate) flow: Flow,
    pub(crate) hosts: Hosts,
    /// To the daemon.
    pub(crate) herald: Option<Herald>,
    forwards: Vec<OwnedFd>,
    forward_buf: Vec<u8>,
    /// Frames of other processes on their way to the daemon.
    outbox: Outbox,
    tx: Tx,
    rx_sums: Sums,
    hooks: Hooks,
    lost: u64,
    /// Of it, whole frames.
    raw_lost: u64,
    /// When to ask the kernel what it dropped.
    losses_due_ns: u64,
    /// Small posts since the engine last sent for a poll.
    posts: u32,
    /// When the clock was last read for the engine.
    seen: Instant,
    pub(crate) later: Later,
}

/// What a turn did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Turn {
    /// Packets that came in.
    pub(crate) received: usize,
    /// Packets that went out.
    pub(crate) sent: usize,
    /// A timer ran.
    pub(crate) timers: bool,
    /// Queue pairs were asked for packets: they may have made completions, or a deadline, instead.
    pub(crate) asked: bool,
}

impl Turn {
    /// Nothing happened: the sockets were dry and the engine had nothing to say.
    pub(crate) fn is_idle(self) -> bool {
        self.received == 0 && self.sent == 0 && !self.timers
    }
}

impl Core {
    pub(crate) fn new() -> Self {
        Self {
            node: Node::new(NodeConfig::default()),
            dir: Directory::default(),
            qpns: QpnPool::default(),
            groups: HashMap::new(),
            link: None,
            raw: Raw::default(),
            flow: Flow::default(),
            hosts: Hosts::default(),
            herald: None,
            forwards: Vec::new(),
            forward_buf: Vec::new(),
            outbox: Outbox::default(),
            tx: Tx::new(),
            rx_sums: Sums::default(),
            hooks: Hooks::from_environment(),
            lost: 0,
            raw_lost: 0,
            losses_due_ns: u64::MAX,
            posts: 0,
            seen: Instant::default(),
            later: Later::default(),
        }
    }

    /// Takes a slot into use.
    pub(crate) fn add_slot(&mut self, grant: SlotGrant) -> std::io::Result<()> {
        let rcvbuf = grant.rcvbuf_bytes;
        let sockets = SlotSockets {
            recv_v4: grant.recv_v4,
            recv_v6: grant.recv_v6,
            send_v4: grant.send_v4,
            send_v6: grant.send_v6,
            rings: rings(grant.rings),
        };
        match &mut self.link {
            Some(link) => link.add_slot(sockets)?,
            None => {
                self.link = Some(UdpLink::new(sockets)?);
                // READ responses share our buffer with everything else that comes in.
                self.node.set_read_window((rcvbuf / 2).min(READ_WINDOW_MAX));
            }
        }
        self.forwards.push(grant.forward);
        self.qpns.add_slot(grant.slot);
        self.flow.add_slot(grant.slot);
        Ok(())
    }

    /// A queue pair is connected to a process of a host.
    pub(crate) fn joined(&mut self, to: Gid, slot: u16) {
        if let Some(buffer) = self.hosts.joined(to, slot) {
            let windows = &mut self.tx.windows;
            windows.tell(&mut self.node, (to, slot), Some(buffer));
        }
    }

    /// To be set when the program has armed a completion queue.
    pub(crate) fn sleeps(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.tx.sleeps)
    }

    /// Interfaces or addresses have changed.
    pub(crate) fn set_devices(&mut self, devices: &[DeviceInfo]) {
        self.flow.set_devices(devices);
        self.tx.near.set_devices(devices);
    }

    /// The daemon has heard of a host.
    pub(crate) fn heard(&mut self, news: &PeerNews) {
        self.tx.near.heard(news);
        let (slots, buffer) = self.hosts.heard(news, now().0);
        for slot in slots {
            let windows = &mut self.tx.windows;
            windows.tell(&mut self.node, (news.remote(), *slot), buffer);
        }
    }

    /// Closes every socket at once: a stale holder of port 4791 would shift the group of the next
    /// daemon.
    pub(crate) fn drop_link(&mut self) {
        self.link = None;
        self.raw.drop_sockets();
        self.forwards.clear();
        self.groups.clear();
    }

    /// The world as the engine sees it now, beside the engine itself.
    pub(crate) fn split<'a>(&'a mut self, shared: &'a Shared) -> (&'a mut Node, World<'a>) {
        self.seen = now();
        self.split_untimed(shared)
    }

    /// The same for what makes no deadline: the time is that of the last call that read the clock.
    pub(crate) fn split_untimed<'a>(&'a mut self, shared: &'a Shared) -> (&'a mut Node, World<'a>) {
        let world = World {
            keys: &shared.keys,
            pages: &shared.pages,
            dir: &self.dir,
            flow: &mut self.flow,
            now: self.seen,
            guard: None,
        };
        (&mut self.node, world)
    }

    /// As [`Core::split`], with what carries whole frames.
    pub(crate) fn split_raw<'a>(
        &'a mut self,
        shared: &'a Shared,
    ) -> (&'a mut Raw, &'a mut Node, World<'a>) {
        let world = World {
            keys: &shared.keys,
            pages: &shared.pages,
            dir: &self.dir,
            flow: &mut self.flow,
            now: now(),
            guard: None,
        };
        (&mut self.raw, &mut self.node, world)
    }

    /// Receives, runs timers that are due, sends: a bounded amount of each. With `enough` after
    /// receiving, the rest is left to the next turn; it hears whether there is something to send.
    /// `at` = now, read by the caller with the lock held: in a poll in vain the clock is a part that
    /// shows.
    pub(crate) fn turn(
        &mut self,
        shared: &Shared,
        at: Instant,
        enough: impl FnOnce(&mut Later, bool) -> bool,
    ) -> Turn {
        self.telling_last(|core| core.turn_untold(shared, at, enough))
    }

    /// Who sleeps hears of its completions behind the ACKs: it may be quicker than this thread, and end its
    /// process at once.
    pub(crate) fn telling_last<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        self.dir.gather();
        let done = work(self);
        self.dir.tell();
        done
    }

    fn turn_untold(
        &mut self,
        shared: &Shared,
        at: Instant,
        enough: impl FnOnce(&mut Later, bool) -> bool,
    ) -> Turn {
        self.seen = at;
        self.hooks.attend(shared.pages.control());
        if self.dir.due_ns().is_some_and(|due_ns| due_ns <= at.0) {
            self.dir.fire_due(at.0);
        }
        let mut received = self.receive(shared, at) + self.receive_raw(shared);
        if received != 0 && enough(&mut self.later, self.node.wants_transmit()) {
            return Turn {
                received,
                ..Turn::default()
            };
        }
        let mut at = if received == 0 { at } else { now() };
        let mut timers = false;
        if self.node.next_timeout().is_some_and(|due| due <= at) {
            received += self.drain(shared);
            let (node, mut world) = self.split(shared);
            at = world.now;
            node.on_timeout(at, &mut world);
            timers = true;
        }
        self.posts = 0;
        let asked = self.node.wants_transmit() || self.node.has_held();
        let sent = self.transmit_at(shared, || at) + self.retry_raw(shared);
        Turn {
            received,
            sent,
            timers,
            asked,
        }
    }

    fn receive_raw(&mut self, shared: &Shared) -> usize {
        if self.raw.is_empty() {
            return 0;
        }
        let (raw, node, mut world) = self.split_raw(shared);
        let received = raw.receive(node, &mut world);
        if received != 0 {
            let due = world.now.0 + LOSSES_KNOWN_NS;
            self.losses_due_ns = self.losses_due_ns.min(due);
        }
        received
    }

    fn retry_raw(&mut self, shared: &Shared) -> usize {
        if self.raw.is_empty() {
            return 0;
        }
        let due = self.raw.due().is_some_and(|at| at <= now());
        if !self.raw.is_stuck() && !due {
            return 0;
        }
        let (raw, node, mut world) = self.split_raw(shared);
        raw.transmit(node, &mut world)
    }

    /// Reads whatever waits, before a timer acts: we may have been descheduled, and it may be the
    /// very answer whose absence the timer would punish.
    fn drain(&mut self, shared: &Shared) -> usize {
        let mut received = 0;
        for _ in 0..DRAIN_ROUNDS_MAX {
            if let Some(link) = &mut self.link {
                link.look_everywhere();
            }
            let more = self.receive(shared, now()) + self.receive_forwarded(shared);
            received += more;
            if more == 0 {
                break;
            }
        }
        received
    }

    /// A program posts small requests one by one. The first leave at once, since it may wait for
    /// them; after those it is filling a queue, and what follows can leave in batches when it next
    /// polls. Asked once a post; true = it may wait.
    pub(crate) fn may_wait(&mut self, now_ns: u64) -> bool {
        self.posts += 1;
        if self.posts >= POSTS_AT_ONCE + POSTS_WAITING_MAX {
            self.posts = POSTS_AT_ONCE;
        }
        self.posts > POSTS_AT_ONCE && self.later.leave(now_ns)
    }

    /// Sends what the engine has, a bounded amount.
    pub(crate) fn transmit(&mut self, shared: &Shared) -> usize {
        self.transmit_at(shared, now)
    }

    /// As [`Core::transmit`], for callers that have read the clock with the lock held: `now` gives
    /// what they read.
    pub(crate) fn transmit_at(&mut self, shared: &Shared, now: impl FnOnce() -> Instant) -> usize {
        self.node.retry_held();
        if !self.node.wants_transmit() && !self.tx.is_stuck() {
            return 0;
        }
        let mut world = World {
            keys: &shared.keys,
            pages: &shared.pages,
            dir: &self.dir,
            flow: &mut self.flow,
            now: now(),
            guard: None,
        };
        match &mut self.link {
            Some(link) => self
                .tx
                .run(&mut self.node, link, &mut self.hooks, &mut world),
            None => {
                self.tx.discard(&mut self.node, &mut world);
                0
            }
        }
    }

    fn receive(&mut self, shared: &Shared, at: Instant) -> usize {
        let Some(link) = &mut self.link else {
            return 0;
        };
        let mut world = World {
            keys: &shared.keys,
            pages: &shared.pages,
            dir: &self.dir,
            flow: &mut self.flow,
            now: at,
            guard: None,
        };
        let mut rx = Rx {
            node: &mut self.node,
            hooks: &mut self.hooks,
            qpns: &self.qpns,
            hosts: &mut self.hosts,
            sums: &mut self.rx_sums,
            outbox: Some(&mut self.outbox),
        };
        let received = link
            .recv_at(at.0, RX_BATCHES, &mut |frame| rx.frame(&frame, &mut world))
            .unwrap_or(0);
        if received != 0 {
            match link.take_from_rings() {
                0 => {}
                batches => world.add(Counter::RingBatches, batches),
            }
            world.flow.enter_read();
            self.losses_due_ns = self.losses_due_ns.min(world.now.0 + LOSSES_KNOWN_NS);
        } else if link.is_dry() {
            world.flow.dry(world.now.0);
        }
        let due = self.losses_due_ns <= world.now.0;
        if self.hosts.has_doubts()
            && let Some(herald) = &self.herald
        {
            self.hosts.tell_doubts(herald);
        }
        if !self.outbox.is_empty() {
            self.hand_on(shared);
        }
        if due || received != 0 {
            self.count_losses(shared, due);
        }
        received
    }

    /// Gives the daemon what belongs to others, as much as it takes now. Returns frames.
    fn hand_on(&mut self, shared: &Shared) -> u64 {
        let count = |counter, n| {
            let cell = shared.pages.counter(counter);
            cell.fetch_add(n, Ordering::Relaxed);
        };
        let sent = self.forwards.first().map(|fd| self.outbox.flush(fd));
        let Some(Ok(frames)) = sent else {
            count(Counter::DropForward, self.outbox.clear());
            return 0;
        };
        count(Counter::Forwarded, frames);
        frames
    }

    /// Counts what the kernel dropped; with `ask` also what it has not told yet.
    fn count_losses(&mut self, shared: &Shared, ask: bool) {
        let Some(link) = &mut self.link else { return };
        if ask {
            link.look_for_losses();
            self.losses_due_ns = u64::MAX;
        }
        if ask {
            self.raw_lost = self.raw.lost();
        }
        let lost = link.rx_lost().wrapping_add(self.raw_lost);
        if lost != self.lost {
            let cell = shared.pages.counter(Counter::SocketOverflow);
            cell.fetch_add(lost.wrapping_sub(self.lost), Ordering::Relaxed);
            self.lost = lost;
        }
    }

    /// The program ends: what is due leaves, and losses not told yet are counted.
    pub(crate) fn say_the_last(&mut self, shared: &Shared) {
        self.transmit(shared);
        self.count_losses(shared, true);
        let start = now().0;
        let mut deadline = start + LAST_WAIT_NS;
        while !self.outbox.is_empty() && now().0 < deadline {
            if self.hand_on(shared) != 0 {
                deadline = (now().0 + LAST_WAIT_NS).min(start + LAST_WAIT_MAX_NS);
            }
            std::thread::sleep(LAST_PAUSE);
        }
        let lost = self.outbox.clear();
        let cell = shared.pages.counter(Counter::DropForward);
        cell.fetch_add(lost, Ordering::Relaxed);
    }

    /// Takes frames that arrived at other processes' sockets. Returns how many.
    pub(crate) fn receive_forwarded(&mut self, shared: &Shared) -> usize {
        if self.forward_buf.is_empty() {
            self.forward_buf.resize(forward::MESSAGE_BYTES_MAX, 0);
        }
        let mut world = World {
            keys: &shared.keys,
            pages: &shared.pages,
            dir: &self.dir,
            flow: &mut self.flow,
            now: now(),
            guard: None,
        };
        let mut rx = Rx {
            node: &mut self.node,
            hooks: &mut self.hooks,
            qpns: &self.qpns,
            hosts: &mut self.hosts,
            sums: &mut self.rx_sums,
            outbox: None,
        };
        let mut received = 0;
        for fd in &self.forwards {
            while received < FORWARDED_MAX {
                let Ok(Some((header, frames))) = forward::recv(fd, &mut self.forward_buf) else {
                    break;
                };
                for (seg_index, data) in frames {
                    received += 1;
                    let frame = RxFrame {
                        data,
                        src: header.src,
                        dst: header.dst,
                        ifindex: header.ifindex,
                        traffic_class: header.traffic_class,
                        hop_limit: header.hop_limit,
                        seg_index,
                        batch_len: header.batch_len,
                    };
                    rx.frame(&frame, &mut world);
                }
            }
        }
        world.flow.enter_read();
        received
    }

    /// What a turn's bounds left over has a deadline, too: its program may be asleep, and a UC or UD queue
    /// pair gets no answers that would wake anybody. What was left on purpose has the thread.
    #[inline]
    fn is_left_over(&self) -> bool {
        self.tx.is_stuck()
            || self.node.has_held()
            || self.node.wants_transmit() && !self.later.is_left()
            || self.raw.is_stuck()
            || !self.outbox.is_empty()
    }

    /// A turn may have made a deadline. One in which nothing happened, and nobody was asked for packets,
    /// did not.
    #[inline]
    pub(crate) fn may_be_due_sooner(&self, turn: Turn) -> bool {
        turn.asked || !turn.is_idle() || self.is_left_over()
    }

    /// When the next turn must happen even if nothing arrives.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let retry = self.is_left_over().then(|| now().0 + STUCK_RETRY_NS);
        let losses = Some(self.losses_due_ns).filter(|at| *at != u64::MAX);
        let timer = self.node.next_timeout().map(|at| at.0);
        let paced = self.raw.due().map(|at| at.0);
        let timer = losses.into_iter().chain(timer).chain(paced).min();
        [retry, timer, self.dir.due_ns()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The engine has something to send that a turn's bounds left over.
    pub(crate) fn has_more(&self) -> bool {
        self.node.wants_transmit() && !self.tx.is_stuck()
    }

    /// The next turn looks at these sockets only, as bits in the order of [`Core::sockets`]: a poll said
    /// that they are readable.
    pub(crate) fn look_at(&mut self, readable: u64) {
        if let Some(link) = &mut self.link {
            link.look_at(readable);
        }
    }

    /// A program polls, and will be back soon: small packets may come past the sockets.
    #[inline]
    pub(crate) fn open_rings(&self) {
        if let Some(link) = &self.link {
            link.open_rings();
        }
    }

    /// The last turn most likely left nothing in the sockets, and nobody waits for a word that they are
    /// dry. A poll will tell.
    pub(crate) fn seems_dry(&self) -> bool {
        self.link.as_ref().is_none_or(|link| !link.may_have_more()) && self.flow.is_settled()
    }

    /// Sockets that become readable when frames arrive.
    fn poll_fds(&self) -> Vec<i32> {
        let link = self.link.as_ref().map(PacketIo::poll_fds);
        let mut fds = link.unwrap_or_default();
        fds.extend(self.raw.poll_fds());
        fds
    }

    /// What the progress thread sleeps on.
    pub(crate) fn sockets(&self) -> Sockets {
        Sockets {
            receive: self.poll_fds(),
            rings: self.link.as_ref().map(UdpLink::rings).unwrap_or_default(),
            forwards: self.forward_fds(),
        }
    }

    /// Every descriptor of the slots, and of interfaces.
    pub(crate) fn all_fds(&self) -> Vec<i32> {
        let mut fds = self.forward_fds();
        fds.extend(self.link.iter().flat_map(UdpLink::all_fds));
        fds.extend(self.raw.all_fds());
        fds
    }

    /// Descriptors that become readable when the daemon hands frames on.
    fn forward_fds(&self) -> Vec<i32> {
        use std::os::fd::AsRawFd;
        self.forwards.iter().map(AsRawFd::as_raw_fd).collect()
    }
}

/// The rings of a slot. One that cannot be mapped is never opened, and its socket is as others are.
fn rings([v4, v6]: [Option<[OwnedFd; 2]>; 2]) -> Rings {
    let map = |fds: Option<[OwnedFd; 2]>| {
        let [records, control] = fds?;
        Ring::map(&RingFds { records, control }).ok()
    };
    Rings {
        v4: map(v4),
        v6: map(v6),
    }
}

/// Now, on the engine's clock.
#[inline]
pub(crate) fn now() -> Instant {
    Instant(sys::monotonic_ns())
}

#[cfg(test)]
mod tests;
