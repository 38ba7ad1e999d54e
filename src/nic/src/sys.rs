//! The system calls of the links: everything unsafe of this crate is here.
//!
//! Messages go by plain system calls, not by the C library's functions: those are cancellation
//! points, which shows in a poll in vain, and a thread that was cancelled in one
//! would take the engine's lock with it.
//!
//! Proof: the round-trip tests pass under AddressSanitizer; every length given to the
//! kernel is taken from the slice or array that the pointer came from, in the same function.
#![allow(unsafe_code)]

use crate::bpf::Insn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// Room for a socket address: `sockaddr_in`, `sockaddr_in6` or `sockaddr_ll`.
pub(crate) const NAME_MAX: usize = 28;
/// Room for control messages of one packet, either way. Sums of all that we send or ask for stay
/// below 200 bytes.
pub(crate) const CONTROL_MAX: usize = 256;
/// Most messages of one system call.
pub(crate) const MESSAGES_MAX: usize = 16;
/// Bytes of a receive buffer; no UDP payload is longer than 65,527, and no frame of an interface
/// whose kernel does not merge.
pub(crate) const BUFFER_BYTES: usize = 65_536;

/// A page-aligned receive buffer: copies between buffers that lie a few bytes off modulo 4096 are
/// many times slower on some processors.
#[repr(C, align(4096))]
#[derive(Clone)]
pub(crate) struct Buffer(pub(crate) [u8; BUFFER_BYTES]);

/// Address and control messages of one message to send.
#[repr(C, align(8))]
#[derive(Clone)]
pub(crate) struct Envelope {
    pub(crate) control: [u8; CONTROL_MAX],
    pub(crate) name: [u8; NAME_MAX],
    pub(crate) name_len: usize,
    pub(crate) control_len: usize,
}

/// What the kernel told about one received message.
#[repr(C, align(8))]
#[derive(Clone)]
pub(crate) struct Arrival {
    pub(crate) control: [u8; CONTROL_MAX],
    pub(crate) name: [u8; NAME_MAX],
    pub(crate) control_len: usize,
    pub(crate) len: usize,
    pub(crate) flags: i32,
}

/// A non-blocking, close-on-exec UDP socket.
pub(crate) fn udp_socket(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    socket(family, libc::SOCK_DGRAM, libc::IPPROTO_UDP)
}

/// A non-blocking, close-on-exec packet socket that is bound to nothing: whole frames, none of
/// which come in before it is.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
}

fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, kind, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option from raw bytes.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: pointer and length are those of one live slice.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Reads an option made of 32-bit words; returns how many the kernel wrote.
pub(crate) fn get_option(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    words: &mut [u32],
) -> io::Result<usize> {
    let mut len = size_of_val(words) as libc::socklen_t;
    // SAFETY: pointer and length are those of one live slice; any bit pattern is a valid u32.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            words.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(len as usize / 4)
    }
}

/// Binds to an address in its `sockaddr` form.
pub(crate) fn bind(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    // SAFETY: pointer and length are those of one live slice; the kernel reads bytes.
    let rc = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The address that a socket is bound to, in its `sockaddr` form.
pub(crate) fn bound_name(fd: BorrowedFd<'_>) -> io::Result<[u8; NAME_MAX]> {
    let mut name = [0u8; NAME_MAX];
    let mut len = NAME_MAX as libc::socklen_t;
    // SAFETY: pointer and length are those of one live array.
    let rc = unsafe { libc::getsockname(fd.as_raw_fd(), name.as_mut_ptr().cast(), &raw mut len) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(name)
}

/// Attaches a classic BPF program by option `name` of `SOL_SOCKET`.
pub(crate) fn attach_program(fd: BorrowedFd<'_>, name: i32, program: &[Insn]) -> io::Result<()> {
    let mut filter: Vec<libc::sock_filter> = program
        .iter()
        .map(|i| libc::sock_filter {
            code: i.code,
            jt: i.jt,
            jf: i.jf,
            k: i.k,
        })
        .collect();
    let Ok(len) = u16::try_from(filter.len()) else {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    };
    let fprog = libc::sock_fprog {
        len,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel reads `fprog` and the `len` instructions it points to; both live here.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw const fprog).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Sends the messages in order; returns how many were taken (at least one), or the errno of the
/// first. At most [`MESSAGES_MAX`] are looked at.
pub(crate) fn send_many(
    fd: BorrowedFd<'_>,
    envelopes: &[Envelope],
    payloads: &[&[u8]],
) -> Result<usize, i32> {
    let n = envelopes.len().min(payloads.len()).min(MESSAGES_MAX);
    let mut iovs = [const { MaybeUninit::<libc::iovec>::uninit() }; MESSAGES_MAX];
    let mut msgs = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MESSAGES_MAX];
    for (i, (envelope, payload)) in envelopes.iter().zip(payloads).take(n).enumerate() {
        let iov = iovs[i].write(libc::iovec {
            iov_base: payload.as_ptr().cast_mut().cast(),
            iov_len: payload.len(),
        });
        let msg = msgs[i].write(empty_message());
        msg.msg_hdr.msg_name = envelope.name.as_ptr().cast_mut().cast();
        msg.msg_hdr.msg_namelen = envelope.name_len.min(NAME_MAX) as libc::socklen_t;
        msg.msg_hdr.msg_iov = iov;
        msg.msg_hdr.msg_iovlen = 1;
        if envelope.control_len > 0 {
            msg.msg_hdr.msg_control = envelope.control.as_ptr().cast_mut().cast();
            msg.msg_hdr.msg_controllen = envelope.control_len.min(CONTROL_MAX) as _;
        }
    }
    let first = msgs.as_mut_ptr().cast::<libc::mmsghdr>();
    let rc = match n {
        0 => return Ok(0),
        // SAFETY: the first header was written above; name, payload and control messages are live
        // slices borrowed by this call, and a send only reads them.
        1 => unsafe { send_one(fd, first) },
        // SAFETY: as above, for the first `n` headers.
        _ => unsafe {
            libc::syscall(
                libc::SYS_sendmmsg,
                fd.as_raw_fd(),
                first,
                n,
                libc::MSG_DONTWAIT,
            ) as isize
        },
    };
    match rc {
        ..0 => Err(last_errno()),
        _ if n == 1 => Ok(1),
        _ => Ok(rc.unsigned_abs()),
    }
}

/// One `sendmsg`, a little cheaper than a `sendmmsg` of one.
///
/// # Safety
/// `msg` points to a header whose pointers are valid for reading.
unsafe fn send_one(fd: BorrowedFd<'_>, msg: *const libc::mmsghdr) -> isize {
    // SAFETY: `msg` is valid by contract, and so is its first field.
    let hdr = unsafe { &raw const (*msg).msg_hdr };
    // SAFETY: by contract.
    unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), hdr, libc::MSG_DONTWAIT) as isize }
}

/// Receives as many messages as there are, at most as many as there are buffers and arrivals;
/// returns their number or the errno. The first `headroom` bytes of each buffer stay free.
pub(crate) fn receive_many(
    fd: BorrowedFd<'_>,
    buffers: &mut [Buffer],
    headroom: usize,
    arrivals: &mut [Arrival],
) -> Result<usize, i32> {
    if let ([buffer], [arrival, ..]) = (&mut *buffers, &mut *arrivals) {
        return receive_one(fd, buffer, headroom, arrival);
    }
    let n = buffers.len().min(arrivals.len()).min(MESSAGES_MAX);
    let mut iovs = [const { MaybeUninit::<libc::iovec>::uninit() }; MESSAGES_MAX];
    let mut msgs = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MESSAGES_MAX];
    for (i, (buffer, arrival)) in buffers
        .iter_mut()
        .zip(arrivals.iter_mut())
        .take(n)
        .enumerate()
    {
        let room = buffer.0.get_mut(headroom..).unwrap_or_default();
        let iov = iovs[i].write(libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        });
        let msg = msgs[i].write(empty_message());
        msg.msg_hdr.msg_name = arrival.name.as_mut_ptr().cast();
        msg.msg_hdr.msg_namelen = NAME_MAX as libc::socklen_t;
        msg.msg_hdr.msg_iov = iov;
        msg.msg_hdr.msg_iovlen = 1;
        msg.msg_hdr.msg_control = arrival.control.as_mut_ptr().cast();
        msg.msg_hdr.msg_controllen = CONTROL_MAX as _;
    }
    let first = msgs.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: the first `n` headers were written above; they point into buffers and arrivals that
    // are borrowed mutably and distinct, with their true lengths.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_recvmmsg,
            fd.as_raw_fd(),
            first,
            n,
            libc::MSG_DONTWAIT,
            ptr::null_mut::<libc::timespec>(),
        )
    };
    if rc < 0 {
        return Err(last_errno());
    }
    let got = usize::try_from(rc).unwrap_or(0).min(n);
    for (msg, arrival) in msgs.iter().zip(arrivals.iter_mut()).take(got) {
        // SAFETY: the first `n >= got` headers were written above.
        let msg = unsafe { msg.assume_init_ref() };
        arrival.len = (msg.msg_len as usize).min(BUFFER_BYTES.saturating_sub(headroom));
        arrival.flags = msg.msg_hdr.msg_flags;
        // The type of the field differs between C libraries.
        #[allow(clippy::unnecessary_cast)]
        let control_len = msg.msg_hdr.msg_controllen as usize;
        arrival.control_len = control_len.min(CONTROL_MAX);
    }
    Ok(got)
}

/// One `recvmsg`: most polls are in vain, and in those what a call costs is what a packet waits.
#[inline]
fn receive_one(
    fd: BorrowedFd<'_>,
    buffer: &mut Buffer,
    headroom: usize,
    arrival: &mut Arrival,
) -> Result<usize, i32> {
    let room = buffer.0.get_mut(headroom..).unwrap_or_default();
    let mut iov = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    let mut msg = empty_message().msg_hdr;
    msg.msg_name = arrival.name.as_mut_ptr().cast();
    msg.msg_namelen = NAME_MAX as libc::socklen_t;
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = arrival.control.as_mut_ptr().cast();
    msg.msg_controllen = CONTROL_MAX as _;
    // SAFETY: the header points into a buffer and an arrival that are borrowed mutably, with their
    // true lengths.
    let len = unsafe {
        libc::syscall(
            libc::SYS_recvmsg,
            fd.as_raw_fd(),
            &raw mut msg,
            libc::MSG_DONTWAIT,
        )
    };
    let Ok(len) = usize::try_from(len) else {
        return Err(last_errno());
    };
    arrival.len = len.min(room.len());
    arrival.flags = msg.msg_flags;
    // The type of the field differs between C libraries.
    #[allow(clippy::unnecessary_cast)]
    let control_len = msg.msg_controllen as usize;
    arrival.control_len = control_len.min(CONTROL_MAX);
    Ok(1)
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn monotonic_ns() -> u64 {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is a valid place for the result and lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut at) };
    at.tv_sec.cast_unsigned() * 1_000_000_000 + at.tv_nsec.cast_unsigned()
}

/// A header without name, payload and control messages.
fn empty_message() -> libc::mmsghdr {
    // SAFETY: all fields are integers or raw pointers, for which zero is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn last_errno() -> i32 {
    io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}
