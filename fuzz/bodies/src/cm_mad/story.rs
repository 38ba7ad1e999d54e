//! Programs: what applications and the network do to two hosts.

use std::collections::BTreeMap;

use rocebud_cm::ip::{self, IpCm, PortSpace};
use rocebud_cm::{
    Accept, ConnId, Connect, Ends, Event, MAD_LEN, Manager, Message, Path, RejReason, SidrReply,
    SidrRequest,
};
use rocebud_objects::Instant;
use rocebud_wire::{Gid, PKey, Qpn};

use super::{listen_to_all, manager};
use crate::input::Input;

/// Steps of one program.
const STEPS_MAX: usize = 400;

/// Messages on their way; more are lost.
const WIRE_MAX: usize = 64;

const MS: u64 = 1_000_000;

/// Longer than any wait that a peer can bring about: five MRA waits of the longest kind and more.
const ALL_WAITS_MS: u64 = 60 * 60 * 1000;

struct Story<'a> {
    input: Input<'a>,
    now: Instant,
    hosts: [Manager; 2],
    wire: Vec<(usize, Ends, Box<[u8; MAD_LEN]>)>,
    /// Connections that an application has, by host; false = forgotten.
    conns: [BTreeMap<ConnId, bool>; 2],
    next_qpn: u32,
}

fn address(host: usize) -> Gid {
    Gid::from_v4([10, 0, 0, host as u8])
}

fn path(from: usize) -> Path {
    Path {
        ends: Ends {
            port: 1,
            local: address(from),
            remote: address(1 - from),
        },
        hop_limit: 64,
        ..Path::default()
    }
}

fn named(from: usize) -> IpCm {
    IpCm {
        src_port: 9,
        src: address(from).ip(),
        dst: address(1 - from).ip(),
    }
}

/// Runs the program, then lets everything end.
pub(super) fn run(input: Input<'_>) {
    let mut story = Story {
        input,
        now: Instant(1_000 * MS),
        hosts: [manager(0), manager(0x8000_0000)],
        wire: Vec::new(),
        conns: Default::default(),
        next_qpn: 2,
    };
    story.hosts.iter_mut().for_each(listen_to_all);
    for _ in 0..STEPS_MAX {
        if story.input.is_empty() {
            break;
        }
        story.step();
        story.collect();
    }
    story.end();
}

impl Story<'_> {
    fn step(&mut self) {
        match self.input.below(8) {
            0 => self.arrive(),
            1 => self.arrive(),
            2 => self.weather(),
            3 => self.wait(),
            4 => self.begin(),
            5 | 6 => self.application(),
            _ => self.forge(),
        }
    }

    /// The oldest message arrives, or one that overtook it.
    fn arrive(&mut self) {
        if !self.wire.is_empty() {
            let at = self.input.below(self.wire.len().min(4));
            let (to, ends, mad) = self.wire.remove(at);
            self.hosts[to].handle_mad(self.now, ends, &mad[..]);
        }
    }

    /// A message is lost, comes twice, or is damaged.
    fn weather(&mut self) {
        if self.wire.is_empty() {
            return;
        }
        let at = self.input.below(self.wire.len());
        match self.input.below(3) {
            0 => drop(self.wire.remove(at)),
            1 => self.wire.push(self.wire[at].clone()),
            _ => {
                let byte = self.input.below(MAD_LEN);
                self.wire[at].2[byte] = self.input.byte();
            }
        }
    }

    /// Time passes: to the next timer, or some milliseconds.
    fn wait(&mut self) {
        let next = self.hosts.iter().filter_map(Manager::poll_timeout).min();
        self.now = match next {
            Some(at) if self.input.rarely(200) => self.now.max(at),
            _ => self.now + u64::from(self.input.half()) * MS,
        };
        for host in &mut self.hosts {
            host.handle_timeout(self.now);
        }
    }

    /// An application asks for something.
    fn begin(&mut self) {
        let from = self.input.below(2);
        if !self.input.rarely(40) {
            self.next_qpn += 1;
        }
        let space = self.input.pick(&[PortSpace::Tcp, PortSpace::Udp]);
        let service_id = ip::service_id(space, 1);
        let asked = if space == PortSpace::Tcp {
            let qpn = Qpn::new(self.next_qpn);
            let mut ask = Connect::new(path(from), 0xa0 + from as u64, service_id, qpn);
            ask.ip = Some(named(from));
            ask.max_cm_retries = self.input.byte();
            self.hosts[from].connect(self.now, &ask)
        } else {
            let ask = SidrRequest {
                path: path(from),
                service_id,
                ip: Some(named(from)),
                pkey: PKey::DEFAULT,
                private_data: Vec::new(),
            };
            self.hosts[from].sidr_request(self.now, &ask)
        };
        self.conns[from].insert(asked.expect("a request"), true);
    }

    /// An application does something with one of its connections, fitting or not.
    fn application(&mut self) {
        let host = self.input.below(2);
        let owned = self.conns[host].iter().filter(|(_, owned)| **owned);
        let owned: Vec<ConnId> = owned.map(|(&conn, _)| conn).collect();
        if owned.is_empty() {
            return;
        }
        let conn = self.input.pick(&owned);
        let (now, manager) = (self.now, &mut self.hosts[host]);
        self.next_qpn += 1;
        let answer = Accept::new(0xa0 + host as u64, Qpn::new(self.next_qpn));
        // Whether a call fits is for the manager to say.
        let _ = match self.input.below(8) {
            0 => manager.accept(now, conn, &answer),
            1 => manager.establish(now, conn, b"hello"),
            2 => manager.disconnect(now, conn),
            3 => manager.reject(now, conn, RejReason::CONSUMER, &[], b"no"),
            4 => manager.comm_established(now, conn),
            5 => manager.sidr_reply(now, conn, &SidrReply::default()),
            6 => {
                manager.taken(conn);
                Ok(())
            }
            _ => {
                manager.forget(now, conn);
                self.conns[host].insert(conn, false);
                Ok(())
            }
        };
    }

    /// A message of any kind with ids that exist, from the peer or a stranger.
    fn forge(&mut self) {
        let host = self.input.below(2);
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = 0x10 + self.input.below(11) as u8;
        for (side, at) in [(1 - host, 24), (host, 28)] {
            let known: Vec<ConnId> = self.conns[side].keys().copied().collect();
            if !known.is_empty() {
                let id = self.input.pick(&known).0;
                mad[at..at + 4].copy_from_slice(&id.to_be_bytes());
            }
        }
        for _ in 0..self.input.below(24) {
            let at = 32 + self.input.below(MAD_LEN - 32);
            mad[at] = self.input.byte();
        }
        let mut ends = path(host).ends;
        if self.input.rarely(40) {
            ends.remote = Gid::from_v4([10, 0, 0, 9]);
        }
        self.hosts[host].handle_mad(self.now, ends, &mad);
    }

    /// Takes what the hosts have to say, and checks it.
    fn collect(&mut self) {
        for host in 0..2 {
            while let Some(message) = self.hosts[host].poll_transmit() {
                Message::parse(&message.mad[..]).expect("what we send");
                let ends = message.path.ends;
                if ends.remote == address(1 - host) && self.wire.len() < WIRE_MAX {
                    let there = path(1 - host).ends;
                    self.wire.push((1 - host, there, message.mad));
                }
            }
            while let Some(event) = self.hosts[host].poll_event() {
                self.hear(host, &event);
            }
            assert_eq!(self.hosts[host].contradiction(), None);
        }
    }

    fn hear(&mut self, host: usize, event: &Event) {
        let conn = event.conn();
        if matches!(event, Event::Request(_) | Event::SidrRequest(_)) {
            let new = self.conns[host].insert(conn, true);
            assert_eq!(new, None, "{conn:?} is new");
            return;
        }
        let owned = self.conns[host].get(&conn);
        assert_eq!(owned, Some(&true), "{event:?} for nobody");
        if matches!(event, Event::Gone { .. }) {
            self.conns[host].remove(&conn);
            assert_eq!(self.hosts[host].state(conn), None);
        }
    }

    /// All applications end, the network carries nothing any more, and the time passes.
    fn end(&mut self) {
        self.wire.clear();
        for host in 0..2 {
            let conns: Vec<ConnId> = self.conns[host].keys().copied().collect();
            for conn in conns {
                self.hosts[host].forget(self.now, conn);
                self.conns[host].insert(conn, false);
            }
        }
        self.collect();
        let end = self.now + ALL_WAITS_MS * MS;
        while let Some(at) = self.hosts.iter().filter_map(Manager::poll_timeout).min() {
            assert!(at < end, "something waits for ever");
            for host in &mut self.hosts {
                host.handle_timeout(at);
            }
            self.collect();
        }
        for host in &self.hosts {
            assert_eq!(host.connections(), 0, "something is left");
        }
    }
}
