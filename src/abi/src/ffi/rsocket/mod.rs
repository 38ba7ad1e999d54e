//! Sockets over RDMA: the `r*` calls, with the wire protocol of upstream's rsockets.
//!
//! `proto/rsocket` knows the protocol. Here are its memory and its queue pair (`endpoint`), how a
//! socket comes to a connection and waits (`socket`), and the calls (`calls`, `io`, `poll`).
//! Everything is done in the calls themselves, as upstream does it; the one thread there can be
//! sends keepalives (`keepalive`).
//!
//! Datagram sockets are in `datagram`; how calls wait, for both kinds, in `wait`; sets of sockets
//! to wait for in `repoll`.
//!
//! A socket's number is the descriptor of its event channel, or of its UDP socket. The program may
//! wait on it with `rpoll`, `rselect` and `repoll_wait` only.

mod calls;
mod completions;
mod datagram;
mod defaults;
mod endpoint;
mod io;
mod keepalive;
mod memory;
mod news;
mod poll;
mod repoll;
mod route;
mod socket;
mod table;
mod verbs;
mod wait;
