//! Frames that arrived at the wrong slot.
//!
//! Steering looks at the first segment of a merged batch only, and a new program takes effect
//! while packets are queued. So whoever receives frames for QPNs outside its slots hands them to
//! the daemon over the slot's forwarding socket (a `SOCK_SEQPACKET` pair), and gets its own that
//! way. What belongs to one slot and came in one batch travels together, as a [`Bundle`]: one
//! message of [`HEADER_BYTES`] of header and the frames (little-endian numbers):
//!
//! | bytes | |
//! |---|---|
//! | 0 | version, 2 |
//! | 1 | 4 or 6 |
//! | 2..4 | source port |
//! | 4..20 | source address (IPv4 in the first four) |
//! | 20..36 | destination address |
//! | 36..40 | interface index |
//! | 40, 41 | traffic class, hop limit |
//! | 42..44 | segments in the batch |
//! | 44..48 | 0 |
//! | each frame | position in its batch (2), bytes (2), the UDP payload |
//!
//! A socket takes a few batches; what it does not take waits in an [`Outbox`].
//!
//! The daemon passes frames on between processes of one user only: nobody may speak to another
//! user's queue pairs with a source address of his choice.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Bytes in front of the frames.
pub const HEADER_BYTES: usize = 48;

/// Bytes in front of each frame.
const FRAME_HEADER_BYTES: usize = 4;

/// Bytes that a receive buffer needs: the headers and the largest UDP payload.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + FRAME_HEADER_BYTES + 65_535;

/// Bytes that may wait in an outbox: some dozen full batches, more than a receive call takes in.
const OUTBOX_BYTES_MAX: usize = 4 << 20;

/// Where the frames of a batch came from and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields of a received frame")]
pub struct Header {
    pub src: SocketAddr,
    pub dst: IpAddr,
    pub ifindex: u32,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub batch_len: u16,
}

impl Header {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        b[0] = VERSION;
        b[1] = if self.src.is_ipv4() { 4 } else { 6 };
        b[2..4].copy_from_slice(&self.src.port().to_le_bytes());
        b[4..20].copy_from_slice(&address_bytes(self.src.ip()));
        b[20..36].copy_from_slice(&address_bytes(self.dst));
        b[36..40].copy_from_slice(&self.ifindex.to_le_bytes());
        b[40] = self.traffic_class;
        b[41] = self.hop_limit;
        b[42..44].copy_from_slice(&self.batch_len.to_le_bytes());
        b
    }

    fn decode(b: &[u8; HEADER_BYTES]) -> Option<Self> {
        if b[0] != VERSION {
            return None;
        }
        let port = u16::from_le_bytes([b[2], b[3]]);
        let ifindex = u32::from_le_bytes([b[36], b[37], b[38], b[39]]);
        let src = address(b[1], &b[4..20])?;
        let src = match src {
            IpAddr::V4(_) => SocketAddr::new(src, port),
            IpAddr::V6(a) => SocketAddr::V6(SocketAddrV6::new(
                a,
                port,
                0,
                if a.is_unicast_link_local() {
                    ifindex
                } else {
                    0
                },
            )),
        };
        Some(Self {
            src,
            dst: address(b[1], &b[20..36])?,
            ifindex,
            traffic_class: b[40],
            hop_limit: b[41],
            batch_len: u16::from_le_bytes([b[42], b[43]]),
        })
    }
}

/// Frames of one batch for one slot, as a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bundle {
    slot: u16,
    header: Header,
    /// Position of the last frame: frames of another batch do not come behind it.
    last: u16,
    frames: u64,
    message: Vec<u8>,
}

impl Bundle {
    /// A bundle of one frame. `None` if it is longer than any UDP payload.
    #[must_use]
    pub fn new(slot: u16, header: &Header, position: u16, frame: &[u8]) -> Option<Self> {
        let mut bundle = Self {
            slot,
            header: *header,
            last: position,
            frames: 0,
            message: header.encode().to_vec(),
        };
        bundle.push(position, frame).then_some(bundle)
    }

    /// A message for `slot` as it came. `None` if it is malformed.
    #[must_use]
    pub fn from_message(slot: u16, message: &[u8]) -> Option<Self> {
        let (header, frames) = unpack(message)?;
        Some(Self {
            slot,
            header,
            last: u16::MAX,
            frames: frames.count() as u64,
            message: message.to_vec(),
        })
    }

    /// The slot that it goes to.
    #[must_use]
    pub const fn slot(&self) -> u16 {
        self.slot
    }

    /// How many frames it holds.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Is this a later frame of the same batch?
    fn continues(&self, slot: u16, header: &Header, position: u16) -> bool {
        self.slot == slot && self.header == *header && position > self.last
    }

    fn push(&mut self, position: u16, frame: &[u8]) -> bool {
        let fits = self.message.len() + FRAME_HEADER_BYTES + frame.len() <= MESSAGE_BYTES_MAX;
        let Some(len) = u16::try_from(frame.len()).ok().filter(|_| fits) else {
            return false;
        };
        self.message.extend(position.to_le_bytes());
        self.message.extend(len.to_le_bytes());
        self.message.extend(frame);
        self.last = position;
        self.frames += 1;
        true
    }
}

/// Where the frames of a message came from, and the frames; `None` if it is none of ours, or any
/// of its lengths lies.
#[must_use]
pub fn unpack(message: &[u8]) -> Option<(Header, Frames<'_>)> {
    let (head, frames) = message.split_first_chunk::<HEADER_BYTES>()?;
    let header = Header::decode(head)?;
    let frames = Frames(frames);
    let whole = frames.clone().map(|(_, f)| FRAME_HEADER_BYTES + f.len());
    (whole.sum::<usize>() == frames.0.len() && !frames.0.is_empty()).then_some((header, frames))
}

/// The frames of a message: position in the batch, and bytes.
#[derive(Clone, Debug)]
pub struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.0.split_first_chunk::<FRAME_HEADER_BYTES>()?;
        let position = u16::from_le_bytes([head[0], head[1]]);
        let len = u16::from_le_bytes([head[2], head[3]]);
        let (frame, rest) = rest.split_at_checked(usize::from(len))?;
        self.0 = rest;
        Some((position, frame))
    }
}

/// Bundles on their way out, first in, first out, with a bound.
#[derive(Debug, Default)]
pub struct Outbox {
    queue: VecDeque<Bundle>,
    bytes: usize,
}

impl Outbox {
    /// Adds a frame, to the bundle of its batch if there is one. False: there is no room, the
    /// frame is lost (count it).
    pub fn add(&mut self, slot: u16, header: &Header, position: u16, frame: &[u8]) -> bool {
        let batch = usize::from(header.batch_len).max(1);
        let mut latest = self.queue.iter_mut().rev().take(batch);
        if let Some(bundle) = latest.find(|b| b.continues(slot, header, position))
            && self.bytes + frame.len() <= OUTBOX_BYTES_MAX
        {
            let before = bundle.message.len();
            if bundle.push(position, frame) {
                self.bytes += bundle.message.len() - before;
                return true;
            }
        }
        Bundle::new(slot, header, position, frame).is_some_and(|bundle| self.push(bundle))
    }

    /// Adds a bundle. False: there is no room, it is lost.
    pub fn push(&mut self, bundle: Bundle) -> bool {
        let bytes = self.bytes + bundle.message.len();
        let fits = bytes <= OUTBOX_BYTES_MAX;
        if fits {
            self.bytes = bytes;
            self.queue.push_back(bundle);
        }
        fits
    }

    /// Sends what the socket takes, without waiting, and returns the number of frames. An error
    /// means that nobody will ever take the rest.
    pub fn flush(&mut self, fd: impl AsFd) -> io::Result<u64> {
        let mut frames = 0;
        while let Some(bundle) = self.queue.front() {
            match send(&fd, bundle.message()) {
                Ok(()) => {
                    frames += bundle.frames;
                    self.bytes -= bundle.message.len();
                    self.queue.pop_front();
                }
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(frames)
    }

    /// Throws everything away and returns the number of frames.
    pub fn clear(&mut self) -> u64 {
        self.bytes = 0;
        self.queue.drain(..).map(|b| b.frames).sum()
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Sends a message without waiting. `EAGAIN`: the socket is full.
pub fn send(fd: impl AsFd, message: &[u8]) -> Result<(), Errno> {
    loop {
        match rustix::net::send(&fd, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            // Memory is short, or a buffer is: both pass.
            Err(Errno::NOBUFS | Errno::NOMEM) => return Err(Errno::AGAIN),
            Err(error) => return Err(error),
        }
    }
}

/// Receives a message into `buf` (of [`MESSAGE_BYTES_MAX`] bytes) without waiting. `Ok(None)` when
/// nothing is there; an error of kind `UnexpectedEof` when the other side closed.
pub fn recv(fd: impl AsFd, buf: &mut [u8]) -> io::Result<Option<(Header, Frames<'_>)>> {
    loop {
        match rustix::net::recv(&fd, &mut *buf, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((n, _)) if unpack(&buf[..n]).is_some() => return Ok(unpack(&buf[..n])),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

const VERSION: u8 = 2;

fn address_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(a) => {
            let mut b = [0; 16];
            b[..4].copy_from_slice(&a.octets());
            b
        }
        IpAddr::V6(a) => a.octets(),
    }
}

fn address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
