//! Bytes in and out.

use core::ffi::{c_int, c_void};
use std::net::SocketAddr;

use rocebud_objects::{Errno, Misuse};
use rocebud_rsocket::{Planned, Stopped, Stream};

use super::super::boundary::{Arg, MinusOne, NULL, Outcome, enter};
use super::super::sleep::{Call, Sleepy, Stop, enter_sleeping};
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
fn answer(call: &Call<'_>, stop: Stop) -> Sleepy<isize> {
    match stop {
        Stop::Failed(_) if call.done() != 0 => Ok(call.done().cast_signed()),
        stop => Err(stop),
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

fn receive(call: &Call<'_>, fd: c_int, pieces: &Pieces, flags: c_int) -> Sleepy<isize> {
    know(flags, libc::MSG_PEEK | libc::MSG_WAITALL)?;
    let socket = match table::get(fd)? {
        Any::Datagram(d) => return Ok(d.receive(call, pieces, flags)?.copied.cast_signed()),
        _ => table::stream(fd)?,
    };
    let peek = flags & libc::MSG_PEEK != 0;
    let all = flags & libc::MSG_WAITALL != 0 && !peek;
    let nonblocking = nonblocking(&socket, flags);
    for (at, len) in behind(pieces, call.done()) {
        let mut here = 0;
        while here < len {
            let part = receive_some(
                call,
                &socket,
                (at.wrapping_add(here), len - here),
                peek,
                nonblocking || (call.done() != 0 && !all),
            );
            match part {
                Ok(0) => return Ok(call.done().cast_signed()),
                Ok(n) => {
                    here += n;
                    call.add_done(n);
                }
                Err(stop) => return answer(call, stop),
            }
            // peeked bytes stay where they are: there is no second look at those behind them
            if peek || (!all && here < len) {
                return Ok(call.done().cast_signed());
            }
        }
    }
    Ok(call.done().cast_signed())
}

fn receive_some(
    call: &Call<'_>,
    socket: &Socket,
    (to, len): (*mut u8, usize),
    peek: bool,
    nonblocking: bool,
) -> Sleepy<usize> {
    if to.is_null() {
        return Err(NULL.into());
    }
    let mut inner = socket.wait(call, nonblocking, may_read)?;
    let Some(endpoint) = &mut inner.endpoint else {
        return Err(NOT_CONNECTED.into());
    };
    match endpoint.read(to, len, peek) {
        Ok(n) => Ok(n),
        Err(Stopped::Failed(errno)) => Err(Misuse::new(errno, STOPPED).into()),
        Err(Stopped::End | Stopped::Wait) => Ok(0),
    }
}

fn send(call: &Call<'_>, fd: c_int, pieces: &Pieces, flags: c_int) -> Sleepy<isize> {
    know(flags, libc::MSG_MORE | libc::MSG_WAITALL)?;
    let socket = match table::get(fd)? {
        Any::Datagram(d) => return d.send(call, pieces, flags, (core::ptr::null(), 0)),
        _ => table::stream(fd)?,
    };
    let nonblocking = nonblocking(&socket, flags);
    push(call, &socket, pieces, nonblocking, |stream, _, left| {
        stream.send(left)
    })
}

/// Sends all of the program's bytes, waiting if it may. `plan` hears how many went before.
fn push(
    call: &Call<'_>,
    socket: &Socket,
    pieces: &Pieces,
    nonblocking: bool,
    plan: impl Fn(&mut Stream, usize, u32) -> Result<Planned, Stopped>,
) -> Sleepy<isize> {
    for (from, len) in behind(pieces, call.done()) {
        if from.is_null() && len != 0 {
            return answer(call, NULL.into());
        }
        let mut here = 0;
        while here < len {
            let mut inner = match socket.wait(call, nonblocking, may_send) {
                Ok(inner) => inner,
                Err(stop) => return answer(call, stop),
            };
            let Some(endpoint) = &mut inner.endpoint else {
                return answer(call, NOT_CONNECTED.into());
            };
            let before = call.done();
            let (n, stopped) = endpoint.send(from.wrapping_add(here), len - here, |s, at, left| {
                plan(s, before + at, left)
            });
            here += n;
            call.add_done(n);
            if let Some(Stopped::Failed(errno)) = stopped {
                return answer(call, Misuse::new(errno, STOPPED).into());
            }
        }
    }
    Ok(call.done().cast_signed())
}

/// What is left of the buffers behind so many bytes.
fn behind(pieces: &Pieces, done: usize) -> impl Iterator<Item = (*mut u8, usize)> {
    let mut skip = done;
    pieces.iter().map(move |&(at, len)| {
        let here = skip.min(len);
        skip -= here;
        (at.wrapping_add(here), len - here)
    })
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
extern "C-unwind" fn rrecv(fd: c_int, to: *mut c_void, len: usize, flags: c_int) -> isize {
    enter_sleeping::<MinusOne, isize>(|call| receive(call, fd, &one(to, len), flags))
}

/// `rread`
#[unsafe(no_mangle)]
extern "C-unwind" fn rread(fd: c_int, to: *mut c_void, len: usize) -> isize {
    enter_sleeping::<MinusOne, isize>(|call| receive(call, fd, &one(to, len), 0))
}

/// `rreadv`
#[unsafe(no_mangle)]
extern "C-unwind" fn rreadv(fd: c_int, list: *const libc::iovec, count: c_int) -> isize {
    enter_sleeping::<MinusOne, isize>(|call| receive(call, fd, &vector(list, count)?, 0))
}

/// Writes whose a datagram is.
pub(super) fn put_from(from: SocketAddr, address: *mut u8, length: Arg<u32>) -> Outcome<c_int> {
    let (name, whole) = emit(from);
    let name = name.get(..whole as usize).unwrap_or_default();
    put_bytes(name, address, length).map(|()| 0)
}

/// `rrecvfrom`: the address is the peer's.
#[unsafe(no_mangle)]
extern "C-unwind" fn rrecvfrom(
    fd: c_int,
    to: *mut c_void,
    len: usize,
    flags: c_int,
    address: *mut u8,
    length: Arg<u32>,
) -> isize {
    enter_sleeping::<MinusOne, isize>(|call| {
        if let Any::Datagram(datagram) = table::get(fd)? {
            know(flags, libc::MSG_PEEK | libc::MSG_WAITALL)?;
            let came = datagram.receive(call, &one(to, len), flags)?;
            if let Some(from) = came.from.filter(|_| !address.is_null()) {
                put_from(from, address, length)?;
            }
            return Ok(came.copied.cast_signed());
        }
        let n = receive(call, fd, &one(to, len), flags)?;
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
extern "C-unwind" fn rrecvmsg(fd: c_int, message: Arg<libc::msghdr>, flags: c_int) -> isize {
    enter_sleeping::<MinusOne, isize>(|call| {
        let mut m = message.get()?;
        if !m.msg_control.is_null() && m.msg_controllen != 0 {
            return Err(FLAGS.into());
        }
        let count = c_int::try_from(m.msg_iovlen).unwrap_or(c_int::MAX);
        let pieces = vector(m.msg_iov, count)?;
        m.msg_flags = 0;
        m.msg_controllen = 0;
        let n = match table::get(fd)? {
            Any::Datagram(datagram) => {
                know(flags, libc::MSG_PEEK | libc::MSG_WAITALL)?;
                let came = datagram.receive(call, &pieces, flags)?;
                if came.cut {
                    m.msg_flags = libc::MSG_TRUNC;
                }
                if let Some(from) = came.from.filter(|_| !m.msg_name.is_null()) {
                    let length = Arg::from_raw(&raw mut m.msg_namelen);
                    put_from(from, m.msg_name.cast(), length)?;
                }
                came.copied.cast_signed()
            }
            _ => receive(call, fd, &pieces, flags)?,
        };
        message.set(m)?;
        Ok(n)
    })
}

/// `rsend`
#[unsafe(no_mangle)]
extern "C-unwind" fn rsend(fd: c_int, from: *mut c_void, len: usize, flags: c_int) -> isize {
    enter_sleeping::<MinusOne, isize>(|call| send(call, fd, &one(from, len), flags))
}

/// `rwrite`
#[unsafe(no_mangle)]
extern "C-unwind" fn rwrite(fd: c_int, from: *mut c_void, len: usize) -> isize {
    enter_sleeping::<MinusOne, isize>(|call| send(call, fd, &one(from, len), 0))
}

/// `rwritev`
#[unsafe(no_mangle)]
extern "C-unwind" fn rwritev(fd: c_int, list: *const libc::iovec, count: c_int) -> isize {
    enter_sleeping::<MinusOne, isize>(|call| send(call, fd, &vector(list, count)?, 0))
}

/// `rsendto`: a stream has its peer, and answers EISCONN with an address.
#[unsafe(no_mangle)]
extern "C-unwind" fn rsendto(
    fd: c_int,
    from: *mut c_void,
    len: usize,
    flags: c_int,
    address: *const u8,
    length: u32,
) -> isize {
    enter_sleeping::<MinusOne, isize>(|call| {
        if let Any::Datagram(datagram) = table::get(fd)? {
            know(flags, libc::MSG_MORE | libc::MSG_WAITALL)?;
            return datagram.send(call, &one(from, len), flags, (address, length));
        }
        if !address.is_null() || length != 0 {
            return Err(HAS_PEER.into());
        }
        send(call, fd, &one(from, len), flags)
    })
}

/// `rsendmsg`: no ancillary data.
#[unsafe(no_mangle)]
extern "C-unwind" fn rsendmsg(fd: c_int, message: Arg<libc::msghdr>, flags: c_int) -> isize {
    enter_sleeping::<MinusOne, isize>(|call| {
        let m = message.get()?;
        if !m.msg_control.is_null() && m.msg_controllen != 0 {
            return Err(FLAGS.into());
        }
        let count = c_int::try_from(m.msg_iovlen).unwrap_or(c_int::MAX);
        let pieces = vector(m.msg_iov, count)?;
        if let Any::Datagram(datagram) = table::get(fd)? {
            know(flags, libc::MSG_MORE | libc::MSG_WAITALL)?;
            return datagram.send(call, &pieces, flags, (m.msg_name.cast(), m.msg_namelen));
        }
        send(call, fd, &pieces, flags)
    })
}

/// `riomap`: offers memory to the peer; the offset by which its program writes there.
#[unsafe(no_mangle)]
extern "C-unwind" fn riomap(
    fd: c_int,
    at: *mut c_void,
    len: usize,
    protection: c_int,
    _flags: c_int,
    offset: libc::off_t,
) -> libc::off_t {
    let mapped = enter_sleeping::<MinusOne, isize>(|call| {
        if protection & !libc::PROT_WRITE != 0 {
            return Err(Misuse::invalid("riomap: PROT_WRITE or PROT_NONE").into());
        }
        let socket = table::stream(fd)?;
        // A connection that was accepted just now has its last step before it.
        let mut inner = socket.wait(call, false, |inner| !inner.state().is_opening())?;
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
extern "C-unwind" fn riowrite(
    fd: c_int,
    from: *mut c_void,
    len: usize,
    offset: libc::off_t,
    flags: c_int,
) -> usize {
    let written = enter_sleeping::<MinusOne, isize>(|call| {
        know(flags, libc::MSG_MORE | libc::MSG_WAITALL)?;
        let socket = table::stream(fd)?;
        let nonblocking = nonblocking(&socket, flags);
        let start = offset.cast_unsigned();
        push(
            call,
            &socket,
            &one(from, len),
            nonblocking,
            |stream, at, left| stream.send_direct(start.wrapping_add(at as u64), left),
        )
    });
    written.cast_unsigned()
}
