//! The public operations: choose the way, check what must be checked, do it.

use crate::{Fault, crc, guarded, signals, vm};
use std::cell::Cell;
use std::marker::PhantomData;

/// How accesses are guarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// SIGSEGV and SIGBUS handlers with an exception table: full speed.
    Handlers,
    /// `process_vm_readv`/`process_vm_writev` on ourselves: about 2 µs a call.
    ProcessVm,
}

thread_local! {
    /// Way of this thread while a `Guard` lives.
    static HERE: Cell<Option<Mode>> = const { Cell::new(None) };
    /// Guards that live in this thread.
    static GUARDS: Cell<u32> = const { Cell::new(0) };
}

/// How accesses of threads that do not block SIGSEGV or SIGBUS are guarded now.
pub fn mode() -> Mode {
    if signals::installed() {
        Mode::Handlers
    } else {
        Mode::ProcessVm
    }
}

/// While it lives, accesses of this thread skip the look at the thread's signal mask (one system
/// call each): take one per batch. The mask must not change meanwhile. Guards may overlap and end in
/// any order.
#[derive(Debug)]
pub struct Guard {
    mode: Mode,
    /// It speaks of one thread, so it must stay there.
    _here: PhantomData<*const ()>,
}

impl Guard {
    /// Looks at the signal mask of this thread once.
    pub fn new() -> Self {
        let mode = here();
        HERE.set(Some(mode));
        GUARDS.set(GUARDS.get() + 1);
        Self {
            mode,
            _here: PhantomData,
        }
    }

    /// How accesses of this thread are guarded.
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

impl Default for Guard {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let left = GUARDS.get().saturating_sub(1);
        GUARDS.set(left);
        if left == 0 {
            HERE.set(None);
        }
    }
}

/// Copies `dst.len()` bytes from `src_addr`.
pub fn copy_in(dst: &mut [u8], src_addr: usize) -> Result<(), Fault> {
    if here() == Mode::Handlers {
        return done(guarded::copy_in(dst, src_addr), src_addr, dst.len());
    }
    let copied = match vm::read(dst, src_addr) {
        Ok(copied) => copied,
        Err(vm::Refused) => let_signals_in(|| guarded::copy_in(dst, src_addr)).unwrap_or(0),
    };
    done(copied, src_addr, dst.len())
}

/// Copies and continues a CRC-32 (IEEE, as in zlib: `crc` is 0 at the start) over the bytes.
/// Returns the new CRC. After a fault the part before it is in `dst`.
pub fn copy_in_crc(dst: &mut [u8], src_addr: usize, crc: u32) -> Result<u32, Fault> {
    let mut crc = crc;
    let mut at = 0;
    for part in dst.chunks_mut(CRC_CHUNK) {
        copy_in(part, src_addr.wrapping_add(at)).map_err(|fault| Fault {
            done: fault.done + at,
            ..fault
        })?;
        crc = crc::crc32(crc, part);
        at += part.len();
    }
    Ok(crc)
}

/// Copies `src` to `dst_addr`, in ascending order, each byte stored once. A naturally aligned
/// piece of 2, 4 or 8 bytes that is the whole or the end of `src` is stored in one piece.
pub fn copy_out(dst_addr: usize, src: &[u8]) -> Result<(), Fault> {
    if here() == Mode::Handlers {
        return done(guarded::copy_out(dst_addr, src), dst_addr, src.len());
    }
    let copied = match vm::write(dst_addr, src) {
        Ok(copied) => copied,
        Err(vm::Refused) => let_signals_in(|| guarded::copy_out(dst_addr, src)).unwrap_or(0),
    };
    done(copied, dst_addr, src.len())
}

/// Atomically: if the eight bytes at `addr` equal `compare`, they become `swap`. Returns the value
/// before. An address that is not a multiple of eight is a fault.
pub fn atomic_cmp_swap(addr: usize, compare: u64, swap: u64) -> Result<u64, Fault> {
    word(addr, || guarded::cmp_swap(addr, compare, swap))
}

/// Atomically adds, wrapping; returns the value before. Alignment as for [`atomic_cmp_swap`].
pub fn atomic_fetch_add(addr: usize, add: u64) -> Result<u64, Fault> {
    word(addr, || guarded::fetch_add(addr, add))
}

/// Loads eight aligned bytes in one piece. Alignment as for [`atomic_cmp_swap`].
pub fn load_u64(addr: usize) -> Result<u64, Fault> {
    word(addr, || guarded::load(addr))
}

/// Stores eight aligned bytes in one piece. Alignment as for [`atomic_cmp_swap`].
pub fn store_u64(addr: usize, value: u64) -> Result<(), Fault> {
    word(addr, || guarded::store(addr, value).then_some(0)).map(|_| ())
}

/// Tells whether the range can be read (and written, with `write`), and brings its pages in, as
/// registration with a real adapter does. Contents stay as they are.
pub fn probe(addr: usize, len: usize, write: bool) -> Result<(), Fault> {
    let Some(last) = len.checked_sub(1) else {
        return Ok(());
    };
    let Some(last) = addr.checked_add(last) else {
        return Err(Fault { addr, done: 0 });
    };
    // One system call for all pages; where the kernel does not know it or finds something odd,
    // the pages are touched one by one, which also finds the first bad one.
    if vm::populate(addr, last, write) {
        return Ok(());
    }
    let mut at = addr;
    loop {
        if !let_signals_in(|| guarded::touch(at, write)).unwrap_or(false) {
            return Err(Fault {
                addr: at,
                done: at - addr,
            });
        }
        match (at | (PAGE - 1)).checked_add(1) {
            Some(next) if next <= last => at = next,
            _ => return Ok(()),
        }
    }
}

/// Way of this thread, now.
fn here() -> Mode {
    HERE.get().unwrap_or_else(look)
}

fn look() -> Mode {
    if signals::installed() && !signals::blocked_here() {
        signals::look_now_and_then();
        Mode::Handlers
    } else {
        Mode::ProcessVm
    }
}

/// Runs an access that needs our handlers, with the signals let in where this thread blocks them.
/// None if there are no handlers to be had.
fn let_signals_in<R>(access: impl FnOnce() -> R) -> Option<R> {
    if here() == Mode::Handlers {
        return Some(access());
    }
    if !signals::installed() {
        signals::install().ok()?;
    }
    Some(signals::let_in(access))
}

/// An access of one aligned word.
fn word(addr: usize, access: impl FnOnce() -> Option<u64>) -> Result<u64, Fault> {
    let fault = Fault { addr, done: 0 };
    if !addr.is_multiple_of(8) {
        return Err(fault);
    }
    let_signals_in(access).flatten().ok_or(fault)
}

fn done(copied: usize, addr: usize, len: usize) -> Result<(), Fault> {
    if copied == len {
        Ok(())
    } else {
        Err(Fault {
            addr: addr.wrapping_add(copied),
            done: copied,
        })
    }
}

/// Small enough that the CRC finds the copy in the first-level cache.
const CRC_CHUNK: usize = 8192;
/// Smallest page of any system; touching more often than needed does no harm.
const PAGE: usize = 4096;
