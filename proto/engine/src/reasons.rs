//! Why a completion was in error: what `vendor_err` means.
//!
//! One table, so that `rocebud status` and the manual tell the same story.

use rocebud_objects::WcStatus;

macro_rules! reasons {
    ($($name:ident = $code:literal, $status:ident, $text:literal;)*) => {
        /// The finer reason of an error completion; its number is the completion's `vendor_err`.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum Reason {
            $(#[doc = $text] $name = $code,)*
        }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// From a completion's `vendor_err`.
            #[must_use]
            pub const fn from_vendor_err(value: u32) -> Option<Self> {
                match value {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// One sentence: what happened, and what to look at.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// The status that goes with it.
            #[must_use]
            pub const fn status(self) -> WcStatus {
                match self {
                    $(Self::$name => WcStatus::$status,)*
                }
            }
        }
    };
}

reasons! {
    FlushedByModify = 1, WrFlushErr,
        "flushed: the program moved the queue pair to ERR (or posted to it there)";
    FlushedByError = 2, WrFlushErr,
        "flushed: an earlier error took the queue pair to ERR; look at the first error completion";
    FlushedBySqe = 3, WrFlushErr,
        "flushed: an earlier send failed and the send queue is in SQE; modify it to RTS to go on";
    FlushedByPeer = 4, WrFlushErr,
        "flushed: a request of the peer was refused, which takes the queue pair to ERR";
    FlushedByCq = 5, WrFlushErr,
        "flushed: a completion queue overran; create it larger or poll it more often";
    LocalKey = 10, LocProtErr,
        "an SGE names an lkey that does not exist (deregistered, or a typing error)";
    LocalPd = 11, LocProtErr,
        "an SGE's region belongs to another protection domain than the queue";
    LocalBounds = 12, LocProtErr,
        "an SGE leaves its region";
    LocalAccess = 13, LocProtErr,
        "an SGE's region was registered without LOCAL_WRITE, but would be written";
    LocalPage = 14, LocProtErr,
        "an SGE's memory is no longer mapped, or may not be accessed";
    DatagramTooLong = 20, LocLenErr,
        "a datagram is longer than the port's MTU; send less or raise the interface's MTU";
    ReceiveTooSmall = 21, LocLenErr,
        "a message of the peer is longer than the receive buffer posted for it";
    FrameLength = 22, LocLenErr,
        "a raw frame is longer than the interface takes, or shorter than an Ethernet header";
    ReadsNotAllowed = 30, LocQpOpErr,
        "a READ or atomic was posted, but max_rd_atomic of this queue pair is 0";
    LocalInvFailed = 31, LocQpOpErr,
        "LOCAL_INV names a key that is not there or cannot be invalidated";
    BindWindow = 32, MwBindErr,
        "a bind names a window that does not exist, or a key that differs from the window's in \
         more than the low byte";
    BindState = 33, MwBindErr,
        "a type 2 window was bound again without being invalidated first";
    BindRegion = 34, MwBindErr,
        "a bind names a region that does not exist, or one registered with ZERO_BASED";
    BindPd = 35, MwBindErr,
        "window, region and queue pair of a bind are not of one protection domain";
    BindBounds = 36, MwBindErr,
        "a bind leaves its region, or binds nothing to a type 2 window";
    BindAccess = 37, MwBindErr,
        "a bind's region lacks MW_BIND, or LOCAL_WRITE for a window that may be written, or the \
         access flags are not those of a window";
    BadResponseOpcode = 40, BadRespErr,
        "the peer answered a READ or atomic with an opcode that does not fit";
    BadResponseLength = 41, BadRespErr,
        "the peer answered a READ with a packet of the wrong length; compare path_mtu of both ends";
    RemoteInvalidRequest = 50, RemInvReqErr,
        "the peer refused the request as invalid: operation not in its qp_access_flags, message \
         longer than its receive, misaligned atomic, or more READs than its max_dest_rd_atomic";
    RemoteAccess = 51, RemAccessErr,
        "the peer refused access: rkey, range, permission or protection domain do not fit";
    RemoteOperation = 52, RemOpErr,
        "the peer could not carry it out: its own receive buffer or memory failed";
    RetryExceeded = 60, RetryExcErr,
        "no answer after retry_cnt retries: peer gone, its queue pair not ready, wrong QPN, \
         address or P_Key, or packets lost on the way (firewall, MTU)";
    RetryExceededNak = 61, RetryExcErr,
        "the peer kept missing packets (sequence NAKs) beyond retry_cnt: heavy loss on the way";
    RetryExceededImplied = 62, RetryExcErr,
        "READ or atomic responses kept getting lost beyond retry_cnt";
    RnrRetryExceeded = 63, RnrRetryExcErr,
        "the peer had no receive posted, rnr_retry times over; post earlier or raise rnr_retry";
    PeerBrokeSequence = 70, LocQpOpErr,
        "the peer broke off a message: the next packet's opcode did not continue it";
    PeerBadLength = 71, LocQpOpErr,
        "a packet of the peer has a length that does not fit path_mtu; compare both ends";
    InvalidateFailed = 72, RemInvReqErr,
        "SEND with invalidate names a key that cannot be invalidated; the data did arrive";
    PeerRequestRefused = 73, WrFlushErr,
        "a receive was in use when another request of the peer was refused";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_lead_back() {
        for (at, &reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(Reason::from_vendor_err(reason as u32), Some(reason));
            assert!(!Reason::ALL[..at].iter().any(|r| *r as u32 == reason as u32));
            assert_ne!(reason.status(), WcStatus::Success);
            assert!(reason.text().len() > 20);
        }
        assert_eq!(Reason::from_vendor_err(0), None);
    }
}
