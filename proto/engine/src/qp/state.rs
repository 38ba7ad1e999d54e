//! The moves that `modify_qp` may make: one table, with the attributes each needs and allows.
//!
//! A pair of states that is not listed is illegal. `STATE` is always implied. RTS to SQE is made
//! by the device alone and is not here. Moves to RESET and ERR take the state and nothing else.

use rocebud_objects::{AttrMask, QpState, QpType};

use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

/// A legal move.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// State before (or `cur_qp_state`, where the caller gives it).
    pub from: QpState,
    /// State after.
    pub to: QpState,
    /// Attributes that must be given.
    pub must: AttrMask,
    /// Attributes that may be given too.
    pub may: AttrMask,
}

#[allow(
    clippy::indexing_slicing,
    reason = "runs at compile time, bounded by the loop"
)]
const fn mask(bits: &[AttrMask]) -> AttrMask {
    let mut all = AttrMask::empty();
    let mut at = 0;
    while at < bits.len() {
        all = all.union(bits[at]);
        at += 1;
    }
    all
}

const fn mv(from: QpState, to: QpState, must: &[AttrMask], may: &[AttrMask]) -> Move {
    Move {
        from,
        to,
        must: mask(must),
        may: mask(may),
    }
}

const S_ACCESS: AttrMask = AttrMask::ACCESS_FLAGS;
const S_ALT: AttrMask = AttrMask::ALT_PATH;
const S_AV: AttrMask = AttrMask::AV;
const S_CUR: AttrMask = AttrMask::CUR_STATE;
const S_DEST: AttrMask = AttrMask::DEST_QPN;
const S_MIG: AttrMask = AttrMask::PATH_MIG_STATE;
const S_MTU: AttrMask = AttrMask::PATH_MTU;
const S_PKEY: AttrMask = AttrMask::PKEY_INDEX;
const S_PORT: AttrMask = AttrMask::PORT;
const S_QKEY: AttrMask = AttrMask::QKEY;
const S_RETRY: AttrMask = AttrMask::RETRY_CNT;
const S_RATE: AttrMask = AttrMask::RATE_LIMIT;
const S_RNR: AttrMask = AttrMask::RNR_RETRY;
const S_RNR_TIMER: AttrMask = AttrMask::MIN_RNR_TIMER;
const S_RD: AttrMask = AttrMask::MAX_QP_RD_ATOMIC;
const S_DEST_RD: AttrMask = AttrMask::MAX_DEST_RD_ATOMIC;
const S_RQ_PSN: AttrMask = AttrMask::RQ_PSN;
const S_SQ_PSN: AttrMask = AttrMask::SQ_PSN;
const S_SQD_NOTIFY: AttrMask = AttrMask::EN_SQD_ASYNC_NOTIFY;
const S_TIMEOUT: AttrMask = AttrMask::TIMEOUT;

/// Moves of reliable connected queue pairs.
pub const RC_MOVES: &[Move] = &[
    mv(Reset, Reset, &[], &[]),
    mv(Reset, Init, &[S_PKEY, S_PORT, S_ACCESS], &[]),
    mv(Init, Reset, &[], &[]),
    mv(Init, Err, &[], &[]),
    mv(Init, Init, &[], &[S_PKEY, S_PORT, S_ACCESS]),
    mv(
        Init,
        Rtr,
        &[S_AV, S_MTU, S_DEST, S_RQ_PSN, S_DEST_RD, S_RNR_TIMER],
        &[S_ALT, S_ACCESS, S_PKEY],
    ),
    mv(Rtr, Reset, &[], &[]),
    mv(Rtr, Err, &[], &[]),
    mv(
        Rtr,
        Rts,
        &[S_TIMEOUT, S_RETRY, S_RNR, S_SQ_PSN, S_RD],
        &[S_CUR, S_ALT, S_ACCESS, S_MIG, S_RNR_TIMER],
    ),
    mv(Rts, Reset, &[], &[]),
    mv(Rts, Err, &[], &[]),
    mv(Rts, Rts, &[], &[S_CUR, S_ACCESS, S_ALT, S_MIG, S_RNR_TIMER]),
    mv(Rts, Sqd, &[], &[S_SQD_NOTIFY]),
    mv(Sqd, Reset, &[], &[]),
    mv(Sqd, Err, &[], &[]),
    mv(Sqd, Rts, &[], &[S_CUR, S_ALT, S_ACCESS, S_MIG, S_RNR_TIMER]),
    mv(
        Sqd,
        Sqd,
        &[],
        &[
            S_PORT,
            S_AV,
            S_TIMEOUT,
            S_RETRY,
            S_RNR,
            S_RD,
            S_DEST_RD,
            S_ALT,
            S_ACCESS,
            S_PKEY,
            S_RNR_TIMER,
            S_MIG,
        ],
    ),
    mv(Sqe, Reset, &[], &[]),
    mv(Sqe, Err, &[], &[]),
    mv(Err, Reset, &[], &[]),
    mv(Err, Err, &[], &[]),
];

/// Moves of the requesting end of an extended reliable connection.
pub const XRC_SEND_MOVES: &[Move] = &[
    mv(Reset, Reset, &[], &[]),
    mv(Reset, Init, &[S_PKEY, S_PORT, S_ACCESS], &[]),
    mv(Init, Reset, &[], &[]),
    mv(Init, Err, &[], &[]),
    mv(Init, Init, &[], &[S_PKEY, S_PORT, S_ACCESS]),
    mv(
        Init,
        Rtr,
        &[S_AV, S_MTU, S_DEST, S_RQ_PSN],
        &[S_ALT, S_ACCESS, S_PKEY],
    ),
    mv(Rtr, Reset, &[], &[]),
    mv(Rtr, Err, &[], &[]),
    mv(
        Rtr,
        Rts,
        &[S_TIMEOUT, S_RETRY, S_RNR, S_SQ_PSN, S_RD],
        &[S_CUR, S_ALT, S_ACCESS, S_MIG],
    ),
    mv(Rts, Reset, &[], &[]),
    mv(Rts, Err, &[], &[]),
    mv(Rts, Rts, &[], &[S_CUR, S_ACCESS, S_ALT, S_MIG]),
    mv(Rts, Sqd, &[], &[S_SQD_NOTIFY]),
    mv(Sqd, Reset, &[], &[]),
    mv(Sqd, Err, &[], &[]),
    mv(Sqd, Rts, &[], &[S_CUR, S_ALT, S_ACCESS, S_MIG]),
    mv(
        Sqd,
        Sqd,
        &[],
        &[
            S_PORT, S_AV, S_TIMEOUT, S_RETRY, S_RNR, S_RD, S_ALT, S_ACCESS, S_PKEY, S_MIG,
        ],
    ),
    mv(Sqe, Reset, &[], &[]),
    mv(Sqe, Err, &[], &[]),
    mv(Err, Reset, &[], &[]),
    mv(Err, Err, &[], &[]),
];

/// Moves of the serving end of an extended reliable connection.
pub const XRC_RECV_MOVES: &[Move] = &[
    mv(Reset, Reset, &[], &[]),
    mv(Reset, Init, &[S_PKEY, S_PORT, S_ACCESS], &[]),
    mv(Init, Reset, &[], &[]),
    mv(Init, Err, &[], &[]),
    mv(Init, Init, &[], &[S_PKEY, S_PORT, S_ACCESS]),
    mv(
        Init,
        Rtr,
        &[S_AV, S_MTU, S_DEST, S_RQ_PSN, S_DEST_RD, S_RNR_TIMER],
        &[S_ALT, S_ACCESS, S_PKEY],
    ),
    mv(Rtr, Reset, &[], &[]),
    mv(Rtr, Err, &[], &[]),
    mv(
        Rtr,
        Rts,
        &[S_TIMEOUT, S_SQ_PSN],
        &[S_CUR, S_ALT, S_ACCESS, S_MIG, S_RNR_TIMER],
    ),
    mv(Rts, Reset, &[], &[]),
    mv(Rts, Err, &[], &[]),
    mv(Rts, Rts, &[], &[S_CUR, S_ACCESS, S_ALT, S_MIG, S_RNR_TIMER]),
    mv(Rts, Sqd, &[], &[S_SQD_NOTIFY]),
    mv(Sqd, Reset, &[], &[]),
    mv(Sqd, Err, &[], &[]),
    mv(Sqd, Rts, &[], &[S_CUR, S_ALT, S_ACCESS, S_MIG, S_RNR_TIMER]),
    mv(
        Sqd,
        Sqd,
        &[],
        &[
            S_PORT,
            S_AV,
            S_TIMEOUT,
            S_DEST_RD,
            S_ALT,
            S_ACCESS,
            S_PKEY,
            S_RNR_TIMER,
            S_MIG,
        ],
    ),
    mv(Sqe, Reset, &[], &[]),
    mv(Sqe, Err, &[], &[]),
    mv(Err, Reset, &[], &[]),
    mv(Err, Err, &[], &[]),
];

/// Moves of unreliable connected queue pairs.
pub const UC_MOVES: &[Move] = &[
    mv(Reset, Reset, &[], &[]),
    mv(Reset, Init, &[S_PKEY, S_PORT, S_ACCESS], &[]),
    mv(Init, Reset, &[], &[]),
    mv(Init, Err, &[], &[]),
    mv(Init, Init, &[], &[S_PKEY, S_PORT, S_ACCESS]),
    mv(
        Init,
        Rtr,
        &[S_AV, S_MTU, S_DEST, S_RQ_PSN],
        &[S_ALT, S_ACCESS, S_PKEY],
    ),
    mv(Rtr, Reset, &[], &[]),
    mv(Rtr, Err, &[], &[]),
    mv(Rtr, Rts, &[S_SQ_PSN], &[S_CUR, S_ALT, S_ACCESS, S_MIG]),
    mv(Rts, Reset, &[], &[]),
    mv(Rts, Err, &[], &[]),
    mv(Rts, Rts, &[], &[S_CUR, S_ACCESS, S_ALT, S_MIG]),
    mv(Rts, Sqd, &[], &[S_SQD_NOTIFY]),
    mv(Sqd, Reset, &[], &[]),
    mv(Sqd, Err, &[], &[]),
    mv(Sqd, Rts, &[], &[S_CUR, S_ALT, S_ACCESS, S_MIG]),
    mv(Sqd, Sqd, &[], &[S_AV, S_ALT, S_ACCESS, S_PKEY, S_MIG]),
    mv(Sqe, Reset, &[], &[]),
    mv(Sqe, Err, &[], &[]),
    mv(Sqe, Rts, &[], &[S_CUR, S_ACCESS]),
    mv(Err, Reset, &[], &[]),
    mv(Err, Err, &[], &[]),
];

/// Moves of datagram queue pairs.
pub const UD_MOVES: &[Move] = &[
    mv(Reset, Reset, &[], &[]),
    mv(Reset, Init, &[S_PKEY, S_PORT, S_QKEY], &[]),
    mv(Init, Reset, &[], &[]),
    mv(Init, Err, &[], &[]),
    mv(Init, Init, &[], &[S_PKEY, S_PORT, S_QKEY]),
    mv(Init, Rtr, &[], &[S_PKEY, S_QKEY]),
    mv(Rtr, Reset, &[], &[]),
    mv(Rtr, Err, &[], &[]),
    mv(Rtr, Rts, &[S_SQ_PSN], &[S_CUR, S_QKEY]),
    mv(Rts, Reset, &[], &[]),
    mv(Rts, Err, &[], &[]),
    mv(Rts, Rts, &[], &[S_CUR, S_QKEY]),
    mv(Rts, Sqd, &[], &[S_SQD_NOTIFY]),
    mv(Sqd, Reset, &[], &[]),
    mv(Sqd, Err, &[], &[]),
    mv(Sqd, Rts, &[], &[S_CUR, S_QKEY]),
    mv(Sqd, Sqd, &[], &[S_PKEY, S_QKEY]),
    mv(Sqe, Reset, &[], &[]),
    mv(Sqe, Err, &[], &[]),
    mv(Sqe, Rts, &[], &[S_CUR, S_QKEY]),
    mv(Err, Reset, &[], &[]),
    mv(Err, Err, &[], &[]),
];

/// Moves of queue pairs that carry whole frames. Their receives and sends know neither peers nor
/// numbers, so there is nothing to give but the port.
pub const RAW_MOVES: &[Move] = &[
    mv(Reset, Reset, &[], &[]),
    mv(Reset, Init, &[S_PORT], &[]),
    mv(Init, Reset, &[], &[]),
    mv(Init, Err, &[], &[]),
    mv(Init, Init, &[], &[S_PORT]),
    mv(Init, Rtr, &[], &[]),
    mv(Rtr, Reset, &[], &[]),
    mv(Rtr, Err, &[], &[]),
    mv(Rtr, Rts, &[], &[S_CUR, S_RATE]),
    mv(Rts, Reset, &[], &[]),
    mv(Rts, Err, &[], &[]),
    mv(Rts, Rts, &[], &[S_CUR, S_RATE]),
    mv(Rts, Sqd, &[], &[S_SQD_NOTIFY]),
    mv(Sqd, Reset, &[], &[]),
    mv(Sqd, Err, &[], &[]),
    mv(Sqd, Rts, &[], &[S_CUR]),
    mv(Sqd, Sqd, &[], &[]),
    mv(Err, Reset, &[], &[]),
    mv(Err, Err, &[], &[]),
];

/// The moves of a transport service.
#[must_use]
pub const fn moves(qp_type: QpType) -> &'static [Move] {
    match qp_type {
        QpType::Rc => RC_MOVES,
        QpType::Uc => UC_MOVES,
        QpType::Ud => UD_MOVES,
        QpType::RawPacket => RAW_MOVES,
        QpType::XrcSend => XRC_SEND_MOVES,
        QpType::XrcRecv => XRC_RECV_MOVES,
    }
}

/// Attributes that a transport service does not have but that callers give all the same, since
/// they treat XRC as RC: ignored.
#[must_use]
pub const fn ignored(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::XrcSend => S_DEST_RD.union(S_RNR_TIMER),
        QpType::XrcRecv => S_RD.union(S_RETRY).union(S_RNR),
        QpType::Rc | QpType::Uc | QpType::Ud | QpType::RawPacket => AttrMask::empty(),
    }
}

/// The move between two states, if it is legal.
#[must_use]
pub fn find_move(qp_type: QpType, from: QpState, to: QpState) -> Option<&'static Move> {
    moves(qp_type).iter().find(|m| m.from == from && m.to == to)
}

/// What a queue pair does in a state; transport.md's table of states as data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Duties {
    /// `post_recv` is taken.
    pub post_recv: bool,
    /// `post_send` is taken.
    pub post_send: bool,
    /// Requests of the peer are processed and answered.
    pub respond: bool,
    /// Answers of the peer are processed.
    pub accept_responses: bool,
    /// New send requests are started.
    pub start_sends: bool,
    /// Whatever is posted to the send queue is flushed.
    pub flush_sends: bool,
    /// Whatever is posted to the receive queue is flushed.
    pub flush_recvs: bool,
}

const IDLE: Duties = Duties {
    post_recv: false,
    post_send: false,
    respond: false,
    accept_responses: false,
    start_sends: false,
    flush_sends: false,
    flush_recvs: false,
};

/// Duties by state.
#[must_use]
pub const fn duties(state: QpState) -> Duties {
    match state {
        Reset => IDLE,
        Init => Duties {
            post_recv: true,
            ..IDLE
        },
        Rtr => Duties {
            post_recv: true,
            respond: true,
            ..IDLE
        },
        Rts => Duties {
            post_recv: true,
            post_send: true,
            respond: true,
            accept_responses: true,
            start_sends: true,
            ..IDLE
        },
        Sqd => Duties {
            post_recv: true,
            post_send: true,
            respond: true,
            accept_responses: true,
            ..IDLE
        },
        Sqe => Duties {
            post_recv: true,
            post_send: true,
            respond: true,
            flush_sends: true,
            ..IDLE
        },
        Err => Duties {
            post_recv: true,
            post_send: true,
            flush_sends: true,
            flush_recvs: true,
            ..IDLE
        },
    }
}
