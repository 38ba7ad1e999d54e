//! Hosts on a network that loses, doubles and delays; time is virtual, chance comes from a seed.

use std::collections::{BTreeMap, BTreeSet};

use rocebud_cm::ip::{self, IpCm, PortSpace};
use rocebud_cm::{
    Accept, Bind, ConnId, Connect, Ends, Event, Listen, ListenerId, MAD_LEN, Manager, Message,
};
use rocebud_objects::Instant;
use rocebud_wire::{Gid, Qpn};

use super::{Dice, mirrored, path};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const PORT: u16 = 7174;

/// How bad the network is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weather {
    /// Of 1000 messages, so many are lost.
    pub(crate) loss: u32,
    /// Of 1000 messages, so many come twice.
    pub(crate) twice: u32,
    /// Each takes up to so many milliseconds, at random: so they overtake each other.
    pub(crate) delay_ms: u32,
}

/// Drops a message on its way, by what it is and where it goes.
pub(crate) type Filter = Box<dyn FnMut(usize, &Message) -> bool>;

/// Where to, between whom, what.
type OnTheWay = (usize, Ends, Box<[u8; MAD_LEN]>);

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) hosts: Vec<Manager>,
    pub(crate) weather: Weather,
    /// True = lost.
    pub(crate) filter: Filter,
    /// Hosts that do not exist any more.
    pub(crate) dead: BTreeSet<usize>,
    wire: BTreeMap<(Instant, u64), OnTheWay>,
    dice: Dice,
    sent: u64,
    next_qpn: u32,
}

pub(crate) fn address(host: usize) -> Gid {
    Gid::from_v4([10, 0, 0, host as u8 + 1])
}

impl World {
    pub(crate) fn new(seed: u64, hosts: usize) -> Self {
        let manager = |host| super::manager(seed.wrapping_mul(1000) + host as u64);
        Self {
            now: Instant(1_000 * MS),
            hosts: (0..hosts).map(manager).collect(),
            weather: Weather::default(),
            filter: Box::new(|_, _| false),
            dead: BTreeSet::new(),
            wire: BTreeMap::new(),
            dice: Dice::new(seed),
            sent: 0,
            next_qpn: 0x100,
        }
    }

    pub(crate) fn listen(&mut self, host: usize) -> ListenerId {
        let what = Listen {
            service_id: ip::service_id(PortSpace::Tcp, PORT),
            mask: u64::MAX,
            bind: Bind::Any,
            backlog: 0,
        };
        self.hosts[host].listen(what).expect("a listener")
    }

    pub(crate) fn fresh_qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::new(self.next_qpn)
    }

    pub(crate) fn guid(host: usize) -> u64 {
        0xa000 + host as u64
    }

    pub(crate) fn ask(from: usize, to: usize, qpn: Qpn) -> Connect {
        let service_id = ip::service_id(PortSpace::Tcp, PORT);
        let path = path(address(from), address(to));
        let mut ask = Connect::new(path, Self::guid(from), service_id, qpn);
        ask.ip = Some(IpCm {
            src_port: 40_000,
            src: address(from).ip(),
            dst: address(to).ip(),
        });
        ask
    }

    pub(crate) fn connect(&mut self, from: usize, to: usize, qpn: Qpn) -> ConnId {
        let ask = Self::ask(from, to, qpn);
        let conn = self.hosts[from].connect(self.now, &ask);
        self.collect(from);
        conn.expect("asked")
    }

    pub(crate) fn accept(&mut self, host: usize, conn: ConnId) -> Qpn {
        let qpn = self.fresh_qpn();
        let answer = Accept::new(Self::guid(host), qpn);
        let accepted = self.hosts[host].accept(self.now, conn, &answer);
        self.collect(host);
        accepted.expect("accepted");
        qpn
    }

    /// Calls something of a host, and takes what it sends.
    pub(crate) fn call<T>(&mut self, host: usize, f: impl FnOnce(&mut Manager, Instant) -> T) -> T {
        let result = f(&mut self.hosts[host], self.now);
        self.collect(host);
        result
    }

    /// Puts a message on the wire as if it came from there.
    pub(crate) fn inject(&mut self, to: usize, from: Gid, message: &Message, tid: u64) {
        let ends = Ends {
            port: 1,
            local: address(to),
            remote: from,
        };
        self.hosts[to].handle_mad(self.now, ends, &message.emit(tid, 0)[..]);
        self.collect(to);
    }

    fn collect(&mut self, host: usize) {
        while let Some(message) = self.hosts[host].poll_transmit() {
            let ends = message.path.ends;
            let to = (0..self.hosts.len()).find(|&h| address(h) == ends.remote);
            let (_, parsed) = Message::parse(&message.mad[..]).expect("a message");
            let Some(to) = to else { continue };
            if (self.filter)(to, &parsed) || self.dead.contains(&to) {
                continue;
            }
            let copies = 1 + usize::from(self.dice.permille(self.weather.twice));
            for _ in 0..copies {
                if self.dice.permille(self.weather.loss) {
                    continue;
                }
                let delay =
                    MS / 10 + u64::from(self.dice.roll() % (self.weather.delay_ms + 1)) * MS;
                self.sent += 1;
                let at = (self.now + delay, self.sent);
                self.wire
                    .insert(at, (to, mirrored(ends), message.mad.clone()));
            }
        }
    }

    /// Lets the next thing happen. None = nothing will, or not before `end`.
    pub(crate) fn step(&mut self, end: Instant) -> Option<Vec<(usize, Event)>> {
        let arrival = self.wire.keys().next().map(|&(at, _)| at);
        let alive = (0..self.hosts.len()).filter(|host| !self.dead.contains(host));
        let timer = alive
            .filter_map(|host| Some((self.hosts[host].poll_timeout()?, host)))
            .min();
        let next = arrival.into_iter().chain(timer.map(|t| t.0)).min()?;
        if next > end {
            return None;
        }
        self.now = self.now.max(next);
        let host = if arrival == Some(next) {
            let (_, (to, ends, mad)) = self.wire.pop_first().expect("an arrival");
            if self.dead.contains(&to) {
                return Some(Vec::new());
            }
            self.hosts[to].handle_mad(self.now, ends, &mad[..]);
            to
        } else {
            let (_, host) = timer.expect("a timer");
            self.hosts[host].handle_timeout(self.now);
            host
        };
        self.collect(host);
        let mut events = Vec::new();
        while let Some(event) = self.hosts[host].poll_event() {
            events.push((host, event));
        }
        Some(events)
    }

    /// Lets things happen until nothing does, or the time is over. All events.
    pub(crate) fn run(&mut self, ms: u64) -> Vec<(usize, Event)> {
        let end = self.now + ms * MS;
        let mut events = Vec::new();
        while let Some(more) = self.step(end) {
            events.extend(more);
        }
        for host in 0..self.hosts.len() {
            while let Some(event) = self.hosts[host].poll_event() {
                events.push((host, event));
            }
            assert_eq!(self.hosts[host].contradiction(), None);
        }
        self.now = end;
        events
    }

    /// A connection in use between two hosts: both ids, both queue pairs.
    pub(crate) fn connected(&mut self, from: usize, to: usize) -> (ConnId, ConnId, Qpn, Qpn) {
        let qpn = self.fresh_qpn();
        let mine = self.connect(from, to, qpn);
        let theirs = request(&self.run(10));
        let other = self.accept(to, theirs);
        self.run(10);
        let established = self.call(from, |m, now| m.establish(now, mine, &[]));
        established.expect("established");
        let conn = theirs;
        assert_eq!(self.run(10), [(to, Event::Established { conn })]);
        (mine, theirs, qpn, other)
    }
}

/// The only event is a request.
pub(crate) fn request(events: &[(usize, Event)]) -> ConnId {
    match events {
        [(_, Event::Request(request))] => request.conn,
        other => panic!("one request, not {other:?}"),
    }
}
