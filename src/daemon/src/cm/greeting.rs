//! Who of the peers is a daemon of ours, asked once per address.
//!
//! Asked is whom a program of this host talks to: when it asks for a connection or a service, or
//! grants one. A peer that merely sends is not, so that nobody can make this daemon send to others.
//! What comes of it is kept for `rocebud status`; a peer that says nothing speaks the standard.

use rocebud_cm::hello::{Greeter, Hello, Manners, Standing};
use rocebud_cm::{Ends, Transmit};
use rocebud_ctl::status::PeerStatus;
use rocebud_objects::Instant;
use rocebud_wire::Gid;

use super::World;
use crate::limits::PEERS_SHOWN_MAX;
use crate::log;

/// Attributes of the CM's messages that are sent only for a program: REQ, REP, SIDR_REQ, SIDR_REP.
const OF_PROGRAMS: [[u8; 2]; 4] = [[0, 0x10], [0, 0x13], [0, 0x17], [0, 0x18]];

/// See the module.
#[derive(Debug)]
pub(super) struct Greeting(pub(super) Greeter);

impl Greeting {
    /// One that says `ours` of this host.
    pub(super) fn new(ours: Hello) -> Self {
        Self(Greeter::new(
            Manners::default(),
            ours,
            Box::new(super::random),
        ))
    }

    /// The connection manager sends this: its peer may be new.
    pub(super) fn sending(&mut self, transmit: &Transmit, world: &World<'_>) {
        let ends = transmit.path.ends;
        let attribute = transmit.mad.get(16..18);
        let of_program = OF_PROGRAMS.iter().any(|a| attribute == Some(&a[..]));
        if of_program && !is_own(ends.remote, world) {
            self.0.look(world.instant(), ends);
        }
    }

    /// The next message to send.
    pub(super) fn poll_transmit(&mut self) -> Option<Transmit> {
        while let Some(met) = self.0.poll_met() {
            let who = match met.hello {
                Some(_) => "runs rocebud",
                None => "no longer answers as rocebud",
            };
            log::info(&format!("{} {who}", met.ends.remote.ip()));
        }
        self.0.poll_transmit()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.0.poll_timeout().is_some_and(|at| at <= now) {
            self.0.handle_timeout(now);
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
            }
        };
        self.0.standings().map(peer).take(PEERS_SHOWN_MAX).collect()
    }
}

/// An address of this host: who is there is known.
fn is_own(gid: Gid, world: &World<'_>) -> bool {
    let mut own = world.devices.iter().flat_map(|d| d.gids.iter().flatten());
    own.any(|entry| entry.bytes == gid.0)
}

#[cfg(test)]
mod tests;
