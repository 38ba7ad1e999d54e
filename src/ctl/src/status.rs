//! What `rocebud status` learns from the daemon.

use serde::{Deserialize, Serialize};

/// The daemon, its slots and its clients.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StatusReport {
    /// Version of the package.
    pub version: String,
    /// Process of the daemon.
    pub pid: u32,
    /// User that it runs as.
    pub uid: u32,
    /// Leaves after its last client.
    pub auto: bool,
    /// Where it listens.
    pub socket: String,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// IPv6 is in use.
    pub ipv6: bool,
    /// Receive buffer of a slot's socket, bytes of kernel memory.
    pub rcvbuf_bytes: u32,
    /// Why small packets do not come past the sockets, through rings; `None`: they do, while a program
    /// polls.
    pub no_rings: Option<String>,
    /// Slots in use or in time-wait.
    pub slots: Vec<SlotStatus>,
    /// Living clients, then the last dead ones, newest first.
    pub processes: Vec<ProcessStatus>,
    /// Counters of the daemon's own slot 0, those that are not 0.
    pub counters: Vec<(String, u64)>,
    /// Connections that were made through the connection manager.
    pub connections: ConnectionsStatus,
    /// Things worth knowing, as sentences ("IPv6 is off in this namespace …").
    pub remarks: Vec<String>,
}

/// What the connection manager has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ConnectionsStatus {
    /// Identifiers of programs (`rdma_cm_id`).
    pub identifiers: usize,
    /// Connections and questions, those in time-wait too.
    pub connections: usize,
    /// Who offers what, the first of them.
    pub listeners: Vec<ListenerStatus>,
    /// Its counters, those that are not 0.
    pub counters: Vec<(String, u64)>,
    /// Hosts that programs of this one had to do with, the first of them.
    pub peers: Vec<PeerStatus>,
}

/// A host, and whether it runs rocebud.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its address; a link-local one with its interface.
    pub address: String,
    /// It was asked, and has not answered yet.
    pub asked: bool,
    /// It runs rocebud. Else it speaks the standard and nothing else, and the rest is 0.
    pub ours: bool,
    /// IPv4 identifications of its packets are below this; 0 = any.
    pub id_bound: u16,
    /// Receive buffer of each of its processes in bytes; 0 = it does not say.
    pub receive_buffer: u32,
    /// Extensions of the protocol that it knows, one bit each.
    pub extensions: u32,
    /// It is this machine, in another network namespace.
    pub same_kernel: bool,
}

/// A service that is offered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// [`ProcessStatus::key`] of the process.
    pub process: u64,
    /// Port space: `TCP`, `UDP`, `IB` or `IPOIB`.
    pub space: String,
    /// Address and port.
    pub address: String,
}

/// A slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlotStatus {
    /// Its number: the upper 12 bits of its QPNs.
    pub slot: u16,
    /// Position of its sockets in the reuseport group.
    pub position: u16,
    /// [`ProcessStatus::key`] of the owner; `None` in time-wait.
    pub owner: Option<u64>,
    /// Milliseconds of time-wait left.
    pub time_wait_ms: u64,
}

/// A client process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Names it in [`crate::messages::Request::PagesOf`].
    pub key: u64,
    /// As the daemon sees it; 0 where it cannot.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Program name (15 characters).
    pub command: String,
    /// Its slots.
    pub slots: Vec<u16>,
    /// Milliseconds since it connected.
    pub age_ms: u64,
    /// Milliseconds since it went; `None` while it lives.
    pub dead_ms: Option<u64>,
    /// It has a page-set to look at.
    pub has_pages: bool,
}
