//! Every bound of the engine, with its reason.

/// Longest message in bytes: the RETH's length field is 32 bits and the specification stops here.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// Most READs and atomics a queue pair may have outstanding, each way; what the Linux software
/// peer offers, so programs that take a device's maximum match.
pub const RD_ATOMIC_MAX: u8 = 128;

/// Retries that `retry_cnt` can name. Seven means seven: programs rely on the error to notice a
/// dead peer.
pub const RETRY_CNT_MAX: u8 = 7;

/// The `rnr_retry` that never gives up.
pub const RNR_RETRY_INFINITE: u8 = 7;

/// Largest exponent of the local ACK timeout (5 bits on the wire of the connection manager).
pub const TIMEOUT_EXPONENT_MAX: u8 = 31;

/// Nanoseconds of a local ACK timeout with exponent 0.
pub const ACK_TIMEOUT_UNIT_NS: u64 = 4_096;

/// Later timeouts in a row may wait this many times longer, as a power of two: the specification
/// allows a timer to fire between one and four times its nominal value.
pub const TIMEOUT_BACKOFF_SHIFT_MAX: u32 = 2;

/// A timer that is late by more than its nominal time divided by this ran when its process had been
/// descheduled, not when the answer should have been there.
pub const TIMER_LATE_PARTS: u64 = 8;

/// Unacknowledged PSNs must stay well below half of the number space, or old and new cannot be
/// told apart.
pub const PSN_SPAN_MAX: u64 = 1 << 22;

/// Packets that one READ request may ask for; keeps [`PSN_SPAN_MAX`] far away even with
/// [`RD_ATOMIC_MAX`] requests outstanding.
pub const READ_CHUNK_PACKETS_MAX: u32 = 1 << 14;

/// How long a queue pair that holds nothing of a budget waits for its turn at it. Longer than the
/// turns of thousands of queue pairs take, shorter than a program notices.
pub const LINE_WAIT_NS: u64 = 50_000_000;

/// What a packet costs in a receive buffer beyond its payload. The kernel charges whole buffers;
/// this is a fair mean between single datagrams (768) and merged ones (next to nothing).
pub const PACKET_COST_BYTES: u64 = 512;

/// What a packet that waits for a receive costs beyond its payload: what is kept beside it, and
/// the allocator's share.
pub const PARKED_COST_BYTES: u64 = 256;

/// Held queue pairs that try again in one go: the others would find the room taken.
pub const HELD_RETRIES: usize = 16;

/// A connection's peer is told of congestion at most this often: the value of DCQCN's authors, in
/// which the peer's sender has one lowering and no repetition of it.
pub const CNP_INTERVAL_NS: u64 = 50_000;

/// Datagram receives begin with room for a global route header.
pub const GRH_BYTES: u64 = 40;

/// Ports of a device.
pub const PORT_MAX: u8 = 1;

/// Bytes that a frame may have in the buffer given to `poll_transmit`: largest payload, longest
/// chain of headers, pad and ICRC, rounded up.
pub const FRAME_BYTES_MAX: usize = 4096 + 128;

/// A rate-limited queue pair may send at once what its rate brings in this time, unless the program
/// says otherwise: timers of ordinary systems are not exact to less.
pub const PACE_BURST_NS: u64 = 1_000_000;

/// Queue pairs attached to one multicast group; as the Linux software peer.
pub const MCAST_ATTACH_MAX: usize = 56;
