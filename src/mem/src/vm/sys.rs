//! `process_vm_readv` and `process_vm_writev` on ourselves, and `madvise`.
//!
//! Proof: as for the guarded routines; the kernel checks the foreign address.
#![allow(unsafe_code)]

/// The system does not let us (a seccomp filter, as some containers have).
#[derive(Debug)]
pub(crate) struct Refused;

/// Copies from anywhere into our own memory; returns the bytes copied. A short count is a fault.
pub(crate) fn read(dst: &mut [u8], src_addr: usize) -> Result<usize, Refused> {
    let start = dst.as_mut_ptr();
    let len = dst.len();
    transfer(len, |at| {
        // SAFETY: `at < len`, within the slice.
        let here = unsafe { start.add(at) };
        let local = libc::iovec {
            iov_base: here.cast(),
            iov_len: len - at,
        };
        let remote = remote(src_addr, at, len);
        let pid = pid();
        // SAFETY: `local` is the rest of `dst`, borrowed mutably; the kernel checks `remote`.
        unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) }
    })
}

/// Copies from our own memory to anywhere; returns the bytes copied. A short count is a fault.
pub(crate) fn write(dst_addr: usize, src: &[u8]) -> Result<usize, Refused> {
    let len = src.len();
    transfer(len, |at| {
        let rest = src.get(at..).unwrap_or(&[]);
        let local = libc::iovec {
            iov_base: rest.as_ptr().cast_mut().cast(),
            iov_len: rest.len(),
        };
        let remote = remote(dst_addr, at, len);
        let pid = pid();
        // SAFETY: `local` is the rest of `src` and only read; the kernel checks `remote`, which is
        // memory that the application gave us to write.
        unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) }
    })
}

/// Asked each time: after a fork it is another.
fn pid() -> i32 {
    // SAFETY: no pointers.
    unsafe { libc::getpid() }
}

fn remote(addr: usize, at: usize, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: addr.wrapping_add(at) as *mut libc::c_void,
        iov_len: len - at,
    }
}

/// Repeats a transfer that may stop at any page until it is complete or stops for good.
fn transfer(len: usize, mut step: impl FnMut(usize) -> isize) -> Result<usize, Refused> {
    let mut at = 0;
    while at < len {
        match usize::try_from(step(at)) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => return Err(Refused),
                _ => break,
            },
        }
    }
    Ok(at)
}

/// Brings in the pages from `first` to `last`; false if some cannot be had or the kernel is older
/// than 5.14.
pub(crate) fn populate(first: usize, last: usize, write: bool) -> bool {
    let page = page_size();
    let start = first & !(page - 1);
    let Some(len) = (last | (page - 1))
        .checked_sub(start)
        .and_then(|n| n.checked_add(1))
    else {
        return false;
    };
    let advice = if write {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    loop {
        // SAFETY: populating changes no contents; the kernel checks the range.
        let rc = unsafe { libc::madvise(start as *mut libc::c_void, len, advice) };
        if rc == 0 {
            return true;
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return false;
        }
    }
}

fn page_size() -> usize {
    // SAFETY: no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
