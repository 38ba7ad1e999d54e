//! Sockets over RDMA: the `r*` calls, with the wire protocol of upstream's rsockets.
//!
//! `proto/rsocket` knows the protocol. Here are its memory and its queue pair (`endpoint`), how a
//! socket comes to a connection and waits (`socket`), and the calls (`calls`, `io`, `poll`).
//! Everything is done in the calls themselves, as upstream does it; the one thread there can be
//! sends keepalives (`keepalive`).
//!
//! A socket's number is the descriptor of its event channel. The program may wait on it with
//! `rpoll` and `rselect` only.

mod calls;
mod defaults;
mod endpoint;
mod io;
mod keepalive;
mod memory;
mod poll;
mod socket;
mod table;
mod verbs;
