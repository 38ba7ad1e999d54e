//! Deterministic network for production engines.
//!
//! Hosts run the engine of `rocebud-engine` as it is shipped; the fabric gives them a virtual
//! clock, memory, completion queues and a wire on which every frame is really sealed and
//! verified. One seed decides everything that happens. Right and wrong are judged elsewhere, from
//! outside.
#![forbid(unsafe_code)]

mod chaos;
mod env;
mod frame;
mod host;
mod memory;
mod net;
mod rng;
mod rule;
mod trace;

pub use chaos::{Chaos, FaultPlan};
pub use env::{Completed, Flushed, HostEnv};
pub use frame::{Frame, IdRule, Verified};
pub use host::{Host, HostConfig};
pub use memory::{Memory, Region, Span};
pub use net::{Fabric, HostId, Stats, Step, Tap};
pub use rng::{Ratio, Rng, fill, mix};
pub use rule::{Rule, Sight, Verdict, every_nth, the_nth};
pub use trace::line as trace_line;
