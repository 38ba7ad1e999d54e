//! Memory of every awkward kind, for the tests.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

pub(crate) const PAGE: usize = 4096;

/// Some pages of our own, unmapped at the end.
pub(crate) struct Pages {
    pub(crate) addr: usize,
    len: usize,
}

impl Pages {
    /// Readable and writable anonymous pages.
    pub(crate) fn new(pages: usize) -> Self {
        Self::map(pages * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// A shared mapping of a file.
    pub(crate) fn of_file(file: &File, pages: usize) -> Self {
        Self::map(pages * PAGE, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(len: usize, flags: i32, fd: i32) -> Self {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let addr = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, 0) };
        assert_ne!(addr, libc::MAP_FAILED);
        Self {
            addr: addr as usize,
            len,
        }
    }

    /// Changes the protection of one page.
    pub(crate) fn protect(&self, page: usize, prot: i32) {
        let at = (self.addr + page * PAGE) as *mut libc::c_void;
        // SAFETY: a page of this mapping, used by raw address only.
        assert_eq!(unsafe { libc::mprotect(at, PAGE, prot) }, 0);
    }

    /// Takes one page away.
    pub(crate) fn unmap(&self, page: usize) {
        let at = (self.addr + page * PAGE) as *mut libc::c_void;
        // SAFETY: a page of this mapping, used by raw address only.
        assert_eq!(unsafe { libc::munmap(at, PAGE) }, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; holes in it do not matter.
        unsafe { libc::munmap(self.addr as *mut libc::c_void, self.len) };
    }
}

/// Blocks SIGSEGV and SIGBUS in this thread, or lets them in again.
pub(crate) fn block_faults(block: bool) {
    let how = if block {
        libc::SIG_BLOCK
    } else {
        libc::SIG_UNBLOCK
    };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: initialises the set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: initialised above.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        // SAFETY: initialised above.
        unsafe { libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut()) };
    }
}
