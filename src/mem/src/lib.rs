//! Guarded access to memory that the application also sees.
//!
//! Every function here takes plain addresses of this process and survives what may be there: a
//! page that is not mapped, not accessible, or backed by a file that became shorter gives
//! [`Fault`], never a signal that the application sees.

use std::io;
use std::marker::PhantomData;

/// The memory could not be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// First byte that could not be accessed.
    pub addr: usize,
    /// Bytes before it that were copied.
    pub done: usize,
}

/// How accesses are guarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// SIGSEGV and SIGBUS handlers with an exception table: full speed.
    Handlers,
    /// `process_vm_readv`/`process_vm_writev` on ourselves: about 2 µs a call.
    ProcessVm,
}

/// Puts the SIGSEGV and SIGBUS handlers in place. Idempotent.
pub fn install() -> io::Result<()> {
    todo!()
}

/// Puts our handlers in front again if the program installed its own since; ours chains to them.
/// Two system calls. Returns whether anything had to be done.
pub fn ensure_in_front() -> bool {
    todo!()
}

/// How accesses of threads that do not block SIGSEGV or SIGBUS are guarded now.
pub fn mode() -> Mode {
    todo!()
}

/// While it lives, accesses of this thread skip the look at the thread's signal mask (one system
/// call each): take one per batch. The mask must not change meanwhile.
#[derive(Debug)]
pub struct Guard {
    _here: PhantomData<*const ()>,
}

impl Guard {
    /// Looks at the signal mask of this thread once.
    pub fn new() -> Self {
        todo!()
    }

    /// How accesses of this thread are guarded.
    pub fn mode(&self) -> Mode {
        todo!()
    }
}

impl Default for Guard {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies `dst.len()` bytes from `src_addr`.
pub fn copy_in(_dst: &mut [u8], _src_addr: usize) -> Result<(), Fault> {
    todo!()
}

/// Copies and continues a CRC-32 (IEEE, as in zlib: `crc` is 0 at the start) over the bytes.
pub fn copy_in_crc(_dst: &mut [u8], _src_addr: usize, _crc: u32) -> Result<u32, Fault> {
    todo!()
}

/// Copies `src` to `dst_addr`, in ascending order, each byte stored once.
pub fn copy_out(_dst_addr: usize, _src: &[u8]) -> Result<(), Fault> {
    todo!()
}

/// Atomically: if the eight bytes at `addr` equal `compare`, they become `swap`. Returns the value
/// before. An address that is not a multiple of eight is a fault.
pub fn atomic_cmp_swap(_addr: usize, _compare: u64, _swap: u64) -> Result<u64, Fault> {
    todo!()
}

/// Atomically adds, wrapping; returns the value before. Alignment as for `atomic_cmp_swap`.
pub fn atomic_fetch_add(_addr: usize, _add: u64) -> Result<u64, Fault> {
    todo!()
}

/// Stores eight aligned bytes in one piece.
pub fn store_u64(_addr: usize, _value: u64) -> Result<(), Fault> {
    todo!()
}

/// Tells whether the range can be read (and written, with `write`), and brings its pages in.
pub fn probe(_addr: usize, _len: usize, _write: bool) -> Result<(), Fault> {
    todo!()
}
