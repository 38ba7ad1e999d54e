//! Ways to other ends: address handles, made along paths that the connection manager resolves
//! while the program does something else.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rocebud_rsocket::datagram::{Destinations, Heard, Way};

use super::super::super::boundary::Outcome;
use super::super::super::cm::types::{PS_UDP, ibv_sa_path_rec, rdma_cm_id, rdma_event_channel};
use super::super::super::types::ibv_ah;
use super::super::news::{self, News, kind};
use super::super::verbs;
use super::end::{End, portless};
use super::udp;

/// Time for an address to be resolved, in ms, as upstream gives it.
const RESOLVE_MS: c_int = 2000;

/// Paths that are looked up at a time. Whoever is left out is heard of again: it goes on by UDP.
const PENDING_MAX: usize = 64;

/// After so long without a word from a peer the next datagram to it goes by UDP, which it answers
/// with its queue pair's number: the program behind that name may have been started again.
const BELIEVED: Duration = Duration::from_secs(1);

/// Somebody to whom there is a way.
struct Peer {
    /// When something came from there, or was asked.
    fresh: Instant,
    /// The end whose address that one used last: an answer comes from there.
    end: usize,
    /// From these ends.
    handles: Vec<(usize, *mut ibv_ah)>,
}

impl Peer {
    fn handle(&self, end: usize) -> Option<*mut ibv_ah> {
        let found = self.handles.iter().find(|(from, _)| *from == end);
        found.map(|(_, ah)| *ah)
    }

    fn close(self) {
        for (_, ah) in self.handles {
            // SAFETY: a handle of ours; requests have copied where it leads.
            unsafe { verbs::ibv_destroy_ah(ah) };
        }
    }
}

/// A way that is looked for.
struct Pending {
    id: *mut rdma_cm_id,
    to: SocketAddr,
    qpn: u32,
    end: usize,
}

/// See the module.
#[derive(Default)]
pub(super) struct Ways {
    known: Destinations,
    peers: BTreeMap<SocketAddr, Peer>,
    pending: Vec<Pending>,
    /// Made for the first look-up.
    channel: Option<Channel>,
}

#[derive(Clone, Copy)]
struct Channel(*mut rdma_event_channel);

impl Channel {
    fn open() -> Outcome<Self> {
        // SAFETY: no arguments.
        let channel = unsafe { verbs::rdma_create_event_channel() };
        let channel = verbs::made(channel, "no event channel for the socket")?;
        let this = Self(channel);
        verbs::never_wait(this.fd());
        Ok(this)
    }

    fn fd(self) -> RawFd {
        // SAFETY: a living channel.
        unsafe { (*self.0).fd }
    }
}

impl Ways {
    /// What a datagram that came by UDP asks for; see [`Destinations::heard`].
    pub(super) fn heard<'a>(
        &self,
        from: SocketAddr,
        bytes: &'a [u8],
        v6: bool,
    ) -> Option<Heard<'a>> {
        self.known.heard(from, bytes, v6)
    }

    /// The handle and queue pair by which a datagram to `to` goes, and from which end; `None`: by UDP.
    pub(super) fn to(&mut self, to: SocketAddr) -> Option<(*mut ibv_ah, u32, usize)> {
        let Way::Ud { qpn } = self.known.way(to) else {
            return None;
        };
        let peer = self.peers.get_mut(&to)?;
        let now = Instant::now();
        if now.saturating_duration_since(peer.fresh) > BELIEVED {
            peer.fresh = now;
            return None;
        }
        Some((peer.handle(peer.end)?, qpn, peer.end))
    }

    /// The end that `of` knows, as far as it was heard of.
    pub(super) fn end_of(&self, of: SocketAddr) -> Option<usize> {
        let looked_for = self.pending.iter().find(|p| p.to == of).map(|p| p.end);
        self.peers.get(&of).map(|peer| peer.end).or(looked_for)
    }

    /// `from` has used the address of an end.
    pub(super) fn used(&mut self, from: SocketAddr, end: usize) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.end = end;
            peer.fresh = Instant::now();
        }
    }

    /// The queue pair of one who is known, but not from this end.
    pub(super) fn lacks(&mut self, to: SocketAddr, end: usize) -> Option<u32> {
        let Way::Ud { qpn } = self.known.way(to) else {
            return None;
        };
        let peer = self.peers.get(&to)?;
        peer.handle(end).is_none().then_some(qpn)
    }

    /// Looks for a way to a queue pair, from an end. A known way to its address will do.
    pub(super) fn look_for(&mut self, to: SocketAddr, qpn: u32, (end, from): (usize, &End)) {
        if self
            .peers
            .get(&to)
            .is_some_and(|peer| peer.handle(end).is_some())
        {
            self.known.resolved(to, qpn);
            return;
        }
        let mut pending = self.pending.iter_mut();
        if let Some(already) = pending.find(|p| p.to == to && p.end == end) {
            already.qpn = qpn;
            return;
        }
        if self.pending.len() >= PENDING_MAX {
            return;
        }
        // What fails is tried again when the peer is heard of again.
        if let Ok(id) = self.begin(to, from) {
            self.pending.push(Pending { id, to, qpn, end });
        }
    }

    fn begin(&mut self, to: SocketAddr, from: &End) -> Outcome<*mut rdma_cm_id> {
        let channel = match self.channel {
            Some(channel) => channel,
            None => *self.channel.insert(Channel::open()?),
        };
        let mut id = core::ptr::null_mut();
        let none = core::ptr::null_mut();
        // SAFETY: a living channel, and room for the identifier.
        let code = unsafe { verbs::rdma_create_id(channel.0, &raw mut id, none, PS_UDP) };
        verbs::checked(code, "no identifier for a look-up")?;
        let (source, _) = udp::emit(portless(from.local));
        let (target, _) = udp::emit(to);
        // SAFETY: a living identifier and two addresses of their families' lengths.
        let code =
            unsafe { verbs::rdma_resolve_addr(id, source.as_ptr(), target.as_ptr(), RESOLVE_MS) };
        let asked = verbs::checked(code, "the peer's address could not be looked up");
        if asked.is_err() {
            // SAFETY: made just now; no event of it is out.
            unsafe { verbs::rdma_destroy_id(id) };
        }
        asked.map(|()| id)
    }

    /// What to sleep on.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.channel.map(Channel::fd)
    }

    /// Takes what the connection manager has found.
    pub(super) fn hear(&mut self, ends: &[End]) {
        let Some(channel) = self.channel.filter(|_| !self.pending.is_empty()) else {
            return;
        };
        loop {
            match news::next(channel.0) {
                Ok(news) => self.on_news(&news, ends),
                Err(e) if e.errno.0 == libc::EAGAIN => return,
                // The daemon has gone: no answer will come.
                Err(_) => {
                    self.pending.drain(..).for_each(|p| destroy(p.id));
                    return;
                }
            }
        }
    }

    fn on_news(&mut self, news: &News, ends: &[End]) {
        let Some(at) = self.pending.iter().position(|p| p.id == news.id) else {
            return;
        };
        if news.kind == kind::ADDR_RESOLVED {
            // SAFETY: a living identifier.
            let code = unsafe { verbs::rdma_resolve_route(news.id, RESOLVE_MS) };
            if code == 0 {
                return;
            }
        }
        let done = self.pending.swap_remove(at);
        if news.kind == kind::ROUTE_RESOLVED
            && let (Some(end), Some(path)) = (ends.get(done.end), path_of(done.id))
            && let Ok(ah) = end.handle(&path)
        {
            self.learn(&done, ah);
        }
        destroy(done.id);
    }

    fn learn(&mut self, done: &Pending, ah: *mut ibv_ah) {
        let new = || Peer {
            fresh: Instant::now(),
            end: done.end,
            handles: Vec::new(),
        };
        let peer = self.peers.entry(done.to).or_insert_with(new);
        peer.handles.push((done.end, ah));
        if let Some(name) = self.known.resolved(done.to, done.qpn)
            && let Some(forgotten) = self.peers.remove(&name)
        {
            forgotten.close();
        }
    }

    /// Forgets everything.
    pub(super) fn close(self) {
        self.pending.iter().for_each(|p| destroy(p.id));
        self.peers.into_values().for_each(Peer::close);
        if let Some(channel) = self.channel {
            // SAFETY: none of its identifiers is left.
            unsafe { verbs::rdma_destroy_event_channel(channel.0) };
        }
    }
}

fn path_of(id: *mut rdma_cm_id) -> Option<ibv_sa_path_rec> {
    // SAFETY: a living identifier.
    let path = unsafe { (*id).route.path_rec };
    if path.is_null() {
        return None;
    }
    // SAFETY: one record at least, which lives as long as the identifier.
    Some(unsafe { path.read() })
}

fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: an identifier of a look-up, whose events are all acknowledged.
    unsafe { verbs::rdma_destroy_id(id) };
}
