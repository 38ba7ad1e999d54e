//! The words of the [`Manager`](crate::Manager): who is who, what can be asked, what happens.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rocebud_wire::{Gid, Mtu, PKey, Psn, QKey, Qpn};

use crate::ip::IpCm;
use crate::mad::MAD_LEN;
use crate::reason::RejReason;

/// A connection, or a question for a service: our communication id. Unpredictable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u32);

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u32);

/// Between whom a message travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ends {
    /// The port (device) through which it goes; a number of the caller's choice.
    pub port: u32,
    /// Our address, as a GID. Of a message that came: its destination.
    pub local: Gid,
    /// The peer's address, as a GID. Of a message that came: its source.
    pub remote: Gid,
}

/// A peer: its address, and the port where that is link-local.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Peer(Gid, u32);

impl Peer {
    /// Who is at the other end.
    #[must_use]
    pub const fn of(ends: &Ends) -> Self {
        let link_local = matches!(ends.remote.0, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, ..]);
        Self(ends.remote, if link_local { ends.port } else { 0 })
    }
}

/// How packets get to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// Between whom.
    pub ends: Ends,
    /// 20 bits; 0 = none.
    pub flow_label: u32,
    /// Type of service.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
}

/// A message to be sent: UD SEND Only from queue pair 1 to queue pair 1, Q_Key 0x80010000.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where to.
    pub path: Path,
    /// The payload.
    pub mad: Box<[u8; MAD_LEN]>,
}

/// The kind of queue pair that is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CmQpType {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection: the requester is an initiator, its peer a target.
    Xrc,
}

/// Options of enhanced connection establishment. Zeros = none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ece {
    /// Who defined the options: 24 bits.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// Which addresses a listener serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bind {
    /// All.
    #[default]
    Any,
    /// All IPv4 addresses.
    AnyV4,
    /// All IPv6 addresses.
    AnyV6,
    /// One address.
    Addr {
        /// The address.
        gid: Gid,
        /// Only through this port, as a link-local address needs.
        port: Option<u32>,
    },
}

/// A service to be offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// The service; [`crate::ip::service_id`] for a port.
    pub service_id: u64,
    /// The bits of `service_id` that count; all of them for a port.
    pub mask: u64,
    /// At which addresses.
    pub bind: Bind,
    /// Requests that may wait; 0 = [`crate::limits::BACKLOG_DEFAULT`].
    pub backlog: u32,
}

/// A connection to be asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// Way to the peer.
    pub path: Path,
    /// GUID of our device: not 0, different on every host.
    pub ca_guid: u64,
    /// What is asked for.
    pub service_id: u64,
    /// Addresses for the IP service; its header goes in front of `private_data`.
    pub ip: Option<IpCm>,
    /// Kind of our queue pair.
    pub qp_type: CmQpType,
    /// Our queue pair.
    pub qpn: Qpn,
    /// It has a shared receive queue.
    pub srq: bool,
    /// It has end-to-end flow control.
    pub flow_control: bool,
    /// RDMA READs and atomics that we can serve at a time.
    pub responder_resources: u8,
    /// RDMA READs and atomics that we will have under way at a time.
    pub initiator_depth: u8,
    /// `retry_cnt` of both queue pairs; more than 7 means 7.
    pub retry_count: u8,
    /// `rnr_retry` of the peer's queue pair; more than 7 means 7.
    pub rnr_retry_count: u8,
    /// MTU of the path.
    pub mtu: Mtu,
    /// Partition.
    pub pkey: PKey,
    /// How long a packet may be on its way: 4.096 µs × 2^n. The `timeout` of both queue pairs
    /// follows from it: n + 1 or more.
    pub packet_life: u8,
    /// How late our acknowledgements may be: 4.096 µs × 2^n.
    pub ca_ack_delay: u8,
    /// How fast each side shall answer messages, told to the peer: 4.096 µs × 2^n.
    pub response_timeout: u8,
    /// How often the peer shall repeat its messages, at most 15.
    pub max_cm_retries: u8,
    /// Options of enhanced connection establishment.
    pub ece: Ece,
    /// At most 56 bytes behind an IP header, 92 without.
    pub private_data: Vec<u8>,
}

impl Connect {
    /// A request with the values that rdma_cm programs usually have: RC, retry counts 7, MTU
    /// 1024, one RDMA READ each way, packet life 16.
    #[must_use]
    pub const fn new(path: Path, ca_guid: u64, service_id: u64, qpn: Qpn) -> Self {
        Self {
            path,
            ca_guid,
            service_id,
            ip: None,
            qp_type: CmQpType::Rc,
            qpn,
            srq: false,
            flow_control: false,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            mtu: Mtu::M1024,
            pkey: PKey::DEFAULT,
            packet_life: 16,
            ca_ack_delay: 15,
            response_timeout: 20,
            max_cm_retries: 15,
            ece: Ece {
                vendor_id: 0,
                options: 0,
            },
            private_data: Vec::new(),
        }
    }
}

/// The answer to a [`Request`] that is welcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accept {
    /// GUID of our device: not 0, different on every host.
    pub ca_guid: u64,
    /// Our queue pair.
    pub qpn: Qpn,
    /// It has a shared receive queue.
    pub srq: bool,
    /// It has end-to-end flow control.
    pub flow_control: bool,
    /// RDMA READs and atomics that we will serve at a time; at most what the request offers to
    /// send, which is for the caller to see to.
    pub responder_resources: u8,
    /// RDMA READs and atomics that we will have under way; at most what the peer can serve.
    pub initiator_depth: u8,
    /// `rnr_retry` of the peer's queue pair; more than 7 means 7.
    pub rnr_retry_count: u8,
    /// How late our acknowledgements may be: 4.096 µs × 2^n.
    pub ca_ack_delay: u8,
    /// Options of enhanced connection establishment.
    pub ece: Ece,
    /// At most 196 bytes.
    pub private_data: Vec<u8>,
}

impl Accept {
    /// An answer with the usual values.
    #[must_use]
    pub const fn new(ca_guid: u64, qpn: Qpn) -> Self {
        Self {
            ca_guid,
            qpn,
            srq: false,
            flow_control: false,
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            ca_ack_delay: 15,
            ece: Ece {
                vendor_id: 0,
                options: 0,
            },
            private_data: Vec::new(),
        }
    }
}

/// Attributes with which a queue pair moves to RTR and RTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpParams {
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN that we expect: our own choice, told to the peer.
    pub rq_psn: Psn,
    /// First PSN that we send: the peer's choice.
    pub sq_psn: Psn,
    /// MTU of the path, from the REQ.
    pub path_mtu: Mtu,
    /// RDMA READs and atomics under way, as the peer serves them. Not cut to the device's maximum.
    pub max_rd_atomic: u8,
    /// RDMA READs and atomics to serve. Not cut to the device's maximum. If 0, remote READs and
    /// atomics need not be allowed.
    pub max_dest_rd_atomic: u8,
    /// ACK timeout code.
    pub timeout: u8,
    /// Retries of unacknowledged packets.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// Partition.
    pub pkey: PKey,
}

/// Somebody asks for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The connection, if it is accepted.
    pub conn: ConnId,
    /// Who is asked.
    pub listener: ListenerId,
    /// Way back to the requester.
    pub path: Path,
    /// What is asked for.
    pub service_id: u64,
    /// Addresses, if `service_id` is one of the IP service.
    pub ip: Option<IpCm>,
    /// Kind of queue pair.
    pub qp_type: CmQpType,
    /// The peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair has end-to-end flow control.
    pub flow_control: bool,
    /// RDMA READs and atomics that we are asked to serve (the REQ's initiator depth).
    pub responder_resources: u8,
    /// RDMA READs and atomics that we may have under way (the REQ's responder resources).
    pub initiator_depth: u8,
    /// The peer's queue pair number and what else follows from the REQ.
    pub qp: QpParams,
    /// Partition.
    pub pkey: PKey,
    /// The peer's device.
    pub remote_guid: u64,
    /// Options of enhanced connection establishment.
    pub ece: Ece,
    /// 56 bytes behind an IP header, 92 without; zeros where the peer gave none.
    pub private_data: Vec<u8>,
}

/// Our request was accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The connection.
    pub conn: ConnId,
    /// With what to move the queue pair before [`Manager::establish`](crate::Manager::establish).
    pub qp: QpParams,
    /// RDMA READs and atomics that we are asked to serve (the REP's initiator depth).
    pub responder_resources: u8,
    /// RDMA READs and atomics that we may have under way (the REP's responder resources).
    pub initiator_depth: u8,
    /// The peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair has end-to-end flow control.
    pub flow_control: bool,
    /// Options of enhanced connection establishment.
    pub ece: Ece,
    /// 196 bytes; zeros where the peer gave none.
    pub private_data: Vec<u8>,
}

/// The peer refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejected {
    /// The connection.
    pub conn: ConnId,
    /// Why.
    pub reason: RejReason,
    /// Additional information, by reason.
    pub ari: Vec<u8>,
    /// 148 bytes; zeros where the peer gave none.
    pub private_data: Vec<u8>,
}

/// A question for a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRequest {
    /// Way to the peer.
    pub path: Path,
    /// What is asked for.
    pub service_id: u64,
    /// Addresses for the IP service; its header goes in front of `private_data`.
    pub ip: Option<IpCm>,
    /// Partition.
    pub pkey: PKey,
    /// At most 180 bytes behind an IP header, 216 without.
    pub private_data: Vec<u8>,
}

/// The answer to a [`SidrAsk`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SidrReply {
    /// See [`crate::sidr_status`].
    pub status: u8,
    /// Our queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: QKey,
    /// Options of enhanced connection establishment.
    pub ece: Ece,
    /// At most 136 bytes.
    pub private_data: Vec<u8>,
}

/// Somebody asks for a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrAsk {
    /// Names the question in [`Manager::sidr_reply`](crate::Manager::sidr_reply).
    pub conn: ConnId,
    /// Who is asked.
    pub listener: ListenerId,
    /// Way back to the requester.
    pub path: Path,
    /// What is asked for.
    pub service_id: u64,
    /// Addresses, if `service_id` is one of the IP service.
    pub ip: Option<IpCm>,
    /// Partition.
    pub pkey: PKey,
    /// 180 bytes behind an IP header, 216 without; zeros where the peer gave none.
    pub private_data: Vec<u8>,
}

/// Our question was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrAnswer {
    /// The question.
    pub conn: ConnId,
    /// See [`crate::sidr_status`].
    pub status: u8,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: QKey,
    /// Options of enhanced connection establishment.
    pub ece: Ece,
    /// 136 bytes; zeros where the peer gave none.
    pub private_data: Vec<u8>,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Somebody asks for a connection: accept, reject or forget it.
    Request(Box<Request>),
    /// Our request was accepted: move the queue pair, then establish or reject it.
    Reply(Box<Reply>),
    /// Passive side: the peer is ready.
    Established {
        /// The connection.
        conn: ConnId,
    },
    /// The peer refused, or broke the connection off.
    Rejected(Box<Rejected>),
    /// Nobody answered.
    Unreachable {
        /// The connection or question.
        conn: ConnId,
    },
    /// The peer ended the connection, or answered our wish to.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// It did not answer.
        timed_out: bool,
    },
    /// Somebody asks for a datagram service: answer or forget it.
    SidrRequest(Box<SidrAsk>),
    /// Our question was answered.
    SidrReply(Box<SidrAnswer>),
    /// The last event of a connection or question: its id means nothing any more.
    Gone {
        /// The connection or question.
        conn: ConnId,
        /// It was in time-wait, which is over.
        time_wait: bool,
    },
}

impl Event {
    /// The connection or question that it is about.
    #[must_use]
    pub fn conn(&self) -> ConnId {
        match self {
            Self::Request(e) => e.conn,
            Self::Reply(e) => e.conn,
            Self::Rejected(e) => e.conn,
            Self::SidrRequest(e) => e.conn,
            Self::SidrReply(e) => e.conn,
            Self::Established { conn }
            | Self::Unreachable { conn }
            | Self::Disconnected { conn, .. }
            | Self::Gone { conn, .. } => *conn,
        }
    }
}
