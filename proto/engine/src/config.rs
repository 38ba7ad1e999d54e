//! What the caller of a [`Node`](crate::Node) may tune.

use crate::limits;

/// Settings of a node. Every field may be changed between two calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    /// Send and write packets that one RC or XRC queue pair may have unacknowledged. 1 and up.
    pub window_packets: u32,
    /// Bytes (payload plus a charge per packet) that all RC and XRC queue pairs together may have
    /// unacknowledged at one peer process: (peer address, upper 12 bits of its QPN). A queue pair
    /// with nothing in flight may always send one packet, and so may one of which nothing in flight
    /// asks for an ACK. Used until [`Node::set_peer_window`](crate::Node::set_peer_window) says
    /// better.
    pub peer_window_bytes: u32,
    /// A READ is asked for in requests of at most this many response packets. 1..=16384.
    pub read_chunk_packets: u32,
    /// Bytes of READ responses that all queue pairs together may have asked for: they arrive in
    /// our own receive buffer. One request per queue pair is always allowed.
    pub read_window_bytes: u32,
    /// An ACK is sent after this many packets even if none of them asked for one.
    pub ack_every_packets: u32,
    /// Inside a long message the requester asks for an ACK every so many packets.
    pub ack_request_every_packets: u32,
    /// Packets that one queue pair may send before the next one's turn.
    pub quantum_packets: u32,
    /// Floor of the local ACK timeout in nanoseconds; hardware has one too. Processes get
    /// descheduled for milliseconds, and that is not a loss.
    pub ack_timeout_min_ns: u64,
    /// Bytes (payload plus a charge per packet) of UC and UD packets that may wait for receives to
    /// be posted, all queue pairs together. 0 = none wait.
    pub park_bytes_max: u64,
    /// How long each of them waits, in nanoseconds.
    pub park_ns: u64,
    /// Most READs and atomics outstanding that a queue pair may be given, each way.
    pub max_rd_atomic: u8,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            window_packets: 128,
            peer_window_bytes: 212_992 / 2,
            read_chunk_packets: 16,
            read_window_bytes: 212_992 / 2,
            ack_every_packets: 32,
            ack_request_every_packets: 16,
            quantum_packets: 64,
            ack_timeout_min_ns: 5_000_000,
            park_bytes_max: 32 << 20,
            park_ns: 1_000_000_000,
            max_rd_atomic: limits::RD_ATOMIC_MAX,
        }
    }
}

impl NodeConfig {
    /// Response packets of one READ request, within its bounds.
    pub(crate) fn read_chunk(&self) -> u32 {
        self.read_chunk_packets
            .clamp(1, limits::READ_CHUNK_PACKETS_MAX)
    }
}

/// A fault planted on purpose, to prove that the simulator's checkers see it.
#[cfg(feature = "planted")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A duplicate atomic request is executed again.
    DuplicateAtomicExecuted,
    /// An ACK completes READs and atomics that were never answered.
    AckPastUnansweredRead,
    /// PSNs are compared as plain numbers.
    PsnComparedWithoutWrap,
    /// The ACK timer does nothing once everything was sent.
    LostLastAckNeverRecovered,
    /// The last send request is flushed twice.
    DoubleFlush,
    /// A bind that is flushed stays in force.
    FlushedBindStays,
    /// A bind is carried out again when earlier packets are sent again.
    BindRepeated,
}
