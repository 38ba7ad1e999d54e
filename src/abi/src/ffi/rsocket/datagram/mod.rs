//! Datagram sockets: a UDP socket of the kernel, and a UD queue pair per local address.
//!
//! Everything is done in the calls: they read the UDP socket, answer first datagrams, look for
//! ways and take completions. So a socket that nobody calls answers nobody; its peers go on by
//! UDP, and what they sent waits in the kernel. A peer that has said nothing for a second is sent
//! the next datagram by UDP: it may be another program by now, with another queue pair.
//!
//! The UDP socket is opened by the program's own process: a process in another network namespace
//! than the daemon's would not have the addresses that its queue pairs have (EOPNOTSUPP).

mod calls;
mod end;
pub(super) mod udp;
mod ways;

use core::ffi::c_int;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rocebud_objects::{Errno, Misuse};
use rocebud_rsocket::Span;
use rocebud_rsocket::datagram::{BUFFER_LEN, Op, UdpHeader};
use rocebud_rsocket::options::Options;
use rocebud_verbs::CompChannel as Sleeper;
use rocebud_verbs::cm::Manager;

use super::super::boundary::Outcome;
use super::super::sleep::{Call, Sleepy};
use super::completions::{Completions, Look};
use super::defaults;
use super::wait::{Place, Waits, watch};
use end::{End, is_of_a_host, named};
use udp::{Came, Udp};
use ways::Ways;

/// Datagrams that came by UDP and wait for the program; more wait in the kernel.
const KEPT_MAX: usize = 256;

/// After a datagram that went by UDP its answer may come by UDP, for so long.
const ANSWERED: Duration = Duration::from_secs(1);

/// A program that only sends looks for what comes by UDP this often otherwise.
const UNREAD_MAX: Duration = Duration::from_millis(1);

/// Local addresses of one socket, which each cost a queue pair.
const ENDS_MAX: usize = 64;

/// Buffers of the program.
pub(super) type Pieces = [(*mut u8, usize)];

/// See the module.
pub(super) struct Datagram {
    place: Arc<Place<Inner>>,
}

impl Deref for Datagram {
    type Target = Arc<Place<Inner>>;
    fn deref(&self) -> &Arc<Place<Inner>> {
        &self.place
    }
}

/// What changes.
pub(super) struct Inner {
    udp: Udp,
    v6: bool,
    options: Options,
    pub(super) nonblocking: bool,
    /// The program bound it, and so chose the port.
    bound: bool,
    ends: Vec<End>,
    ways: Ways,
    /// Of `rconnect`.
    peer: Option<SocketAddr>,
    /// What waits to be read.
    inbox: VecDeque<Letter>,
    /// Of these, those that came by UDP.
    kept: usize,
    /// When the UDP socket was last read, and until when each look reads it.
    read: Instant,
    listens: Instant,
    /// `rshutdown`: reading, writing.
    shut: (bool, bool),
    sleeping: bool,
    closed: bool,
}

// SAFETY: verbs objects and identifiers may be used on any thread.
unsafe impl Send for Inner {}

/// A datagram that waits.
struct Letter {
    from: SocketAddr,
    body: Body,
}

enum Body {
    /// Came by UDP.
    Kept(Vec<u8>),
    /// Lies in a receive slot of an end.
    InSlot { end: usize, slot: u32, data: Span },
}

impl Datagram {
    /// A new datagram socket.
    pub(super) fn new(domain: c_int, nonblocking: bool) -> Outcome<Arc<Self>> {
        const ELSEWHERE: Misuse = Misuse::new(
            Errno::EOPNOTSUPP,
            "rsocket: datagram sockets need a program in the network namespace of its daemon",
        );
        if !Manager::get()?.is_here()? {
            return Err(ELSEWHERE);
        }
        let v6 = domain == libc::AF_INET6;
        let udp = Udp::open(v6)?;
        let inner = Inner {
            v6,
            options: defaults::options(),
            nonblocking,
            bound: false,
            ends: Vec::new(),
            ways: Ways::default(),
            peer: None,
            inbox: VecDeque::new(),
            kept: 0,
            read: Instant::now(),
            listens: Instant::now(),
            shut: (false, false),
            sleeping: false,
            closed: false,
            udp,
        };
        Ok(Arc::new(Self {
            place: Place::new(inner.udp.fd(), inner),
        }))
    }

    /// Waits until what was sent has gone.
    pub(super) fn end(&self, call: &Call<'_>) -> Sleepy<()> {
        self.wait(call, false, Inner::is_quiet).map(drop)
    }

    /// Destroys everything but the number, which goes with the last user of the socket. Other threads that
    /// wait here find it closed.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        core::mem::take(&mut inner.ways).close();
        inner.inbox.clear();
        for end in inner.ends.drain(..) {
            end.close();
        }
        self.stir();
    }
}

impl Waits for Inner {
    fn look(&mut self, how: Look) {
        let now = Instant::now();
        let unread = now.saturating_duration_since(self.read);
        if how == Look::Pump || now < self.listens || unread > UNREAD_MAX {
            self.read = now;
            self.read_udp();
            self.ways.hear(&self.ends);
        }
        let (inbox, ways, peer) = (&mut self.inbox, &mut self.ways, self.peer);
        for (index, end) in self.ends.iter_mut().enumerate() {
            end.look(how, |came| {
                // A connected socket hears its peer only, as with the kernel's.
                let wanted = peer.is_none_or(|peer| peer == came.from);
                if wanted {
                    ways.used(came.from, index);
                    let (slot, data) = (came.slot, came.data);
                    inbox.push_back(Letter {
                        from: came.from,
                        body: Body::InSlot {
                            end: index,
                            slot,
                            data,
                        },
                    });
                }
                wanted
            });
        }
    }

    fn arm(&mut self) {
        self.completions().for_each(Completions::arm);
        self.look(Look::Glance);
    }

    /// UDP, look-ups, completions.
    fn descriptors(&self, own: RawFd, into: &mut Vec<libc::pollfd>) {
        let own = if self.kept < KEPT_MAX { own } else { -1 };
        into.extend([watch(own), watch(self.ways.fd().unwrap_or(-1))]);
        into.extend(self.completions().map(|c| watch(c.fd())));
    }

    fn sleeper(&self) -> Option<Sleeper> {
        self.completions().find_map(Completions::sleeper)
    }

    fn woken(&mut self, fds: &[libc::pollfd]) {
        for (completions, fd) in self.completions().zip(fds.iter().skip(2)) {
            completions.disarm();
            if fd.revents != 0 {
                completions.take_events();
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.closed
    }

    fn sleeping(&mut self) -> &mut bool {
        &mut self.sleeping
    }
}

impl Inner {
    fn completions(&self) -> impl Iterator<Item = &Completions> {
        self.ends.iter().filter_map(End::completions)
    }

    /// A datagram waits, or none ever will.
    fn may_read(&self) -> bool {
        !self.inbox.is_empty() || self.shut.0 || self.is_dead()
    }

    /// A datagram could be sent, or none ever will.
    fn may_send(&self) -> bool {
        self.ends.iter().all(End::can_send) || self.shut.1 || self.is_dead()
    }

    fn is_quiet(&self) -> bool {
        self.ends.iter().all(End::is_quiet)
    }

    /// A device of the socket has gone.
    fn is_dead(&self) -> bool {
        self.ends.iter().any(|end| end.dead)
    }

    /// What `rpoll` says.
    pub(super) fn readiness(&self, wanted: libc::c_short) -> libc::c_short {
        const READ: libc::c_short = libc::POLLIN | libc::POLLRDNORM;
        const WRITE: libc::c_short = libc::POLLOUT | libc::POLLWRNORM;
        let when = |is: bool, bits: libc::c_short| if is { bits } else { 0 };
        when(self.may_read(), wanted & READ)
            | when(self.may_send(), wanted & WRITE)
            | when(self.is_dead(), libc::POLLERR)
    }

    /// Takes what has come by UDP, as far as there is room for it.
    fn read_udp(&mut self) {
        let mut buffer = [0; BUFFER_LEN];
        // A bound on the work of one look: whoever floods the socket is answered by and by.
        for _ in 0..KEPT_MAX {
            if self.kept >= KEPT_MAX {
                return;
            }
            let Some(came) = self.udp.receive(&mut buffer) else {
                return;
            };
            self.on_udp(&came, buffer.get(..came.len).unwrap_or_default());
        }
    }

    /// A datagram that came by UDP: resolve, answer, deliver.
    fn on_udp(&mut self, came: &Came, bytes: &[u8]) {
        let from = named(came.from);
        let Some(heard) = self.ways.heard(from, bytes, self.v6) else {
            return;
        };
        let Ok(index) = self.end_towards(from, came.to) else {
            return;
        };
        let Some(end) = self.ends.get(index) else {
            return;
        };
        if heard.answer {
            let header = udp_header(end, Op::Control);
            // One that is lost is asked for again.
            let _ = self
                .udp
                .send(end.local, from, header.emit().as_ref(), libc::MSG_DONTWAIT);
        }
        self.ways.used(from, index);
        if let Some(qpn) = heard.resolve.or_else(|| self.ways.lacks(from, index)) {
            self.ways.look_for(from, qpn, (index, end));
        }
        if let Some(data) = heard.deliver {
            self.kept += 1;
            self.inbox.push_back(Letter {
                from,
                body: Body::Kept(data.to_vec()),
            });
        }
    }

    /// The end from which `to` is reached, made if it is not there yet. `local`: the address of
    /// ours that `to` knows.
    fn end_towards(&mut self, to: SocketAddr, local: Option<IpAddr>) -> Outcome<usize> {
        const MANY: Misuse = Misuse::new(
            Errno(libc::ENOBUFS),
            "a datagram socket has at most 64 local addresses",
        );
        let name = self.own_name()?;
        let mut from = match local.filter(|ip| is_of_a_host(*ip)) {
            _ if is_of_a_host(name.ip()) => name,
            Some(ip) => with_scope_of(ip, to),
            None => self.udp.source_for(to)?,
        };
        from.set_port(name.port());
        let from = named(from);
        if let Some(index) = self.ends.iter().position(|end| end.local == from) {
            return Ok(index);
        }
        if self.ends.len() >= ENDS_MAX {
            return Err(MANY);
        }
        self.ends.push(End::new(from, &self.options, !self.bound)?);
        Ok(self.ends.len() - 1)
    }

    /// The UDP socket's name; it gets a port if it has none.
    fn own_name(&self) -> Outcome<SocketAddr> {
        let name = self.udp.name()?;
        if name.port() != 0 {
            return Ok(name);
        }
        let any: IpAddr = match self.v6 {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        self.udp.bind(SocketAddr::new(any, 0))?;
        self.udp.name()
    }

    /// Sends one datagram.
    fn send(&mut self, to: SocketAddr, pieces: &Pieces, flags: c_int) -> Outcome<usize> {
        const LONG: Misuse = Misuse::new(
            Errno(libc::EMSGSIZE),
            "a datagram is at most 2040 bytes long (IPv6: 2024), and fits one packet of the path",
        );
        let len = pieces.iter().map(|(_, len)| len).sum();
        let way = self.ways.to(to);
        let index = match way {
            Some((_, _, index)) => index,
            None => match self.ways.end_of(to) {
                Some(index) => index,
                None => self.end_towards(to, None)?,
            },
        };
        const GONE: Misuse = Misuse::new(Errno::EIO, "the socket's queue pair has gone");
        let end = self.ends.get_mut(index).ok_or(GONE)?;
        if len > end.payload_max {
            return Err(LONG);
        }
        match way {
            Some((ah, qpn, _)) => end.send((ah, qpn), pieces, len)?,
            None => {
                let mut bytes = udp_header(end, Op::Data).emit().as_ref().to_vec();
                pieces
                    .iter()
                    .for_each(|&(at, len)| append(&mut bytes, at, len));
                self.udp.send(end.local, to, &bytes, flags)?;
                self.listens = Instant::now() + ANSWERED;
            }
        }
        Ok(len)
    }

    /// Copies the first datagram that waits to the program: its whole length, how much of it
    /// there was room for, and whose it is.
    fn read(&mut self, pieces: &Pieces, peek: bool) -> Option<(usize, usize, SocketAddr)> {
        let letter = self.inbox.front()?;
        let from = letter.from;
        let len = match &letter.body {
            Body::Kept(bytes) => bytes.len(),
            Body::InSlot { data, .. } => data.len as usize,
        };
        let mut done = 0;
        for &(to, room) in pieces {
            let now = room.min(len - done);
            match &letter.body {
                Body::Kept(bytes) => {
                    let part = bytes.get(done..done + now).unwrap_or_default();
                    // SAFETY: the program vouches for the room, which is at least `now`.
                    unsafe { to.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
                }
                Body::InSlot { end, data, .. } => {
                    let part = Span {
                        at: data.at + u32::try_from(done).unwrap_or(0),
                        len: u32::try_from(now).unwrap_or(0),
                    };
                    if let Some(end) = self.ends.get(*end) {
                        end.copy_out(part, to);
                    }
                }
            }
            done += now;
        }
        if !peek {
            self.drop_first();
        }
        Some((len, done, from))
    }

    fn drop_first(&mut self) {
        match self.inbox.pop_front().map(|letter| letter.body) {
            Some(Body::Kept(_)) => self.kept -= 1,
            Some(Body::InSlot { end, slot, .. }) => {
                if let Some(end) = self.ends.get(end) {
                    end.post_receive(slot);
                }
            }
            None => {}
        }
    }
}

fn append(bytes: &mut Vec<u8>, at: *const u8, len: usize) {
    if len != 0 {
        // SAFETY: the program vouches for its bytes.
        bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(at, len) });
    }
}

fn udp_header(end: &End, op: Op) -> UdpHeader {
    UdpHeader {
        op,
        qpn: end.qpn,
        address: end.local.ip(),
    }
}

/// An address of ours on the link by which `to` was heard.
fn with_scope_of(ip: IpAddr, to: SocketAddr) -> SocketAddr {
    let mut out = SocketAddr::new(ip, 0);
    if let (SocketAddr::V6(out), SocketAddr::V6(to)) = (&mut out, to) {
        out.set_scope_id(to.scope_id());
    }
    out
}
