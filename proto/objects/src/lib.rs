//! Verbs objects as plain data: the words that every transport and every layer above share.
//!
//! No behaviour that needs a clock, a socket or memory lives here. Names are those of
//! libibverbs; numeric values of enumerations are the ABI's.
#![no_std]
#![allow(
    missing_docs,
    reason = "most fields and flags carry the names of verbs.h"
)]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod attr;
mod counters;
mod error;
mod event;
pub mod flow;
mod rss;
mod time;
mod wc;
mod window;
mod wr;

pub use access::{LocalFault, RemoteFault, Scope, offset_within};
pub use attr::{
    Access, AhAttr, AttrMask, CqId, MigState, Path, PdId, QpAttr, QpCap, QpInit, QpState, QpType,
    RateLimit, SrqAttr, SrqId, SrqInit, XrcSrq, XrcdId,
};
pub use counters::Counter;
pub use error::{Errno, Misuse};
pub use event::{AsyncEvent, EventKind, Note, NoteKind};
pub use rss::{RX_HASH_KEY_BYTES, RxHash, RxHashFields};
pub use time::Instant;
pub use wc::{SL_ROCE_V2_IPV4, SL_ROCE_V2_IPV6, Wc, WcFlags, WcOpcode, WcStatus};
pub use window::{
    BindFault, BindTarget, Binding, InvalidateFault, KEY_BYTE, MwBind, MwType, Window,
};
pub use wr::{
    AtomicOp, FlushPlacement, FlushRange, Payload, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge,
    SgeList, UdAddress,
};
