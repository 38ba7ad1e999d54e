//! The runtime of a process: one engine, one link, one connection to the daemon, however many
//! devices are open.
//!
//! Locks, in the order in which they may be taken: asking for a slot, then engine, then a
//! completion queue's ring, then a channel's list. The key table's lock is innermost everywhere. No
//! lock is held while anything waits for the application, the engine's not while the daemon is
//! asked.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use rocebud_ctl::cm::{CmAnswer, CmRequest};
use rocebud_ctl::fds;
use rocebud_ctl::page::Fact;
use rocebud_ctl::{Client, CtlError, DeviceInfo, DeviceList, ErrorKind, Notice, PeerNews};
use rocebud_nic::udp::{Ring, RingSleep};
use rocebud_objects::{AttrMask, Counter, Errno, Instant, Misuse, Path, PdId, QpAttr, QpState};

use crate::context::{ContextShared, Element, QpShared};
use crate::core::{Core, Shared, now};
use crate::cq::Cq;
use crate::farewell::{self, Farewell};
use crate::hosts::Named;
use crate::keys::{KeyTable, Region};
use crate::log::{self, Level};
use crate::progress::{self, Progress};
use crate::sync::{lock, read, try_lock, write};
use crate::{current, fork, ports, sys};

/// The runtime of the process.
#[derive(Debug)]
pub struct Runtime {
    /// Of the process that it belongs to; see [`fork`].
    generation: u64,
    pub(crate) client: Client,
    pub(crate) shared: Shared,
    pub(crate) core: Mutex<Core>,
    pub(crate) progress: Progress,
    pub(crate) farewell: Farewell,
    /// Held while the daemon is asked for a slot; taken before the engine's lock.
    pub(crate) asking: Mutex<()>,
    /// Descriptors that the progress thread sleeps on.
    pub(crate) sockets: Mutex<Sockets>,
    devices: RwLock<Devices>,
    hosts: Named,
    /// See [`Core::sleeps`].
    sleeps: Arc<AtomicBool>,
    contexts: Mutex<Vec<Weak<ContextShared>>>,
    dead: AtomicBool,
    next_pd: AtomicU32,
    pub(crate) next_srq: AtomicU32,
    /// Few cores for many threads: a poll in vain gives the core away.
    yields: bool,
}

/// The newest device list.
#[derive(Debug)]
struct Devices {
    generation: u64,
    list: Arc<Vec<DeviceInfo>>,
}

impl From<DeviceList> for Devices {
    fn from(list: DeviceList) -> Self {
        Self {
            generation: list.generation,
            list: Arc::new(list.devices),
        }
    }
}

/// What the progress thread listens to besides the daemon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sockets {
    pub(crate) receive: Vec<RawFd>,
    /// Beside the first of them, in their order.
    pub(crate) rings: Vec<Option<Ring>>,
    pub(crate) forwards: Vec<RawFd>,
}

impl Sockets {
    /// The caller is about to sleep on the receive sockets: packets come by them while the result lives.
    pub(crate) fn close_rings(&self) -> ClosedRings {
        let close = |ring: &Option<Ring>| ring.as_ref().map(Ring::sleep);
        ClosedRings(self.rings.iter().map(close).collect())
    }
}

/// Rings that nothing new comes by.
#[derive(Debug)]
pub(crate) struct ClosedRings(Vec<Option<RingSleep>>);

impl ClosedRings {
    /// Those in which packets wait all the same, as bits in the order of the sockets.
    pub(crate) fn waiting(&self) -> u64 {
        let has = |ring: &Option<RingSleep>| ring.as_ref().is_some_and(RingSleep::has_packets);
        as_bits(self.0.iter().map(has))
    }
}

/// Which sockets it is true of, as bits in their order. One beyond the 64th counts as all of them.
pub(crate) fn as_bits(sockets: impl Iterator<Item = bool>) -> u64 {
    let those = sockets.enumerate().filter(|(_, it_is)| *it_is);
    let bits = those.map(|(i, _)| if i < 64 { 1 << i } else { u64::MAX });
    bits.fold(0, |all, bit| all | bit)
}

/// The daemon is gone.
pub(crate) const DEAD: Misuse = Misuse::new(
    Errno::EIO,
    "the rocebud daemon went away: this process's devices are dead; start the program again",
);

/// The caller is a child.
const FORKED: Misuse = Misuse::new(
    Errno::EIO,
    "verbs objects belong to the process that made them, not to a child made by fork",
);

impl Runtime {
    /// The runtime of this process; connects to the daemon (and starts one) at the first call, and
    /// again when the daemon had died. A child made by fork gets one of its own.
    ///
    /// # Errors
    /// No daemon to be had; the reason was logged in one line.
    pub fn get() -> Result<Arc<Self>, Misuse> {
        current::get_or(Self::is_dead, |generation| {
            Self::start(generation).map_err(|error| {
                log::line(Level::Error, format_args!("{error}"));
                Misuse::new(error.errno(), "no rocebud daemon to be had")
            })
        })
    }

    fn start(generation: u64) -> Result<Arc<Self>, CtlError> {
        let os = |what| move |error: std::io::Error| CtlError::os(what, error);
        rocebud_mem::install().map_err(os("installing the memory guard"))?;
        // Also where nothing is to be said: who asked for no level there is learns of it here.
        log::level();
        let client = Client::connect_or_start()?;
        for remark in client.remarks() {
            log::line(Level::Warn, format_args!("{remark}"));
        }
        let devices = client.device_list()?;
        let pages = client.page_set()?;
        let ledger = client.ledger()?;
        let mut core = Core::new();
        core.flow.begin(ledger);
        core.set_devices(&devices.devices);
        core.herald = Some(client.herald());
        let sleeps = core.sleeps();
        let progress = Progress::new().map_err(os("making an event descriptor"))?;
        let runtime = Arc::new(Self {
            generation,
            hosts: Named::new(client.herald()),
            sleeps,
            client,
            shared: Shared {
                keys: KeyTable::default(),
                pages,
            },
            core: Mutex::new(core),
            progress,
            farewell: Farewell::default(),
            asking: Mutex::default(),
            sockets: Mutex::default(),
            devices: RwLock::new(devices.into()),
            contexts: Mutex::default(),
            dead: AtomicBool::new(false),
            next_pd: AtomicU32::new(1),
            next_srq: AtomicU32::new(1),
            yields: std::thread::available_parallelism().is_ok_and(|n| n.get() <= 2),
        });
        progress::start(&runtime).map_err(os("starting the progress thread"))?;
        farewell::prepare();
        let fds = runtime.client.raw_fds().into_iter();
        fds.chain(runtime.progress.fds())
            .for_each(fork::close_in_children);
        let fact = runtime.shared.pages.fact(Fact::ProgressThread);
        fact.store(1, Ordering::Relaxed);
        Ok(runtime)
    }

    /// Every call begins here.
    ///
    /// # Errors
    /// EIO: a child made by fork, or the daemon is gone.
    #[inline]
    pub fn check(&self) -> Result<(), Misuse> {
        if self.is_inherited() {
            return Err(FORKED);
        }
        if self.is_dead() {
            return Err(DEAD);
        }
        Ok(())
    }

    /// It is the parent's, and this process a child made by fork: nothing of it may be touched,
    /// not even locks.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        fork::generation() != self.generation
    }

    /// The clock that completions are stamped with, and the engine runs on: CLOCK_MONOTONIC.
    pub fn clock_ns(&self) -> u64 {
        sys::monotonic_ns()
    }

    /// Bytes of a message appear in memory in ascending order. Where signals of ours cannot be
    /// installed the kernel copies, and that order is its own business; so it is in a thread of the
    /// program's that runs the engine with SIGSEGV blocked, which nobody can foresee.
    pub fn places_in_order(&self) -> bool {
        rocebud_mem::mode() == rocebud_mem::Mode::Handlers
    }

    /// The daemon is gone.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// The keys of the process.
    pub fn keys(&self) -> &KeyTable {
        &self.shared.keys
    }

    /// Registers memory.
    ///
    /// # Errors
    /// ENOMEM: too many regions.
    pub fn register(&self, region: Region) -> Result<u32, Misuse> {
        let key = self.shared.keys.insert(region)?;
        self.state_regions();
        Ok(key)
    }

    /// Deregisters memory: when this returns, nothing uses it any more.
    ///
    /// # Errors
    /// EBUSY: memory windows are bound to it. EINVAL: not registered.
    pub fn deregister(&self, key: u32) -> Result<(), Misuse> {
        self.shared.keys.remove(key)?;
        self.state_regions();
        Ok(())
    }

    /// As [`Runtime::deregister`], windows or not.
    pub fn drop_region(&self, key: u32) {
        self.shared.keys.remove_with_windows(key);
        self.state_regions();
    }

    /// Deregisters all memory of protection domains.
    pub fn deregister_pds(&self, gone: impl Fn(PdId) -> bool) {
        self.shared.keys.remove_pds(gone);
        self.state_regions();
    }

    fn state_regions(&self) {
        let count = self.shared.keys.len() as u64;
        let fact = self.shared.pages.fact(Fact::Mrs);
        fact.store(count, Ordering::Relaxed);
    }

    /// Tells whether the machine has a route for a path, where it can be told: in the daemon's
    /// network namespace.
    ///
    /// # Errors
    /// ENETUNREACH, EHOSTUNREACH.
    pub fn check_route(&self, path: &Path) -> Result<(), Misuse> {
        // Who has no descriptor to ask with is given no verdict either.
        if path.dgid.is_multicast() || !self.asks_here().unwrap_or(false) {
            return Ok(());
        }
        ports::check_route(path)
    }

    /// This process is going to talk to the other end of a path: the daemon may ask there whether it
    /// is of ours. Waits for nothing.
    pub fn meet(&self, path: &Path) {
        self.hosts.name(path, &read(&self.devices).list);
    }

    /// This process is in the network namespace of its daemon.
    ///
    /// # Errors
    /// EMFILE, ENFILE: there is no descriptor to ask with.
    pub fn is_here(&self) -> Result<bool, Misuse> {
        self.asks_here()
            .map_err(|error| no_descriptor("asking for this program's network namespace", &error))
    }

    fn asks_here(&self) -> std::io::Result<bool> {
        Ok(fds::netns_id()? == self.client.netns())
    }

    /// A fresh protection domain.
    pub fn next_pd(&self) -> PdId {
        PdId(self.next_pd.fetch_add(1, Ordering::Relaxed))
    }

    /// A counter of the process.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.shared.pages.counter(counter).load(Ordering::Relaxed)
    }

    // ---- devices

    /// All devices as of now.
    pub fn devices(&self) -> Arc<Vec<DeviceInfo>> {
        Arc::clone(&read(&self.devices).list)
    }

    /// The device on an interface.
    pub fn device(&self, ifindex: u32) -> Option<DeviceInfo> {
        let devices = read(&self.devices);
        devices.list.iter().find(|d| d.ifindex == ifindex).cloned()
    }

    /// Asks the daemon for the devices. Notices bring every change, but a little later: a program
    /// that adds an address and lists at once wants to see it.
    ///
    /// # Errors
    /// EIO: the daemon is gone.
    pub fn refresh(&self) -> Result<Arc<Vec<DeviceInfo>>, Misuse> {
        self.check()?;
        match self.client.device_list() {
            Ok(devices) => self.on_devices(devices),
            Err(error) => {
                log::line(Level::Error, format_args!("{error}"));
                return Err(Misuse::new(error.errno(), "the daemon gave no device list"));
            }
        }
        Ok(self.devices())
    }

    /// Opens the device on an interface.
    ///
    /// # Errors
    /// ENODEV: it is gone. EMFILE: no descriptor left.
    pub fn open(&self, ifindex: u32) -> Result<Arc<ContextShared>, Misuse> {
        self.check()?;
        let context = ContextShared::new(ifindex, Arc::clone(&self.sleeps))
            .map_err(|e| no_descriptor("opening a device", &e))?;
        let context = Arc::new(context);
        let mut contexts = lock(&self.contexts);
        contexts.retain(|c| c.strong_count() != 0);
        contexts.push(Arc::downgrade(&context));
        drop(contexts);
        // Looked for last: what goes from now on, the context in the list hears of.
        if self.device(ifindex).is_none() {
            return Err(Misuse::new(
                Errno::ENODEV,
                "open_device: the interface of this device is gone",
            ));
        }
        if self.is_dead() {
            context.lose();
        }
        Ok(context)
    }

    /// Reads what the daemon said.
    pub(crate) fn on_notices(&self) {
        for notice in self.client.poll_notices() {
            match notice {
                Notice::Devices(devices) => self.on_devices(devices),
                Notice::Peer(news) => self.on_peer(&news),
                Notice::Closed => self.die(),
            }
        }
    }

    /// A host that was named has said something.
    fn on_peer(&self, news: &PeerNews) {
        let mut core = lock(&self.core);
        core.heard(news);
        self.kick(&mut core);
    }

    fn on_devices(&self, devices: DeviceList) {
        let new = Devices::from(devices);
        let (old, new) = {
            let mut devices = write(&self.devices);
            if new.generation <= devices.generation {
                return;
            }
            let list = Arc::clone(&new.list);
            (std::mem::replace(&mut *devices, new).list, list)
        };
        lock(&self.core).set_devices(&new);
        let find = |list: &[DeviceInfo], ifindex| {
            list.iter()
                .find(|d: &&DeviceInfo| d.ifindex == ifindex)
                .cloned()
        };
        for context in self.contexts() {
            let Some(before) = find(&old, context.ifindex) else {
                continue;
            };
            let after = find(&new, context.ifindex);
            for kind in ports::events(&before, after.as_ref()) {
                context.raise(kind, Element::Port(1));
            }
            if after.is_none() {
                self.fail_qps(|qp| qp.ifindex == context.ifindex);
                context.lose();
            }
            if let Some(after) = after.filter(|a| a.active_mtu != before.active_mtu) {
                self.on_mtu(&context, after.mtu());
            }
        }
    }

    fn on_mtu(&self, context: &ContextShared, mtu: rocebud_wire::Mtu) {
        let mut core = lock(&self.core);
        let Core { node, dir, .. } = &mut *core;
        for qp in dir.qps.values() {
            if qp.ifindex == context.ifindex {
                let _ = node.set_port_mtu(qp.qpn, mtu);
            }
        }
    }

    fn contexts(&self) -> Vec<Arc<ContextShared>> {
        lock(&self.contexts)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// The daemon went away. Sockets close at once; queue pairs go to ERR, which flushes what is
    /// posted and wakes who waits; contexts hear DEVICE_FATAL; later calls fail.
    pub(crate) fn die(&self) {
        if self.is_dead() {
            return;
        }
        log::line(Level::Error, format_args!("{}", CtlError::gone()));
        *lock(&self.sockets) = Sockets::default();
        let mut core = lock(&self.core);
        core.all_fds().into_iter().for_each(fork::forget);
        self.dead.store(true, Ordering::Release);
        core.drop_link();
        drop(core);
        self.fail_qps(|_| true);
        for context in self.contexts() {
            context.lose();
        }
        self.progress.rouse();
    }

    /// Queue pairs whose device is gone go to ERR, which flushes what is posted and wakes who
    /// waits for it.
    fn fail_qps(&self, lost: impl Fn(&QpShared) -> bool) {
        let mut core = lock(&self.core);
        let qps = core.dir.qps.values().filter(|qp| lost(qp));
        let qpns: Vec<_> = qps.map(|qp| qp.qpn).collect();
        let error = QpAttr {
            qp_state: QpState::Err,
            ..QpAttr::default()
        };
        for qpn in qpns {
            let (raw, node, mut world) = core.split_raw(&self.shared);
            if raw.has(qpn) {
                raw.fail(qpn, node, &mut world);
                continue;
            }
            let _ = node.modify_qp(world.now, qpn, &error, AttrMask::STATE, None, &mut world);
        }
        core.transmit(&self.shared);
    }

    // ---- connections

    /// Asks the daemon's connection manager; a descriptor comes with a new channel.
    ///
    /// # Errors
    /// EIO: a child made by fork, or the daemon is gone. What the manager refuses is an answer.
    pub fn cm(&self, request: CmRequest) -> Result<(CmAnswer, Option<OwnedFd>), Misuse> {
        self.check()?;
        self.client.cm(request).map_err(|error| {
            log::line(Level::Error, format_args!("{error}"));
            if error.kind == ErrorKind::Gone {
                // Whoever asks may have heard of it before the thread that watches the daemon.
                self.die();
            }
            Misuse::new(
                error.errno(),
                "the daemon did not answer about a connection",
            )
        })
    }

    // ---- slots

    /// Takes one more slot of the daemon into use. The engine must not be locked: the daemon may
    /// take its time.
    pub(crate) fn take_slot(&self) -> Result<(), Misuse> {
        let grant = self.client.take_slot().map_err(|error| {
            log::line(Level::Error, format_args!("{error}"));
            Misuse::new(
                error.errno(),
                "create_qp: the daemon gave no queue pair numbers",
            )
        })?;
        let mut core = lock(&self.core);
        if self.is_dead() {
            return Err(DEAD);
        }
        core.add_slot(grant)
            .map_err(|e| no_descriptor("taking queue pair numbers", &e))?;
        let sockets = core.sockets();
        for fd in core.all_fds() {
            fork::forget(fd);
            fork::close_in_children(fd);
        }
        *lock(&self.sockets) = sockets;
        self.progress.depose_lookout();
        Ok(())
    }

    // ---- progress

    /// Runs the engine a little, if nobody else does.
    #[inline]
    pub(crate) fn progress_for_poll(&self, cq: &Cq) {
        let progress = &self.progress;
        let core = try_lock(&self.core);
        // Read behind the lock: the engine's time never goes back.
        let now = sys::monotonic_ns();
        let spins = progress.polled_in_vain(now, cq.is_armed());
        let Some(mut core) = core else {
            // Who holds it does our work, unless it was descheduled.
            if self.yields && progress.give_way(now) {
                sys::yield_now();
            }
            return;
        };
        core.later.called();
        if spins && !cq.is_evented() {
            core.open_rings();
        }
        // What the program waits for comes before what its peer waits for: it will most likely
        // send something in a moment, and our ACK can ride along. If it does not, the progress
        // thread will. A program that waits for events may fall asleep.
        let mut away = false;
        let turn = core.turn(&self.shared, Instant(now), |later, pending| {
            if !cq.has_entries() || !pending {
                return cq.has_entries();
            }
            away = progress.is_away();
            !away && !cq.is_evented() && later.leave(now)
        });
        if core.may_be_due_sooner(turn) {
            progress.rearm(&core);
        }
        drop(core);
        if away && spins && !cq.is_evented() {
            progress.call();
        }
        if turn.received != 0 {
            progress.rouse();
        } else if self.yields && turn.is_idle() && progress.give_way(now) {
            progress.doze(|| lock(&self.sockets).clone(), || cq.has_entries());
        }
    }

    /// Runs the engine a little before a thread goes to sleep.
    pub(crate) fn progress_for_sleep(&self) {
        let mut core = lock(&self.core);
        core.turn(&self.shared, now(), |_, _| false);
        self.kick(&mut core);
    }

    /// Sends what a post has made ready. The holder of the lock calls it last.
    #[inline]
    pub(crate) fn kick(&self, core: &mut Core) {
        while core.transmit(&self.shared) != 0 && core.has_more() {}
        self.progress.rearm(core);
    }

    /// States how many objects there are, for `rocebud status`.
    pub(crate) fn state_facts(&self, core: &Core) {
        let state = |fact, n: usize| {
            let cell = self.shared.pages.fact(fact);
            cell.store(n as u64, Ordering::Relaxed);
        };
        state(Fact::Qps, core.dir.qps.len());
        state(Fact::Cqs, core.dir.cqs());
        let mode = match rocebud_mem::mode() {
            rocebud_mem::Mode::Handlers => 1,
            rocebud_mem::Mode::ProcessVm => 2,
        };
        state(Fact::MemoryMode, mode);
    }
}

/// The system gave no descriptor; `what` asked for one. Who may have no more is told.
pub(crate) fn no_descriptor(what: &str, error: &std::io::Error) -> Misuse {
    log::shortage(what, error);
    Misuse::new(
        Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)),
        "the system gave no descriptor: raise this program's limit of open files (ulimit -n)",
    )
}
