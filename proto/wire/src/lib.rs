//! RoCE wire formats: headers, opcode table, ICRC. Knows no queue pair.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod types;

pub use types::{Gid, LKey, Mtu, PKey, Psn, QKey, Qpn, RKey};
