//! RoCE as a state machine: no socket, pointer, file, thread or clock.
//!
//! A [`Node`] holds the queue pairs of a process. Packets, work requests and the time go in through
//! its methods; packets come out of [`Node::poll_transmit`]; memory, completions, events and
//! counters are asked of the world through [`Env`]. The [`manual`] tells how it recovers from
//! losses and what an error completion means.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::cast_possible_truncation
    )
)]

extern crate alloc;

mod config;
mod cx;
mod env;
pub mod limits;
pub mod manual;
mod node;
mod peers;
mod qp;
mod ready;
mod reasons;
mod srq;
mod table;
mod timers;

pub use config::NodeConfig;
#[cfg(feature = "planted")]
pub use config::Planted;
pub use env::{CqOverrun, Env, LocalFault, RemoteFault, Scope};
pub use node::{Node, RxMeta, Transmit};
pub use qp::{Pace, state};
pub use reasons::Reason;
pub use srq::SrqMask;
