//! Memory that a socket shares with its device, and so with its peer: pages of its own, reached by
//! copies only.

use core::ffi::{c_int, c_void};

use rocebud_objects::{Errno, Misuse};
use rocebud_rsocket::{Region, SharedBlock, Span};

use super::super::boundary::{Outcome, last_errno};
use super::super::types::{ibv_mr, ibv_pd};
use super::verbs;

/// Pages, registered.
pub(super) struct Memory {
    at: *mut u8,
    len: usize,
    mr: *mut ibv_mr,
}

impl Memory {
    /// Zeroed pages for at least `len` bytes, registered with `access`.
    pub(super) fn new(pd: *mut ibv_pd, len: usize, access: c_int) -> Outcome<Self> {
        let (read_write, private) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, read_write, private, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(Misuse::new(
                last_errno(),
                "no memory for a socket's buffers",
            ));
        }
        // SAFETY: a living protection domain, and the mapping just made.
        let mr = unsafe { verbs::ibv_reg_mr(pd, at, len, access) };
        match verbs::made(mr, "a socket's buffers could not be registered") {
            Ok(mr) => Ok(Self {
                at: at.cast(),
                len,
                mr,
            }),
            Err(e) => {
                // SAFETY: the mapping just made.
                unsafe { libc::munmap(at, len) };
                Err(e)
            }
        }
    }

    /// Unregisters and unmaps. Nothing reaches it any more.
    pub(super) fn close(self) {
        // SAFETY: the region of this memory, which nobody uses any more.
        unsafe { verbs::ibv_dereg_mr(self.mr) };
        // SAFETY: the mapping of this memory.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// As the peer names it.
    pub(super) fn region(&self) -> Region {
        // SAFETY: a living region.
        let key = unsafe { (*self.mr).rkey };
        Region {
            address: self.at as u64,
            key,
        }
    }

    /// For our own requests.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: a living region.
        unsafe { (*self.mr).lkey }
    }

    pub(super) fn address(&self, offset: u32) -> u64 {
        self.at as u64 + u64::from(offset)
    }

    /// Where a span begins, if all of it is inside.
    fn place(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.at.wrapping_add(offset))
    }

    /// Copies a span to the program's memory.
    pub(super) fn copy_out(&self, span: Span, to: *mut u8) {
        let len = span.len as usize;
        if let Some(from) = self.place(span.at as usize, len) {
            // SAFETY: inside the mapping; the program gives room for as much.
            unsafe { core::ptr::copy_nonoverlapping(from, to, len) };
        }
    }

    /// Copies the program's bytes to a span.
    pub(super) fn copy_in(&self, span: Span, from: *const u8) {
        let len = span.len as usize;
        if let Some(to) = self.place(span.at as usize, len) {
            // SAFETY: inside the mapping; the program gives as many bytes.
            unsafe { core::ptr::copy_nonoverlapping(from, to, len) };
        }
    }
}

impl SharedBlock for Memory {
    fn read(&self, offset: usize, into: &mut [u8]) {
        into.fill(0);
        if let Some(from) = self.place(offset, into.len()) {
            // SAFETY: inside the mapping; the destination is ours alone.
            unsafe { core::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        }
    }
}

/// Memory of the program, registered by `riomap`.
pub(super) struct Mapping {
    at: u64,
    len: u32,
    /// The offset by which the peer knows it.
    pub(super) offset: Option<u64>,
    mr: *mut ibv_mr,
}

impl Mapping {
    /// Registers `len` bytes, for the peer to write if `remote`.
    pub(super) fn new(pd: *mut ibv_pd, at: *mut c_void, len: usize, remote: bool) -> Outcome<Self> {
        const TOO_LONG: Misuse = Misuse::new(Errno::EINVAL, "riomap: at most 4 GiB at a time");
        let short = u32::try_from(len).map_err(|_| TOO_LONG)?;
        let access = match remote {
            true => verbs::LOCAL_WRITE | verbs::REMOTE_WRITE,
            false => verbs::LOCAL_WRITE,
        };
        // SAFETY: a living protection domain; verbs checks the range.
        let mr = unsafe { verbs::ibv_reg_mr(pd, at, len, access) };
        Ok(Self {
            at: at as u64,
            len: short,
            offset: None,
            mr: verbs::made(mr, "riomap: the memory could not be registered")?,
        })
    }

    pub(super) fn is(&self, at: *mut c_void, len: usize) -> bool {
        self.at == at as u64 && self.len as usize == len
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn region(&self) -> Region {
        // SAFETY: a living region.
        let key = unsafe { (*self.mr).rkey };
        Region {
            address: self.at,
            key,
        }
    }

    pub(super) fn close(self) {
        // SAFETY: a region of this socket's, closed once.
        unsafe { verbs::ibv_dereg_mr(self.mr) };
    }
}
