//! Who of the peers is a daemon of ours, asked once per address.
//!
//! Asked is whom a program of this host talks to: when it asks for a connection or a service, grants
//! one, connects a queue pair to somebody or makes an address handle of him. A peer that merely sends
//! is not, so that nobody can make this daemon send to others. What comes of it is told to the
//! processes that named the peer, and kept for `rocebud status`; a peer that says nothing speaks the
//! standard. While such a process lives its peers are asked again in time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rocebud_cm::hello::{Cause, Greeter, Hello, Manners, Met, Standing};
use rocebud_cm::{Ends, Peer, Transmit};
use rocebud_ctl::status::PeerStatus;
use rocebud_ctl::{PeerHint, PeerNews, PeerWord};
use rocebud_objects::Instant;
use rocebud_wire::Gid;

use super::World;
use crate::limits::{PEERS_PER_CLIENT_MAX, PEERS_SHOWN_MAX};
use crate::log;

/// Attributes of the CM's messages that are sent only for a program: REQ, REP, SIDR_REQ, SIDR_REP.
const OF_PROGRAMS: [[u8; 2]; 4] = [[0, 0x10], [0, 0x13], [0, 0x17], [0, 0x18]];

/// See the module.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) greeter: Greeter,
    ours: Hello,
    /// Clients that talk to a peer.
    interest: BTreeMap<Peer, BTreeSet<u64>>,
    /// How many peers a client has named.
    named: BTreeMap<u64, usize>,
    /// What a client is to hear.
    news: VecDeque<(u64, PeerNews)>,
}

impl Greeting {
    /// One that says `ours` of this host.
    pub(super) fn new(ours: Hello) -> Self {
        Self {
            greeter: Greeter::new(Manners::default(), ours, Box::new(super::random)),
            ours,
            interest: BTreeMap::new(),
            named: BTreeMap::new(),
            news: VecDeque::new(),
        }
    }

    /// A client talks to a peer by queue pairs of its own. Beyond [`PEERS_PER_CLIENT_MAX`] peers
    /// nobody more is asked for it.
    pub(super) fn talks(&mut self, client: u64, hint: &PeerHint, world: &World<'_>) {
        let ends = Ends {
            port: hint.ifindex,
            local: Gid(hint.local),
            remote: hint.remote(),
        };
        let nobody = ends.remote.is_multicast() || ends.remote == Gid::default();
        if nobody || !is_own(ends.local, world) || is_own(ends.remote, world) {
            return;
        }
        if !self.notes(client, Peer::of(&ends)) {
            return;
        }
        if hint.doubt {
            return self.greeter.doubt(world.instant(), ends);
        }
        let hello = self.greeter.look(world.instant(), ends);
        if hello.is_some() {
            self.news.push_back((client, self.news_of(ends, hello)));
        }
    }

    /// The client is to hear of the peer. False: it has named too many.
    fn notes(&mut self, client: u64, peer: Peer) -> bool {
        let clients = self.interest.entry(peer).or_default();
        if clients.contains(&client) {
            return true;
        }
        let named = self.named.entry(client).or_default();
        let room = *named < PEERS_PER_CLIENT_MAX;
        if room {
            *named += 1;
            clients.insert(client);
        } else if clients.is_empty() {
            self.interest.remove(&peer);
        }
        room
    }

    /// A client is gone.
    pub(super) fn drop_client(&mut self, client: u64) {
        if self.named.remove(&client).is_none() {
            return;
        }
        self.interest.retain(|_, clients| {
            clients.remove(&client);
            !clients.is_empty()
        });
        self.news.retain(|(to, _)| *to != client);
    }

    /// The connection manager sends this: its peer may be new.
    pub(super) fn sending(&mut self, transmit: &Transmit, world: &World<'_>) {
        let ends = transmit.path.ends;
        let attribute = transmit.mad.get(16..18);
        let of_program = OF_PROGRAMS.iter().any(|a| attribute == Some(&a[..]));
        if of_program && !is_own(ends.remote, world) {
            self.greeter.look(world.instant(), ends);
        }
    }

    /// The next message to send.
    pub(super) fn poll_transmit(&mut self) -> Option<Transmit> {
        while let Some(met) = self.greeter.poll_met() {
            self.met(&met);
        }
        self.greeter.poll_transmit()
    }

    fn met(&mut self, met: &Met) {
        if met.cause == Cause::New {
            let who = match met.hello {
                Some(_) => "runs rocebud",
                None => "no longer answers as rocebud",
            };
            log::info(&format!("{} {who}", met.ends.remote.ip()));
        }
        let clients = self.interest.get(&Peer::of(&met.ends));
        let clients = clients.into_iter().flatten();
        let news = self.news_of(met.ends, met.hello);
        self.news.extend(clients.map(|client| (*client, news)));
    }

    fn news_of(&self, ends: Ends, hello: Option<Hello>) -> PeerNews {
        let word = hello.map(|hello| PeerWord {
            id_bound: hello.id_bound,
            receive_buffer: hello.receive_buffer,
            extensions: hello.extensions,
            same_kernel: hello.shares_kernel(&self.ours),
        });
        PeerNews {
            remote: ends.remote.0,
            word,
        }
    }

    /// The next thing that a client is to hear.
    pub(super) fn poll_news(&mut self) -> Option<(u64, PeerNews)> {
        self.news.pop_front()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.greeter.poll_timeout().is_some_and(|at| at <= now) {
            let interest = &self.interest;
            self.greeter
                .handle_timeout(now, |peer| interest.contains_key(&peer));
        }
    }

    /// For `rocebud status`: the first of them, and how many there are.
    pub(super) fn status(&self, world: &World<'_>) -> Vec<PeerStatus> {
        let peer = |(ends, standing): (Ends, Standing)| {
            let address = ends.remote.ip();
            let device = world
                .device(ends.port)
                .filter(|_| ends.remote.is_link_local());
            let address = match device {
                Some(device) => format!("{address}%{}", device.netdev),
                None => address.to_string(),
            };
            let hello = match standing {
                Standing::Ours(hello) => Some(hello),
                Standing::Asked | Standing::Standard => None,
            };
            PeerStatus {
                address,
                asked: standing == Standing::Asked,
                ours: hello.is_some(),
                id_bound: hello.map_or(0, |h| h.id_bound),
                receive_buffer: hello.map_or(0, |h| h.receive_buffer),
                extensions: hello.map_or(0, |h| h.extensions),
                same_kernel: hello.is_some_and(|h| h.shares_kernel(&self.ours)),
            }
        };
        let all = self.greeter.standings().map(peer);
        all.take(PEERS_SHOWN_MAX).collect()
    }
}

/// An address of this host: who is there is known.
fn is_own(gid: Gid, world: &World<'_>) -> bool {
    world.devices.iter().any(|device| device.has_gid(gid))
}

#[cfg(test)]
mod tests;
