//! What library, command and daemon say to each other.
//!
//! A `SOCK_SEQPACKET` unix socket carries requests and answers ([`messages`]), descriptors ride
//! along as `SCM_RIGHTS`, and one shared [`PageSet`] per process holds what the daemon must be able
//! to read at any time without asking: counters and each queue pair's last events. One [`Ledger`]
//! per user says what is on its way to each of his processes.
//!
//! Start reading at [`Client`]; the daemon's half is built from [`channel`] and [`messages`].

#![deny(unsafe_code)]

pub mod channel;
mod client;
pub mod cm;
mod device;
mod error;
pub mod fds;
pub mod forward;
mod ledger;
pub mod limits;
pub mod messages;
pub mod page;
mod peers;
pub mod settings;
mod spawn;
mod start;
pub mod status;

pub use client::{Client, Notice, SlotGrant};
pub use device::{DeviceInfo, DeviceList, GidEntry};
pub use error::{CtlError, ErrorKind, no_descriptors, too_few_for_a_daemon};
pub use ledger::{Ledger, Line};
pub use page::PageSet;
pub use peers::{Herald, PeerHint, PeerNews, PeerWord};
pub use start::{
    SYSTEM_SOCKET, SocketName, Unreachable, control_socket, report_start, user_socket_name,
};
