//! Packet links: UDP payloads in and out, in batches, behind one trait.
//!
//! A link knows addresses, segments and sockets; it knows no BTH and no ICRC. Whoever uses it seals
//! frames before [`PacketIo::send`] and verifies them after [`PacketIo::recv`]. What the ICRC
//! covers and a socket does not show (the IPv4 identification) is stated by [`Caps::ip_id`] on the
//! way out and guessed by [`RxFrame::seg_index`] on the way in.

#![deny(unsafe_code)]

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

mod bpf;
mod control;
pub mod packet;
mod sys;
pub mod udp;

/// One received UDP payload.
#[derive(Clone, Copy)]
pub struct RxFrame<'a> {
    /// The payload: one segment of a batch the kernel may have merged.
    pub data: &'a [u8],
    /// Who sent it; a link-local IPv6 sender carries its scope.
    pub src: SocketAddr,
    /// The address it was sent to; may be a multicast group.
    pub dst: IpAddr,
    /// Interface it came in on.
    pub ifindex: u32,
    /// IPv4 TOS or IPv6 traffic class, with the ECN bits as they arrived.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit as it arrived.
    pub hop_limit: u8,
    /// Position in its batch, from 0: the best guess of its IPv4 identification.
    pub seg_index: u16,
    /// Segments in the batch, at least 1.
    pub batch_len: u16,
}

/// What leaves in one piece: one or more UDP payloads for one destination, sealed.
#[derive(Clone, Copy)]
pub struct TxBatch<'a> {
    /// Address to send from. Unspecified leaves the choice to the kernel.
    pub src: IpAddr,
    /// Address to send to, always on port 4791 (see [`udp::UdpLink::set_peer_port`] for tests).
    pub dst: IpAddr,
    /// Interface to leave by; needed for link-local and multicast destinations, 0 = by route.
    pub ifindex: u32,
    /// Wanted UDP source port. The link sends from [`PacketIo::real_sport`] of it.
    pub sport: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit; 0 leaves the system's default.
    pub hop_limit: u8,
    /// Bytes of each payload but the last. Equal to or above `data.len()` for a single payload.
    pub segment: u16,
    /// The payloads end to end: full segments, then perhaps a shorter last.
    pub data: &'a [u8],
    /// To leave packet by packet: over IPv4 each is sealed for identification 0.
    pub singly: bool,
}

impl TxBatch<'_> {
    /// Number of payloads in the batch.
    pub fn segments(&self) -> usize {
        match self.segment {
            0 => 1,
            n => self.data.len().div_ceil(usize::from(n)).max(1),
        }
    }
}

// The payload is told by its length: dumping it would bury everything else.
impl fmt::Debug for TxBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            src,
            dst,
            ifindex,
            sport,
            traffic_class,
            hop_limit,
            segment,
            data,
            singly: _,
        } = self;
        write!(
            f,
            "{src}:{sport} -> {dst}%{ifindex} tc {traffic_class:#04x} hops {hop_limit}: "
        )?;
        write!(f, "{} bytes by {segment}", data.len())
    }
}

impl fmt::Debug for RxFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            data,
            src,
            dst,
            ifindex,
            traffic_class,
            hop_limit,
            seg_index,
            batch_len,
        } = self;
        write!(
            f,
            "{src} -> {dst}%{ifindex} tc {traffic_class:#04x} hops {hop_limit}: "
        )?;
        write!(f, "{} bytes, {seg_index} of {batch_len}", data.len())
    }
}

/// How the link numbers IPv4 packets; the ICRC covers that number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdRule {
    /// DF is set and the identification is the position in the batch: 0, 1, 2 …
    SegmentIndex,
    /// There is none (IPv6).
    Absent,
}

/// What the link can do towards one destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Frames must carry a right ICRC.
    pub icrc: bool,
    /// Most payloads in one batch. 1 where the path to the destination refused batches.
    pub segments_max: usize,
    /// Most bytes in one batch.
    pub batch_bytes_max: usize,
    /// IPv4 identification that frames must be sealed for.
    pub ip_id: IdRule,
}

/// What became of the batches given to [`PacketIo::send`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SendReport {
    /// Batches dealt with, from the front. The others were not sent because the socket or the
    /// device is full; give them again later, or count and drop them.
    pub sent: usize,
    /// Batches among `sent` that the system refused for good; they are lost.
    pub failed: usize,
    /// Batches among `sent` for which segmentation was refused now. They left as single packets,
    /// and [`Caps::segments_max`] of their destination is 1 from here on.
    pub gso_lost: usize,
    /// The IPv4 batch behind those that were sent cannot leave as one, and its packets are sealed for
    /// their places in it. Seal them anew, each for identification 0, and give it again as
    /// [`TxBatch::singly`].
    pub seal_singly: bool,
    /// errno of the last refusal, 0 if there was none.
    pub errno: i32,
}

/// A link: batches of UDP payloads out and in. Never blocks.
pub trait PacketIo {
    /// What the link can do towards `dst`.
    fn caps(&self, dst: IpAddr) -> Caps;

    /// The source port that a batch with `sport = wanted` really leaves from; seal frames with it.
    fn real_sport(&self, v6: bool, wanted: u16) -> u16;

    /// Sends batches in order. Never fails as a whole: see [`SendReport`].
    fn send(&mut self, batches: &[TxBatch<'_>]) -> SendReport;

    /// Hands at most about `max_batches` received batches to `sink`, one call per payload.
    /// Returns the number of payloads, 0 when nothing was there.
    fn recv(&mut self, max_batches: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> io::Result<usize>;

    /// The next [`recv`](Self::recv) looks at every socket, idle or not. Call it before going to
    /// sleep, after a wake-up and before a late timer acts.
    fn look_everywhere(&mut self);

    /// Descriptors that become readable when there is something to receive.
    fn poll_fds(&self) -> Vec<RawFd>;

    /// Datagrams that the kernel dropped because nobody read them in time, since the link began.
    fn rx_lost(&self) -> u64;
}
