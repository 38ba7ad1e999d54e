//! What library and daemon say about connections: the daemon keeps identifiers, ports and the
//! connection manager's state, the library the queue pairs.
//!
//! Events wait in the daemon, in a queue per channel. A channel has a socket that the program may
//! poll: it is readable while its queue is not empty. The library takes the one byte there before
//! it asks for the event ([`CmRequest::NextEvent`]); the daemon puts the next byte there if more
//! events wait, before it answers.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use serde::{Deserialize, Serialize};

/// Bytes of private data that any message may carry.
pub const PRIVATE_DATA_MAX: usize = 224;

/// An address of a program. `SocketAddr` would lose its scope on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CmAddr {
    /// IPv4 or IPv6.
    pub ip: IpAddr,
    /// In host order; 0 = any.
    pub port: u16,
    /// Interface of a link-local address; 0 = none given.
    pub scope: u32,
}

impl CmAddr {
    /// As the system's calls want it.
    #[must_use]
    pub const fn socket_addr(&self) -> SocketAddr {
        match self.ip {
            IpAddr::V4(_) => SocketAddr::new(self.ip, self.port),
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, self.port, 0, self.scope)),
        }
    }
}

/// A request about connections. `id` and `channel` are numbers that the daemon gave this process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are those of rdma_cma.h")]
pub enum CmRequest {
    /// Answer: [`CmAnswer::Channel`] and a descriptor.
    OpenChannel,
    /// Identifiers that are still on it are destroyed.
    CloseChannel {
        channel: u32,
    },
    /// `space` is an `RDMA_PS_*`, `qp_type` an `IBV_QPT_*`. Answer: [`CmAnswer::Id`].
    CreateId {
        channel: u32,
        space: u16,
        qp_type: u8,
    },
    /// Its connection ends, its unread events vanish.
    DestroyId {
        id: u32,
    },
    /// Its unread events go along.
    MigrateId {
        id: u32,
        channel: u32,
    },
    /// Answer: [`CmAnswer::Event`].
    NextEvent {
        channel: u32,
    },
    /// Answer: [`CmAnswer::Bound`].
    Bind {
        id: u32,
        address: CmAddr,
    },
    /// Event: ADDR_RESOLVED or ADDR_ERROR within `timeout_ms`.
    ResolveAddr {
        id: u32,
        source: Option<CmAddr>,
        destination: CmAddr,
        timeout_ms: u32,
    },
    /// Event: ROUTE_RESOLVED or ROUTE_ERROR.
    ResolveRoute {
        id: u32,
    },
    /// Answer: [`CmAnswer::Bound`].
    Listen {
        id: u32,
        backlog: u32,
    },
    Connect {
        id: u32,
        param: CmParam,
    },
    Accept {
        id: u32,
        param: CmParam,
    },
    /// The active end's queue pair is ready: RTU.
    Establish {
        id: u32,
    },
    /// `reason` 0 is "by the consumer".
    Reject {
        id: u32,
        reason: u8,
        private_data: Vec<u8>,
    },
    Disconnect {
        id: u32,
    },
    /// The queue pair has seen the peer's first packet (`IBV_EVENT_COMM_EST`), or has `migrated` to its other
    /// path (`IBV_EVENT_PATH_MIG`).
    Notify {
        id: u32,
        migrated: bool,
    },
    /// Answer: [`CmAnswer::QpAttr`].
    QpAttr {
        id: u32,
    },
    SetOption {
        id: u32,
        option: CmOption,
    },
    /// Answer: [`CmAnswer::Joined`]. Event: MULTICAST_JOIN or MULTICAST_ERROR.
    Join {
        id: u32,
        group: CmAddr,
    },
    /// Its unread events vanish.
    Leave {
        id: u32,
        membership: u32,
    },
    /// An event of the program's own.
    WriteEvent {
        id: u32,
        kind: u32,
        status: i32,
        argument: u64,
    },
    /// The program's own path, in place of the one that ResolveRoute finds. Event: ROUTE_RESOLVED.
    SetPath {
        id: u32,
        path: CmPath,
    },
}

/// A path record without what RoCE has no use for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CmPath {
    /// Own GID.
    pub sgid: [u8; 16],
    /// The peer's GID.
    pub dgid: [u8; 16],
    /// 20 bits.
    pub flow_label: u32,
    /// Of the route.
    pub hop_limit: u8,
    /// TOS option, else 0.
    pub traffic_class: u8,
    /// `enum ibv_mtu`.
    pub mtu: u8,
    /// Code of the packet life time.
    pub packet_life_time: u8,
}

/// `rdma_set_option` at the level of the identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CmOption {
    /// Traffic class of the connection.
    Tos(u8),
    /// Several may bind one port, as long as at most one listens.
    ReuseAddr(bool),
    /// An IPv6 wildcard does not cover IPv4.
    AfOnly(bool),
    /// Local ACK timeout of the queue pair, 5 bits.
    AckTimeout(u8),
}

/// What an end of a connection says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are those of rdma_cma.h")]
pub struct CmParam {
    pub qpn: u32,
    pub srq: bool,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    /// Q_Key that a datagram service answers with; 0 = the port space's.
    pub qkey: u32,
    pub private_data: Vec<u8>,
    pub ece: CmEce,
}

/// `struct ibv_ece` without its mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are those of verbs.h")]
pub struct CmEce {
    pub vendor_id: u32,
    pub options: u32,
}

/// Where an identifier is bound, and to which device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CmBound {
    /// The source address, with the port that it got.
    pub source: CmAddr,
    /// Interface of the device; 0 while it is bound to none.
    pub ifindex: u32,
}

/// The way between two addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CmRoute {
    /// Own address and port.
    pub source: CmAddr,
    /// The peer's.
    pub destination: CmAddr,
    /// Interface of the device.
    pub ifindex: u32,
    /// What packets between them look like.
    pub path: CmPath,
}

/// `struct ibv_ah_attr` of a global address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are those of verbs.h")]
pub struct CmAh {
    pub dgid: [u8; 16],
    pub sgid_index: u8,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// What a queue pair needs on its way to RTS, all of it at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are those of verbs.h")]
pub struct CmQpAttr {
    pub access_flags: u32,
    pub qkey: u32,
    /// The peer is known: what follows has a meaning.
    pub connected: bool,
    pub ah: CmAh,
    pub path_mtu: u8,
    pub dest_qpn: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}

/// What a [`CmRequest`] is answered with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CmAnswer {
    /// The request was taken.
    Done,
    /// It was refused: a positive errno.
    Refused(i32),
    /// Number of a channel; its socket comes along.
    Channel(u32),
    /// Number of an identifier.
    Id(u32),
    /// To [`CmRequest::Bind`] and [`CmRequest::Listen`].
    Bound(CmBound),
    /// The oldest event; `None` when another thread was faster or it vanished.
    Event(Option<Box<CmEvent>>),
    /// To [`CmRequest::QpAttr`].
    QpAttr(CmQpAttr),
    /// Number of a membership in a multicast group.
    Joined(u32),
    /// To [`CmRequest::DestroyId`], [`CmRequest::MigrateId`] and [`CmRequest::Leave`]: events of
    /// it that were given out so far.
    Reported(u32),
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CmEvent {
    /// `enum rdma_cm_event_type`.
    pub kind: u32,
    /// Whose it is. For CONNECT_REQUEST a new identifier.
    pub id: u32,
    /// For CONNECT_REQUEST: who listened. Else 0.
    pub listener: u32,
    /// Negative errno, or a reason of the connection manager.
    pub status: i32,
    /// More, by kind.
    pub details: CmDetails,
}

/// What comes with an event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CmDetails {
    /// Nothing.
    None,
    /// ADDR_RESOLVED, ROUTE_RESOLVED.
    Route(CmRoute),
    /// CONNECT_REQUEST of a connected service: how the peer can be reached, and what it said.
    Request(CmRoute, CmParam),
    /// CONNECT_RESPONSE, ESTABLISHED, REJECTED, DISCONNECTED.
    Peer(CmParam),
    /// CONNECT_REQUEST of a datagram service.
    DatagramRequest(CmRoute, CmDatagram),
    /// ESTABLISHED of a datagram service.
    Datagram(CmDatagram),
    /// MULTICAST_JOIN and MULTICAST_ERROR, with the number of the membership.
    Multicast(u32, CmDatagram),
    /// [`CmRequest::WriteEvent`].
    Argument(u64),
}

/// `struct rdma_ud_param`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are those of rdma_cma.h")]
pub struct CmDatagram {
    pub private_data: Vec<u8>,
    pub ah: CmAh,
    pub qpn: u32,
    pub qkey: u32,
}
