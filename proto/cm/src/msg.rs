//! The messages of communication management, field by field.
//!
//! Each message is a struct whose declaration is its layout: `field: type = [(byte, bit, width)]`,
//! counted from the end of the common header, bits from the most significant. Reserved bits are
//! written as 0 and not looked at.

use alloc::boxed::Box;

use rocebud_wire::{Gid, PKey, Psn, QKey, Qpn};

use crate::bits::{Field, Piece, tail};
use crate::mad::{
    BODY_LEN, CLASS_CM, CLASS_VERSION_CM, MAD_LEN, METHOD_SEND, MadHeader, ParseError,
};

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty = [$(($byte:expr, $bit:expr, $width:expr)),+];)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }

        impl $name {
            /// Reads the fields; bytes beyond the end of `body` count as 0.
            #[must_use]
            pub fn parse(body: &[u8]) -> Self {
                Self {
                    $($field: $crate::bits::Field::read(
                        body,
                        &[$($crate::bits::at($byte, $bit, $width)),+],
                    ),)*
                }
            }

            /// Writes the fields over `body`; what does not fit is left out.
            pub fn emit(&self, body: &mut [u8]) {
                $($crate::bits::Field::write(
                    &self.$field,
                    body,
                    &[$($crate::bits::at($byte, $bit, $width)),+],
                );)*
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::parse(&[])
            }
        }
    };
}

pub(crate) use message;

message! {
    /// A path in a REQ (44 bytes).
    ReqPath {
        /// Not used in RoCE: 0xffff when packets are routed.
        local_lid: u16 = [(0, 0, 16)];
        /// Not used in RoCE: 0xffff when packets are routed.
        remote_lid: u16 = [(2, 0, 16)];
        /// Of the sender of the REQ.
        local_gid: Gid = [(4, 0, 128)];
        /// Of its receiver.
        remote_gid: Gid = [(20, 0, 128)];
        /// 20 bits.
        flow_label: u32 = [(36, 0, 20)];
        /// 6 bits; 0 = as fast as the port.
        packet_rate: u8 = [(39, 2, 6)];
        /// Type of service.
        traffic_class: u8 = [(40, 0, 8)];
        /// Time to live.
        hop_limit: u8 = [(41, 0, 8)];
        /// Service level: 4 bits.
        sl: u8 = [(42, 0, 4)];
        /// Both ends are in one subnet.
        subnet_local: bool = [(42, 4, 1)];
        /// The `timeout` that the receiver's queue pair shall have: 4.096 µs × 2^n, 5 bits.
        ack_timeout: u8 = [(43, 0, 5)];
    }
}

impl Field for ReqPath {
    fn read(body: &[u8], pieces: &[Piece]) -> Self {
        Self::parse(tail(body, pieces))
    }

    fn write(&self, body: &mut [u8], pieces: &[Piece]) {
        let start = body.len() - tail(body, pieces).len();
        if let Some(rest) = body.get_mut(start..) {
            self.emit(rest);
        }
    }
}

message! {
    /// Asks for a connection.
    Req {
        /// The sender's name of the connection.
        local_id: u32 = [(0, 0, 32)];
        /// Of enhanced connection establishment (24 bits), else 0.
        vendor_id: u32 = [(5, 0, 24)];
        /// What is asked for.
        service_id: u64 = [(8, 0, 64)];
        /// The sender's channel adapter.
        local_ca_guid: u64 = [(16, 0, 64)];
        /// Of datagram queue pairs.
        local_qkey: QKey = [(28, 0, 32)];
        /// The sender's queue pair.
        local_qpn: Qpn = [(32, 0, 24)];
        /// RDMA READs and atomics that the sender can serve at a time.
        responder_resources: u8 = [(35, 0, 8)];
        /// Of reliable datagrams.
        local_eecn: u32 = [(36, 0, 24)];
        /// RDMA READs and atomics that the sender will have under way at a time.
        initiator_depth: u8 = [(39, 0, 8)];
        /// Of reliable datagrams.
        remote_eecn: u32 = [(40, 0, 24)];
        /// How fast the receiver must answer: 4.096 µs × 2^n.
        remote_response_timeout: u8 = [(43, 0, 5)];
        /// 0 RC, 1 UC, 2 RD, 3 see `extended_transport`.
        transport: u8 = [(43, 5, 2)];
        /// The sender's queue pair has end-to-end flow control.
        flow_control: bool = [(43, 7, 1)];
        /// The PSN at which the receiver must begin to send.
        starting_psn: Psn = [(44, 0, 24)];
        /// How fast the sender will answer: 4.096 µs × 2^n.
        local_response_timeout: u8 = [(47, 0, 5)];
        /// The `retry_cnt` that the receiver's queue pair shall have.
        retry_count: u8 = [(47, 5, 3)];
        /// Partition.
        pkey: PKey = [(48, 0, 16)];
        /// As verbs enumerate it (1 to 5); anything else is invalid.
        mtu: u8 = [(50, 0, 4)];
        /// Of reliable datagrams.
        rdc_exists: bool = [(50, 4, 1)];
        /// The `rnr_retry` that the receiver's queue pair shall have.
        rnr_retry_count: u8 = [(50, 5, 3)];
        /// How often the receiver shall repeat an unanswered message of its own.
        max_cm_retries: u8 = [(51, 0, 4)];
        /// The sender's queue pair has a shared receive queue.
        srq: bool = [(51, 4, 1)];
        /// 1 XRC, if `transport` is 3.
        extended_transport: u8 = [(51, 5, 3)];
        /// Where packets shall go.
        primary: ReqPath = [(52, 0, 352)];
        /// All 0 = none; not used in RoCE.
        alternate: ReqPath = [(96, 0, 352)];
        /// Of the consumer; the RDMA IP CM service puts its header in front.
        private_data: [u8; 92] = [(140, 0, 736)];
    }
}

message! {
    /// Message received, answer takes longer.
    Mra {
        /// The sender's name of the connection.
        local_id: u32 = [(0, 0, 32)];
        /// The receiver's.
        remote_id: u32 = [(4, 0, 32)];
        /// 0 REQ, 1 REP, 2 LAP.
        message: u8 = [(8, 0, 2)];
        /// How long it will take: 4.096 µs × 2^n.
        service_timeout: u8 = [(9, 0, 5)];
        /// Of the consumer.
        private_data: [u8; 222] = [(10, 0, 1776)];
    }
}

message! {
    /// Refuses a message.
    Rej {
        /// The sender's name of the connection; 0 if it keeps none.
        local_id: u32 = [(0, 0, 32)];
        /// The receiver's.
        remote_id: u32 = [(4, 0, 32)];
        /// 0 REQ, 1 REP, 2 other.
        message: u8 = [(8, 0, 2)];
        /// Bytes of `ari` that count.
        ari_len: u8 = [(9, 0, 7)];
        /// Why: see [`crate::RejReason`].
        reason: u16 = [(10, 0, 16)];
        /// Additional information, by reason.
        ari: [u8; 72] = [(12, 0, 576)];
        /// Of the consumer.
        private_data: [u8; 148] = [(84, 0, 1184)];
    }
}

message! {
    /// Accepts a REQ.
    Rep {
        /// The sender's name of the connection.
        local_id: u32 = [(0, 0, 32)];
        /// The receiver's.
        remote_id: u32 = [(4, 0, 32)];
        /// Of datagram queue pairs.
        local_qkey: QKey = [(8, 0, 32)];
        /// The sender's queue pair; of an XRC target it is in `local_eecn`.
        local_qpn: Qpn = [(12, 0, 24)];
        /// Of enhanced connection establishment (24 bits), else 0.
        vendor_id: u32 = [(15, 0, 8), (19, 0, 8), (23, 0, 8)];
        /// The queue pair of an XRC target.
        local_eecn: Qpn = [(16, 0, 24)];
        /// The PSN at which the receiver must begin to send.
        starting_psn: Psn = [(20, 0, 24)];
        /// RDMA READs and atomics that the sender will serve at a time.
        responder_resources: u8 = [(24, 0, 8)];
        /// RDMA READs and atomics that the sender will have under way at a time.
        initiator_depth: u8 = [(25, 0, 8)];
        /// How late the sender's acknowledgements may be: 4.096 µs × 2^n.
        target_ack_delay: u8 = [(26, 0, 5)];
        /// Of alternate paths.
        failover: u8 = [(26, 5, 2)];
        /// The sender's queue pair has end-to-end flow control.
        flow_control: bool = [(26, 7, 1)];
        /// The `rnr_retry` that the receiver's queue pair shall have.
        rnr_retry_count: u8 = [(27, 0, 3)];
        /// The sender's queue pair has a shared receive queue.
        srq: bool = [(27, 3, 1)];
        /// The sender's channel adapter.
        local_ca_guid: u64 = [(28, 0, 64)];
        /// Of the consumer.
        private_data: [u8; 196] = [(36, 0, 1568)];
    }
}

message! {
    /// Ready to use: answers a REP.
    Rtu {
        /// The sender's name of the connection.
        local_id: u32 = [(0, 0, 32)];
        /// The receiver's.
        remote_id: u32 = [(4, 0, 32)];
        /// Of the consumer.
        private_data: [u8; 224] = [(8, 0, 1792)];
    }
}

message! {
    /// Asks to end a connection.
    Dreq {
        /// The sender's name of the connection.
        local_id: u32 = [(0, 0, 32)];
        /// The receiver's.
        remote_id: u32 = [(4, 0, 32)];
        /// The receiver's queue pair.
        remote_qpn: Qpn = [(8, 0, 24)];
        /// Of the consumer.
        private_data: [u8; 220] = [(12, 0, 1760)];
    }
}

message! {
    /// Answers a DREQ.
    Drep {
        /// The sender's name of the connection.
        local_id: u32 = [(0, 0, 32)];
        /// The receiver's.
        remote_id: u32 = [(4, 0, 32)];
        /// Of the consumer.
        private_data: [u8; 224] = [(8, 0, 1792)];
    }
}

message! {
    /// Asks for another path. Always refused: RoCE has none.
    Lap {
        /// The sender's name of the connection.
        local_id: u32 = [(0, 0, 32)];
        /// The receiver's.
        remote_id: u32 = [(4, 0, 32)];
        /// The receiver's queue pair.
        remote_qpn: Qpn = [(12, 0, 24)];
        /// How fast the receiver must answer: 4.096 µs × 2^n.
        remote_response_timeout: u8 = [(15, 0, 5)];
        /// Of the consumer.
        private_data: [u8; 168] = [(64, 0, 1344)];
    }
}

message! {
    /// Answers a LAP.
    Apr {
        /// The sender's name of the connection.
        local_id: u32 = [(0, 0, 32)];
        /// The receiver's.
        remote_id: u32 = [(4, 0, 32)];
        /// Bytes of `info` that count.
        info_len: u8 = [(8, 0, 8)];
        /// 2 = unsupported.
        status: u8 = [(9, 0, 8)];
        /// Additional information, by status.
        info: [u8; 72] = [(12, 0, 576)];
        /// Of the consumer.
        private_data: [u8; 148] = [(84, 0, 1184)];
    }
}

message! {
    /// Asks for the queue pair behind a service.
    SidrReq {
        /// The sender's name of the question.
        request_id: u32 = [(0, 0, 32)];
        /// Partition.
        pkey: PKey = [(4, 0, 16)];
        /// What is asked for.
        service_id: u64 = [(8, 0, 64)];
        /// Of the consumer; the RDMA IP CM service puts its header in front.
        private_data: [u8; 216] = [(16, 0, 1728)];
    }
}

message! {
    /// Answers a SIDR_REQ.
    SidrRep {
        /// Of the question.
        request_id: u32 = [(0, 0, 32)];
        /// 0 = here it is; see [`crate::sidr_status`].
        status: u8 = [(4, 0, 8)];
        /// Bytes of `info` that count.
        info_len: u8 = [(5, 0, 8)];
        /// Of enhanced connection establishment (24 bits), else 0.
        vendor_id: u32 = [(6, 0, 16), (11, 0, 8)];
        /// The queue pair.
        qpn: Qpn = [(8, 0, 24)];
        /// Of the question.
        service_id: u64 = [(12, 0, 64)];
        /// What datagrams must carry.
        qkey: QKey = [(20, 0, 32)];
        /// Additional information, by status.
        info: [u8; 72] = [(24, 0, 576)];
        /// Of the consumer.
        private_data: [u8; 136] = [(96, 0, 1088)];
    }
}

macro_rules! messages {
    ($($name:ident = $attr:literal, $wire:literal;)*) => {
        /// Any message of the class.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Message { $(#[doc = $wire] $name(Box<$name>),)* }

        impl Message {
            /// All attribute ids, with the names that people use.
            pub const KINDS: &[(u16, &str)] = &[$(($attr, $wire),)*];

            /// The attribute id.
            #[must_use]
            pub const fn attr_id(&self) -> u16 {
                match self { $(Self::$name(_) => $attr,)* }
            }

            /// The name that people use.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $wire,)* }
            }

            fn read(attr_id: u16, body: &[u8; BODY_LEN]) -> Option<Self> {
                Some(match attr_id {
                    $($attr => Self::$name(Box::new($name::parse(body))),)*
                    _ => return None,
                })
            }

            fn write(&self, body: &mut [u8; BODY_LEN]) {
                match self { $(Self::$name(m) => m.emit(body),)* }
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Self {
                Self::$name(Box::new(message))
            }
        })*
    };
}

messages! {
    Req = 0x10, "REQ";
    Mra = 0x11, "MRA";
    Rej = 0x12, "REJ";
    Rep = 0x13, "REP";
    Rtu = 0x14, "RTU";
    Dreq = 0x15, "DREQ";
    Drep = 0x16, "DREP";
    SidrReq = 0x17, "SIDR_REQ";
    SidrRep = 0x18, "SIDR_REP";
    Lap = 0x19, "LAP";
    Apr = 0x1a, "APR";
}

impl Message {
    /// Reads a datagram of the class.
    ///
    /// # Errors
    /// See [`ParseError`]. Whether the fields make sense is for the connection manager to say.
    pub fn parse(mad: &[u8]) -> Result<(MadHeader, Self), ParseError> {
        let (header, body) = MadHeader::parse(mad)?;
        let class = (header.base_version, header.class, header.class_version);
        if class != (1, CLASS_CM, CLASS_VERSION_CM) {
            return Err(ParseError::Class);
        }
        if header.method != METHOD_SEND {
            return Err(ParseError::Method);
        }
        let message = Self::read(header.attr_id, body).ok_or(ParseError::Attribute)?;
        Ok((header, message))
    }

    /// A whole datagram.
    #[must_use]
    pub fn emit(&self, tid: u64, attr_mod: u32) -> Box<[u8; MAD_LEN]> {
        let mut body = [0; BODY_LEN];
        self.write(&mut body);
        MadHeader::cm(self.attr_id(), tid, attr_mod).emit(&body)
    }
}
