//! How much the connection manager keeps, and why not more.

/// Connections of one manager, time-wait included: 10,000 between two processes of one host are
/// 20,000 here; six times that. A connection is about 700 bytes, 1.3 KB with the daemon's identifier and its
/// places in all tables: 170 MB at the most.
pub const CONNECTIONS_MAX: usize = 131_072;

/// Requests that wait for an application, if it names no number: what Linux takes.
pub const BACKLOG_DEFAULT: u32 = 1024;

/// The longest backlog that an application gets.
pub const BACKLOG_MAX: u32 = 4096;

/// So many places of a backlog, or an eighth of it if that is less, are kept for peers of which
/// no request waits, so that a peer that floods a listener does not shut out the others.
pub const BACKLOG_RESERVE: u32 = 16;

/// Connections that one peer may ask for before it is ready for them, accepted or not: beyond
/// it its requests are dropped. Room for 10,000 at once from one process: 21 MB, given up after eight seconds
/// (the daemon's heap keeps the pages for the next ones).
pub const HALF_OPEN_MAX: u32 = 16_384;

/// Listeners of one manager.
pub const LISTENERS_MAX: usize = 65_536;

/// Events that wait to be polled before new requests are dropped.
pub const EVENTS_MAX: usize = 65_536;

/// Messages that wait to be polled before answers that a peer can ask for again are dropped: 2 MB.
pub const ANSWERS_MAX: usize = 4096;

/// The code in an MRA for a request that finds the backlog full: come again in half a second.
pub const BUSY_CODE: u8 = 17;

/// Requests that are told in one go to come again; beyond it they are dropped, and counted. An MRA costs ten times
/// what it costs to read the request, so a flood must not be answered as fast as it comes. Room for a program
/// that connects thousands of times at once.
pub const PUT_OFFS_MAX: u64 = 4096;

/// How many more a second. A peer that got no answer comes again by itself, five times within eight seconds.
pub const PUT_OFFS_A_SECOND: u64 = 2048;

/// How often a peer may ask for patience about one message, and for how long in all: 64 times
/// half a second for a busy listener, 20 minutes for an application that thinks.
pub const MRAS_MAX: u8 = 64;

/// See [`MRAS_MAX`]. Nanoseconds.
pub const PATIENCE_NS_MAX: u64 = 20 * 60 * 1_000_000_000;

/// The longest time that an MRA makes us wait: 4.7 minutes (code 26). Linux itself says 24.
pub const MRA_CODE_MAX: u8 = 26;

/// The longest time-wait: 17 s (code 22). A peer names the code, and must not pin our memory.
pub const TIME_WAIT_CODE_MAX: u8 = 22;
