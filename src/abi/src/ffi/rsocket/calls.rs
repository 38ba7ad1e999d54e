//! Making, naming, connecting and closing sockets, and their options.

use core::ffi::{c_int, c_void};

use rocebud_objects::{Errno, Misuse};
use rocebud_rsocket::options::{Name, Phase, names};
use rocebud_rsocket::{Event, State};

use super::super::boundary::{Arg, MinusOne, NULL, Outcome, enter};
use super::super::cm::types::{rdma_cm_id, sockaddr_storage};
use super::super::sleep::{Call, On, Sleep, Sleepy, Stop, enter_sleeping};
use super::completions::Look;
use super::datagram::Datagram;
use super::socket::{Inner, Socket};
use super::table::{self, Any};
use super::wait::Waits;
use super::{io, repoll, route, verbs};

const NO_SUCH_SOCKET: Misuse = Misuse::new(
    Errno::EOPNOTSUPP,
    "rsocket: SOCK_STREAM (TCP) and SOCK_DGRAM (UDP) of AF_INET and AF_INET6 are what there is",
);
const IN_PROGRESS: Misuse = Misuse::new(
    Errno(libc::EINPROGRESS),
    "rconnect: under way; rpoll tells when it is done",
);

/// `rsocket`: SOCK_NONBLOCK and SOCK_CLOEXEC may be in the type.
#[unsafe(no_mangle)]
extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return Err(NO_SUCH_SOCKET);
        }
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let socket = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                Any::Stream(Socket::new(domain, nonblocking)?)
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                Any::Datagram(Datagram::new(domain, nonblocking)?)
            }
            _ => return Err(NO_SUCH_SOCKET),
        };
        Ok(table::insert(socket))
    })
}

/// `rbind`
#[unsafe(no_mangle)]
extern "C" fn rbind(fd: c_int, address: *const u8, length: u32) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let socket = match table::get(fd)? {
            Any::Datagram(datagram) => return datagram.bind(address, length).map(|()| 0),
            _ => table::stream(fd)?,
        };
        check_address(address, length)?;
        let mut inner = socket.lock();
        inner.ask(Event::Bind)?;
        // SAFETY: a living identifier, and an address of the length that its family has.
        let code = unsafe { verbs::rdma_bind_addr(inner.id, address) };
        undo(
            &mut inner,
            code,
            State::Init,
            "rbind: not an address to be had",
        )
    })
}

/// `rlisten`
#[unsafe(no_mangle)]
extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let socket = table::stream(fd)?;
        let mut inner = socket.lock();
        let before = inner.state();
        inner.ask(Event::Listen)?;
        if before == State::Listening {
            return Ok(0);
        }
        // SAFETY: a living identifier.
        let code = unsafe { verbs::rdma_listen(inner.id, backlog) };
        undo(&mut inner, code, before, "rlisten: the port cannot be had")
    })
}

/// A move whose call failed has not happened.
fn undo(inner: &mut Inner, code: c_int, before: State, why: &'static str) -> Outcome<c_int> {
    let done = verbs::checked(code, why);
    if done.is_err() {
        inner.back_to(before);
    }
    done.map(|()| 0)
}

/// The address must be as long as its family says.
fn check_address(address: *const u8, length: u32) -> Outcome<()> {
    if address.is_null() {
        return Err(NULL);
    }
    const SHORT: Misuse = Misuse::invalid("the address is shorter than its family's are");
    if length < 2 {
        return Err(SHORT);
    }
    // SAFETY: the caller vouches for `length` bytes, which are at least two.
    let family = unsafe { address.cast::<u16>().read_unaligned() };
    let needed = match i32::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => {
            let other = Errno(libc::EAFNOSUPPORT);
            return Err(Misuse::new(other, "only IPv4 and IPv6 addresses"));
        }
    };
    if (length as usize) < needed {
        return Err(SHORT);
    }
    Ok(())
}

/// `raccept`
#[unsafe(no_mangle)]
extern "C-unwind" fn raccept(fd: c_int, address: *mut u8, length: Arg<u32>) -> c_int {
    enter_sleeping::<MinusOne, c_int>(|call| {
        let socket = table::stream(fd)?;
        let nonblocking = socket.lock().nonblocking;
        let mut inner = socket.wait(call, nonblocking, |inner| {
            inner.state() != State::Listening || inner.has_request() || inner.is_deaf()
        })?;
        const GONE: Misuse = Misuse::new(
            Errno::EIO,
            "raccept: the daemon of rocebud has gone, and with it the port",
        );
        let accepted = inner.accept(socket.domain).unwrap_or(Err(GONE))?;
        drop(inner);
        let id = accepted.lock().id;
        let new = table::insert(Any::Stream(accepted));
        if !address.is_null() {
            put_name(id, Which::Peer, socket.domain, address, length)?;
        }
        Ok(new)
    })
}

/// `rconnect`: EINPROGRESS when the socket does not wait.
#[unsafe(no_mangle)]
extern "C-unwind" fn rconnect(fd: c_int, address: *const u8, length: u32) -> c_int {
    enter_sleeping::<MinusOne, c_int>(|call| {
        let socket = match table::get(fd)? {
            Any::Datagram(datagram) => return Ok(datagram.connect(address, length).map(|()| 0)?),
            _ => table::stream(fd)?,
        };
        if call.is_first() {
            check_address(address, length)?;
            begin(&socket, address)?;
        }
        let nonblocking = socket.lock().nonblocking;
        let waited = socket.wait(call, nonblocking, |inner| !inner.state().is_opening());
        let mut inner = match waited {
            Err(Stop::Failed(e)) if e.errno == Errno::EAGAIN => return Err(IN_PROGRESS.into()),
            other => other?,
        };
        if inner.state() == State::ConnectFailed {
            let errno = inner.take_error().unwrap_or(Errno(libc::ECONNABORTED));
            return Err(Misuse::new(errno, "rconnect: no connection came about").into());
        }
        Ok(0)
    })
}

fn begin(socket: &Socket, address: *const u8) -> Outcome<()> {
    let mut inner = socket.lock();
    let before = inner.state();
    inner.ask(Event::Connect)?;
    let asked = inner.resolve(address);
    if asked.is_err() {
        inner.back_to(before);
    }
    asked
}

/// `rshutdown`: waits until what was sent has arrived, or cannot any more.
#[unsafe(no_mangle)]
extern "C-unwind" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    enter_sleeping::<MinusOne, c_int>(|call| {
        let event = match how {
            libc::SHUT_RD => Event::ShutdownRead,
            libc::SHUT_WR => Event::ShutdownWrite,
            libc::SHUT_RDWR => Event::ShutdownBoth,
            _ => return Err(HOW.into()),
        };
        match table::get(fd)? {
            Any::Datagram(datagram) => datagram.shut_down(how)?,
            _ => end(call, &*table::stream(fd)?, event)?,
        }
        Ok(0)
    })
}

const HOW: Misuse = Misuse::invalid("rshutdown: SHUT_RD, SHUT_WR or SHUT_RDWR");

fn end(call: &Call<'_>, socket: &Socket, how: Event) -> Sleepy<()> {
    if call.is_first() {
        let mut inner = socket.lock();
        inner.look(Look::Pump);
        inner.shutdown(how);
        socket.stir();
    }
    whatever_comes(|| {
        socket.wait(call, false, Inner::is_quiet)?.settle();
        Ok(())
    })
}

/// What was sent still counts: no signal ends this.
fn whatever_comes(wait: impl Fn() -> Sleepy<()>) -> Sleepy<()> {
    loop {
        match wait() {
            Err(Stop::Failed(e)) if e.errno.0 == libc::EINTR => {}
            other => return other,
        }
    }
}

/// `rclose`: says so to a stream's peer, and waits until what was sent has arrived, or cannot any more. The
/// socket goes in any case, as with close().
#[unsafe(no_mangle)]
extern "C-unwind" fn rclose(fd: c_int) -> c_int {
    enter_sleeping::<MinusOne, c_int>(|call| {
        let closing = match call.any_woken() {
            None if call.is_first() => Closing::begin(fd)?,
            None => return Ok(0),
            Some(woken) => Closing::go_on(call, woken).ok_or(NO_CLOSING)?,
        };
        closing.end(call)
    })
}

const NO_CLOSING: Misuse = Misuse::new(Errno::EIO, "rclose: not what it slept on");

/// A socket that is no program's any more.
struct Closing {
    fd: c_int,
    socket: Any,
    asleep: Option<Box<dyn Sleep>>,
}

impl Closing {
    fn begin(fd: c_int) -> Outcome<Box<Self>> {
        Ok(Box::new(Self {
            fd,
            socket: table::remove(fd)?,
            asleep: None,
        }))
    }

    fn go_on(call: &Call<'_>, woken: Box<dyn Sleep>) -> Option<Box<Self>> {
        let woken: Box<dyn core::any::Any> = woken;
        let mut this = woken.downcast::<Self>().ok()?;
        call.woken_from(this.asleep.take());
        Some(this)
    }

    fn end(mut self: Box<Self>, call: &Call<'_>) -> Sleepy<c_int> {
        let ended = match &self.socket {
            Any::Stream(socket) => end(call, socket, Event::ShutdownBoth),
            Any::Datagram(datagram) => whatever_comes(|| datagram.end(call)),
            Any::Set(_) => Ok(()),
        };
        if let Err(Stop::Sleep(sleep)) = ended {
            self.asleep = Some(sleep);
            return Err(Stop::Sleep(self));
        }
        Ok(0)
    }
}

impl Sleep for Closing {
    fn on(&mut self) -> On {
        match &mut self.asleep {
            Some(sleep) => sleep.on(),
            None => On::NOTHING,
        }
    }

    fn wake(&mut self) {
        if let Some(sleep) = &mut self.asleep {
            sleep.wake();
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.asleep = None;
        match &self.socket {
            Any::Stream(socket) => socket.close(),
            Any::Datagram(datagram) => datagram.close(),
            Any::Set(_) => return,
        }
        repoll::forget(self.fd);
    }
}

/// Whose name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Own,
    Peer,
}

/// Writes a socket's name, as much of it as there is room for, and its length.
pub(super) fn put_name(
    id: *mut rdma_cm_id,
    which: Which,
    domain: c_int,
    to: *mut u8,
    length: Arg<u32>,
) -> Outcome<()> {
    // SAFETY: a living identifier of the socket.
    let names = unsafe { (*id).route.addr };
    let sockaddr_storage(mut name) = match which {
        Which::Own => names.src,
        Which::Peer => names.dst,
    };
    let [f0, f1, ..] = name;
    if [f0, f1] == [0, 0] {
        let [f0, f1] = u16::try_from(domain).unwrap_or(0).to_ne_bytes();
        (name[0], name[1]) = (f0, f1);
    }
    let whole = match i32::from(u16::from_ne_bytes([name[0], name[1]])) {
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => size_of::<libc::sockaddr_in>(),
    };
    put_bytes(name.get(..whole).unwrap_or_default(), to, length)
}

/// Writes as much of an address as there is room for, and its length.
pub(super) fn put_bytes(name: &[u8], to: *mut u8, length: Arg<u32>) -> Outcome<()> {
    let room = (length.get()? as usize).min(name.len());
    if to.is_null() {
        return Err(NULL);
    }
    // SAFETY: the caller vouches for the room, and the name is that long.
    unsafe { to.copy_from_nonoverlapping(name.as_ptr(), room) };
    length.set(u32::try_from(name.len()).unwrap_or(0))
}

/// `rgetpeername`: ENOTCONN without one.
#[unsafe(no_mangle)]
extern "C" fn rgetpeername(fd: c_int, address: *mut u8, length: Arg<u32>) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let socket = match table::get(fd)? {
            Any::Datagram(datagram) => return io::put_from(datagram.name(true)?, address, length),
            _ => table::stream(fd)?,
        };
        let inner = socket.lock();
        let nobody = matches!(
            inner.state(),
            State::Init | State::Bound | State::Listening | State::ConnectFailed
        );
        if nobody {
            return Err(io::NOT_CONNECTED);
        }
        put_name(inner.id, Which::Peer, socket.domain, address, length)?;
        Ok(0)
    })
}

/// `rgetsockname`
#[unsafe(no_mangle)]
extern "C" fn rgetsockname(fd: c_int, address: *mut u8, length: Arg<u32>) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let socket = match table::get(fd)? {
            Any::Datagram(datagram) => return io::put_from(datagram.name(false)?, address, length),
            _ => table::stream(fd)?,
        };
        let inner = socket.lock();
        put_name(inner.id, Which::Own, socket.domain, address, length)?;
        Ok(0)
    })
}

/// `rsetsockopt`
#[unsafe(no_mangle)]
extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const u8,
    length: u32,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let socket = table::get(fd)?;
        if value.is_null() {
            return Err(NULL);
        }
        // SAFETY: the caller vouches for `length` bytes.
        let value = unsafe { core::slice::from_raw_parts(value, length as usize) };
        let socket = match socket {
            Any::Datagram(_) if (level, name) == ROUTE => return Ok(0), // as upstream: without effect
            Any::Datagram(datagram) => {
                return datagram.set_option((level, name), value).map(|()| 0);
            }
            _ => table::stream(fd)?,
        };
        let mut inner = socket.lock();
        let phase = match inner.state() {
            State::Init | State::Bound | State::Listening => Phase::Idle,
            _ => Phase::Begun,
        };
        if (level, name) == ROUTE {
            return route::set(&mut inner, value, phase);
        }
        let before = inner.options;
        let option = inner.options.set((level, name), value, phase)?;
        if let Err(e) = follow(&mut inner, option) {
            inner.options = before;
            return Err(e);
        }
        Ok(0)
    })
}

/// Does what an option wants done at once.
fn follow(inner: &mut Inner, option: Name) -> Outcome<()> {
    /// `RDMA_OPTION_ID`, `RDMA_OPTION_ID_REUSEADDR`, `RDMA_OPTION_ID_AFONLY`
    const LEVEL_ID: c_int = 0;
    const REUSEADDR: c_int = 1;
    const AFONLY: c_int = 2;
    let (name, on) = match option {
        Name::ReuseAddress => (REUSEADDR, inner.options.reuse_address),
        Name::V6Only => (AFONLY, inner.options.v6_only),
        Name::Keepalive | Name::KeepIdle => {
            inner.keep_alive();
            return Ok(());
        }
        _ => return Ok(()),
    };
    let on = c_int::from(on);
    let value: *const c_void = (&raw const on).cast();
    // SAFETY: a living identifier, and an int.
    let code = unsafe { verbs::rdma_set_option(inner.id, LEVEL_ID, name, value, size_of_val(&on)) };
    verbs::checked(code, "rsetsockopt: too late, or not for this socket")
}

/// `rgetsockopt`
#[unsafe(no_mangle)]
extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut u8,
    length: Arg<u32>,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let found = match table::get(fd)? {
            Any::Datagram(datagram) => datagram.option((level, name))?,
            _ => stream_option(&*table::stream(fd)?, (level, name), length.get()?)?,
        };
        let room = (length.get()? as usize).min(found.len());
        if value.is_null() {
            return Err(NULL);
        }
        // SAFETY: the caller vouches for the room, and as much was found.
        unsafe { value.copy_from_nonoverlapping(found.as_ptr(), room) };
        length.set(u32::try_from(room).unwrap_or(0))?;
        Ok(0)
    })
}

const ROUTE: (c_int, c_int) = (names::SOL_RDMA, names::RDMA_ROUTE);

fn stream_option(socket: &Socket, at: (c_int, c_int), room: u32) -> Outcome<Vec<u8>> {
    let mut inner = socket.lock();
    if at == ROUTE {
        return route::get(&inner, room as usize);
    }
    let (ints, count) = match at {
        (names::SOL_SOCKET, names::SO_ERROR) => {
            inner.look(Look::Pump);
            ([inner.take_error().map_or(0, |e| e.0), 0], 1)
        }
        (names::SOL_SOCKET, names::SO_TYPE) => ([libc::SOCK_STREAM, 0], 1),
        at => inner.options.get(at)?,
    };
    let bytes = ints.iter().take(count).flat_map(|i| i.to_ne_bytes());
    Ok(bytes.collect())
}

/// `rfcntl`: F_GETFL and F_SETFL, of which O_NONBLOCK counts. Variadic in C; both of our machines
/// pass a third argument of a variadic call where they pass any third argument.
#[unsafe(no_mangle)]
extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_int) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let socket = table::get(fd)?;
        let nonblocking = |set: Option<bool>| match &socket {
            Any::Stream(s) => swap(&mut s.lock().nonblocking, set),
            Any::Datagram(d) => swap(&mut d.lock().nonblocking, set),
            Any::Set(_) => false,
        };
        match command {
            libc::F_GETFL => Ok(match nonblocking(None) {
                true => libc::O_RDWR | libc::O_NONBLOCK,
                false => libc::O_RDWR,
            }),
            libc::F_SETFL => {
                nonblocking(Some(argument & libc::O_NONBLOCK != 0));
                Ok(0)
            }
            libc::F_GETFD | libc::F_SETFD => {
                // SAFETY: the socket's own descriptor.
                let code = unsafe { libc::fcntl(fd, command, argument) };
                Ok(code)
            }
            _ => Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "rfcntl: F_GETFL, F_SETFL, F_GETFD, F_SETFD",
            )),
        }
    })
}

/// The flag as it was, and as it is to be.
fn swap(flag: &mut bool, set: Option<bool>) -> bool {
    let before = *flag;
    *flag = set.unwrap_or(before);
    before
}
