//! Descriptors and what hangs on them: memfds, mappings, credentials, namespaces.
//!
//! The only unsafe code of this crate besides starting a process (`spawn/sys.rs`).

#![allow(unsafe_code, reason = "mmap, and socket options that rustix lacks")]

use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A shared mapping of a `T` that consists of atomics.
pub(crate) struct Mapping<T> {
    base: NonNull<T>,
    _owns: PhantomData<T>,
}

/// What may lie in shared memory that another process writes.
///
/// # Safety
///
/// The type is `repr(C)`, made of atomics only (so every byte pattern is a value and a write by
/// somebody else is no data race), and needs no drop.
pub(crate) unsafe trait SharedLayout {}

// SAFETY: `Layout` is repr(C) and made of AtomicU32 and AtomicU64 only (see page.rs).
unsafe impl SharedLayout for crate::page::Layout {}

// SAFETY: `Layout` is repr(C) and made of AtomicU64 and padding that nobody reads (see ledger.rs).
unsafe impl SharedLayout for crate::ledger::Layout {}

impl<T: SharedLayout> Mapping<T> {
    /// Maps the whole of `fd`. Refuses a file that is shorter than `T` or that could shrink.
    pub(crate) fn new(fd: impl AsFd) -> io::Result<Self> {
        let fd = fd.as_fd();
        let stat = rustix::fs::fstat(fd)?;
        let seals = rustix::fs::fcntl_get_seals(fd)?;
        let long_enough = u64::try_from(stat.st_size).is_ok_and(|n| n >= size_of::<T>() as u64);
        if !long_enough || !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "shared file is too short or not sealed",
            ));
        }
        let flags = MapFlags::SHARED;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), size_of::<T>(), prot, flags, fd, 0) }?;
        let base = NonNull::new(base.cast::<T>()).ok_or(io::ErrorKind::Other)?;
        Ok(Self {
            base,
            _owns: PhantomData,
        })
    }

    pub(crate) fn get(&self) -> &T {
        // SAFETY: mapped until drop, page-aligned (T asks for no more), at least size_of::<T>()
        // bytes that cannot shrink (checked in `new`), and T is atomics (SharedLayout).
        unsafe { self.base.as_ref() }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; references to it cannot outlive self.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), size_of::<T>()) };
    }
}

// SAFETY: T is atomics (SharedLayout); the mapping belongs to the process, not to a thread.
unsafe impl<T: SharedLayout> Send for Mapping<T> {}
// SAFETY: as above; shared access is through atomics.
unsafe impl<T: SharedLayout> Sync for Mapping<T> {}

/// An anonymous file of `bytes` zeros that can neither shrink nor grow.
pub(crate) fn sealed_memfd(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// A number for the network namespace of this process (the kernel's cookie of it, or the inode of
/// `/proc/self/ns/net` on kernels before 5.14); 0 if neither can be had.
///
/// # Errors
/// EMFILE, ENFILE: there is no descriptor to ask with. The other number would then be taken for
/// that of another namespace.
pub fn netns_id() -> io::Result<u64> {
    let inode = || rustix::fs::stat("/proc/self/ns/net").map_or(0, |stat| stat.st_ino);
    let cookie = netns_cookie();
    match &cookie {
        Err(error) if crate::no_descriptors(error).is_none() => Ok(inode()),
        _ => cookie,
    }
}

fn netns_cookie() -> io::Result<u64> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let mut cookie = [0; 8];
    get_option(&socket, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// A pidfd of the process at the other end of a unix socket, race-free where the kernel can
/// (6.5 and later), else by its number.
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut raw = [0; 4];
    if get_option(&socket, SO_PEERPIDFD, &mut raw).is_ok() {
        let raw = i32::from_ne_bytes(raw);
        // SAFETY: the kernel has just made this descriptor for us alone.
        return Ok(unsafe { OwnedFd::from_raw_fd(raw) });
    }
    let cred = rustix::net::sockopt::socket_peercred(socket)?;
    Ok(rustix::process::pidfd_open(
        cred.pid,
        rustix::process::PidfdFlags::empty(),
    )?)
}

/// Process, user and group at the other end of a unix socket, as numbers of our namespaces. The
/// process is 0 if it is not visible from here.
pub fn peer_ids(socket: impl AsFd) -> io::Result<PeerIds> {
    let mut raw = [0; 12];
    get_option(&socket, libc::SO_PEERCRED, &mut raw)?;
    let word = |at: usize| {
        raw[at..]
            .first_chunk::<4>()
            .map_or(0, |b| u32::from_ne_bytes(*b))
    };
    Ok(PeerIds {
        pid: word(0),
        uid: word(4),
        gid: word(8),
    })
}

/// Who is at the other end of a unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "said by their names")]
pub struct PeerIds {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
}

fn get_option(socket: impl AsFd, option: i32, value: &mut [u8]) -> io::Result<()> {
    let mut len = value.len() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: value and len are valid for writing, and len says how long value is.
    let rc = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    match rc {
        0 if len as usize == value.len() => Ok(()),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The file that this code was loaded from: the library in a program, else the program.
#[must_use]
pub fn own_object() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: Dl_info is plain data for which zero is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = own_object as fn() -> Option<PathBuf>;
    // SAFETY: dladdr takes any address; info is valid for writing.
    let found = unsafe { libc::dladdr(here as *const libc::c_void, &raw mut info) } != 0;
    if !found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gives a string that lives as long as the object is loaded, and we are in it.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

/// An environment variable, but not in a program that runs with more rights than its caller.
#[must_use]
pub fn secure_env(name: &CStr) -> Option<std::ffi::OsString> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: getauxval only reads what the kernel gave at start.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if secure {
        return None;
    }
    std::env::var_os(std::ffi::OsStr::from_bytes(name.to_bytes())).filter(|v| !v.is_empty())
}

const SO_NETNS_COOKIE: i32 = 71;
const SO_PEERPIDFD: i32 = 77;
