//! Bounds of the daemon, each with its reason. See also [`rocebud_ctl::limits`].

use std::time::Duration;

/// Connections at a time. Each costs some descriptors; a job of a process per core of a large
/// machine fits.
pub(crate) const CLIENTS_MAX: usize = 256;

/// Connections at a time, counting those that have not greeted and those to be turned away.
pub(crate) const CONNECTIONS_MAX: usize = CLIENTS_MAX + 64;

/// How long nobody is let in after descriptors ran out.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections of one ordinary user at a time, so that he cannot shut out the others.
pub(crate) const CLIENTS_PER_USER_MAX: usize = 160;

/// Slots that one ordinary user may hold: half of the positions that there are sockets for (see
/// [`crate::group::POSITIONS_MAX`]).
pub(crate) const SLOTS_PER_USER_MAX: usize = 256;

/// Slot numbers that one ordinary user may hold or have resting: half of all. A program that starts
/// and ends 150 times a second fits.
pub(crate) const NUMBERS_PER_USER_MAX: usize = 2047;

/// Requests taken from one client before the others have their turn.
pub(crate) const REQUESTS_PER_TURN: usize = 16;

/// Frames taken from one client's forwarding socket, or batches from slot 0, in a turn. A batch holds 234 datagrams
/// for QP1 at most, which wait for their turn in 330 bytes each: 5 MB.
pub(crate) const FRAMES_PER_TURN: usize = 64;

/// Send buffer of a forwarding socket, each way: some dozen full batches.
pub(crate) const FORWARDING_BYTES: u32 = 4 << 20;

/// Times [`FRAMES_PER_TURN`] batches that are read of what a dead process left unread: some ten
/// milliseconds' work. What lies behind them is thrown away unseen.
pub(crate) const REST_ROUNDS_MAX: usize = 16;

/// How long a connection may stay without a greeting.
pub(crate) const HELLO_WAIT: Duration = Duration::from_secs(5);

/// An automatic daemon leaves this long after its last client …
pub(crate) const LINGER: Duration = Duration::from_secs(3);

/// … or this long, when that client had an error completion that `rocebud status` can explain …
pub(crate) const LINGER_TO_EXPLAIN: Duration = Duration::from_secs(30);

/// … or when nobody came at all.
pub(crate) const LINGER_AT_START: Duration = Duration::from_secs(10);

/// … but at once when another daemon wants to serve and nobody uses this one. Whoever started it has this long
/// to come first, and the wish is forgotten after as long.
pub(crate) const STARTER_WAIT: Duration = Duration::from_secs(1);

/// Page-sets of dead processes that are kept.
pub(crate) const DEAD_MAX: usize = 16;

/// How long a new daemon waits for one that is just leaving to let go of the port.
pub(crate) const PORT_WAIT: Duration = Duration::from_secs(1);

/// After an interface came up its addresses are looked at again, because an automatic link-local
/// address is announced only when duplicate detection has ended.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Identifiers of connections of one client: some ten thousand connections, and their listeners.
pub(crate) const CM_IDS_PER_CLIENT_MAX: usize = 65_536;

/// Identifiers of all clients together: some hundred megabytes.
pub(crate) const CM_IDS_MAX: usize = 262_144;

/// Events of programs' own that may wait in a channel.
pub(crate) const CM_EVENTS_WAITING_MAX: usize = 65_536;

/// Event channels of one client; each costs two descriptors.
pub(crate) const CM_CHANNELS_PER_CLIENT_MAX: usize = 16_384;

/// Multicast groups of one identifier; each costs a socket.
pub(crate) const CM_GROUPS_PER_ID_MAX: usize = 64;

/// How long a peer that asks for a service whose listener has just gone is not refused: a program
/// that opens it again needs some milliseconds, and a peer asks again after a quarter of a second.
pub(crate) const REOFFER_GRACE: Duration = Duration::from_secs(1);

/// Services remembered for it.
pub(crate) const WITHDRAWN_MAX: usize = 4096;

/// Listeners in a status report, which is one message.
pub(crate) const LISTENERS_SHOWN_MAX: usize = 256;

/// Peers that a client may name, each to be asked whether it runs rocebud: a job on a thousand hosts.
/// Further ones are taken for peers that speak the standard.
pub(crate) const PEERS_PER_CLIENT_MAX: usize = 1024;

/// Peers in a status report.
pub(crate) const PEERS_SHOWN_MAX: usize = 256;
