//! Packets past the socket: shared memory that the kernel fills while a program polls.
//!
//! A third of what a small packet costs is to be queued at a socket, and to be fetched from there by a
//! system call; a poll in vain costs a call as well. So a privileged daemon gives each receive socket a
//! filter ([`program`]) that puts small packets into a ring which the process maps, and drops them from
//! the socket's point of view. It does so only while the ring is *open*: while somebody polls, and
//! nobody sleeps on the socket. Everything else goes the socket's way.
//!
//! Order: every record says how many datagrams the filter had let pass to the socket before it. The
//! reader counts what it has read there, and so takes from both in the order of their arrival. A datagram
//! that the socket had no room for is told by a socket that stays empty ([`order`]).
//!
//! Sleep: whoever goes to sleep on the socket closes the ring ([`Ring::sleep`]) and then looks whether
//! something is in it. The filter looks at that word again after it has put a record there; if the ring
//! was closed meanwhile, it lets an empty datagram pass, which wakes the sleeper.
//!
//! What the filter takes counts as dropped at the socket (and as `UdpInErrors` of the system). How much
//! that is stands in the ring, so that losses stay losses.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::RxFrame;
use crate::control::take;
use crate::sys::set_option;

mod order;
mod program;
mod sys;

use order::{Known, Order};
use program::{HEADERS_AT, NET_HEADER_AT, RECORD_BYTES};
use sys::Mapped;

/// Bytes of records in flight: some 220 packets. What finds no room goes to the socket.
const RING_BYTES: usize = 128 << 10;

/// The word that the reader and the filter share, and what the filter counts. A cache line each, since
/// one side reads what the other writes.
#[repr(C, align(4096))]
#[derive(Debug)]
struct Control {
    /// Not 0: small packets come into the ring.
    open: Line,
    /// Datagrams that the socket was given.
    passed: Line,
    /// Packets that came into the ring.
    taken: Line,
    /// Empty datagrams among those passed: see the module.
    kicks: Line,
}

#[repr(C, align(64))]
#[derive(Debug)]
struct Line(AtomicU64);

/// What a ring is made of, on its way to the process that reads it.
#[derive(Debug)]
pub struct RingFds {
    /// The records.
    pub records: OwnedFd,
    /// The words.
    pub control: OwnedFd,
}

/// A ring of packets beside a receive socket.
#[derive(Clone)]
pub struct Ring(Arc<Shared>);

struct Shared {
    map: Mapped,
    /// Who sleeps on the socket.
    sleepers: AtomicU32,
}

impl Ring {
    /// Makes a ring for a receive socket and has the socket's packets come by it, once it is opened. A
    /// ring that the socket had is left behind. It needs CAP_BPF and CAP_NET_ADMIN, and Linux 5.8.
    ///
    /// # Errors
    /// `EPERM` without these rights; `EINVAL` where the kernel has no such rings.
    pub fn attach(socket: BorrowedFd<'_>, v6: bool) -> io::Result<(Self, RingFds)> {
        let fds = RingFds {
            records: sys::ring_map(RING_BYTES)?,
            control: sys::word_map(size_of::<Control>())?,
        };
        let ring = Self::map(&fds)?;
        let filter = sys::load(&program::program(
            v6,
            fds.records.as_fd(),
            fds.control.as_fd(),
        ))?;
        let number = filter.as_raw_fd().to_ne_bytes();
        set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &number)?;
        Ok((ring, fds))
    }

    /// Takes the ring away from a socket. Its records stay.
    pub fn detach(&self, socket: BorrowedFd<'_>) {
        self.close();
        let none = 0i32.to_ne_bytes();
        let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_BPF, &none);
    }

    /// The ring as the process sees it that got it.
    ///
    /// # Errors
    /// The descriptors are not those of a ring; or there is no memory.
    pub fn map(fds: &RingFds) -> io::Result<Self> {
        let map = Mapped::new(fds.records.as_fd(), RING_BYTES, fds.control.as_fd())?;
        let sleepers = AtomicU32::new(0);
        Ok(Self(Arc::new(Shared { map, sleepers })))
    }

    /// Packets that came by the ring so far, without those that left an empty datagram behind. The socket
    /// counts them as dropped.
    pub fn taken(&self) -> u64 {
        let control = self.0.control();
        let kicks = control.kicks.0.load(Ordering::Acquire);
        control.taken.0.load(Ordering::Acquire).wrapping_sub(kicks)
    }

    /// From now on packets may come by the ring: the caller is about to read it, and will be back soon.
    /// Nothing happens while somebody sleeps on the socket.
    #[inline]
    pub(super) fn open(&self) {
        if self.0.control().open.0.load(Ordering::Relaxed) == 0 {
            self.open_now();
        }
    }

    #[cold]
    fn open_now(&self) {
        if self.0.sleepers.load(Ordering::SeqCst) != 0 {
            return;
        }
        self.0.control().open.0.store(1, Ordering::SeqCst);
        // Who fell asleep meanwhile may have closed it before it was opened. What came in between is
        // read by the caller.
        fence(Ordering::SeqCst);
        if self.0.sleepers.load(Ordering::SeqCst) != 0 {
            self.close();
        }
    }

    fn close(&self) {
        self.0.control().open.0.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The caller is about to sleep on the socket: packets come by the socket while the guard lives.
    #[must_use]
    pub fn sleep(&self) -> RingSleep {
        self.0.sleepers.fetch_add(1, Ordering::SeqCst);
        self.close();
        RingSleep(self.clone())
    }
}

impl Shared {
    #[inline]
    fn control(&self) -> &Control {
        self.map.control()
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("control", self.0.control())
            .field("sleepers", &self.0.sleepers)
            .finish_non_exhaustive()
    }
}

/// Somebody sleeps on the socket of a ring.
#[derive(Debug)]
pub struct RingSleep(Ring);

impl RingSleep {
    /// There is no need to sleep: packets came by the ring.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        self.0.0.map.peek_shared().is_some()
    }
}

impl Drop for RingSleep {
    fn drop(&mut self) {
        self.0.0.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The reading end. One reader at a time.
pub(super) struct Reader {
    ring: Ring,
    /// Where the next record is. The process that had the ring before may have left anything in the shared
    /// word, and may change it.
    at: u64,
    order: Order,
    /// Empty datagrams of the filter's that were read.
    kicks: u64,
    /// A record, out of reach of everybody else.
    record: Record,
}

#[repr(C, align(64))]
struct Record([u8; RECORD_BYTES]);

impl Reader {
    /// A reader of a new ring, or of what another left behind: then with the oldest record first.
    pub(super) fn new(ring: Ring) -> Self {
        let map = &ring.0.map;
        let at = map.consumed();
        let left = map.peek(at).filter(|found| !found.is_void);
        let order = Order::at(left.map_or(0, |found| map.first_word(&found)));
        Self {
            ring,
            at,
            order,
            kicks: 0,
            record: Record([0; RECORD_BYTES]),
        }
    }

    pub(super) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The next packet, or several that were merged into one, and the size of their segments (0: nothing was
    /// merged); unless the socket has an older one.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(RxFrame<'_>, usize)> {
        let map = &self.ring.0.map;
        loop {
            let found = map.peek(self.at)?;
            if !found.is_void {
                if self.order.is_ahead(map.first_word(&found)) {
                    return None;
                }
                map.copy(&found, &mut self.record.0);
            }
            self.at = map.advance(&found);
            if !found.is_void {
                break;
            }
        }
        Some(self.record.read())
    }

    /// There is a record, perhaps behind a datagram of the socket's.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.ring.0.map.peek(self.at).is_some()
    }

    /// The socket has nothing for us, as far as the filter knows.
    #[inline]
    pub(super) fn is_socket_dry(&self) -> bool {
        self.order.is_dry(self.passed())
    }

    /// Datagrams that the filter let pass so far.
    #[inline]
    fn passed(&self) -> u64 {
        self.ring.0.control().passed.0.load(Ordering::Acquire)
    }

    /// What is to be known before a look at the socket, for [`Reader::found_none`].
    pub(super) fn before_look(&self) -> Known {
        let map = &self.ring.0.map;
        let next = map.peek(self.at).filter(|found| !found.is_void);
        Known {
            after: next.map(|found| map.first_word(&found)),
            passed: self.passed(),
        }
    }

    /// A datagram was read from the socket. Returns false for one that only wakes.
    pub(super) fn has_read(&mut self, len: usize) -> bool {
        self.order.has_read(self.passed());
        let control = self.ring.0.control();
        if len != 0 || control.kicks.0.load(Ordering::Acquire) == self.kicks {
            return true;
        }
        self.kicks = self.kicks.wrapping_add(1);
        false
    }

    /// The socket was empty, and this was known before.
    pub(super) fn found_none(&mut self, before: Known) {
        self.order.found_none(before);
    }
}

impl Record {
    /// Reads the record that was copied here: what came in one piece, and the size of its segments.
    #[inline]
    fn read(&self) -> (RxFrame<'_>, usize) {
        let word = |at| u32::from_ne_bytes(take(&self.0, at));
        let (ifindex, segment) = (word(program::IFINDEX_AT), word(program::SEGMENT_AT));
        let len = word(program::LEN_AT) as usize;
        let udp = self.0.get(HEADERS_AT..).unwrap_or_default();
        let sport = u16::from_be_bytes(take(udp, 0));
        let ip = self.0.get(NET_HEADER_AT..).unwrap_or_default();
        let mut frame = RxFrame {
            data: udp.get(8..len).unwrap_or_default(),
            src: SocketAddr::from((take::<4>(ip, 12), sport)),
            dst: Ipv4Addr::from(take::<4>(ip, 16)).into(),
            ifindex,
            traffic_class: take::<1>(ip, 1)[0],
            hop_limit: take::<1>(ip, 8)[0],
            seg_index: 0,
            batch_len: 1,
        };
        if ip.first().is_some_and(|byte| byte >> 4 == 6) {
            let src = Ipv6Addr::from(take::<16>(ip, 8));
            let scope = if src.is_unicast_link_local() {
                ifindex
            } else {
                0
            };
            frame.src = SocketAddr::V6(SocketAddrV6::new(src, sport, 0, scope));
            frame.dst = Ipv6Addr::from(take::<16>(ip, 24)).into();
            frame.traffic_class = (u16::from_be_bytes(take(ip, 0)) >> 4) as u8;
            frame.hop_limit = take::<1>(ip, 7)[0];
        }
        (frame, segment as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_that_no_reader_is_at_holds_nobody_up() {
        let Ok(records) = sys::ring_map(RING_BYTES) else {
            eprintln!("skipped: no rings without CAP_BPF");
            return;
        };
        let control = sys::word_map(size_of::<Control>()).unwrap();
        let ring = Ring::map(&RingFds { records, control }).unwrap();
        for position in [1, 8, RING_BYTES as u64, u64::MAX, 1 << 63] {
            ring.0.map.say_consumed(position);
            assert!(Reader::new(ring.clone()).next().is_none());
        }
    }
}
