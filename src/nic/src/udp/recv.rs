//! Batches in.

use super::addr::{Told, read_name};
use super::ring::{Reader, Ring};
use super::sockets::queue_state;
use crate::RxFrame;
use crate::sys::{self, Arrival, Buffer};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Buffers, that is most batches of one system call. Few, so that they stay in the cache.
const BUFFERS: usize = 4;
/// A socket that was empty this many times in a row is idle.
const IDLE_AFTER: u32 = 64;
/// An idle socket is looked at on one call in this many.
const IDLE_LOOK_EVERY: u32 = 8;
/// Whoever comes back after this long has slept or was woken: it wants every socket looked at.
const SLEPT_NS: u64 = 30_000;
/// Most packets taken from a ring in one call, unless a socket's come between them.
const FROM_RING_MAX: usize = 16;
/// A socket with a ring is looked at on one call in this many, whatever the ring says.
const DISTRUST_EVERY: u32 = 1024;

/// One receive socket.
pub(super) struct Receiver {
    fd: OwnedFd,
    v6: bool,
    /// Calls since something was there.
    empty: u32,
    /// Messages to ask for in one call: one while at most one was there, since preparing for more
    /// costs a small packet a tenth of its way; else as many as there are buffers.
    want: usize,
    ring: Option<Box<Reader>>,
    /// The kernel's drop count at the start.
    drops_first: u32,
    taken_first: u64,
    /// Of the drops, what was lost: the rest came by the ring.
    lost: u64,
}

/// The receive sockets of the link and their buffers.
pub(super) struct Receivers {
    sockets: Vec<Receiver>,
    buffers: Vec<Buffer>,
    arrivals: Vec<Arrival>,
    calls: u32,
    last_call_ns: u64,
    look_everywhere: bool,
    dry: bool,
    /// Sockets to look at in the next call, as bits; 0: as usual.
    readable: u64,
    /// The last call may have left something.
    more: bool,
    /// Batches that came through rings and were not told of yet.
    from_rings: u64,
}

impl Receiver {
    /// Takes over a socket; drops before now are not ours.
    pub(super) fn new(fd: OwnedFd, v6: bool, ring: Option<Ring>) -> Self {
        let drops = queue_state(fd.as_fd()).map_or(0, |state| state.drops);
        Self {
            fd,
            v6,
            empty: IDLE_AFTER,
            want: 1,
            drops_first: drops,
            taken_first: ring.as_ref().map_or(0, Ring::taken),
            lost: 0,
            ring: ring.map(|ring| Box::new(Reader::new(ring))),
        }
    }

    pub(super) fn ring(&self) -> Option<&Ring> {
        self.ring.as_ref().map(|reader| reader.ring())
    }

    #[inline]
    pub(super) fn open_ring(&self) {
        if let Some(reader) = &self.ring {
            reader.ring().open();
        }
    }

    /// Nothing came, neither by the ring nor, as far as the filter knows, by the socket.
    #[inline]
    fn is_quiet(&self) -> bool {
        self.ring
            .as_ref()
            .is_some_and(|ring| ring.is_socket_dry() && !ring.has_more())
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn is_v6(&self) -> bool {
        self.v6
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// The kernel has told how much it dropped. Without a ring all of that is lost; what came by the
    /// ring counts there before it does here.
    fn dropped(&mut self, drops: u32) {
        let dropped = drops.wrapping_sub(self.drops_first);
        let taken = self.ring.as_ref().map_or(0, |r| r.ring().taken());
        let taken = taken.wrapping_sub(self.taken_first);
        // The kernel's count wraps at 32 bits, and the ring's is ahead of it for a moment.
        let lost = dropped
            .wrapping_sub(taken as u32)
            .wrapping_sub(self.lost as u32);
        if lost <= u32::MAX / 2 {
            self.lost += u64::from(lost);
        }
    }

    /// Packets of the ring that came before what the socket has, at most `most`.
    /// Returns frames.
    fn take_from_ring(
        &mut self,
        most: usize,
        batches: &mut u64,
        sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> usize {
        let Some(reader) = &mut self.ring else {
            return 0;
        };
        let mut frames = 0;
        for _ in 0..most {
            let Some((frame, segment)) = reader.next() else {
                break;
            };
            *batches += 1;
            frames += split(frame, segment, sink);
        }
        frames
    }
}

impl Receivers {
    pub(super) fn new() -> Self {
        Self {
            sockets: Vec::new(),
            buffers: vec![Buffer([0; sys::BUFFER_BYTES]); BUFFERS],
            arrivals: vec![Arrival::empty(); BUFFERS],
            calls: 0,
            last_call_ns: 0,
            look_everywhere: true,
            dry: false,
            readable: 0,
            more: false,
            from_rings: 0,
        }
    }

    pub(super) fn add(&mut self, receiver: Receiver) {
        self.sockets.push(receiver);
        self.look_everywhere = true;
    }

    pub(super) fn sockets(&self) -> &[Receiver] {
        &self.sockets
    }

    pub(super) fn look_everywhere(&mut self) {
        self.look_everywhere = true;
    }

    /// The next call looks at these sockets only, as bits in their order: a poll said that they are
    /// readable, and the others are not.
    pub(super) fn look_at(&mut self, readable: u64) {
        self.readable = readable;
    }

    /// The last call used up its allowance somewhere. A socket that gave less is most likely dry.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Batches that came through rings since this was last asked.
    pub(super) fn take_from_rings(&mut self) -> u64 {
        std::mem::take(&mut self.from_rings)
    }

    /// The last call looked at every socket and found nothing.
    pub(super) fn is_dry(&self) -> bool {
        self.dry
    }

    /// Asks the kernel what it dropped: it tells by itself only with the next datagram.
    pub(super) fn look_for_losses(&mut self) {
        for socket in &mut self.sockets {
            if let Ok(state) = queue_state(socket.fd.as_fd()) {
                socket.dropped(state.drops);
            }
        }
    }

    /// Receives about `max_batches` batches. A busy socket is looked at on each call, an idle one
    /// now and then, all of them when asked or after a pause; so a poll of a program that uses one
    /// address family costs one system call.
    pub(super) fn recv(
        &mut self,
        max_batches: usize,
        now_ns: u64,
        sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> io::Result<usize> {
        let slept = now_ns.saturating_sub(self.last_call_ns) > SLEPT_NS;
        let asked = std::mem::take(&mut self.look_everywhere);
        let known = std::mem::take(&mut self.readable);
        let known = if asked { 0 } else { known };
        let all = known == 0 && (asked || slept);
        self.last_call_ns = now_ns;
        self.calls = self.calls.wrapping_add(1);
        self.more = false;
        // A poll in vain, which is most of them: what it takes is what a packet waits.
        let distrust = self.calls.is_multiple_of(DISTRUST_EVERY);
        if !(all || distrust || known != 0) && self.sockets.iter().all(Receiver::is_quiet) {
            self.dry = false;
            return Ok(0);
        }
        // The least idle socket is never skipped.
        let favourite = self.sockets.iter().map(|s| s.empty).min().unwrap_or(0);
        let turn = self.calls.is_multiple_of(IDLE_LOOK_EVERY);
        let (mut frames, mut left) = (0, max_batches.max(1));
        for i in 0..self.sockets.len() {
            let empty = self.sockets[i].empty;
            let mut wanted = if known != 0 {
                i >= 64 || known >> i & 1 != 0
            } else {
                all || turn || empty < IDLE_AFTER || empty == favourite
            };
            if let Some(ring) = &self.sockets[i].ring {
                // It knows better, and asking it costs nothing.
                wanted = all || known != 0 && wanted || distrust || !ring.is_socket_dry();
                frames += self.read_ring(i, sink);
            }
            if wanted {
                frames += self.drain(i, &mut left, sink)?;
            }
        }
        self.dry = all && frames == 0;
        Ok(frames)
    }

    /// Takes what the ring of a socket has.
    fn read_ring(&mut self, index: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        let Some(socket) = self.sockets.get_mut(index) else {
            return 0;
        };
        let frames = socket.take_from_ring(FROM_RING_MAX, &mut self.from_rings, sink);
        if frames != 0 {
            socket.empty = 0;
        }
        self.more |= socket.ring.as_ref().is_some_and(|ring| ring.has_more());
        frames
    }

    /// Receives from one socket until it is dry or the allowance is used up. Even without any
    /// allowance left it takes one batch, so that a busy socket cannot starve another.
    fn drain(
        &mut self,
        index: usize,
        left: &mut usize,
        sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> io::Result<usize> {
        let Some(socket) = self.sockets.get_mut(index) else {
            return Ok(0);
        };
        let mut frames = 0;
        let mut strange = 0;
        loop {
            let want = (*left).clamp(1, socket.want);
            let before = socket.ring.as_ref().map(|ring| ring.before_look());
            let (buffers, arrivals) = (&mut self.buffers[..want], &mut self.arrivals[..want]);
            let got = match sys::receive_many(socket.fd.as_fd(), buffers, 0, arrivals) {
                Ok(got) => got,
                Err(libc::EAGAIN) => 0,
                Err(libc::EINTR) => continue,
                // A pending error of the socket is told once, and is nothing to us.
                Err(errno) if strange > 2 || errno == libc::EBADF => {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                Err(_) => {
                    strange += 1;
                    continue;
                }
            };
            if got == 0
                && let (Some(ring), Some(before)) = (&mut socket.ring, before)
            {
                ring.found_none(before);
                frames += socket.take_from_ring(FROM_RING_MAX, &mut self.from_rings, sink);
            }
            for (buffer, arrival) in self.buffers.iter().zip(&self.arrivals).take(got) {
                let told = Told::read(arrival, socket.v6);
                if let Some(drops) = told.drops {
                    socket.dropped(drops);
                }
                // What came before it.
                frames += socket.take_from_ring(usize::MAX, &mut self.from_rings, sink);
                if let Some(ring) = &mut socket.ring
                    && !ring.has_read(arrival.len)
                {
                    continue;
                }
                frames += deliver(&buffer.0, arrival, &told, socket.v6, sink);
            }
            *left = left.saturating_sub(got);
            // A single message is what a request or its answer looks like: the caller has it at
            // once, and whether there are more is seen by its next call.
            socket.want = match (want, got) {
                (_, 0) | (2.., 1) => 1,
                _ => BUFFERS,
            };
            if got < want || want == 1 || *left == 0 {
                self.more |= got == want && want != 1;
                break;
            }
        }
        socket.empty = if frames > 0 {
            0
        } else {
            socket.empty.saturating_add(1)
        };
        Ok(frames)
    }
}

/// Hands on one arrival.
fn deliver(
    buffer: &[u8],
    arrival: &Arrival,
    told: &Told,
    v6: bool,
    sink: &mut dyn FnMut(RxFrame<'_>),
) -> usize {
    let frame = RxFrame {
        data: buffer.get(..arrival.len).unwrap_or(buffer),
        src: read_name(v6, &arrival.name),
        dst: told.dst,
        ifindex: told.ifindex,
        traffic_class: told.traffic_class,
        hop_limit: told.hop_limit,
        seg_index: 0,
        batch_len: 1,
    };
    split(frame, told.segment, sink)
}

/// Splits what was merged (`segment` = 0: nothing was) into its segments. Returns how many.
fn split(mut frame: RxFrame<'_>, segment: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
    let data = frame.data;
    let segment = if segment == 0 { data.len() } else { segment };
    let count = data.len().div_ceil(segment.max(1)).max(1);
    frame.batch_len = u16::try_from(count).unwrap_or(u16::MAX);
    if count == 1 {
        sink(frame);
        return 1;
    }
    for (index, data) in (0..).zip(data.chunks(segment)) {
        frame.data = data;
        frame.seg_index = index;
        sink(frame);
    }
    count
}
