//! QP1: what rdma_cm programs of this network namespace share. Identifiers and their events,
//! ports, the way to an address, multicast groups, and the connection manager, which speaks with
//! the peers.
//!
//! A request is checked, applied, answered ([`requests`]); news of the connection manager become
//! events of identifiers ([`news`]). Nothing here waits.

mod events;
mod greeting;
mod id;
mod multicast;
mod news;
mod ports;
pub(crate) mod qp1;
mod requests;
mod resolve;

use std::collections::BTreeMap;

use rocebud_cm::hello::Hello;
use rocebud_cm::{Config, ConnId, Ends, ListenerId, MAD_LEN, Manager, Transmit};
use rocebud_ctl::cm::{CmDetails, CmEvent};
use rocebud_ctl::status::{ConnectionsStatus, ListenerStatus};
use rocebud_ctl::{DeviceInfo, PeerHint, PeerNews};
use rocebud_objects::Instant;
use rocebud_wire::Gid;

use crate::devices::Now;
use crate::limits::{LISTENERS_SHOWN_MAX, REOFFER_GRACE, WITHDRAWN_MAX};
use crate::picture::Picture;
use events::Channels;
use greeting::Greeting;
use id::{Id, State};
use ports::Ports;
use qp1::Datagram;
pub(crate) use requests::Asker;
use resolve::{Outcome, Query, Resolver};

/// What is known besides.
#[derive(Clone, Copy)]
pub(crate) struct World<'a> {
    pub(crate) devices: &'a [DeviceInfo],
    pub(crate) picture: &'a Picture,
    pub(crate) now: Now,
}

impl World<'_> {
    fn instant(&self) -> Instant {
        instant(self.now)
    }

    fn device(&self, ifindex: u32) -> Option<&DeviceInfo> {
        self.devices.iter().find(|d| d.ifindex == ifindex)
    }
}

fn instant(now: Now) -> Instant {
    Instant(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

/// Everything about connections.
#[derive(Debug)]
pub(crate) struct Cm {
    manager: Manager,
    greeting: Greeting,
    ids: BTreeMap<u32, Id>,
    /// Identifiers by client.
    held: BTreeMap<u64, usize>,
    conns: BTreeMap<ConnId, u32>,
    listeners: BTreeMap<ListenerId, u32>,
    channels: Channels,
    ports: Ports,
    resolver: Resolver,
    queries: BTreeMap<u32, Box<Query>>,
    /// Ports where nobody offers anything any more, and since when.
    withdrawn: BTreeMap<u16, Now>,
    next_id: u32,
    next_membership: u32,
}

impl Cm {
    /// One that says `ours` to hosts of ours.
    pub(crate) fn new(ours: Hello) -> Self {
        Self {
            greeting: Greeting::new(ours),
            manager: Manager::new(Config::default(), Box::new(random)),
            ids: BTreeMap::new(),
            held: BTreeMap::new(),
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            channels: Channels::default(),
            ports: Ports::new(ports::ephemeral_range()),
            resolver: Resolver::new(),
            queries: BTreeMap::new(),
            withdrawn: BTreeMap::new(),
            next_id: 0,
            next_membership: 0,
        }
    }

    /// A datagram for QP1 came.
    pub(crate) fn on_datagram(&mut self, datagram: &Datagram, world: &World<'_>) {
        let local = Gid::from_ip(datagram.destination);
        // What loops back arrives by the loopback interface: the address says whose it is.
        let with_scope =
            resolve::device_with(world.devices, datagram.destination, datagram.ifindex);
        let device =
            with_scope.or_else(|| resolve::device_with(world.devices, datagram.destination, 0));
        let Some(device) = device else {
            return;
        };
        let ends = Ends {
            port: device.ifindex,
            local,
            remote: Gid::from_ip(datagram.source),
        };
        let greeter = &mut self.greeting.greeter;
        if greeter.handle_mad(world.instant(), ends, &*datagram.mad) {
            return;
        }
        if self.waits_for_offer(&datagram.mad, world.now) {
            return;
        }
        self.manager
            .handle_mad(world.instant(), ends, &*datagram.mad);
    }

    /// It asks at a port where something was offered a moment ago, and may be again in a moment:
    /// programs that serve one peer after the other close their listener and open another, perhaps
    /// of another port space, and the next peer does not know how far they are (perftest, which
    /// does not survive a refusal). Asked again a little later it is answered.
    fn waits_for_offer(&self, mad: &[u8; MAD_LEN], now: Now) -> bool {
        let Some(since) = qp1::port_asked(mad).and_then(|port| self.withdrawn.get(&port)) else {
            return false;
        };
        now < *since + REOFFER_GRACE
    }

    fn withdraw(&mut self, port: u16, now: Now) {
        self.withdrawn
            .retain(|_, since| now < *since + REOFFER_GRACE);
        if self.withdrawn.len() < WITHDRAWN_MAX {
            self.withdrawn.insert(port, now);
        }
    }

    /// Does what is due.
    pub(crate) fn on_time(&mut self, world: &World<'_>) {
        if self
            .manager
            .poll_timeout()
            .is_some_and(|at| at <= world.instant())
        {
            self.manager.handle_timeout(world.instant());
        }
        self.greeting.handle_timeout(world.instant());
        let queries = self.queries.iter();
        let due = queries.filter(|(_, query)| query.look_at <= world.now);
        let due: Vec<u32> = due.map(|(id, _)| *id).collect();
        for id in due {
            if let Some(query) = self.queries.remove(&id) {
                let outcome = self.resolver.look(query, world.now);
                self.resolved(id, outcome);
            }
        }
    }

    /// When something is due.
    pub(crate) fn deadline(&self) -> Option<Now> {
        let manager = self.manager.poll_timeout().map(|at| Now::from_nanos(at.0));
        let look = self.queries.values().map(|query| query.look_at).min();
        let greeter = self.greeting.greeter.poll_timeout();
        let greeter = greeter.map(|at| Now::from_nanos(at.0));
        [manager, greeter, look].into_iter().flatten().min()
    }

    /// Turns news into events; then the next message to send, until there is none.
    pub(crate) fn poll_transmit(&mut self, world: &World<'_>) -> Option<Transmit> {
        while let Some(event) = self.manager.poll_event() {
            self.on_news(event, world);
        }
        if let Some(transmit) = self.manager.poll_transmit() {
            self.greeting.sending(&transmit, world);
            return Some(transmit);
        }
        self.greeting.poll_transmit()
    }

    /// A client talks to a peer without us.
    pub(crate) fn on_hint(&mut self, client: u64, hint: &PeerHint, world: &World<'_>) {
        self.greeting.talks(client, hint, world);
    }

    /// The next thing that a client is to hear of its peers.
    pub(crate) fn poll_news(&mut self) -> Option<(u64, PeerNews)> {
        self.greeting.poll_news()
    }

    /// A client is gone: its connections end on the wire.
    pub(crate) fn drop_client(&mut self, client: u64, world: &World<'_>) {
        let of_client = |(number, id): (&u32, &Id)| (id.client == client).then_some(*number);
        let ids: Vec<u32> = self.ids.iter().filter_map(of_client).collect();
        for id in ids {
            self.destroy(id, world);
        }
        self.held.remove(&client);
        self.channels.close_all(client);
        self.greeting.drop_client(client);
    }

    /// Tells those whose device is gone.
    pub(crate) fn on_devices(&mut self, world: &World<'_>) {
        const DEVICE_REMOVAL: u32 = 11;
        let lost = |(number, id): (&u32, &mut Id)| {
            let gone = id.ifindex != 0 && !id.removed && world.device(id.ifindex).is_none();
            id.removed |= gone;
            gone.then_some(*number)
        };
        let lost: Vec<u32> = self.ids.iter_mut().filter_map(lost).collect();
        for id in lost {
            self.push(id, DEVICE_REMOVAL, 0, CmDetails::None);
        }
    }

    /// For `rocebud status`.
    pub(crate) fn status(&self, world: &World<'_>) -> ConnectionsStatus {
        let listener = |number: &u32| {
            let id = self.ids.get(number)?;
            Some(ListenerStatus {
                process: id.client,
                space: format!("{:?}", id.space).to_uppercase(),
                address: id.source.socket_addr().to_string(),
            })
        };
        let listeners = self.listeners.values().filter_map(listener);
        let counters = self.manager.counters().iter().filter(|(_, n)| *n > 0);
        ConnectionsStatus {
            identifiers: self.ids.len(),
            connections: self.manager.connections(),
            listeners: listeners.take(LISTENERS_SHOWN_MAX).collect(),
            counters: counters.map(|(name, n)| (name.to_owned(), n)).collect(),
            peers: self.greeting.status(world),
        }
    }

    /// Queues an event of an identifier.
    fn push(&mut self, id: u32, kind: u32, status: i32, details: CmDetails) {
        let Some(channel) = self.ids.get(&id).map(|id| id.channel) else {
            return;
        };
        let event = CmEvent {
            kind,
            id,
            listener: 0,
            status,
            details,
        };
        self.channels.push(channel, event);
    }

    /// A look-up ended, or goes on.
    fn resolved(&mut self, number: u32, outcome: Outcome) {
        const ADDR_RESOLVED: u32 = 0;
        const ADDR_ERROR: u32 = 1;
        let Some(id) = self.ids.get_mut(&number) else {
            return;
        };
        match outcome {
            Outcome::Waits(query) => {
                self.queries.insert(number, query);
            }
            Outcome::Failed(errno) => {
                id.state = State::Bound;
                self.push(number, ADDR_ERROR, -errno, CmDetails::None);
            }
            Outcome::Found(route) => {
                let route = id.adopt(route);
                self.push(number, ADDR_RESOLVED, 0, CmDetails::Route(route));
            }
        }
    }

    /// Ends an identifier; says how many of its events were given out.
    fn destroy(&mut self, number: u32, world: &World<'_>) -> u32 {
        let Some(id) = self.ids.remove(&number) else {
            return 0;
        };
        if let Some(held) = self.held.get_mut(&id.client) {
            *held = held.saturating_sub(1);
        }
        self.queries.remove(&number);
        if let Some(port) = id.port {
            self.ports.release(id.space as u16, port, number);
        }
        if let Some(conn) = id.conn {
            self.conns.remove(&conn);
            self.manager.forget(world.instant(), conn);
        }
        if let Some(listener) = id.listener {
            self.withdraw(id.source.port, world.now);
            self.listeners.remove(&listener);
            self.manager.unlisten(world.instant(), listener);
        }
        let mine = |event: &CmEvent| event.id == number || event.listener == number;
        // Requests that nobody has read go with their listener.
        for event in self.channels.remove(id.channel, mine) {
            if event.listener == number {
                self.destroy(event.id, world);
            }
        }
        id.reported
    }
}

/// Communication ids and starting PSNs: nobody may guess them.
fn random() -> u32 {
    let mut bytes = [0; 4];
    // The system's generator does not fail once it has been seeded.
    let _ = getrandom::fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests;
