//! The InfiniBand connection manager as a state machine: no socket, clock, thread or lock.
//!
//! A [`Manager`] holds the connections and listeners of all ports of a host. Management
//! datagrams, calls of applications and the time go in; datagrams come out of
//! [`Manager::poll_transmit`], news for applications out of [`Manager::poll_event`]. What a
//! connection does in which state is a table ([`step`]); what the messages look like is in
//! [`msg`], and the addresses that rdma_cm puts in front of private data in [`ip`].
//!
//! Where the standard leaves room it does what Linux does, so that kernel peers are ordinary
//! ones; where Linux is slow ([`Config`]) or silent about it, the place says so.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

extern crate alloc;

mod bits;
pub mod hello;
pub mod ip;
pub mod limits;
mod mad;
mod manager;
pub mod msg;
mod reason;
mod state;
mod timing;
mod types;

pub use mad::{
    BODY_LEN, CLASS_CM, CLASS_VERSION_CM, HEADER_LEN, MAD_LEN, METHOD_SEND, MadHeader, ParseError,
};
pub use manager::{Counters, Manager, Random};
pub use msg::Message;
pub use reason::{RejReason, sidr_status};
pub use state::{Act, Input, State, Step, step};
pub use timing::{Config, ack_timeout, code_ns, packet_life_of};
pub use types::{
    Accept, Bind, CmQpType, ConnId, Connect, Ece, Ends, Event, Listen, ListenerId, Path, Peer,
    QpParams, Rejected, Reply, Request, SidrAnswer, SidrAsk, SidrReply, SidrRequest, Transmit,
};
