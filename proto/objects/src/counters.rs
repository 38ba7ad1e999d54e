//! Counters, by the names of Linux `hw_counters` where it has one.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A counter of the shared page-set. Order is part of the page-set's layout.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        pub enum Counter {
            $($(#[$doc])* $name,)*
        }

        impl Counter {
            /// Every counter, in layout order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name that people see.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

counters! {
    /// Packets accepted.
    RcvdPkts = "rcvd_pkts",
    /// Packets sent.
    SentPkts = "sent_pkts",
    /// Payload bytes accepted.
    RcvdBytes = "rcvd_bytes",
    /// Payload bytes sent.
    SentBytes = "sent_bytes",
    /// Batches received (one system call's datagram each).
    RcvdBatches = "rcvd_batches",
    /// Batches sent.
    SentBatches = "sent_batches",
    /// Packets sent again.
    Retransmits = "retransmits",
    /// Request seen before.
    DuplicateRequest = "duplicate_request",
    /// Request beyond the expected PSN.
    OutOfSequence = "out_of_sequence",
    /// Sequence-error NAK received.
    PacketSeqErr = "packet_seq_err",
    /// A later answer showed that a READ or atomic response was lost.
    ImpliedNakSeqErr = "implied_nak_seq_err",
    /// Local ACK timer expired.
    LocalAckTimeoutErr = "local_ack_timeout_err",
    /// retry_cnt used up.
    RetryExceededErr = "retry_exceeded_err",
    /// RNR NAK received.
    RcvdRnrErr = "rcvd_rnr_err",
    /// RNR NAK sent.
    SendRnrErr = "send_rnr_err",
    /// rnr_retry used up.
    RetryRnrExceededErr = "retry_rnr_exceeded_err",
    /// Receiver ran into a remote access error.
    RespRemoteAccessErrors = "resp_remote_access_errors",
    /// Receiver refused a request as invalid.
    RespInvalidRequest = "resp_invalid_request",
    /// Receive completions with an error.
    RespCqeError = "resp_cqe_error",
    /// Send completions with an error.
    ReqCqeError = "req_cqe_error",
    /// Completions flushed, receive side.
    RespCqeFlushError = "resp_cqe_flush_error",
    /// Completions flushed, send side.
    ReqCqeFlushError = "req_cqe_flush_error",
    /// Congestion notification packets received.
    RpCnpHandled = "rp_cnp_handled",
    /// Packets with congestion mark received.
    NpEcnMarkedRocePackets = "np_ecn_marked_roce_packets",
    /// Dropped: too short, bad pad, bad version, or length not fitting the opcode.
    DropMalformed = "drop_malformed",
    /// Dropped: opcode not defined.
    DropUnknownOpcode = "drop_unknown_opcode",
    /// Dropped: invariant CRC wrong.
    DropIcrc = "rx_icrc_encapsulated",
    /// Dropped: nobody owns the destination QPN.
    DropNoQp = "drop_no_qp",
    /// Dropped: opcode class is not the queue pair's.
    DropWrongClass = "drop_wrong_class",
    /// Dropped: queue pair in a state that does not take it.
    DropBadState = "drop_bad_state",
    /// Dropped: not from the queue pair's peer or not to its address.
    DropWrongPeer = "drop_wrong_peer",
    /// Dropped: P_Key does not match.
    DropBadPkey = "bad_pkey",
    /// Dropped: Q_Key does not match.
    DropBadQkey = "bad_qkey",
    /// Dropped: PSN outside every window (ghost responses, forgotten duplicates).
    DropBadPsn = "drop_bad_psn",
    /// Dropped: UC or UD message without a receive, or broken off.
    DropNoReceive = "drop_no_receive",
    /// Dropped: UC request that an RC queue pair would have refused.
    DropRefused = "drop_refused",
    /// Dropped by a fault rule.
    DropFault = "drop_fault",
    /// A send that the kernel refused (the packet counts as lost).
    SendErr = "send_err",
    /// Datagrams that the kernel dropped because our buffer was full.
    SocketOverflow = "socket_overflow",
    /// Packets handed on to the slot that owns them.
    Forwarded = "forwarded",
    /// Dropped: too many at a time to be handed on to the slot that owns them.
    DropForward = "drop_forward",
    /// Congestion notification packets sent.
    NpCnpSent = "np_cnp_sent",
    /// ICRC fits an IPv4 identification only that the sender's host says it never uses. Where the path
    /// spoils packets the packet was dropped, too.
    IdBeyondBound = "id_beyond_bound",
    /// Of the batches received, those that came past the socket, through a ring.
    RingBatches = "ring_batches",
}
