//! The system calls and mappings of the ring.
//!
//! Proof: the tests beside it run over a real socket; every offset is masked or bounded here, in the same
//! function, whatever the memory says.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Control;
use super::program::{Op, RECORD_BYTES};

// Commands and types of bpf(2).
const MAP_CREATE: libc::c_int = 0;
const PROG_LOAD: libc::c_int = 5;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_RINGBUF: u32 = 27;
const MAP_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;

/// Head of a record: length and flags, and a word of the kernel's.
const HEAD_BYTES: u64 = 8;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// What `MAP_CREATE` reads.
#[repr(C)]
#[derive(Default)]
struct MapAttr {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: Name,
}

/// What `bpftool` shows: whose it is. At most 15 letters, digits and underscores.
type Name = [u8; 16];

/// `rb_ring_` and the number of this process.
fn name() -> Name {
    let mut name = Name::default();
    let text = format!("rb_ring_{}", std::process::id());
    let room = name.iter_mut().take(15);
    room.zip(text.bytes()).for_each(|(to, from)| *to = from);
    name
}

/// What `PROG_LOAD` reads.
#[repr(C)]
#[derive(Default)]
struct ProgAttr {
    kind: u32,
    ops: u32,
    first: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    version: u32,
    flags: u32,
    name: Name,
}

/// A ring of records.
pub(super) fn ring_map(bytes: usize) -> io::Result<OwnedFd> {
    create(&MapAttr {
        kind: MAP_TYPE_RINGBUF,
        entries: bytes as u32,
        name: name(),
        ..MapAttr::default()
    })
}

/// One value that can be mapped.
pub(super) fn word_map(bytes: usize) -> io::Result<OwnedFd> {
    create(&MapAttr {
        kind: MAP_TYPE_ARRAY,
        key_bytes: 4,
        value_bytes: bytes as u32,
        entries: 1,
        flags: MAP_MMAPABLE,
        name: name(),
        ..MapAttr::default()
    })
}

fn create(attr: &MapAttr) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads as many bytes as the structure has.
    unsafe { bpf(MAP_CREATE, ptr::from_ref(attr).cast(), size_of::<MapAttr>()) }
}

/// Loads a socket filter.
pub(super) fn load(program: &[Op]) -> io::Result<OwnedFd> {
    let license = c"Dual MIT/GPL";
    let attr = ProgAttr {
        kind: PROG_TYPE_SOCKET_FILTER,
        ops: program.len() as u32,
        first: program.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        name: name(),
        ..ProgAttr::default()
    };
    // SAFETY: the kernel reads the structure, the instructions and the text, all of which live here.
    unsafe {
        bpf(
            PROG_LOAD,
            ptr::from_ref(&attr).cast(),
            size_of::<ProgAttr>(),
        )
    }
}

/// # Safety
/// `attr` is valid for reading `len` bytes, and so is what they point to, for this command.
unsafe fn bpf(command: libc::c_int, attr: *const u8, len: usize) -> io::Result<OwnedFd> {
    // SAFETY: by contract.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attr, len) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A record that the kernel has finished.
pub(super) struct Found {
    /// Where its bytes begin in the ring.
    at: usize,
    /// Where the next one's head is, as positions count.
    next: u64,
    len: usize,
    /// There is no packet in it.
    pub(super) is_void: bool,
}

/// The memory of a ring.
pub(super) struct Mapped {
    consumer: Region,
    /// The producer's position on a page, then the records, twice in a row: none is ever cut.
    producer: Region,
    control: Region,
    /// Of the records, and of a page of memory.
    bytes: usize,
    page: usize,
}

struct Region {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mappings belong to the process; positions and words are atomics; records are read only after
// the kernel finished them and before they are given back, by one reader at a time (`Reader`).
unsafe impl Send for Mapped {}
// SAFETY: as above: all that `&Mapped` offers are atomics, and copies of bytes that the kernel alone writes.
unsafe impl Sync for Mapped {}

impl Region {
    fn new(fd: BorrowedFd<'_>, offset: usize, len: usize, prot: i32) -> io::Result<Self> {
        let offset = offset as libc::off_t;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                prot,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at: NonNull<u8> = NonNull::new(at.cast()).ok_or(io::ErrorKind::Other)?;
        // A child has no use for it.
        // SAFETY: the range is ours.
        unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_DONTFORK) };
        Ok(Self { at, len })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; references to it cannot outlive self.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

impl Mapped {
    pub(super) fn new(
        records: BorrowedFd<'_>,
        bytes: usize,
        control: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let page = page_bytes();
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let words = size_of::<Control>().next_multiple_of(page);
        Ok(Self {
            consumer: Region::new(records, 0, page, write)?,
            producer: Region::new(records, page, page + 2 * bytes, libc::PROT_READ)?,
            control: Region::new(control, 0, words, write)?,
            bytes,
            page,
        })
    }

    pub(super) fn control(&self) -> &Control {
        // SAFETY: mapped until drop, on a page, long enough, and made of atomics.
        unsafe { self.control.at.cast::<Control>().as_ref() }
    }

    fn consumer(&self) -> &AtomicU64 {
        // SAFETY: the first word of a mapped page, accessed by atomic operations alone.
        unsafe { self.consumer.at.cast::<AtomicU64>().as_ref() }
    }

    /// Where the reader said that it is.
    pub(super) fn consumed(&self) -> u64 {
        self.consumer().load(Ordering::Relaxed)
    }

    /// What a process may do with the word that it was given.
    #[cfg(test)]
    pub(super) fn say_consumed(&self, at: u64) {
        self.consumer().store(at, Ordering::Relaxed);
    }

    fn produced(&self) -> &AtomicU64 {
        // SAFETY: as above; it is only read.
        unsafe { self.producer.at.cast::<AtomicU64>().as_ref() }
    }

    /// The record where the reader said that it is, if it is there.
    pub(super) fn peek_shared(&self) -> Option<Found> {
        self.peek(self.consumed())
    }

    /// The record at a position, if it is there.
    #[inline]
    pub(super) fn peek(&self, at: u64) -> Option<Found> {
        let ahead = self.produced().load(Ordering::Acquire).wrapping_sub(at);
        // More than the ring holds: a position that no reader is at.
        if ahead == 0 || ahead > self.bytes as u64 {
            return None;
        }
        // Heads lie at multiples of eight.
        let offset = (at as usize) & (self.bytes - 1) & !7;
        let head = self.record(offset).cast::<AtomicU32>();
        // SAFETY: within the mapping (see `record`), aligned, and written by atomic operations alone.
        let head = unsafe { &*head }.load(Ordering::Acquire);
        if head & BUSY != 0 {
            return None;
        }
        let len = head & !(BUSY | DISCARDED);
        let whole = (u64::from(len) + HEAD_BYTES).next_multiple_of(8);
        Some(Found {
            at: offset + HEAD_BYTES as usize,
            next: at.wrapping_add(whole),
            len: len as usize,
            is_void: head & DISCARDED != 0 || (len as usize) < RECORD_BYTES,
        })
    }

    /// Gives a record back to the kernel. Returns where the next one is.
    #[inline]
    pub(super) fn advance(&self, found: &Found) -> u64 {
        self.consumer().store(found.next, Ordering::Release);
        found.next
    }

    /// The first eight bytes of a record.
    #[inline]
    pub(super) fn first_word(&self, found: &Found) -> u64 {
        // SAFETY: at least RECORD_BYTES are mapped from there on, aligned to eight.
        unsafe { self.record(found.at).cast::<u64>().read_volatile() }
    }

    /// Copies a record to where nobody changes it.
    #[inline]
    pub(super) fn copy(&self, found: &Found, to: &mut [u8; RECORD_BYTES]) {
        let used = self.used(found);
        // SAFETY: `used` is at most RECORD_BYTES, which are mapped there and owned here.
        unsafe { ptr::copy_nonoverlapping(self.record(found.at), to.as_mut_ptr(), used) };
    }

    /// Bytes of a record that mean something.
    fn used(&self, found: &Found) -> usize {
        let at = self.record(found.at + super::program::LEN_AT).cast::<u32>();
        // SAFETY: within the record, aligned to four.
        let len = unsafe { at.read_volatile() } as usize;
        len.saturating_add(super::program::HEADERS_AT)
            .min(RECORD_BYTES)
            .min(found.len)
    }

    /// Byte `offset` of the ring, below twice its size.
    fn record(&self, offset: usize) -> *mut u8 {
        let offset = offset.min(2 * self.bytes - RECORD_BYTES);
        // SAFETY: the mapping has a page and twice `bytes`.
        unsafe { self.producer.at.as_ptr().add(self.page + offset) }
    }
}

fn page_bytes() -> usize {
    // SAFETY: no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).unwrap_or(4096)
}
