//! Guarded access to memory that the application also sees.
//!
//! Every function here takes plain addresses of this process and survives what may be there: a
//! page that is not mapped, not accessible, or backed by a file that became shorter gives
//! [`Fault`], never a signal that the application sees.
//!
//! There are two ways. Normally copies run in routines with an exception table, and handlers of
//! SIGSEGV and SIGBUS resume behind the routine; faults of anybody else are passed on to whoever
//! had the signal before us, or to whoever took it since. In a thread that blocks these signals
//! the kernel would kill the process instead of calling a handler, so there the kernel copies
//! (`process_vm_readv`, `process_vm_writev`), or, where only the processor can do it in one piece,
//! the signals are let in for that one access.
//!
//! Bytes are always copied in ascending order and stored once, so that a program which polls the
//! last byte of a message sees the others.

#![deny(unsafe_code)]

mod access;
mod crc;
mod guarded;
mod signals;
mod vm;

pub use access::{
    Guard, Mode, atomic_cmp_swap, atomic_fetch_add, copy_in, copy_in_crc, copy_out, load_u64, mode,
    probe, store_u64,
};
pub use crc::crc32;
pub use signals::{ensure_in_front, install};

/// The memory could not be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// First byte that could not be accessed.
    pub addr: usize,
    /// Bytes before it that were copied.
    pub done: usize,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "memory at {:#x} is not accessible", self.addr)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests;
