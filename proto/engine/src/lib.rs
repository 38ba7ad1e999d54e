//! RoCE as a state machine: no socket, pointer, file, thread or clock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod env;

pub use env::{CqOverrun, Env, LocalFault, RemoteFault, Scope};
