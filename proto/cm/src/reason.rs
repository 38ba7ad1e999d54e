//! Why a message is refused.

/// The reason in a REJ, which the application sees as the status of its REJECTED event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RejReason(pub u16);

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        #[allow(missing_docs, reason = "the text of each is in `name`")]
        impl RejReason {
            $(pub const $name: Self = Self($code);)*

            /// What the reason says, for people.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 { $($code => $text,)* _ => "unknown reason" }
            }
        }
    };
}

reasons! {
    NO_QP = 1, "no queue pair";
    NO_EEC = 2, "no end-to-end context";
    NO_RESOURCES = 3, "no resources";
    TIMEOUT = 4, "timed out";
    UNSUPPORTED = 5, "unsupported request";
    INVALID_COMM_ID = 6, "invalid communication id";
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    INVALID_SERVICE_ID = 8, "nobody listens on this service id";
    INVALID_TRANSPORT_TYPE = 9, "invalid transport type";
    STALE_CONN = 10, "stale connection";
    RDC_NOT_EXIST = 11, "reliable datagram channel does not exist";
    INVALID_GID = 12, "invalid GID";
    INVALID_LID = 13, "invalid LID";
    INVALID_SL = 14, "invalid service level";
    INVALID_TRAFFIC_CLASS = 15, "invalid traffic class";
    INVALID_HOP_LIMIT = 16, "invalid hop limit";
    INVALID_PACKET_RATE = 17, "invalid packet rate";
    INVALID_ALT_GID = 18, "invalid alternate GID";
    INVALID_ALT_LID = 19, "invalid alternate LID";
    INVALID_ALT_SL = 20, "invalid alternate service level";
    INVALID_ALT_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    INVALID_ALT_HOP_LIMIT = 22, "invalid alternate hop limit";
    INVALID_ALT_PACKET_RATE = 23, "invalid alternate packet rate";
    CM_REDIRECT = 24, "ask at another connection manager";
    PORT_REDIRECT = 25, "ask at another port";
    INVALID_MTU = 26, "invalid path MTU";
    INSUFFICIENT_RESP_RESOURCES = 27, "insufficient responder resources";
    CONSUMER = 28, "rejected by the application, or by its address checks";
    RNR_RETRY = 29, "invalid RNR retry count";
    DUPLICATE_LOCAL_COMM_ID = 30, "duplicate communication id";
    INVALID_CLASS_VERSION = 31, "invalid class version";
    INVALID_FLOW_LABEL = 32, "invalid flow label";
    INVALID_ALT_FLOW_LABEL = 33, "invalid alternate flow label";
    VENDOR_OPTION = 35, "vendor option not supported";
}

impl RejReason {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0
    }
}

impl core::fmt::Debug for RejReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({})", self.0, self.name())
    }
}

/// Status of a SIDR_REP.
pub mod sidr_status {
    /// The queue pair is in the message.
    pub const VALID: u8 = 0;
    /// Nobody listens on this service id.
    pub const UNSUPPORTED: u8 = 1;
    /// The application refused.
    pub const REJECT: u8 = 2;
    /// There is no queue pair.
    pub const NO_QP: u8 = 3;
    /// Ask elsewhere.
    pub const REDIRECT: u8 = 4;
    /// This version is not supported.
    pub const UNSUPPORTED_VERSION: u8 = 5;
}
