//! The UDP link: ordinary sockets, no privileges.
//!
//! Frames of one slot arrive at one receive socket per address family and leave by a few send
//! sockets. One packet costs about 4 µs in the kernel whatever its size, and so do sixty in one
//! batch: so batches go out by `UDP_SEGMENT` and come in by `UDP_GRO`.

mod addr;
mod recv;
mod ring;
mod send;
mod settings;
mod sockets;
mod steering;

pub use ring::{Ring, RingFds, RingSleep};
pub use sockets::{
    QueueState, Rings, SEND_PORT_MIN, SlotSockets, bound_port, free_send_socket, queue_state,
    receive_buffer_bytes, receive_socket, send_socket, set_receive_buffer, set_send_buffer,
};
pub use steering::{SLOTS_MAX, attach_steering};

use crate::sys;
use crate::{Caps, IdRule, PacketIo, RxFrame, SendReport, TxBatch};
use recv::{Receiver, Receivers};
use send::{SendSockets, Sender};
use settings::SendSocket;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;
/// Most segments of one batch; the limit of kernels before 6.9.
pub const SEGMENTS_MAX: usize = 64;
/// Most bytes of one batch: the largest UDP payload over IPv4.
pub const BATCH_BYTES_MAX: usize = 65_507;

/// Sends and receives through the sockets of one slot or more.
pub struct UdpLink {
    receivers: Receivers,
    send_sockets: SendSockets,
    sender: Sender,
}

impl UdpLink {
    /// Takes over the sockets of a slot, as the daemon handed them out.
    pub fn new(sockets: SlotSockets) -> io::Result<Self> {
        let mut link = Self {
            receivers: Receivers::new(),
            send_sockets: SendSockets {
                v4: SendSocket::all(sockets.send_v4, false),
                v6: SendSocket::all(sockets.send_v6, true),
            },
            sender: Sender::new(ROCE_PORT),
        };
        link.add_receivers(sockets.recv_v4, sockets.recv_v6, sockets.rings);
        Ok(link)
    }

    /// Takes over the sockets of a further slot; it is received from as well. Its send sockets are
    /// kept for later only if the link has none, since a flow must stay on its port.
    pub fn add_slot(&mut self, sockets: SlotSockets) -> io::Result<()> {
        self.add_receivers(sockets.recv_v4, sockets.recv_v6, sockets.rings);
        if self.send_sockets.v4.is_empty() {
            self.send_sockets.v4 = SendSocket::all(sockets.send_v4, false);
        }
        if self.send_sockets.v6.is_empty() {
            self.send_sockets.v6 = SendSocket::all(sockets.send_v6, true);
        }
        Ok(())
    }

    /// Destination port of everything sent, 4791 unless changed. For tests.
    pub fn set_peer_port(&mut self, port: u16) {
        self.sender.peer_port = port;
    }

    /// Allows or forbids batches of more than one segment to a destination, for a path that
    /// swallows them without an error.
    pub fn set_gso(&mut self, dst: IpAddr, on: bool) {
        self.sender.set_gso(dst, on);
    }

    /// Destinations whose path refused batches, for `status`.
    pub fn gso_refused(&self) -> Vec<IpAddr> {
        self.sender.gso_refused()
    }

    /// Every descriptor that the link has.
    pub fn all_fds(&self) -> Vec<RawFd> {
        let SendSockets { v4, v6 } = &self.send_sockets;
        let send = v4.iter().chain(v6).map(|socket| socket.fd.as_raw_fd());
        self.poll_fds().into_iter().chain(send).collect()
    }

    /// Joins a multicast group on the first receive socket of its family.
    pub fn join(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.multicast(group, ifindex, true)
    }

    /// Leaves a multicast group.
    pub fn leave(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.multicast(group, ifindex, false)
    }

    /// How full each receive queue is, in the order of `poll_fds`.
    pub fn queues(&self) -> Vec<QueueState> {
        let state = |r: &Receiver| queue_state(r.fd().as_fd()).unwrap_or_default();
        self.receivers.sockets().iter().map(state).collect()
    }

    /// The last receive looked at every socket and found nothing.
    pub fn is_dry(&self) -> bool {
        self.receivers.is_dry()
    }

    /// The next receive looks at these sockets only, as bits in the order of [`PacketIo::poll_fds`]: a
    /// poll said that they are readable.
    pub fn look_at(&mut self, readable: u64) {
        self.receivers.look_at(readable);
    }

    /// The last receive used up its allowance somewhere, and may have left something.
    pub fn may_have_more(&self) -> bool {
        self.receivers.has_more()
    }

    /// Brings [`PacketIo::rx_lost`] up to date, at the price of a system call per socket: the
    /// kernel tells of a loss by itself only with the next datagram.
    pub fn look_for_losses(&mut self) {
        self.receivers.look_for_losses();
    }

    /// As [`PacketIo::recv`], for callers that have read the clock already: `now_ns` of
    /// `CLOCK_MONOTONIC`. In a receive in vain the clock is a part that shows.
    pub fn recv_at(
        &mut self,
        now_ns: u64,
        max_batches: usize,
        sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> io::Result<usize> {
        self.receivers.recv(max_batches, now_ns, sink)
    }

    fn add_receivers(&mut self, v4: OwnedFd, v6: Option<OwnedFd>, rings: Rings) {
        self.receivers.add(Receiver::new(v4, false, rings.v4));
        if let Some(v6) = v6 {
            self.receivers.add(Receiver::new(v6, true, rings.v6));
        }
    }

    /// Small packets may come by the rings from now on, until somebody sleeps on a socket. The caller is
    /// about to receive, and will be back soon.
    #[inline]
    pub fn open_rings(&self) {
        for receiver in self.receivers.sockets() {
            receiver.open_ring();
        }
    }

    /// Batches that came through rings since this was last asked.
    pub fn take_from_rings(&mut self) -> u64 {
        self.receivers.take_from_rings()
    }

    /// The ring beside each receive socket, in the order of [`PacketIo::poll_fds`].
    pub fn rings(&self) -> Vec<Option<Ring>> {
        let ring = |r: &Receiver| r.ring().cloned();
        self.receivers.sockets().iter().map(ring).collect()
    }

    fn multicast(&self, group: IpAddr, ifindex: u32, join: bool) -> io::Result<()> {
        let receiver = self
            .receivers
            .sockets()
            .iter()
            .find(|r| r.is_v6() == group.is_ipv6())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))?;
        sockets::multicast(receiver.fd().as_fd(), group, ifindex, join)
    }
}

impl PacketIo for UdpLink {
    fn caps(&self, dst: IpAddr) -> Caps {
        Caps {
            icrc: true,
            segments_max: if self.sender.gso(dst) {
                SEGMENTS_MAX
            } else {
                1
            },
            batch_bytes_max: BATCH_BYTES_MAX,
            ip_id: if dst.is_ipv6() {
                IdRule::Absent
            } else {
                IdRule::SegmentIndex
            },
        }
    }

    fn real_sport(&self, v6: bool, wanted: u16) -> u16 {
        self.send_sockets
            .choose(v6, wanted)
            .map_or(wanted, |socket| socket.port)
    }

    fn send(&mut self, batches: &[TxBatch<'_>]) -> SendReport {
        self.sender.send(&mut self.send_sockets, batches)
    }

    fn recv(&mut self, max_batches: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> io::Result<usize> {
        self.recv_at(sys::monotonic_ns(), max_batches, sink)
    }

    fn look_everywhere(&mut self) {
        self.receivers.look_everywhere();
    }

    fn poll_fds(&self) -> Vec<RawFd> {
        self.receivers
            .sockets()
            .iter()
            .map(|r| r.fd().as_raw_fd())
            .collect()
    }

    fn rx_lost(&self) -> u64 {
        self.receivers.sockets().iter().map(Receiver::lost).sum()
    }
}

impl fmt::Debug for UdpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpLink")
            .field("receive", &self.poll_fds())
            .field("send_v4", &self.send_sockets.v4)
            .field("send_v6", &self.send_sockets.v6)
            .field("gso_refused", &self.gso_refused())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
