//! Frames that arrived at the wrong slot.
//!
//! Steering looks at the first segment of a merged batch only, and a new program takes effect
//! while packets are queued. So whoever receives a frame for a QPN outside its slots hands it to
//! the daemon over the slot's forwarding socket (a `SOCK_SEQPACKET` pair), and gets its own that
//! way. A message is [`HEADER_BYTES`] of header (little-endian numbers) and the UDP payload:
//!
//! | bytes | |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | 4 or 6 |
//! | 2..4 | source port |
//! | 4..20 | source address (IPv4 in the first four) |
//! | 20..36 | destination address |
//! | 36..40 | interface index |
//! | 40, 41 | traffic class, hop limit |
//! | 42..44 | position in its batch |
//! | 44..46 | segments in the batch |
//! | 46..48 | 0 |
//!
//! The daemon passes frames on between processes of one user only: nobody may speak to another
//! user's queue pairs with a source address of his choice.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

/// Bytes in front of the frame.
pub const HEADER_BYTES: usize = 48;

/// Bytes that a receive buffer needs: header and the largest UDP payload.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + 65_535;

/// Where a frame came from and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields of a received frame")]
pub struct Header {
    pub src: SocketAddr,
    pub dst: IpAddr,
    pub ifindex: u32,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub seg_index: u16,
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
        b[42..44].copy_from_slice(&self.seg_index.to_le_bytes());
        b[44..46].copy_from_slice(&self.batch_len.to_le_bytes());
        b
    }

    /// Header and frame of a message; `None` if it is none.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<(Self, &[u8])> {
        let (b, frame) = message.split_first_chunk::<HEADER_BYTES>()?;
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
        let header = Self {
            src,
            dst: address(b[1], &b[20..36])?,
            ifindex,
            traffic_class: b[40],
            hop_limit: b[41],
            seg_index: u16::from_le_bytes([b[42], b[43]]),
            batch_len: u16::from_le_bytes([b[44], b[45]]),
        };
        Some((header, frame))
    }
}

/// Sends a frame without waiting. An error means that it is lost (count it).
pub fn send(fd: impl AsFd, header: &Header, frame: &[u8]) -> io::Result<()> {
    let head = header.encode();
    rustix::net::sendmsg(
        fd,
        &[IoSlice::new(&head), IoSlice::new(frame)],
        &mut SendAncillaryBuffer::default(),
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives a frame into `buf` (of [`MESSAGE_BYTES_MAX`] bytes) without waiting. `Ok(None)` when
/// nothing is there; an error of kind `UnexpectedEof` when the other side closed.
pub fn recv(fd: impl AsFd, buf: &mut [u8]) -> io::Result<Option<(Header, &[u8])>> {
    loop {
        match rustix::net::recv(&fd, &mut *buf, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((n, _)) if Header::decode(&buf[..n]).is_some() => {
                return Ok(Header::decode(&buf[..n]));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

const VERSION: u8 = 1;

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
