//! Bytes in and out.

use core::ffi::{c_int, c_void};
use std::net::SocketAddr;

use rocebud_objects::{Errno, Misuse};
use rocebud_rsocket::{Planned, Stopped, Stream};

use super::super::boundary::{Arg, MinusOne, NULL, Outcome, enter};
use super::calls::{Which, put_bytes, put_name};
use super::datagram::udp::emit;
use super::socket::{Inner, Socket};
use super::table::{self, Any};

pub(super) const NOT_CONNECTED: Misuse =
    Misuse::new(Errno(libc::ENOTCONN), "the socket is not connected");
const FLAGS: Misuse = Misuse::new(
    Errno::EOPNOTSUPP,
    "rsockets know MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL and MSG_NOSIGNAL, and no ancillary data",
);
const HAS_PEER: Misuse = Misuse::new(
    Errno(libc::EISCONN),
    "rsendto: a connected socket has its peer already",
);
const STOPPED: &str = "the connection is over";

/// Buffers of the program.
type Pieces = Vec<(*mut u8, usize)>;

/// What went, or why nothing did.
fn answer(done: usize, stopped: Option<Misuse>) -> Outcome<isize> {
    match stopped {
        Some(e) if done == 0 => Err(e),
        _ => Ok(done.cast_signed()),
    }
}

fn know(flags: c_int, known: c_int) -> Outcome<()> {
    let known = known | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(FLAGS)
    }
}

/// There is something to read, or there never will be.
fn may_read(inner: &Inner) -> bool {
    match &inner.endpoint {
        Some(e) => !inner.state().is_opening() && e.stream.peek(1) != Err(Stopped::Wait),
        None => !inner.state().is_opening(),
    }
}

/// Something can be sent, or never will be.
fn may_send(inner: &Inner) -> bool {
    match &inner.endpoint {
        Some(e) => {
            !inner.state().is_opening()
                && (e.stream.ready().writable || !e.stream.state().is_writable())
        }
        None => !inner.state().is_opening(),
    }
}

fn nonblocking(socket: &Socket, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || socket.lock().nonblocking
}

fn receive(fd: c_int, pieces: &Pieces, flags: c_int) -> Outcome<isize> {
    know(flags, libc::MSG_PEEK | libc::MSG_WAITALL)?;
    let socket = match table::get(fd)? {
        Any::Datagram(d) => return Ok(d.receive(pieces, flags)?.copied.cast_signed()),
        _ => table::stream(fd)?,
    };
    let peek = flags & libc::MSG_PEEK != 0;
    let all = flags & libc::MSG_WAITALL != 0 && !peek;
    let nonblocking = nonblocking(&socket, flags);
    let mut done = 0_usize;
    for &(at, len) in pieces {
        let mut here = 0;
        while here < len {
            let part = receive_some(
                &socket,
                (at.wrapping_add(here), len - here),
                peek,
                nonblocking || (done != 0 && !all),
            );
            match part {
                Ok(0) => return Ok(done.cast_signed()),
                Ok(n) => {
                    here += n;
                    done += n;
                }
                Err(e) => return answer(done, Some(e)),
            }
            // peeked bytes stay where they are: there is no second look at those behind them
            if peek || (!all && here < len) {
                return answer(done, None);
            }
        }
    }
    answer(done, None)
}

fn receive_some(
    socket: &Socket,
    (to, len): (*mut u8, usize),
    peek: bool,
    nonblocking: bool,
) -> Outcome<usize> {
    if to.is_null() {
        return Err(NULL);
    }
    let mut inner = socket.wait(nonblocking, may_read)?;
    let Some(endpoint) = &mut inner.endpoint else {
        return Err(NOT_CONNECTED);
    };
    match endpoint.read(to, len, peek) {
        Ok(n) => Ok(n),
        Err(Stopped::Failed(errno)) => Err(Misuse::new(errno, STOPPED)),
        Err(Stopped::End | Stopped::Wait) => Ok(0),
    }
}

fn send(fd: c_int, pieces: &Pieces, flags: c_int) -> Outcome<isize> {
    know(flags, libc::MSG_MORE | libc::MSG_WAITALL)?;
    let socket = match table::get(fd)? {
        Any::Datagram(d) => return d.send(pieces, flags, (core::ptr::null(), 0)),
        _ => table::stream(fd)?,
    };
    let nonblocking = nonblocking(&socket, flags);
    let mut done = 0;
    for &(at, len) in pieces {
        let (n, stopped) = push(&socket, (at, len), nonblocking, |stream, _, left| {
            stream.send(left)
        });
        done += n;
        if let Some(e) = stopped {
            return answer(done, Some(e));
        }
    }
    answer(done, None)
}

/// Sends all of the program's bytes, waiting if it may.
fn push(
    socket: &Socket,
    (from, len): (*mut u8, usize),
    nonblocking: bool,
    plan: impl Fn(&mut Stream, usize, u32) -> Result<Planned, Stopped>,
) -> (usize, Option<Misuse>) {
    if from.is_null() && len != 0 {
        return (0, Some(NULL));
    }
    let mut done = 0;
    while done < len {
        let mut inner = match socket.wait(nonblocking, may_send) {
            Ok(inner) => inner,
            Err(e) => return (done, Some(e)),
        };
        let Some(endpoint) = &mut inner.endpoint else {
            return (done, Some(NOT_CONNECTED));
        };
        let before = done;
        let (n, stopped) = endpoint.send(from.wrapping_add(done), len - done, |s, at, left| {
            plan(s, before + at, left)
        });
        done += n;
        if let Some(Stopped::Failed(errno)) = stopped {
            return (done, Some(Misuse::new(errno, STOPPED)));
        }
    }
    (done, None)
}

fn one(at: *mut c_void, len: usize) -> Pieces {
    vec![(at.cast(), len)]
}

fn vector(list: *const libc::iovec, count: c_int) -> Outcome<Pieces> {
    /// `IOV_MAX`
    const MOST: usize = 1024;
    let bad = Misuse::invalid("between 0 and 1024 pieces of memory at a time");
    let n = usize::try_from(count).map_err(|_| bad)?;
    if n > MOST {
        return Err(bad);
    }
    if list.is_null() {
        return if n == 0 { Ok(Vec::new()) } else { Err(NULL) };
    }
    // SAFETY: the caller vouches for `count` entries.
    let list = unsafe { core::slice::from_raw_parts(list, n) };
    Ok(list
        .iter()
        .map(|v| (v.iov_base.cast(), v.iov_len))
        .collect())
}

/// `rrecv`
#[unsafe(no_mangle)]
extern "C" fn rrecv(fd: c_int, to: *mut c_void, len: usize, flags: c_int) -> isize {
    enter::<MinusOne, isize>(|| receive(fd, &one(to, len), flags))
}

/// `rread`
#[unsafe(no_mangle)]
extern "C" fn rread(fd: c_int, to: *mut c_void, len: usize) -> isize {
    enter::<MinusOne, isize>(|| receive(fd, &one(to, len), 0))
}

/// `rreadv`
#[unsafe(no_mangle)]
extern "C" fn rreadv(fd: c_int, list: *const libc::iovec, count: c_int) -> isize {
    enter::<MinusOne, isize>(|| receive(fd, &vector(list, count)?, 0))
}

/// Writes whose a datagram is.
pub(super) fn put_from(from: SocketAddr, address: *mut u8, length: Arg<u32>) -> Outcome<c_int> {
    let (name, whole) = emit(from);
    let name = name.get(..whole as usize).unwrap_or_default();
    put_bytes(name, address, length).map(|()| 0)
}

/// `rrecvfrom`: the address is the peer's.
#[unsafe(no_mangle)]
extern "C" fn rrecvfrom(
    fd: c_int,
    to: *mut c_void,
    len: usize,
    flags: c_int,
    address: *mut u8,
    length: Arg<u32>,
) -> isize {
    enter::<MinusOne, isize>(|| {
        if let Any::Datagram(datagram) = table::get(fd)? {
            know(flags, libc::MSG_PEEK | libc::MSG_WAITALL)?;
            let came = datagram.receive(&one(to, len), flags)?;
            if let Some(from) = came.from.filter(|_| !address.is_null()) {
                put_from(from, address, length)?;
            }
            return Ok(came.copied.cast_signed());
        }
        let n = receive(fd, &one(to, len), flags)?;
        if !address.is_null() {
            let socket = table::stream(fd)?;
            let id = socket.lock().id;
            put_name(id, Which::Peer, socket.domain, address, length)?;
        }
        Ok(n)
    })
}

/// `rrecvmsg`: no ancillary data.
#[unsafe(no_mangle)]
extern "C" fn rrecvmsg(fd: c_int, message: Arg<libc::msghdr>, flags: c_int) -> isize {
    enter::<MinusOne, isize>(|| {
        let mut m = message.get()?;
        if !m.msg_control.is_null() && m.msg_controllen != 0 {
            return Err(FLAGS);
        }
        let count = c_int::try_from(m.msg_iovlen).unwrap_or(c_int::MAX);
        let pieces = vector(m.msg_iov, count)?;
        m.msg_flags = 0;
        m.msg_controllen = 0;
        let n = match table::get(fd)? {
            Any::Datagram(datagram) => {
                know(flags, libc::MSG_PEEK | libc::MSG_WAITALL)?;
                let came = datagram.receive(&pieces, flags)?;
                if came.cut {
                    m.msg_flags = libc::MSG_TRUNC;
                }
                if let Some(from) = came.from.filter(|_| !m.msg_name.is_null()) {
                    let length = Arg::from_raw(&raw mut m.msg_namelen);
                    put_from(from, m.msg_name.cast(), length)?;
                }
                came.copied.cast_signed()
            }
            _ => receive(fd, &pieces, flags)?,
        };
        message.set(m)?;
        Ok(n)
    })
}

/// `rsend`
#[unsafe(no_mangle)]
extern "C" fn rsend(fd: c_int, from: *mut c_void, len: usize, flags: c_int) -> isize {
    enter::<MinusOne, isize>(|| send(fd, &one(from, len), flags))
}

/// `rwrite`
#[unsafe(no_mangle)]
extern "C" fn rwrite(fd: c_int, from: *mut c_void, len: usize) -> isize {
    enter::<MinusOne, isize>(|| send(fd, &one(from, len), 0))
}

/// `rwritev`
#[unsafe(no_mangle)]
extern "C" fn rwritev(fd: c_int, list: *const libc::iovec, count: c_int) -> isize {
    enter::<MinusOne, isize>(|| send(fd, &vector(list, count)?, 0))
}

/// `rsendto`: a stream has its peer, and answers EISCONN with an address.
#[unsafe(no_mangle)]
extern "C" fn rsendto(
    fd: c_int,
    from: *mut c_void,
    len: usize,
    flags: c_int,
    address: *const u8,
    length: u32,
) -> isize {
    enter::<MinusOne, isize>(|| {
        if let Any::Datagram(datagram) = table::get(fd)? {
            know(flags, libc::MSG_MORE | libc::MSG_WAITALL)?;
            return datagram.send(&one(from, len), flags, (address, length));
        }
        if !address.is_null() || length != 0 {
            return Err(HAS_PEER);
        }
        send(fd, &one(from, len), flags)
    })
}

/// `rsendmsg`: no ancillary data.
#[unsafe(no_mangle)]
extern "C" fn rsendmsg(fd: c_int, message: Arg<libc::msghdr>, flags: c_int) -> isize {
    enter::<MinusOne, isize>(|| {
        let m = message.get()?;
        if !m.msg_control.is_null() && m.msg_controllen != 0 {
            return Err(FLAGS);
        }
        let count = c_int::try_from(m.msg_iovlen).unwrap_or(c_int::MAX);
        let pieces = vector(m.msg_iov, count)?;
        if let Any::Datagram(datagram) = table::get(fd)? {
            know(flags, libc::MSG_MORE | libc::MSG_WAITALL)?;
            return datagram.send(&pieces, flags, (m.msg_name.cast(), m.msg_namelen));
        }
        send(fd, &pieces, flags)
    })
}

/// `riomap`: offers memory to the peer; the offset by which its program writes there.
#[unsafe(no_mangle)]
extern "C" fn riomap(
    fd: c_int,
    at: *mut c_void,
    len: usize,
    protection: c_int,
    _flags: c_int,
    offset: libc::off_t,
) -> libc::off_t {
    let mapped = enter::<MinusOne, isize>(|| {
        if protection & !libc::PROT_WRITE != 0 {
            return Err(Misuse::invalid("riomap: PROT_WRITE or PROT_NONE"));
        }
        let socket = table::stream(fd)?;
        // A connection that was accepted just now has its last step before it.
        let mut inner = socket.wait(false, |inner| !inner.state().is_opening())?;
        let endpoint = inner.endpoint.as_mut().ok_or(NOT_CONNECTED)?;
        let remote = protection & libc::PROT_WRITE != 0;
        Ok(endpoint.map(at, len, remote, offset)? as isize)
    });
    mapped as libc::off_t
}

/// `riounmap`
#[unsafe(no_mangle)]
extern "C" fn riounmap(fd: c_int, at: *mut c_void, len: usize) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let socket = table::stream(fd)?;
        let mut inner = socket.lock();
        let endpoint = inner.endpoint.as_mut().ok_or(NOT_CONNECTED)?;
        endpoint.unmap(at, len)?;
        Ok(0)
    })
}

/// `riowrite`: writes to memory that the peer offers at an offset.
#[unsafe(no_mangle)]
extern "C" fn riowrite(
    fd: c_int,
    from: *mut c_void,
    len: usize,
    offset: libc::off_t,
    flags: c_int,
) -> usize {
    let written = enter::<MinusOne, isize>(|| {
        know(flags, libc::MSG_MORE | libc::MSG_WAITALL)?;
        let socket = table::stream(fd)?;
        let nonblocking = nonblocking(&socket, flags);
        let start = offset.cast_unsigned();
        let (n, stopped) = push(
            &socket,
            (from.cast(), len),
            nonblocking,
            |stream, at, left| stream.send_direct(start.wrapping_add(at as u64), left),
        );
        answer(n, stopped)
    });
    written.cast_unsigned()
}
