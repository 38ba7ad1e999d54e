//! The loop.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rocebud_cm::hello::Hello;
use rocebud_ctl::{
    CtlError, ErrorKind, SYSTEM_SOCKET, SocketName, channel, fds, report_start, settings,
    user_socket_name,
};
use rocebud_nic::udp::SEGMENTS_MAX;
use rocebud_objects::Counter;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

use crate::clients::{Client, Graveyard};
use crate::cm::qp1::Datagram;
use crate::cm::{Cm, World};
use crate::control::{self, Claim, Listener};
use crate::devices::{Devices, Now};
use crate::group::Group;
use crate::ledgers::Ledgers;
use crate::limits::{
    ACCEPT_PAUSE, CONNECTIONS_MAX, HELLO_WAIT, LINGER, LINGER_AT_START, LINGER_TO_EXPLAIN,
    LOOK_AGAIN, PORT_WAIT, REST_ROUNDS_MAX,
};
use crate::netlink::codec::Message;
use crate::netlink::{Follower, News};
use crate::picture::Picture;
use crate::slot0::{Place, Slot0};
use crate::slots::Slots;
use crate::{holder, log, sys};

/// How to run.
#[derive(Debug, Default)]
pub struct Options {
    /// Where to listen. Default: [`SYSTEM_SOCKET`] for root in the foreground, else the user's
    /// abstract name.
    pub socket: Option<SocketName>,
    /// Started by a program: leave some seconds after the last client, and do not mind losing
    /// against another daemon that was started at the same time.
    pub auto: bool,
    /// Where the starter waits for word.
    pub status: Option<OwnedFd>,
    /// What the user must know of this start, as sentences: the starter and `rocebud status` tell.
    pub remarks: Vec<String>,
}

/// Runs the daemon until a signal, or (automatic) until nobody needs it.
pub fn run(options: Options) -> Result<(), CtlError> {
    let Options {
        socket,
        auto,
        status,
        mut remarks,
    } = options;
    prepare_process(auto);
    log::level();
    remarks.extend(settings::receive_buffer().complaint);
    let name = socket.unwrap_or_else(|| default_name(auto));
    let started = start(&name, auto, remarks);
    if let Some(status) = status {
        let remarks = |server: &Option<Server>| match server {
            Some(server) => server.remarks.clone(),
            None => Vec::new(),
        };
        report_start(status, started.as_ref().map(remarks));
    }
    match started? {
        Some(mut server) => server.run(),
        None => Ok(()),
    }
}

fn default_name(auto: bool) -> SocketName {
    if !auto && rustix::process::geteuid().is_root() {
        SocketName::Path(SYSTEM_SOCKET.into())
    } else {
        user_socket_name()
    }
}

fn prepare_process(auto: bool) {
    sys::any_cpu();
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = rustix::process::setrlimit(Resource::Nofile, most);
    if auto {
        // Not to hold a file system busy that somebody wants to unmount.
        let _ = std::env::set_current_dir("/");
    }
}

/// Positions that the limit of open files allows, half of it left for clients.
fn positions_max() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile)
        .current
        .unwrap_or(u64::MAX);
    usize::try_from(limit / 4).unwrap_or(usize::MAX).max(2)
}

/// Takes the name, the namespace and the port. `None`: another daemon serves already, which is
/// fine for an automatic one.
fn start(name: &SocketName, auto: bool, remarks: Vec<String>) -> Result<Option<Server>, CtlError> {
    let listener = match control::claim(name)? {
        Claim::Won(listener) => listener,
        Claim::Taken if auto => return Ok(None),
        Claim::Taken => return Err(control::runs_already(name)),
    };
    let namespace = control::claim_namespace(PORT_WAIT)?;
    let group = take_port()?;
    if !group.has_ipv6() {
        log::info("IPv6 is not available here: IPv4 only");
    }
    let (follower, everything) =
        Follower::start().map_err(|e| CtlError::os("asking the kernel for interfaces", e))?;
    let mut server = Server::new(listener, namespace, group, follower, name.clone(), auto)
        .map_err(|e| CtlError::os("setting up the daemon", e))?;
    server.picture = server.picture.replaced(&everything);
    server.refresh();
    for remark in &remarks {
        log::warn(remark);
    }
    server.remarks = remarks;
    log::info(&format!(
        "serves {} device(s) at {name}",
        server.devices.list().len()
    ));
    Ok(Some(server))
}

/// Takes UDP port 4791; waits a little for a daemon that is leaving.
fn take_port() -> Result<Group, CtlError> {
    let deadline = Instant::now() + PORT_WAIT;
    loop {
        match Group::take_port(positions_max()) {
            Ok(group) => return Ok(group),
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                if Instant::now() >= deadline {
                    return Err(holder::port_taken());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(CtlError::new(
                    ErrorKind::Denied,
                    format!(
                        "opening UDP port 4791 is not permitted here ({error}): allow sockets in \
                         this sandbox, or use a daemon outside of it through ROCEBUD_SOCKET"
                    ),
                ));
            }
            Err(error) => return Err(CtlError::os("opening UDP port 4791", error)),
        }
    }
}

/// Everything. Fields are dropped in order: the port first, the name last, so that whoever gets
/// the name finds the port free.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) slot0: Slot0,
    pub(crate) cm: Cm,
    pub(crate) ledgers: Ledgers,
    pub(crate) clients: BTreeMap<u64, Client>,
    pub(crate) group: Group,
    pub(crate) graveyard: Graveyard,
    pub(crate) slots: Slots,
    pub(crate) devices: Devices,
    pub(crate) picture: Picture,
    follower: Follower,
    pub(crate) epoll: Epoll,
    _signals: OwnedFd,
    ethtool: OwnedFd,
    pub(crate) name: SocketName,
    pub(crate) auto: bool,
    pub(crate) uid: u32,
    /// Of its start, see [`Options::remarks`].
    pub(crate) remarks: Vec<String>,
    pub(crate) netns: u64,
    pub(crate) started: Instant,
    next_key: u64,
    look_again: Option<Now>,
    /// When the devices change by themselves: somebody's waiting ends.
    pub(crate) refresh_at: Option<Now>,
    accept_again: Option<Now>,
    /// When the last client that used verbs went; `None` before the first came.
    idle_since: Option<Now>,
    stop: bool,
    _namespace: OwnedFd,
    listener: Listener,
}

impl Server {
    fn new(
        listener: Listener,
        namespace: OwnedFd,
        group: Group,
        follower: Follower,
        name: SocketName,
        auto: bool,
    ) -> io::Result<Self> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
        let flags = SocketFlags::CLOEXEC;
        let slot0 = Slot0::new(&group)?;
        let epoll = Epoll::new()?;
        let signals = sys::stop_signals()?;
        epoll.add(&listener.socket, Token::Listener, Events::IN)?;
        epoll.add(follower.fd(), Token::Netlink, Events::IN)?;
        epoll.add(&signals, Token::Signals, Events::IN)?;
        for fd in group.own_fds() {
            epoll.add(fd, Token::Slot0, Events::IN)?;
        }
        Ok(Self {
            devices: Devices::new(host_salt(), group.has_ipv6()),
            slot0,
            cm: Cm::new(hello(&group)),
            ledgers: Ledgers::default(),
            clients: BTreeMap::new(),
            group,
            graveyard: Graveyard::default(),
            slots: Slots::default(),
            picture: Picture::default(),
            follower,
            epoll,
            _signals: signals,
            ethtool: socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?,
            name,
            auto,
            uid: rustix::process::geteuid().as_raw(),
            remarks: Vec::new(),
            netns: fds::netns_id(),
            started: Instant::now(),
            next_key: 1,
            look_again: None,
            refresh_at: None,
            accept_again: None,
            idle_since: None,
            stop: false,
            _namespace: namespace,
            listener,
        })
    }

    pub(crate) fn now(&self) -> Now {
        self.started.elapsed()
    }

    fn run(&mut self) -> Result<(), CtlError> {
        let mut ready = Vec::with_capacity(EVENTS_PER_TURN);
        while !self.stop {
            self.on_time();
            if self.stop {
                break;
            }
            let timeout = self.deadline().map(|at| at.saturating_sub(self.now()));
            self.epoll
                .wait(&mut ready, timeout)
                .map_err(|e| CtlError::os("waiting for events", e))?;
            for token in ready.drain(..) {
                self.dispatch(token);
            }
        }
        log::info("leaves");
        Ok(())
    }

    fn dispatch(&mut self, token: Token) {
        match token {
            Token::Listener => self.accept(),
            Token::Netlink => self.on_netlink(),
            Token::Signals => self.stop = true,
            Token::Slot0 => {
                let (touched, datagrams) = self.slot0.receive(&self.slots, &mut self.clients);
                touched.into_iter().for_each(|place| self.flush(place));
                self.on_datagrams(&datagrams);
            }
            Token::Control(key) => {
                if self.hear(key).is_err() {
                    self.drop_client(key);
                }
            }
            Token::Process(key) => self.drop_client(key),
            Token::Notices(key) => {
                // Writable again, or closed: sending tells which.
                if self.announce(key).is_err() {
                    self.drop_client(key);
                }
            }
            Token::Forward(key, index) => self.on_forward(key, index),
        }
    }

    fn on_datagrams(&mut self, datagrams: &[Datagram]) {
        if datagrams.is_empty() {
            return;
        }
        let world = World {
            devices: self.devices.list(),
            picture: &self.picture,
            now: self.started.elapsed(),
        };
        for datagram in datagrams {
            self.cm.on_datagram(datagram, &world);
        }
        self.run_cm();
    }

    /// Tells programs what the connection manager has for them, and peers what it says.
    pub(crate) fn run_cm(&mut self) {
        let world = World {
            devices: self.devices.list(),
            picture: &self.picture,
            now: self.started.elapsed(),
        };
        while let Some(transmit) = self.cm.poll_transmit(&world) {
            self.slot0.send(&transmit);
        }
    }

    /// What a client that is gone had given us for others still reaches them.
    fn hand_over_rest(&mut self, key: u64) {
        let slots = self.clients.get(&key).map_or(0, |c| c.slots.len());
        for index in 0..slots {
            for _ in 0..REST_ROUNDS_MAX {
                let place = (key, index);
                let (touched, open) = self.slot0.hand_over(place, &self.slots, &mut self.clients);
                let dry = touched.is_empty() || open.is_err();
                touched.into_iter().for_each(|place| self.flush(place));
                if dry {
                    break;
                }
            }
        }
    }

    /// Ends the service of a slot of a client that is gone. What others have in its sockets is
    /// handed on; what the kernel dropped there is counted, as the client may not have had the time.
    fn close(&mut self, slot: u16, client: &Client) {
        let mut touched = Vec::new();
        let closing = self.group.close(slot, |sockets| {
            let (slots, clients) = (&self.slots, &mut self.clients);
            touched = self.slot0.receive_rest(sockets, slots, clients);
        });
        touched.into_iter().for_each(|place| self.flush(place));
        self.slot0.count(Counter::RcvdPkts, closing.unread);
        self.slot0.count(Counter::DropNoQp, closing.unread);
        if let [_only] = client.slots.as_slice()
            && let Some(pages) = &client.pages
        {
            let counter = pages.set.counter(Counter::SocketOverflow);
            counter.fetch_max(closing.overflown, Ordering::Relaxed);
        }
    }

    /// There is something to hand on, or room for what waits.
    fn on_forward(&mut self, key: u64, index: usize) {
        let place = (key, index);
        self.flush(place);
        let (touched, open) = self.slot0.hand_over(place, &self.slots, &mut self.clients);
        touched.into_iter().for_each(|place| self.flush(place));
        let client = self.clients.get(&key);
        if let Some(slot) = client.and_then(|c| c.slots.get(index))
            && open.is_err()
        {
            self.epoll.remove(&slot.forward);
        }
    }

    /// Gives a client what waits for it, as much as it takes now.
    fn flush(&mut self, (key, index): Place) {
        let client = self.clients.get_mut(&key);
        let Some(slot) = client.and_then(|c| c.slots.get_mut(index)) else {
            return;
        };
        match slot.outbox.flush(&slot.forward) {
            Ok(frames) => self.slot0.count(Counter::Forwarded, frames),
            Err(_) => self.slot0.count(Counter::DropForward, slot.outbox.clear()),
        }
        let blocked = !slot.outbox.is_empty();
        if blocked != slot.blocked {
            slot.blocked = blocked;
            let events = if blocked { Events::BOTH } else { Events::IN };
            // Refused only if the client has closed its end, and then nothing can be sent either.
            let _ = self
                .epoll
                .modify(&slot.forward, Token::Forward(key, index), events);
        }
    }

    fn accept(&mut self) {
        use rustix::net::SocketFlags;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let socket = match rustix::net::accept_with(&self.listener.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return self.pause_accepting(error),
            };
            if self.clients.len() >= CONNECTIONS_MAX {
                continue;
            }
            let key = self.next_key;
            self.next_key += 1;
            let added = Client::new(key, socket, self.now()).and_then(|client| {
                self.epoll
                    .add(&client.socket, Token::Control(key), Events::IN)?;
                if let Some(pidfd) = &client.pidfd {
                    self.epoll.add(pidfd, Token::Process(key), Events::IN)?;
                }
                Ok(client)
            });
            match added {
                Ok(client) => {
                    self.clients.insert(key, client);
                }
                Err(error) => log::debug(&format!("a client came and went: {error}")),
            }
        }
    }

    /// Descriptors have run out: without a pause the listener would wake us for ever.
    fn pause_accepting(&mut self, error: Errno) {
        log::warn(&format!("taking a connection: {error}"));
        let _ = self
            .epoll
            .modify(&self.listener.socket, Token::Listener, Events::NONE);
        self.accept_again = Some(self.now() + ACCEPT_PAUSE);
    }

    /// A process died, closed, or broke the rules: its slots rest, its page-set is kept.
    pub(crate) fn drop_client(&mut self, key: u64) {
        let now = self.now();
        self.hand_over_rest(key);
        let Some(mut client) = self.clients.remove(&key) else {
            return;
        };
        for slot in &mut client.slots {
            self.slot0.count(Counter::DropForward, slot.outbox.clear());
        }
        let world = World {
            devices: self.devices.list(),
            picture: &self.picture,
            now,
        };
        self.cm.drop_client(key, &world);
        self.run_cm();
        for slot in self.slots.release(key, now) {
            self.ledgers.close(client.ids.uid, slot);
            self.close(slot, &client);
        }
        if client.is_library() {
            log::debug(&format!(
                "process {} ({}) went",
                client.ids.pid, client.command
            ));
            self.idle_since = Some(now);
        }
        self.graveyard.bury(client, now);
    }

    fn on_netlink(&mut self) {
        match self.follower.news() {
            Ok(News::Events(events)) => {
                for event in &events {
                    self.picture.apply(event);
                }
                let came_up = |m: &Message| matches!(m, Message::Link(link) if link.is_up());
                if events.iter().any(came_up) {
                    self.look_again = Some(self.now() + LOOK_AGAIN);
                }
            }
            Ok(News::Everything(dump)) => self.picture = self.picture.replaced(&dump),
            Err(error) => log::warn(&format!("following interfaces: {error}")),
        }
        self.refresh();
    }

    /// Brings the devices up to date and tells everybody what changed.
    fn refresh(&mut self) {
        let now = self.now();
        let ethtool = &self.ethtool;
        let speed = |name: &str| sys::speed_mbps(ethtool, name);
        if self.devices.refresh(&self.picture, now, &speed) {
            log::debug("devices changed");
            let world = World {
                devices: self.devices.list(),
                picture: &self.picture,
                now,
            };
            self.cm.on_devices(&world);
            self.for_each_client(Self::announce);
        }
        self.refresh_at = self.devices.deadline(now);
        if self.refresh_at.is_none() {
            self.for_each_client(Self::answer_waiting);
        }
    }

    fn for_each_client(
        &mut self,
        act: impl Fn(&mut Self, u64) -> Result<(), crate::requests::DropClient>,
    ) {
        let keys: Vec<u64> = self.clients.keys().copied().collect();
        for key in keys {
            if act(self, key).is_err() {
                self.drop_client(key);
            }
        }
    }

    /// What is due.
    fn on_time(&mut self) {
        let now = self.now();
        if self.look_again.is_some_and(|at| at <= now) {
            self.look_again = None;
            match self.follower.dump() {
                Ok(dump) => self.picture = self.picture.replaced(&dump),
                Err(error) => log::warn(&format!("listing interfaces: {error}")),
            }
            self.refresh_at = Some(now);
        }
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            let _ = self
                .epoll
                .modify(&self.listener.socket, Token::Listener, Events::IN);
        }
        if self.refresh_at.is_some_and(|at| at <= now) {
            self.refresh();
        }
        let silent = |c: &&Client| c.role.is_none() && now >= c.since + HELLO_WAIT;
        let silent: Vec<u64> = self
            .clients
            .values()
            .filter(silent)
            .map(|c| c.key)
            .collect();
        for key in silent {
            self.drop_client(key);
        }
        // Interfaces that never come to rest are no reason to leave a program without an answer.
        let impatient = |c: &&Client| c.wants_devices.is_some_and(|until| until <= now);
        let impatient: Vec<u64> = self
            .clients
            .values()
            .filter(impatient)
            .map(|c| c.key)
            .collect();
        for key in impatient {
            if self.answer_waiting(key).is_err() {
                self.drop_client(key);
            }
        }
        if self.cm.deadline().is_some_and(|at| at <= now) {
            let world = World {
                devices: self.devices.list(),
                picture: &self.picture,
                now,
            };
            self.cm.on_time(&world);
            self.run_cm();
        }
        if self.leave_at().is_some_and(|at| at <= now) {
            // Whoever connected in the meantime is in the queue.
            self.accept();
            self.stop = self.clients.is_empty();
        }
    }

    fn deadline(&self) -> Option<Now> {
        let silent = self.clients.values().filter(|c| c.role.is_none());
        let greeting = silent.map(|c| c.since + HELLO_WAIT).min();
        let waiting = self.clients.values().filter_map(|c| c.wants_devices).min();
        let all = [
            self.refresh_at,
            self.look_again,
            self.accept_again,
            waiting,
            greeting,
            self.leave_at(),
            self.cm.deadline(),
        ];
        all.into_iter().flatten().min()
    }

    /// When an automatic daemon leaves, if nobody comes.
    fn leave_at(&self) -> Option<Now> {
        if !self.auto || !self.clients.is_empty() {
            return None;
        }
        Some(match self.idle_since {
            None => LINGER_AT_START,
            Some(since) if self.graveyard.has_error() => since + LINGER_TO_EXPLAIN,
            Some(since) => since + LINGER,
        })
    }
}

/// What this host tells others that run rocebud. Packets of one batch have the identifications from 0
/// on, and single ones have 0.
fn hello(group: &Group) -> Hello {
    let mut instance = [0; 8];
    // The system's generator does not fail once it has been seeded.
    let _ = getrandom::fill(&mut instance);
    let ids = u16::try_from(SEGMENTS_MAX).unwrap_or(0);
    let instance = u64::from_ne_bytes(instance);
    Hello::new(instance, ids, group.rcvbuf_bytes(), 0)
}

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    Listener,
    Netlink,
    Signals,
    Slot0,
    Control(u64),
    Process(u64),
    Notices(u64),
    Forward(u64, usize),
}

impl Token {
    /// Kind in the lowest four bits, slot index in the next four, then the client's key.
    fn word(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Netlink => 1,
            Self::Signals => 2,
            Self::Slot0 => 3,
            Self::Control(key) => 4 | key << 8,
            Self::Process(key) => 5 | key << 8,
            Self::Notices(key) => 6 | key << 8,
            Self::Forward(key, index) => 7 | (index as u64 & 0xf) << 4 | key << 8,
        }
    }

    fn from_word(word: u64) -> Self {
        let key = word >> 8;
        match word & 0xf {
            0 => Self::Listener,
            1 => Self::Netlink,
            2 => Self::Signals,
            3 => Self::Slot0,
            4 => Self::Control(key),
            5 => Self::Process(key),
            6 => Self::Notices(key),
            _ => Self::Forward(key, (word >> 4 & 0xf) as usize),
        }
    }
}

/// What to wait for. Errors and closing always wake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Events(EventFlags);

impl Events {
    pub(crate) const NONE: Self = Self(EventFlags::empty());
    pub(crate) const IN: Self = Self(EventFlags::IN);
    pub(crate) const OUT: Self = Self(EventFlags::OUT);
    pub(crate) const BOTH: Self = Self(EventFlags::IN.union(EventFlags::OUT));
}

/// The epoll descriptor, speaking tokens.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: Token, events: Events) -> io::Result<()> {
        Ok(epoll::add(
            &self.0,
            fd,
            EventData::new_u64(token.word()),
            events.0,
        )?)
    }

    pub(crate) fn modify(&self, fd: impl AsFd, token: Token, events: Events) -> io::Result<()> {
        Ok(epoll::modify(
            &self.0,
            fd,
            EventData::new_u64(token.word()),
            events.0,
        )?)
    }

    /// Nothing more is to be heard of `fd`.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    fn wait(&self, ready: &mut Vec<Token>, timeout: Option<Duration>) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        let timeout = timeout.map(channel::timespec);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.0, buffer, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let token = |event: &epoll::Event| Token::from_word(event.data.u64());
        ready.extend(events.iter().map(token));
        Ok(())
    }
}

/// A number that differs from host to host and stays.
fn host_salt() -> u64 {
    let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let name = rustix::system::uname();
    let id = if id.trim().is_empty() {
        name.nodename().to_bytes()
    } else {
        id.trim().as_bytes()
    };
    id.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| {
        (hash ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

const EVENTS_PER_TURN: usize = 64;
