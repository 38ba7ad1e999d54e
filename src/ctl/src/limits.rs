//! Bounds, each with its reason.

use std::time::Duration;

/// Bytes of one message. A seqpacket must fit the default socket buffer (212,992) with its
/// bookkeeping.
pub const MESSAGE_BYTES_MAX: usize = 160 * 1024;

/// Descriptors with one message. The kernel's own limit (`SCM_MAX_FD`) is 253; a slot needs
/// three, its send sockets and four for its rings.
pub const MESSAGE_FDS_MAX: usize = 64;

/// Bytes of a request to the daemon: some numbers, and the private data of a connection.
pub const REQUEST_BYTES_MAX: usize = 512;

/// Bytes of an answer about connections.
pub const CM_ANSWER_BYTES_MAX: usize = 1024;

/// Slots that one process may hold: 16,384 queue pairs.
pub const SLOTS_PER_PROCESS_MAX: usize = 4;

/// Queue pair numbers in a slot (12 bits).
pub const QPNS_PER_SLOT: usize = 4096;

/// Send sockets of a slot, per address family. One is chosen per queue pair, so that flows of
/// different queue pairs spread over receive queues and are not merged with each other.
pub const SEND_SOCKETS_PER_SLOT: usize = 4;

/// Open files that a daemon needs: twenty of its own, and a dozen for a moment with each slot that it gives.
/// With more programs it needs more, four each, and says so.
pub const DAEMON_FILES_MIN: u64 = 64;

/// How long a request may wait for its answer before the daemon counts as hung.
pub const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// How long a daemon may take to accept a connection and greet: it does neither anything else
/// before nor after, so one that is silent for this long is stopped or stuck, or gets no processor.
pub const GREETING_WAIT: Duration = Duration::from_secs(2);

/// Both for a daemon that is seen to have work, or to wait for a processor: dozens of programs that start
/// at once keep it from one for seconds.
pub const BUSY_WAIT: Duration = Duration::from_secs(10);

/// The same for whoever listens at the system's socket but not in our network namespace. It is
/// none of ours; only a daemon whose socket goes by another path could prove the opposite.
pub const STRANGER_WAIT: Duration = Duration::from_millis(200);

/// How long connecting and starting a daemon may take together.
pub const START_WAIT: Duration = Duration::from_secs(10);

/// Devices in one list; further interfaces are left out (the daemon logs it).
pub const DEVICES_MAX: usize = 128;

/// Entries of a GID table: `sgid_index` is eight bits on the wire of verbs, and a message holds
/// every table.
pub const GIDS_MAX: usize = 48;
