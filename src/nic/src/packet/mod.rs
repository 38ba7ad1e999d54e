//! Whole frames of one interface, over packet sockets. Whoever opens one needs CAP_NET_RAW in the
//! network namespace that the interface is in; the kernel checks it.
//!
//! What comes in is a copy: the kernel's own stack gets every frame as well and goes on working. A
//! [`Filter`] keeps out what nobody asked for, before it costs a buffer or a wake-up.

mod checksum;
mod filter;

pub use filter::{Filter, Outgoing, Test};

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use crate::control::take;
use crate::sys::{self, Arrival, Buffer, Envelope, MESSAGES_MAX};
use crate::udp::{QueueState, queue_state, set_receive_buffer, set_send_buffer};

/// Receive buffer asked for, in bytes of kernel memory; a privileged process gets it whatever
/// `net.core.rmem_max` says.
const RECEIVE_BUFFER_BYTES: u32 = 64 << 20;
/// Send buffer asked for.
const SEND_BUFFER_BYTES: u32 = 4 << 20;

/// Bytes of a VLAN tag, which the kernel takes off and which is put back in.
const TAG_BYTES: usize = 4;
/// Bytes in front of the place of a VLAN tag: both MAC addresses.
const ADDRESSES_BYTES: usize = 12;

const ETHER_TYPE_VLAN: u16 = 0x8100;
const PACKET_OUTGOING: u8 = 4;

/// Sends frames as they are.
pub struct FrameSender {
    fd: OwnedFd,
    envelopes: Vec<Envelope>,
}

impl FrameSender {
    /// A sender of interface `ifindex`.
    ///
    /// Errors: EPERM without the right; ENODEV when there is no such interface.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let fd = sys::packet_socket()?;
        // May fail: a smaller buffer is slower and nothing else.
        let _ = set_send_buffer(fd.as_fd(), SEND_BUFFER_BYTES);
        sys::bind(fd.as_fd(), &name(ifindex, 0))?;
        Ok(Self {
            fd,
            envelopes: vec![Envelope::empty(); MESSAGES_MAX],
        })
    }

    /// MAC address of the interface; zero if it has none.
    ///
    /// Errors: as the system gives them.
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        sys::bound_name(self.fd.as_fd()).map(|name| take(&name, 12))
    }

    /// Sends frames in order, without waiting; returns how many were taken, at least one.
    ///
    /// Errors, of the first frame: EAGAIN and ENOBUFS when there is no room now; EMSGSIZE when it
    /// is longer than the interface takes, EINVAL when it is shorter than its header; ENETDOWN.
    pub fn send(&self, frames: &[&[u8]]) -> io::Result<usize> {
        loop {
            match sys::send_many(self.fd.as_fd(), &self.envelopes, frames) {
                Err(libc::EINTR) => {}
                done => return done.map_err(io::Error::from_raw_os_error),
            }
        }
    }
}

impl AsRawFd for FrameSender {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A received frame.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// From the destination address on, VLAN tags included, without the frame check sequence.
    pub data: &'a [u8],
    /// It did not come in: this host sends it.
    pub outgoing: bool,
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.outgoing { "out" } else { "in" };
        write!(f, "{} bytes {direction}", self.data.len())
    }
}

/// Receives copies of an interface's frames.
pub struct FrameReceiver {
    fd: OwnedFd,
    ifindex: u32,
    buffers: Vec<Buffer>,
    arrivals: Vec<Arrival>,
    first: QueueState,
    lost: u64,
}

/// Frames that an interface does not take in by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Listen {
    /// To a group.
    Group([u8; 6]),
    /// To an address that is not its own.
    Address([u8; 6]),
    /// To any group.
    AllGroups,
    /// Whatever is on the wire.
    All,
}

impl FrameReceiver {
    /// A receiver of what passes `filter` on interface `ifindex`.
    ///
    /// Errors: EPERM without the right; ENODEV when there is no such interface.
    pub fn open(ifindex: u32, filter: &Filter) -> io::Result<Self> {
        let fd = sys::packet_socket()?;
        let _ = set_receive_buffer(fd.as_fd(), RECEIVE_BUFFER_BYTES);
        let on = 1i32.to_ne_bytes();
        sys::set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_AUXDATA, &on)?;
        filter.attach(fd.as_fd())?;
        // The filter is there before the first frame.
        sys::bind(fd.as_fd(), &name(ifindex, libc::ETH_P_ALL as u16))?;
        let first = queue_state(fd.as_fd()).unwrap_or_default();
        Ok(Self {
            fd,
            ifindex,
            buffers: vec![Buffer([0; sys::BUFFER_BYTES]); MESSAGES_MAX],
            arrivals: vec![Arrival::empty(); MESSAGES_MAX],
            first,
            lost: 0,
        })
    }

    /// Replaces the filter. Frames that wait have passed the old one.
    ///
    /// Errors: as the system gives them; the old filter stays.
    pub fn set_filter(&self, filter: &Filter) -> io::Result<()> {
        filter.attach(self.fd.as_fd())
    }

    /// Makes the interface take in more frames, or no longer. What is asked for twice ends when it
    /// was given up twice, or with the receiver.
    ///
    /// Errors: as the system gives them.
    pub fn listen(&self, what: Listen, on: bool) -> io::Result<()> {
        let (kind, address) = match what {
            Listen::Group(mac) => (libc::PACKET_MR_MULTICAST, mac),
            Listen::Address(mac) => (libc::PACKET_MR_UNICAST, mac),
            Listen::AllGroups => (libc::PACKET_MR_ALLMULTI, [0; 6]),
            Listen::All => (libc::PACKET_MR_PROMISC, [0; 6]),
        };
        // struct packet_mreq: interface, kind, length of the address, address.
        let mut request = [0u8; 16];
        request[..4].copy_from_slice(&self.ifindex.to_ne_bytes());
        request[4..6].copy_from_slice(&(kind as u16).to_ne_bytes());
        request[6..8].copy_from_slice(&6u16.to_ne_bytes());
        request[8..14].copy_from_slice(&address);
        let name = if on {
            libc::PACKET_ADD_MEMBERSHIP
        } else {
            libc::PACKET_DROP_MEMBERSHIP
        };
        sys::set_option(self.fd.as_fd(), libc::SOL_PACKET, name, &request)
    }

    /// Hands what is there to `sink`, at most one system call's worth. Returns the number of frames.
    ///
    /// Errors: ENETDOWN when the interface goes down, once; others as the system gives them.
    pub fn recv(&mut self, sink: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize> {
        let fd = self.fd.as_fd();
        let got = loop {
            match sys::receive_many(fd, &mut self.buffers, TAG_BYTES, &mut self.arrivals) {
                Ok(got) => break got,
                Err(libc::EINTR) => {}
                Err(libc::EAGAIN) => return Ok(0),
                Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
            }
        };
        for (buffer, arrival) in self.buffers.iter_mut().zip(&self.arrivals).take(got) {
            // The kernel merges what no wire carries in one piece; the longest do not fit.
            if arrival.flags & libc::MSG_TRUNC != 0 {
                self.lost += 1;
                continue;
            }
            sink(Frame {
                data: restore(&mut buffer.0, arrival),
                // sockaddr_ll: family, protocol, interface, kind of hardware, kind of packet.
                outgoing: arrival.name[10] == PACKET_OUTGOING,
            });
        }
        Ok(got)
    }

    /// Frames lost since the receiver was opened, for want of room. One system call.
    pub fn lost(&self) -> u64 {
        let now = queue_state(self.fd.as_fd()).unwrap_or(self.first);
        self.lost + u64::from(now.drops.wrapping_sub(self.first.drops))
    }
}

impl AsRawFd for FrameReceiver {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// The frame as it is on the wire: with its VLAN tag, and with the checksum that the sender's
/// kernel has left to a network card.
fn restore<'a>(buffer: &'a mut [u8], arrival: &Arrival) -> &'a [u8] {
    const VLAN_VALID: u32 = libc::TP_STATUS_VLAN_VALID;
    const TPID_VALID: u32 = libc::TP_STATUS_VLAN_TPID_VALID;
    let (mut status, mut tag, mut tpid) = (0, 0u16, 0u16);
    arrival.each_message(|level, kind, data| {
        if (level, kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
            // struct tpacket_auxdata: status, lengths, offsets, tag, protocol of the tag.
            status = u32::from_ne_bytes(take(data, 0));
            tag = u16::from_ne_bytes(take(data, 16));
            tpid = u16::from_ne_bytes(take(data, 18));
        }
    });
    let end = TAG_BYTES + arrival.len;
    if status & libc::TP_STATUS_CSUMNOTREADY != 0
        && let Some(frame) = buffer.get_mut(TAG_BYTES..end)
    {
        checksum::complete(frame);
    }
    let mut start = TAG_BYTES;
    if status & VLAN_VALID != 0 && arrival.len >= ADDRESSES_BYTES {
        let tpid = if status & TPID_VALID != 0 {
            tpid
        } else {
            ETHER_TYPE_VLAN
        };
        buffer.copy_within(TAG_BYTES..TAG_BYTES + ADDRESSES_BYTES, 0);
        buffer[ADDRESSES_BYTES..][..2].copy_from_slice(&tpid.to_be_bytes());
        buffer[ADDRESSES_BYTES + 2..][..2].copy_from_slice(&tag.to_be_bytes());
        start = 0;
    }
    buffer.get(start..end).unwrap_or_default()
}

/// `sockaddr_ll` of an interface.
fn name(ifindex: u32, protocol: u16) -> [u8; 20] {
    let mut name = [0; 20];
    name[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
    name[2..4].copy_from_slice(&protocol.to_be_bytes());
    name[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    name
}

impl fmt::Debug for FrameSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameSender")
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for FrameReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameReceiver")
            .field("fd", &self.fd)
            .field("ifindex", &self.ifindex)
            .finish_non_exhaustive()
    }
}
