//! The connection manager of a program: identifiers, their events, and the queue pairs that they
//! carry. Ports, routes and the wire are the daemon's; queue pairs are moved here, as librdmacm
//! does it.
//!
//! Read first: `id`, `event`, `connect`.

mod address;
mod addrinfo;
mod channel;
mod connect;
mod device;
mod endpoint;
mod event;
mod id;
mod multicast;
mod qp;
pub(super) mod resolve;
pub(super) mod types;
pub(super) mod verbs;
