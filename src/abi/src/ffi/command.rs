//! `cmd_fd`: a descriptor that stands for an open device. It leads nowhere, but duplicates of it
//! can be told apart from everything else, which is what importing needs.

use core::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rocebud_objects::Misuse;
use rocebud_verbs::log;

use super::boundary::{Outcome, last_errno};
use super::types::ibv_device;

/// What the descriptors are named, for other processes that are handed one.
const NAME: &CStr = c"rocebud-device";
/// How the kernel shows that name.
const SHOWN: &str = "/memfd:rocebud-device";

/// The file behind a descriptor: device and inode number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct File(u64, u64);

struct Open {
    file: File,
    device: *mut ibv_device,
    verbs: rocebud_verbs::Context,
}

// SAFETY: the device is never freed, and only handed back to C.
unsafe impl Send for Open {}

/// Open devices and imports of them, by their descriptors.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new descriptor.
pub(crate) fn make() -> Outcome<c_int> {
    // SAFETY: the name ends with NUL.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        let errno = last_errno();
        log::shortage(
            "opening a device",
            &std::io::Error::from_raw_os_error(errno.0),
        );
        return Err(Misuse::new(
            errno,
            "no descriptor is left for the device's cmd_fd",
        ));
    }
    Ok(fd)
}

/// The descriptor stands for this open device from now on.
pub(crate) fn enter(fd: c_int, device: *mut ibv_device, verbs: &rocebud_verbs::Context) {
    if let Some(file) = file(fd) {
        open().push(Open {
            file,
            device,
            verbs: verbs.clone(),
        });
    }
}

/// The open device is closed, and its descriptor with it.
pub(crate) fn leave(fd: c_int, verbs: &rocebud_verbs::Context) {
    open().retain(|o| !o.verbs.is_same(verbs));
    // SAFETY: the context's own: made for it, or handed over when it was imported.
    unsafe { libc::close(fd) };
}

/// The open device that a descriptor stands for; `None` if it stands for one of another process.
///
/// # Errors
/// EINVAL: it stands for none of ours.
pub(crate) fn find(fd: c_int) -> Outcome<Option<(*mut ibv_device, rocebud_verbs::Context)>> {
    let file = file(fd).ok_or(super::domain::NOT_A_DEVICE)?;
    if let Some(found) = open().iter().find(|o| o.file == file) {
        return Ok(Some((found.device, found.verbs.clone())));
    }
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    if link.to_string_lossy().starts_with(SHOWN) {
        return Ok(None);
    }
    Err(super::domain::NOT_A_DEVICE)
}

fn file(fd: c_int) -> Option<File> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for one structure.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: fstat succeeded and filled it.
    let stat = unsafe { stat.assume_init() };
    Some(File(stat.st_dev, stat.st_ino))
}
