//! The wire protocol of rsockets, compatible with upstream's librdmacm: streams over RDMA Write
//! with Immediate on an RC queue pair, and datagrams over UDP and UD.
//!
//! Nothing here posts, waits or copies. A [`Stream`] says which RDMA Writes to post
//! ([`Stream::poll_work`], [`Stream::send`]) and takes completions ([`Stream::on_sent`],
//! [`Stream::on_received`]); where bytes lie in its two rings it says as [`Span`]s, and their owner
//! copies. Moves of a socket's state are one table in [`mod@state`]. [`datagram`] has the headers of
//! datagram sockets and the table of destinations.
//!
//! What a peer writes is checked before it counts: a [`Violation`] that breaks the accounting of
//! the ring ends the connection, any other is counted and changes nothing.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod config;
mod connect;
pub mod datagram;
mod entry;
mod iomap;
pub mod limits;
mod message;
pub mod options;
mod recv;
mod ring;
mod send;
pub mod state;
mod stream;

pub use config::Config;
pub use connect::{CONNECT_LEN, ConnectData, Region, Unacceptable};
pub use entry::{BLOCK_TARGETS, ByteOrder, IOMAP_LEN, IoEntry, TARGET_LEN, TargetEntry};
pub use iomap::{DirectWrite, OFFSET_IS_ADDRESS};
pub use message::{Control, Message};
pub use recv::Violation;
pub use ring::Span;
pub use send::Planned;
pub use state::{Event, State};
pub use stream::{
    Local, Ready, Received, SharedBlock, Source, Stopped, Stream, Work, WorkId, Write,
};
