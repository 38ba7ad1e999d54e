//! Batches in.

use super::addr::{Told, read_name};
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

/// One receive socket.
pub(super) struct Receiver {
    fd: OwnedFd,
    v6: bool,
    /// Calls since something was there.
    empty: u32,
    /// Messages to ask for in one call: one while at most one was there, since preparing for more
    /// costs a small packet a tenth of its way; else as many as there are buffers.
    want: usize,
    /// The kernel's drop count at the start, and as last told.
    drops_first: u32,
    drops_last: u32,
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
}

impl Receiver {
    /// Takes over a socket; drops before now are not ours.
    pub(super) fn new(fd: OwnedFd, v6: bool) -> Self {
        let drops = queue_state(fd.as_fd()).map_or(0, |state| state.drops);
        Self {
            fd,
            v6,
            empty: IDLE_AFTER,
            want: 1,
            drops_first: drops,
            drops_last: drops,
        }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn is_v6(&self) -> bool {
        self.v6
    }

    pub(super) fn lost(&self) -> u64 {
        u64::from(self.drops_last.wrapping_sub(self.drops_first))
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

    /// The last call looked at every socket and found nothing.
    pub(super) fn is_dry(&self) -> bool {
        self.dry
    }

    /// Asks the kernel what it dropped: it tells by itself only with the next datagram.
    pub(super) fn look_for_losses(&mut self) {
        for socket in &mut self.sockets {
            if let Ok(state) = queue_state(socket.fd.as_fd()) {
                socket.drops_last = state.drops;
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
        // The least idle socket is never skipped.
        let favourite = self.sockets.iter().map(|s| s.empty).min().unwrap_or(0);
        let turn = self.calls.is_multiple_of(IDLE_LOOK_EVERY);
        let (mut frames, mut left) = (0, max_batches.max(1));
        self.more = false;
        for i in 0..self.sockets.len() {
            let empty = self.sockets[i].empty;
            let wanted = if known != 0 {
                i >= 64 || known >> i & 1 != 0
            } else {
                all || turn || empty < IDLE_AFTER || empty == favourite
            };
            if wanted {
                frames += self.drain(i, &mut left, sink)?;
            }
        }
        self.dry = all && frames == 0;
        Ok(frames)
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
            for (buffer, arrival) in self.buffers.iter().zip(&self.arrivals).take(got) {
                let told = Told::read(arrival, socket.v6);
                if let Some(drops) = told.drops {
                    socket.drops_last = drops;
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

/// Splits one arrival into its segments.
fn deliver(
    buffer: &[u8],
    arrival: &Arrival,
    told: &Told,
    v6: bool,
    sink: &mut dyn FnMut(RxFrame<'_>),
) -> usize {
    let data = buffer.get(..arrival.len).unwrap_or(buffer);
    let segment = if told.segment == 0 {
        data.len()
    } else {
        told.segment
    };
    let count = data.len().div_ceil(segment.max(1)).max(1);
    let mut frame = RxFrame {
        data,
        src: read_name(v6, &arrival.name),
        dst: told.dst,
        ifindex: told.ifindex,
        traffic_class: told.traffic_class,
        hop_limit: told.hop_limit,
        seg_index: 0,
        batch_len: u16::try_from(count).unwrap_or(u16::MAX),
    };
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
