//! The C boundary. Each file holds one kind of object; `boundary` and `handle` hold what they
//! share. Nothing outside this directory is unsafe.
//!
//! Proof: the C programs of tests/abi, also under valgrind and AddressSanitizer.

#[macro_use]
mod entry;
mod ah;
mod boundary;
mod cm;
mod command;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod domain;
mod event;
mod flow;
mod gid;
mod handle;
mod memory;
mod misc;
mod not_yet;
mod post;
mod qp;
mod qp_ex;
mod real;
mod room;
mod rsocket;
mod sleep;
mod srq;
mod types;
mod window;
mod wq;
mod xrc;
