//! Calls that need no object of ours: fork support, words for numbers, sysfs.

use core::ffi::{CStr, c_char, c_int, c_uint};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;

use rocebud_objects::{Errno, Misuse};

use super::boundary::{MinusOne, NULL, Opaque, Outcome, enter};
use super::device::sysfs_value;
use super::{qp::Qp, real};
use crate::words;

/// `ibv_fork_init`: nothing to prepare, our registrations pin no pages. Real devices need it.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    if real::has_devices()
        && let Some(f) = real::library()
            .ok()
            .and_then(|l| l.symbol(c"ibv_fork_init"))
    {
        // SAFETY: the real library's function has this type.
        let f: extern "C" fn() -> c_int = unsafe { core::mem::transmute(f) };
        return f();
    }
    0
}

/// `IBV_FORK_UNNEEDED`
const FORK_UNNEEDED: c_int = 2;

/// `ibv_is_fork_initialized`
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    if real::has_devices()
        && let Some(f) = real::library()
            .ok()
            .and_then(|l| l.symbol(c"ibv_is_fork_initialized"))
    {
        // SAFETY: the real library's function has this type.
        let f: extern "C" fn() -> c_int = unsafe { core::mem::transmute(f) };
        return f();
    }
    FORK_UNNEEDED
}

/// `ibv_qp_to_qp_ex`: NULL for a queue pair that was created without `send_ops_flags`.
#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: super::handle::Handle<Qp>) -> Opaque {
    let library = match qp.owner() {
        Ok(super::handle::Owner::Them(library)) => library,
        Ok(super::handle::Owner::Us(ours)) => return ours.as_ex(),
        Err(_) => return core::ptr::null_mut(),
    };
    match library.symbol(c"ibv_qp_to_qp_ex") {
        Some(f) => {
            // SAFETY: the real library's function has this type.
            let f: extern "C" fn(super::handle::Handle<Qp>) -> Opaque =
                unsafe { core::mem::transmute(f) };
            f(qp)
        }
        None => core::ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    words::wc_status(status).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    words::event_type(event).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: c_uint) -> *const c_char {
    words::port_state(state).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    words::node_type(node_type).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: c_uint) -> *const c_char {
    words::cm_event(event).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    words::rate_to_mult(rate)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    words::mult_to_rate(mult)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    words::rate_to_mbps(rate)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    words::mbps_to_rate(mbps)
}

/// `ibv_get_sysfs_path`: where sysfs is mounted.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: the value of `dir/file` without its newline, and its length. Values
/// of our devices come from memory, so that they need no tree in the file system.
///
/// # Safety
/// `dir` and `file` are NUL-terminated strings or NULL; `buf` has room for `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut u8,
    size: usize,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(NULL);
        }
        // SAFETY: the caller vouches for the string; NULL was refused.
        let dir = unsafe { CStr::from_ptr(dir) };
        // SAFETY: as above.
        let file = unsafe { CStr::from_ptr(file) };
        let value = match sysfs_value(dir, file) {
            Some(value) => value.into_bytes(),
            None => read_file(dir, file)?,
        };
        let value = value.strip_suffix(b"\n").unwrap_or(&value);
        let n = value.len().min(size);
        // SAFETY: n <= size, for which the caller vouches.
        unsafe { core::ptr::copy_nonoverlapping(value.as_ptr(), buf, n) };
        if n < size {
            // SAFETY: n < size.
            unsafe { buf.wrapping_add(n).write(0) };
        }
        Ok(c_int::try_from(n).unwrap_or(c_int::MAX))
    })
}

/// Longest value that is read; sysfs shows one page at most.
const SYSFS_VALUE_MAX: u64 = 4096;

fn read_file(dir: &CStr, file: &CStr) -> Outcome<Vec<u8>> {
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(dir.to_bytes()))
        .join(std::ffi::OsStr::from_bytes(file.to_bytes()));
    let mut value = Vec::new();
    std::fs::File::open(path)
        .and_then(|f| f.take(SYSFS_VALUE_MAX).read_to_end(&mut value))
        .map_err(|e| {
            let errno = Errno(e.raw_os_error().unwrap_or(libc::EIO));
            Misuse::new(errno, "this sysfs file cannot be read")
        })?;
    Ok(value)
}
