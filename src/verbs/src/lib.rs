//! Safe Rust verbs: the API that Rust programs use and the C ABI stands on.
//!
//! ```no_run
//! use rocebud_verbs::{Access, QpCreate, QpType, device_list};
//!
//! # fn main() -> Result<(), rocebud_verbs::Misuse> {
//! let device = device_list()?.remove(0);
//! let context = device.open()?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(16, None, 0, 0)?;
//! let buffer = vec![0u8; 4096];
//! let mr = pd.reg_mr(buffer.as_ptr() as u64, 4096, buffer.as_ptr() as u64, Access::LOCAL_WRITE)?;
//! let qp = pd.create_qp(&QpCreate::new(QpType::Rc, &cq, &cq))?;
//! # drop((mr, qp)); Ok(())
//! # }
//! ```
//!
//! Handles are cheap to clone and mean the same object. An object lives until its `destroy` (or
//! `dealloc`, `dereg`, `close`) succeeds, or its last handle is dropped. Every refusal is a
//! [`Misuse`] with the errno that libibverbs gives for it. Handles work from any thread. In a
//! child made by `fork` every call answers EIO and harms nobody.

mod attrs;
pub mod cm;
mod context;
mod cq;
mod device;
mod dm;
mod event;
mod mr;
mod mw;
mod pd;
mod qp;
mod raw;
mod srq;
mod td;
mod xrc;

pub use attrs::{AtomicCap, DeviceAttr, OdpCaps, PortAttr, PortState, device_cap, odp_cap};
pub use context::{Context, GidTableEntry};
pub use cq::{CompChannel, Completion, Cq, CqCreate, CqEvent, CqOptions, Moderation};
pub use device::{Device, device_list};
pub use dm::Dm;
pub use event::{AsyncElement, AsyncEventOut};
pub use mr::{Advice, AdvisedRange, Mr, Rereg};
pub use mw::{Mw, MwBindInfo, inc_rkey};
pub use pd::{Ah, Pd};
pub use qp::{PostError, Qp, QpCreate};
pub use raw::{CounterPoint, Counters, Flow, IndTable, Wq, WqCreate, WqState};
pub use rocebud_ctl::DeviceInfo;
pub use rocebud_objects::flow;
pub use rocebud_objects::{
    Access, AhAttr, AttrMask, Counter, Errno, EventKind, FlushPlacement, FlushRange, MigState,
    Misuse, MwType, Path, Payload, QpAttr, QpCap, QpInit, QpState, QpType, RateLimit, RecvWr,
    Remote, RxHash, RxHashFields, SendFlags, SendOp, SendWr, Sge, SgeList, SrqAttr, UdAddress, Wc,
    WcFlags, WcOpcode, WcStatus,
};
/// See [`CompChannel::sleep_on`].
pub use rocebud_runtime::Watch;
/// Lines for people, for what stands on this room.
pub use rocebud_runtime::log;
pub use rocebud_wire::{Gid, LKey, Mtu, PKey, Psn, QKey, Qpn, RKey};
pub use srq::{Srq, SrqMask};
pub use td::Td;
pub use xrc::{OpenXrcd, Xrcd};
