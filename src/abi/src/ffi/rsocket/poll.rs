//! Waiting for sockets and plain descriptors together.

use core::ffi::{c_int, c_short};
use std::any::Any as Anything;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rocebud_objects::Misuse;
use rocebud_rsocket::State;
use rocebud_verbs::{CompChannel as Sleeper, Watch};

use super::super::boundary::{MinusOne, NULL, Outcome};
use super::super::sleep::{Call, On, Sleep, Sleepy, Stop, enter_sleeping};
use super::completions::Look;
use super::socket::Inner;
use super::table::{self, Any};
use super::wait::{LOOK_AGAIN, Place, Waits, poll};

/// What `rpoll` says of a socket.
fn readiness(inner: &Inner, wanted: c_short) -> c_short {
    const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
    const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;
    let state = inner.state();
    let always = match state {
        State::Init | State::Bound => libc::POLLHUP | (wanted & WRITE),
        State::ConnectFailed => libc::POLLERR | libc::POLLHUP | (wanted & (READ | WRITE)),
        State::Listening if inner.has_request() => wanted & READ,
        State::Listening if inner.is_deaf() => libc::POLLERR,
        _ => 0,
    };
    let Some(endpoint) = &inner.endpoint else {
        return always;
    };
    let ready = endpoint.stream.ready();
    let when = |is: bool, bits: c_short| if is { bits } else { 0 };
    let half_closed = matches!(state, State::WriteOnly | State::Disconnected);
    always
        | when(ready.readable, wanted & READ)
        | when(ready.writable, wanted & WRITE)
        | when(ready.hung_up, libc::POLLHUP)
        | when(ready.failed, libc::POLLERR | (wanted & (READ | WRITE)))
        | when(half_closed, wanted & libc::POLLRDHUP)
}

/// One entry, and the socket it is about.
pub(super) struct Entry {
    socket: Option<Any>,
    pub(super) fd: RawFd,
    wanted: c_short,
    pub(super) found: c_short,
}

/// Looks at a socket; the kernel does at plain descriptors.
fn look_at<T: Waits + 'static>(
    place: &Place<T>,
    step: Step,
    ready: impl Fn(&T) -> c_short,
) -> c_short {
    let mut inner = place.lock();
    if inner.is_closed() {
        return libc::POLLNVAL;
    }
    match step {
        Step::Look(how) => inner.look(how),
        Step::Arm => inner.arm(),
    }
    place.stir();
    ready(&inner)
}

/// What to do about sockets.
#[derive(Clone, Copy)]
enum Step {
    Look(Look),
    Arm,
}

fn take<T: Waits + 'static>(place: &Place<T>, fds: &[libc::pollfd]) {
    let mut inner = place.lock();
    if !inner.is_closed() {
        inner.woken(fds);
    }
}

impl Entry {
    pub(super) fn of(p: &libc::pollfd) -> Self {
        Self {
            socket: table::find(p.fd),
            fd: p.fd,
            wanted: p.events,
            found: 0,
        }
    }

    /// Looks at a socket; a plain descriptor is the kernel's.
    fn look(&mut self, step: Step) {
        let wanted = self.wanted;
        match &self.socket {
            Some(Any::Stream(s)) => self.found = look_at(s, step, |i| readiness(i, wanted)),
            Some(Any::Datagram(d)) => self.found = look_at(d, step, |i| i.readiness(wanted)),
            Some(Any::Set(_)) | None => {}
        }
    }

    /// Everything that was asked for is there.
    const fn has_all(&self) -> bool {
        self.found != 0 && self.wanted & !self.found == 0
    }

    /// It is the kernel's alone.
    const fn is_plain(&self) -> bool {
        matches!(&self.socket, Some(Any::Set(_)) | None)
    }

    /// Adds what the kernel has to look at.
    fn descriptors(&self, into: &mut Vec<libc::pollfd>) {
        match &self.socket {
            Some(Any::Stream(s)) => s.lock().descriptors(s.fd, into),
            Some(Any::Datagram(d)) => d.lock().descriptors(d.fd, into),
            Some(Any::Set(_)) | None => into.push(libc::pollfd {
                fd: self.fd,
                events: self.wanted,
                revents: 0,
            }),
        }
    }

    fn sleeper(&self) -> Option<Sleeper> {
        match &self.socket {
            Some(Any::Stream(s)) => s.lock().sleeper(),
            Some(Any::Datagram(d)) => d.lock().sleeper(),
            Some(Any::Set(_)) | None => None,
        }
    }

    /// What the kernel has seen.
    fn seen(&mut self, fds: &[libc::pollfd]) {
        match &self.socket {
            Some(Any::Stream(s)) => take(s, fds),
            Some(Any::Datagram(d)) => take(d, fds),
            Some(Any::Set(_)) | None => self.found = fds.first().map_or(0, |f| f.revents),
        }
    }
}

fn count(entries: &[Entry]) -> usize {
    entries.iter().filter(|e| e.found != 0).count()
}

fn look(entries: &mut [Entry], how: Look) {
    entries.iter_mut().for_each(|e| e.look(Step::Look(how)));
}

fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|t| Instant::now() >= t)
}

/// Waits until one of the entries is ready, or for `at_most`; `None`: for ever.
pub(super) fn wait(
    call: &Call<'_>,
    at_most: Option<Duration>,
    make: impl FnOnce() -> Vec<Entry>,
) -> Sleepy<Vec<Entry>> {
    let until = call.until(at_most);
    let mut entries = match call.woken()?.and_then(Asleep::entries) {
        Some(mut entries) => {
            look(&mut entries, Look::Pump);
            entries
        }
        None => {
            let mut entries = make();
            look(&mut entries, Look::Glance);
            // Whoever is told at once of some of what it asks for, again and again, must hear of the rest, too.
            let lacks = |e: &&mut Entry| !e.has_all();
            let lacking = entries.iter_mut().filter(lacks);
            lacking.for_each(|e| e.look(Step::Look(Look::Pump)));
            if count(&entries) != 0 && entries.iter().any(Entry::is_plain) {
                ask_kernel(&mut entries)?;
            }
            entries
        }
    };
    let mut asked = !call.is_first();
    while count(&entries) == 0 && !(asked && is_over(until)) {
        if !is_over(until) {
            entries.iter_mut().for_each(|e| e.look(Step::Arm));
            if count(&entries) == 0 {
                return Err(Stop::Sleep(Box::new(Asleep::new(entries, until))));
            }
        }
        ask_kernel(&mut entries)?;
        look(&mut entries, Look::Pump);
        asked = true;
    }
    Ok(entries)
}

/// The descriptors of all entries, and how many each has.
fn descriptors(entries: &[Entry]) -> (Vec<libc::pollfd>, Vec<usize>) {
    let mut fds = Vec::new();
    let of_entry = |e: &Entry| {
        let before = fds.len();
        e.descriptors(&mut fds);
        fds.len() - before
    };
    let lengths = entries.iter().map(of_entry).collect();
    (fds, lengths)
}

/// What the kernel has seen at them.
fn seen(entries: &mut [Entry], fds: &[libc::pollfd], lengths: &[usize]) {
    let mut rest = fds;
    for (entry, len) in entries.iter_mut().zip(lengths) {
        let (of_entry, behind) = rest.split_at_checked(*len).unwrap_or_default();
        entry.seen(of_entry);
        rest = behind;
    }
}

fn ask_kernel(entries: &mut [Entry]) -> Outcome<()> {
    let (mut fds, lengths) = descriptors(entries);
    let asked = poll(&mut fds);
    seen(entries, &fds, &lengths);
    asked
}

/// A thread that waits for many.
struct Asleep {
    entries: Vec<Entry>,
    fds: Vec<libc::pollfd>,
    lengths: Vec<usize>,
    watch: Option<Watch>,
    at_most: Duration,
    awake: bool,
}

impl Asleep {
    fn new(entries: Vec<Entry>, until: Option<Instant>) -> Self {
        let (mut fds, lengths) = descriptors(&entries);
        let sleeper = entries.iter().find_map(Entry::sleeper);
        let watch = sleeper.map(|sleeper| sleeper.sleep_on(&mut fds));
        let left = until.map(|t| t.saturating_duration_since(Instant::now()));
        Self {
            entries,
            fds,
            lengths,
            watch,
            at_most: left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN),
            awake: false,
        }
    }

    fn entries(sleep: Box<dyn Sleep>) -> Option<Vec<Entry>> {
        let sleep: Box<dyn Anything> = sleep;
        let mut this = sleep.downcast::<Self>().ok()?;
        Some(core::mem::take(&mut this.entries))
    }
}

impl Sleep for Asleep {
    fn on(&mut self) -> On {
        On::Descriptors(self.fds.as_mut_ptr(), self.fds.len(), self.at_most)
    }

    fn wake(&mut self) {
        if !core::mem::replace(&mut self.awake, true) {
            self.watch = None;
            seen(&mut self.entries, &self.fds, &self.lengths);
        }
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        self.wake();
    }
}

/// `rpoll`: sockets and plain descriptors; `timeout` in ms, negative for ever.
#[unsafe(no_mangle)]
extern "C-unwind" fn rpoll(fds: *mut libc::pollfd, n: libc::nfds_t, timeout: c_int) -> c_int {
    enter_sleeping::<MinusOne, c_int>(|call| {
        if fds.is_null() && n != 0 {
            return Err(NULL.into());
        }
        let fds = match n {
            0 => &mut [],
            // SAFETY: the caller vouches for n entries, its own for the time of the call.
            _ => unsafe { core::slice::from_raw_parts_mut(fds, n as usize) },
        };
        let at_most = u64::try_from(timeout).ok().map(Duration::from_millis);
        let entries = wait(call, at_most, || fds.iter().map(Entry::of).collect())?;
        let ready = count(&entries);
        for (fd, entry) in fds.iter_mut().zip(&entries) {
            fd.revents = entry.found;
        }
        Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
    })
}

/// A set of `rselect`, NULL for none.
type Set = *mut libc::fd_set;

fn has(set: Set, fd: RawFd) -> bool {
    // SAFETY: the caller's set, and a number below FD_SETSIZE.
    !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
}

fn put(set: Set, fd: RawFd, is: bool) {
    if set.is_null() {
        return;
    }
    match is {
        // SAFETY: the caller's set, and a number below FD_SETSIZE.
        true => unsafe { libc::FD_SET(fd, set) },
        // SAFETY: as above.
        false => unsafe { libc::FD_CLR(fd, set) },
    }
}

const READ: c_short = libc::POLLIN | libc::POLLHUP | libc::POLLERR;
const WRITE: c_short = libc::POLLOUT | libc::POLLERR;

/// `rselect`: as `rpoll`, with sets. The time left is not told.
#[unsafe(no_mangle)]
extern "C-unwind" fn rselect(
    n: c_int,
    reads: Set,
    writes: Set,
    excepts: Set,
    timeout: *mut libc::timeval,
) -> c_int {
    enter_sleeping::<MinusOne, c_int>(|call| {
        if !(0..=libc::FD_SETSIZE as c_int).contains(&n) {
            return Err(Misuse::invalid("rselect: descriptors go from 0 to 1023").into());
        }
        let at_most = match timeout.is_null() {
            true => None,
            // SAFETY: the caller vouches for it.
            false => Some(duration(unsafe { timeout.read() })?),
        };
        let entries = wait(call, at_most, || in_sets(n, (reads, writes, excepts)))?;
        if entries.iter().any(|e| e.found & libc::POLLNVAL != 0) {
            const BAD: Misuse = Misuse::new(
                rocebud_objects::Errno::EBADF,
                "rselect: a set has a number that is no descriptor",
            );
            return Err(BAD.into());
        }
        let mut bits = 0;
        for e in &entries {
            for (set, asked, means) in [
                (reads, libc::POLLIN, READ),
                (writes, libc::POLLOUT, WRITE),
                (excepts, libc::POLLPRI, libc::POLLPRI),
            ] {
                if e.wanted & asked != 0 {
                    let is = e.found & means != 0;
                    put(set, e.fd, is);
                    bits += c_int::from(is);
                }
            }
        }
        Ok(bits)
    })
}

/// What is to be looked at.
fn in_sets(n: c_int, (reads, writes, excepts): (Set, Set, Set)) -> Vec<Entry> {
    let entry = |fd| {
        let asked = |set, what| if has(set, fd) { what } else { 0 };
        let events = asked(reads, libc::POLLIN)
            | asked(writes, libc::POLLOUT)
            | asked(excepts, libc::POLLPRI);
        let revents = 0;
        let pollfd = libc::pollfd {
            fd,
            events,
            revents,
        };
        (events != 0).then(|| Entry::of(&pollfd))
    };
    (0..n).filter_map(entry).collect()
}

fn duration(t: libc::timeval) -> Outcome<Duration> {
    let bad = Misuse::invalid("rselect: the time must not be negative");
    let seconds = u64::try_from(t.tv_sec).map_err(|_| bad)?;
    let micros = u64::try_from(t.tv_usec).map_err(|_| bad)?;
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
}
