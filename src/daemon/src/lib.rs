//! The daemon of a network namespace: what programs that use verbs there must share.
//!
//! It follows interfaces and addresses and makes devices and GID tables of them, owns UDP port
//! 4791 and hands out slots of it, keeps the page-sets of processes (also of dead ones), hands on
//! frames that arrived at the wrong slot, and serves QP1: connections of rdma_cm programs. It sees
//! no payload otherwise, and no verb.
//!
//! One thread, one epoll; start reading at `start.rs`, then `server.rs`.

#![deny(unsafe_code)]

mod clients;
mod cm;
mod control;
mod devices;
mod epoll;
mod ethtool;
mod gid_table;
mod group;
mod holder;
mod host;
mod ledgers;
mod limits;
mod log;
mod netlink;
mod picture;
mod requests;
mod server;
mod slot0;
mod slots;
mod start;
mod sys;

pub use control::holder_of_namespace;
pub use start::{Options, run};
