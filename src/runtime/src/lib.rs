//! The event loop of a process: clock, link, engine, memory.
//!
//! A [`Runtime`] joins what the rooms around it offer: the engine (which knows no socket), the UDP
//! link (which knows no BTH), guarded memory, and the daemon's word on devices and slots. It runs
//! in the threads of the application whenever they call, and in one of its own when they do not.
//! Nothing here is meant for programs: they use `rocebud-verbs`.
#![deny(unsafe_code)]

pub mod channel;
mod claim;
pub mod context;
mod core;
pub mod cq;
mod crowd;
mod current;
mod env;
mod farewell;
mod flow;
mod fork;
pub mod hooks;
mod hosts;
pub mod keys;
mod later;
pub mod log;
mod lookout;
mod near;
mod objects;
pub mod ports;
mod progress;
mod qpn;
mod random;
mod raw;
mod runtime;
mod rx;
mod sync;
#[allow(unsafe_code, reason = "system calls; one operation a block")]
mod sys;
mod tx;
mod unanswered;
mod window;

pub use claim::Claim;
/// A descriptor to be waited for.
pub use libc::pollfd as PollFd;
pub use lookout::Watch;
pub use objects::{Asleep, PostError, SRQS_MAX};
pub use raw::{FlowCounts, RawCreate, TableId, WqState};
pub use rocebud_engine::SrqMask;
pub use rocebud_mem::{copy_in, copy_out, ensure_in_front, probe};
pub use runtime::Runtime;
pub use sys::{Pages, page_size};
