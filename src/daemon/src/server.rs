//! The loop.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rocebud_cm::hello::Hello;
use rocebud_ctl::{CtlError, SocketName, fds};
use rocebud_nic::udp::SEGMENTS_MAX;
use rocebud_objects::Counter;
use rustix::io::Errno;

use crate::clients::{Client, Graveyard};
use crate::cm::qp1::Datagram;
use crate::cm::{Cm, World};
use crate::control::Listener;
use crate::devices::{Devices, Now};
use crate::epoll::{EVENTS_PER_TURN, Epoll, Events, Token};
use crate::ethtool::Ethtool;
use crate::group::Group;
use crate::ledgers::Ledgers;
use crate::limits::{
    ACCEPT_PAUSE, CONNECTIONS_MAX, HELLO_WAIT, LINGER, LINGER_AT_START, LINGER_TO_EXPLAIN,
    LOOK_AGAIN, REST_ROUNDS_MAX, STARTER_WAIT,
};
use crate::netlink::codec::Message;
use crate::netlink::{Follower, News};
use crate::picture::Picture;
use crate::slot0::{Place, Slot0};
use crate::slots::Slots;
use crate::{host, log, sys};

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
    ethtool: Ethtool,
    pub(crate) name: SocketName,
    pub(crate) auto: bool,
    pub(crate) uid: u32,
    /// Of its start, see [`crate::Options::remarks`].
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
    /// Somebody has come, if only to ask, and gone.
    visited: bool,
    /// When another daemon last wished to serve.
    wished: Option<Now>,
    stop: bool,
    namespace: OwnedFd,
    listener: Listener,
}

impl Server {
    pub(crate) fn new(
        listener: Listener,
        namespace: OwnedFd,
        group: Group,
        follower: Follower,
        name: SocketName,
        auto: bool,
    ) -> io::Result<Self> {
        let slot0 = Slot0::new(&group)?;
        let epoll = Epoll::new()?;
        let signals = sys::stop_signals()?;
        epoll.add(&listener.socket, Token::Listener, Events::IN)?;
        epoll.add(&namespace, Token::Namespace, Events::IN)?;
        epoll.add(follower.fd(), Token::Netlink, Events::IN)?;
        epoll.add(&signals, Token::Signals, Events::IN)?;
        for fd in group.own_fds() {
            epoll.add(fd, Token::Slot0, Events::IN)?;
        }
        Ok(Self {
            devices: Devices::new(host::salt(), group.has_ipv6()),
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
            ethtool: Ethtool::new()?,
            name,
            auto,
            uid: rustix::process::geteuid().as_raw(),
            remarks: Vec::new(),
            netns: fds::netns_id()?,
            started: Instant::now(),
            next_key: 1,
            look_again: None,
            refresh_at: None,
            accept_again: None,
            idle_since: None,
            visited: false,
            wished: None,
            stop: false,
            namespace,
            listener,
        })
    }

    pub(crate) fn now(&self) -> Now {
        self.started.elapsed()
    }

    pub(crate) fn run(&mut self) -> Result<(), CtlError> {
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
            Token::Namespace => {
                if crate::control::wishes(&self.namespace) {
                    self.wished = Some(self.now());
                }
            }
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
        while let Some((key, news)) = self.cm.poll_news() {
            self.tell(key, news);
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
        self.visited |= client.role.is_some();
        self.graveyard.bury(client, now);
    }

    fn on_netlink(&mut self) {
        match self.follower.news() {
            Ok(News::Events(events)) => {
                for event in &events {
                    self.picture.apply(event);
                    if let Message::Link(link) = event {
                        self.devices.ask_again(Some(link.ifindex));
                    }
                }
                let came_up = |m: &Message| matches!(m, Message::Link(link) if link.is_up());
                if events.iter().any(came_up) {
                    self.look_again = Some(self.now() + LOOK_AGAIN);
                }
            }
            Ok(News::Everything(dump)) => {
                self.picture = self.picture.replaced(&dump);
                self.devices.ask_again(None);
            }
            Err(error) => log::warn(&format!("following interfaces: {error}")),
        }
        self.refresh();
    }

    /// Brings the devices up to date and tells everybody what changed.
    pub(crate) fn refresh(&mut self) {
        let now = self.now();
        if self.devices.refresh(&self.picture, now, &self.ethtool) {
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
        let linger = match self.idle_since {
            None => LINGER_AT_START,
            Some(since) if self.graveyard.has_error() => since + LINGER_TO_EXPLAIN,
            Some(since) => since + LINGER,
        };
        let wished = self.wished.filter(|at| self.now() < *at + STARTER_WAIT);
        let makes_way = wished.map(|at| if self.visited { at } else { STARTER_WAIT });
        Some(makes_way.map_or(linger, |at| at.min(linger)))
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
    Hello {
        kernel: host::kernel_number(),
        ..Hello::new(instance, ids, group.rcvbuf_bytes(), 0)
    }
}
