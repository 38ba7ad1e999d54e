//! Every bound, and its reason.

/// Entries of a send or receive queue, at least: upstream keeps it so, and half of the receives
/// must make up a credit update.
pub const QUEUE_MIN: u16 = 16;

/// Entries of a send or receive queue, at most: credits are 16 bits that wrap and are compared for
/// inequality, so a full queue must stay below 2^16; upstream uses the same bound.
pub const QUEUE_MAX: u16 = 65534;

/// Entries of both queues unless the program says otherwise.
pub const QUEUE_DEFAULT: u16 = 384;

/// Bytes of both rings unless the program says otherwise.
pub const BUFFER_DEFAULT: u32 = 128 << 10;

/// Bytes of a ring, at least: below the low-water mark nothing could ever be sent.
pub const BUFFER_MIN: u32 = 2 * SEND_LOW_WATER;

/// Bytes of a ring, at most: a DATA message counts in 29 bits.
pub const BUFFER_MAX: u32 = 1 << 28;

/// Bytes sent from the caller's memory inside the work request unless the program says otherwise.
pub const INLINE_DEFAULT: u16 = 64;

/// A socket is writable when so many bytes of its send ring are free.
pub const SEND_LOW_WATER: u32 = 2048;

/// Bytes of one DATA message at most. Nothing on the wire depends on it: upstream stops there too.
pub const MESSAGE_MAX: u32 = 64 << 10;

/// Control messages (SGL, CTRL, keepalive) that may be unfinished at a time. They take no credit,
/// so this bounds what a peer has to have room for; the send queue keeps as many entries free.
pub const CONTROL_MAX: u16 = 4;

/// Entries of an iomap table at most: what byte 7 of the private data can say.
pub const IOMAP_MAX: u16 = 127 << 8;

/// Destinations that a datagram socket remembers. Each costs an address handle; beyond it the one
/// that was used longest ago is forgotten, and reached by UDP again.
pub const DESTINATIONS_MAX: usize = 4096;
