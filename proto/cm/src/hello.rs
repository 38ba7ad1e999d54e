//! How hosts of ours find out that they are: one question and one answer of a vendor's class, per
//! peer address. They say which IPv4 identifications a peer uses, how large its receive buffers
//! are, which extensions of the protocol it knows, and which kernel it runs on.
//!
//! Whoever answers nothing, or anything else, speaks the standard and nothing else, and is asked
//! again after a long time only. (The Linux core, tried with rxe 6.1, answers a class that it does
//! not know with status 0x000c, "no such method and attribute", and is not disturbed.) A question alone says nothing about who asks, since its source
//! address may be forged: only an answer to a question of our own, with its transaction id, is
//! believed. So both sides ask.
//!
//! What a peer said may cease to be true: another daemon runs there, or another stack. So a peer is
//! asked again in time, and at once where its word is in doubt: when it sends what it said it never
//! sends ([`Greeter::doubt`]), or asks in the name of another run of its daemon.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use rocebud_objects::Instant;

use crate::mad::{BODY_LEN, MAD_LEN, MadHeader, ParseError};
use crate::manager::Random;
use crate::msg::message;
use crate::types::{Ends, Path, Peer, Transmit};

/// A class for vendors, with the vendor's number in each message.
pub const CLASS_HELLO: u8 = 0x42;

/// A number that no vendor has: locally administered.
pub const OUI: u32 = 0x02_5242;

/// The only attribute of the class.
pub const ATTR_HELLO: u16 = 0x0001;

/// The layout of [`Hello`]. Another one is not read.
pub const VERSION: u8 = 1;

/// A question.
pub const METHOD_GET: u8 = 0x01;

/// Its answer.
pub const METHOD_GET_RESP: u8 = 0x81;

message! {
    /// What a host says about itself. Fields that come later are 0 in what is sent today.
    Hello {
        /// [`OUI`].
        oui: u32 = [(13, 0, 24)];
        /// [`VERSION`].
        version: u8 = [(16, 0, 8)];
        /// IPv4 identifications of its packets are below this; 0 = any.
        id_bound: u16 = [(18, 0, 16)];
        /// Bytes of the receive buffer of each of its processes; 0 = it does not say.
        receive_buffer: u32 = [(20, 0, 32)];
        /// Extensions that it knows, one bit each.
        extensions: u32 = [(24, 0, 32)];
        /// A random number of this run of its daemon.
        instance: u64 = [(28, 0, 64)];
        /// The same for all network namespaces of one running kernel; 0 = it does not say. Anybody may
        /// repeat what he was told, so it decides about speed and order only.
        kernel: u64 = [(36, 0, 64)];
    }
}

impl Hello {
    /// What a host says about itself.
    #[must_use]
    pub const fn new(instance: u64, id_bound: u16, receive_buffer: u32, extensions: u32) -> Self {
        Self {
            oui: OUI,
            version: VERSION,
            id_bound,
            receive_buffer,
            extensions,
            instance,
            kernel: 0,
        }
    }

    /// Both run on one kernel: what leaves the one by a veth pair, or by loopback, reaches the other as
    /// it left.
    #[must_use]
    pub const fn shares_kernel(&self, other: &Self) -> bool {
        self.kernel != 0 && self.kernel == other.kernel
    }

    /// A whole datagram: a question, or its answer.
    #[must_use]
    pub fn datagram(&self, method: u8, tid: u64) -> Box<[u8; MAD_LEN]> {
        let mut body = [0; BODY_LEN];
        self.emit(&mut body);
        MadHeader {
            class: CLASS_HELLO,
            class_version: 1,
            method,
            ..MadHeader::cm(ATTR_HELLO, tid, 0)
        }
        .emit(&body)
    }
}

/// How often and how long is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Manners {
    /// Nanoseconds until a question is asked once more.
    pub again_ns: u64,
    /// How often a question is asked in all.
    pub asks: u8,
    /// Nanoseconds for which an answer, or silence, is believed.
    pub believed_ns: u64,
    /// Nanoseconds for which it is believed whatever is said against it: nobody can make us ask
    /// more often than that.
    pub fresh_ns: u64,
    /// Peers that are remembered; the one that is due to be asked first is forgotten first.
    pub peers_max: usize,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            again_ns: 500_000_000,
            asks: 3,
            believed_ns: 600_000_000_000,
            fresh_ns: 1_000_000_000,
            peers_max: 4096,
        }
    }
}

/// What came to light about a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Met {
    /// Between whom.
    pub ends: Ends,
    /// None = take it for one that speaks the standard and nothing else.
    pub hello: Option<Hello>,
    /// How.
    pub cause: Cause,
}

/// How something came to light.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It is another than was believed.
    New,
    /// Its word was in doubt, and is what it was.
    Confirmed,
    /// It is forgotten: nobody has looked for it for long, or there was no room.
    Forgotten,
}

/// What is known of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It was asked, and nothing has come of it yet.
    Asked,
    /// It speaks the standard and nothing else.
    Standard,
    /// It is of ours, and said this.
    Ours(Hello),
}

#[derive(Debug)]
struct Acquaintance {
    ends: Ends,
    /// What is believed.
    hello: Option<Hello>,
    /// Of the question that waits for its answer.
    tid: u64,
    /// Questions asked without an answer; 0 = none waits.
    asked: u8,
    /// When to ask again, or to stop believing.
    due: Instant,
    /// Since when that is believed.
    settled: Instant,
    /// Somebody has looked since then.
    wanted: bool,
    /// Somebody waits for what comes of the next question, whatever it is.
    doubted: bool,
}

impl Acquaintance {
    fn standing(&self) -> Standing {
        match self.hello {
            Some(hello) => Standing::Ours(hello),
            None if self.asked != 0 => Standing::Asked,
            None => Standing::Standard,
        }
    }
}

/// Who of a host's peers is of ours. The same shape as [`Manager`](crate::Manager).
pub struct Greeter {
    manners: Manners,
    ours: Hello,
    random: Random,
    peers: BTreeMap<Peer, Acquaintance>,
    due: BTreeSet<(Instant, Peer)>,
    transmits: VecDeque<Transmit>,
    met: VecDeque<Met>,
}

impl core::fmt::Debug for Greeter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Greeter")
            .field("ours", &self.ours)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

impl Greeter {
    /// One that says `ours` and knows nobody.
    #[must_use]
    pub fn new(manners: Manners, ours: Hello, random: Random) -> Self {
        Self {
            manners,
            ours,
            random,
            peers: BTreeMap::new(),
            due: BTreeSet::new(),
            transmits: VecDeque::new(),
            met: VecDeque::new(),
        }
    }

    /// What is known of the peer of these ends; None = take it for one of the standard. A peer
    /// that was not asked yet is asked, and [`Greeter::poll_met`] tells what came of it.
    pub fn look(&mut self, now: Instant, ends: Ends) -> Option<Hello> {
        let peer = Peer::of(&ends);
        if let Some(known) = self.peers.get_mut(&peer) {
            known.wanted = true;
            return known.hello;
        }
        if self.peers.len() >= self.manners.peers_max {
            let (_, first) = *self.due.first()?;
            self.forget(first);
        }
        let stranger = Acquaintance {
            ends,
            hello: None,
            tid: 0,
            asked: 0,
            due: now,
            settled: now,
            wanted: true,
            doubted: false,
        };
        self.peers.insert(peer, stranger);
        self.ask(now, peer);
        None
    }

    /// The peer of these ends did what it said it never does. It is asked again, and
    /// [`Greeter::poll_met`] tells what came of it in any case.
    pub fn doubt(&mut self, now: Instant, ends: Ends) {
        let peer = Peer::of(&ends);
        if !self.peers.contains_key(&peer) {
            self.look(now, ends);
        }
        if let Some(known) = self.peers.get_mut(&peer) {
            known.doubted = true;
        }
        self.ask_soon(now, peer);
    }

    /// Asks a peer that is known once more, as soon as that may be.
    fn ask_soon(&mut self, now: Instant, peer: Peer) {
        let Some(known) = self.peers.get_mut(&peer) else {
            return;
        };
        known.wanted = true;
        if known.asked != 0 {
            return;
        }
        let soon = known.settled + self.manners.fresh_ns;
        if soon <= now {
            self.ask(now, peer);
        } else if soon < known.due {
            self.due.remove(&(known.due, peer));
            known.due = soon;
            self.due.insert((soon, peer));
        }
    }

    /// Takes in a datagram that came to queue pair 1. False if it is none of this class: it is
    /// somebody else's then.
    pub fn handle_mad(&mut self, now: Instant, ends: Ends, payload: &[u8]) -> bool {
        let Ok((header, body)) = MadHeader::parse(payload) else {
            return false;
        };
        if header.class != CLASS_HELLO {
            return false;
        }
        let hello = Hello::parse(body);
        let known = header.attr_id == ATTR_HELLO && hello.oui == OUI && hello.version == VERSION;
        match header.method {
            METHOD_GET if known => {
                self.answer(ends, header.tid);
                self.asked_by(now, ends, &hello);
            }
            METHOD_GET_RESP => {
                // A stack that knows nothing of the class may say so, in an answer with a status.
                let hello = (known && header.status == 0).then_some(hello);
                self.answered(now, ends, header.tid, hello);
            }
            _ => {}
        }
        true
    }

    /// Does what is due. `held`: somebody goes on relying on what is known of a peer, so that it
    /// is asked again in time and not forgotten.
    pub fn handle_timeout(&mut self, now: Instant, held: impl Fn(Peer) -> bool) {
        while let Some(&(at, peer)) = self.due.first() {
            if at > now {
                return;
            }
            self.overdue(now, peer, held(peer));
        }
    }

    /// A question waits too long for its answer, or an answer is old.
    fn overdue(&mut self, now: Instant, peer: Peer, held: bool) {
        let Some(known) = self.peers.get_mut(&peer) else {
            self.due.retain(|&(_, other)| other != peer);
            return;
        };
        if known.asked == 0 && !core::mem::take(&mut known.wanted) && !held {
            self.forget(peer);
        } else if known.asked < self.manners.asks {
            self.ask(now, peer);
        } else {
            let tid = known.tid;
            self.settle(now, peer, tid, None);
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next peer about which something came to light.
    pub fn poll_met(&mut self) -> Option<Met> {
        self.met.pop_front()
    }

    /// When [`Greeter::handle_timeout`] wants to be called; None = not at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// What is known of each peer that is remembered.
    pub fn standings(&self) -> impl Iterator<Item = (Ends, Standing)> + '_ {
        self.peers
            .values()
            .map(|known| (known.ends, known.standing()))
    }

    /// Peers that are remembered.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    fn forget(&mut self, peer: Peer) {
        let Some(known) = self.peers.remove(&peer) else {
            return;
        };
        self.due.remove(&(known.due, peer));
        if known.hello.is_some() || known.doubted {
            self.met.push_back(Met {
                ends: known.ends,
                hello: None,
                cause: Cause::Forgotten,
            });
        }
    }

    fn ask(&mut self, now: Instant, peer: Peer) {
        let fresh = u64::from((self.random)()) << 32 | u64::from((self.random)());
        let Some(known) = self.peers.get_mut(&peer) else {
            return;
        };
        if known.asked == 0 {
            known.tid = fresh;
        }
        known.asked += 1;
        self.due.remove(&(known.due, peer));
        known.due = now + self.manners.again_ns;
        self.due.insert((known.due, peer));
        let mad = self.ours.datagram(METHOD_GET, known.tid);
        let path = path(known.ends);
        self.transmits.push_back(Transmit { path, mad });
    }

    fn answer(&mut self, ends: Ends, tid: u64) {
        if self.transmits.len() < crate::limits::ANSWERS_MAX {
            let mad = self.ours.datagram(METHOD_GET_RESP, tid);
            let path = path(ends);
            self.transmits.push_back(Transmit { path, mad });
        }
    }

    /// A peer that we talk to asks. Who does so in the name of another run of a daemon than the one
    /// that is known may have started again, or be a liar: it is asked.
    fn asked_by(&mut self, now: Instant, ends: Ends, hello: &Hello) {
        let peer = Peer::of(&ends);
        let Some(known) = self.peers.get(&peer) else {
            return;
        };
        if known.hello.is_none_or(|h| h.instance != hello.instance) {
            self.ask_soon(now, peer);
        }
    }

    fn answered(&mut self, now: Instant, ends: Ends, tid: u64, hello: Option<Hello>) {
        self.settle(now, Peer::of(&ends), tid, hello);
    }

    /// A question has its answer, or none.
    fn settle(&mut self, now: Instant, peer: Peer, tid: u64, hello: Option<Hello>) {
        let Some(known) = self.peers.get_mut(&peer) else {
            return;
        };
        if known.asked == 0 || known.tid != tid {
            return;
        }
        known.asked = 0;
        known.wanted = false;
        self.due.remove(&(known.due, peer));
        known.due = now + self.manners.believed_ns;
        known.settled = now;
        self.due.insert((known.due, peer));
        let cause = if known.hello == hello {
            Cause::Confirmed
        } else {
            Cause::New
        };
        known.hello = hello;
        if core::mem::take(&mut known.doubted) || cause == Cause::New {
            let ends = known.ends;
            self.met.push_back(Met { ends, hello, cause });
        }
    }
}

fn path(ends: Ends) -> Path {
    Path {
        ends,
        hop_limit: 64,
        ..Path::default()
    }
}

/// Any datagram of this class, for tools.
///
/// # Errors
/// [`ParseError::Length`], or [`ParseError::Class`] for one that is not ours.
pub fn parse(mad: &[u8]) -> Result<(MadHeader, Hello), ParseError> {
    let (header, body) = MadHeader::parse(mad)?;
    let hello = Hello::parse(body);
    if header.class != CLASS_HELLO || hello.oui != OUI {
        return Err(ParseError::Class);
    }
    Ok((header, hello))
}
