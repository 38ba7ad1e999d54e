//! Sets of sockets and descriptors to wait for, as `epoll` has them: `repoll_create`,
//! `repoll_ctl`, `repoll_wait`. Entries are level-triggered whatever they ask for, as upstream's.
//! Errors are told as the calls of `epoll` tell them (−1 and errno; upstream answers with a
//! positive errno, which programs written for `epoll` take for a count of events).

use core::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::log;

use super::super::boundary::{Arg, MinusOne, NULL, Outcome, enter, last_errno};
use super::super::sleep::{Call, Sleepy, enter_sleeping};
use super::poll::{self, Entry};
use super::table::{self, Any};

/// See the module. Its number is an eventfd, which is readable for a moment whenever the set
/// changes: whoever waits looks again.
pub(super) struct Set {
    changed: OwnedFd,
    members: Mutex<Vec<Member>>,
}

/// One line of a set.
#[derive(Clone, Copy)]
struct Member {
    fd: RawFd,
    /// `EPOLL*`; 0 after an EPOLLONESHOT has been told of.
    events: u32,
    data: u64,
}

const NO_SET: Misuse = Misuse::invalid("no set of repoll_create has this number");
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// What a poll can be asked for; `epoll` has the same bits.
const POLLED: u32 = (libc::POLLIN
    | libc::POLLPRI
    | libc::POLLOUT
    | libc::POLLRDNORM
    | libc::POLLWRNORM
    | libc::POLLRDHUP) as u32;

fn set(fd: c_int) -> Outcome<Arc<Set>> {
    match table::find(fd) {
        Some(Any::Set(set)) => Ok(set),
        _ => Err(NO_SET),
    }
}

/// A number was closed: no set has it any more.
pub(super) fn forget(fd: c_int) {
    for any in table::all() {
        if let Any::Set(set) = any {
            set.lock().retain(|m| m.fd != fd);
        }
    }
}

impl Set {
    fn new(flags: c_int) -> Outcome<Arc<Self>> {
        if flags & !(libc::EPOLL_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return Err(Misuse::invalid(
                "repoll_create: EPOLL_CLOEXEC and O_NONBLOCK",
            ));
        }
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | (flags & libc::EPOLL_CLOEXEC)) };
        if fd < 0 {
            let errno = last_errno();
            log::shortage("repoll_create", &std::io::Error::from_raw_os_error(errno.0));
            return Err(Misuse::new(errno, "no descriptor for the set"));
        }
        Ok(Arc::new(Self {
            // SAFETY: opened just now.
            changed: unsafe { OwnedFd::from_raw_fd(fd) },
            members: Mutex::new(Vec::new()),
        }))
    }

    pub(super) fn fd(&self) -> RawFd {
        self.changed.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn control(&self, op: c_int, fd: RawFd, event: Arg<libc::epoll_event>) -> Outcome<()> {
        let mut members = self.lock();
        let at = members.iter().position(|m| m.fd == fd);
        match (op, at) {
            (libc::EPOLL_CTL_ADD, None) => {
                can_be_polled(fd)?;
                members.push(member(fd, event)?);
            }
            (libc::EPOLL_CTL_ADD, Some(_)) => {
                return Err(Misuse::new(
                    Errno(libc::EEXIST),
                    "repoll_ctl: it is in the set",
                ));
            }
            (libc::EPOLL_CTL_MOD, Some(at)) => {
                let new = member(fd, event)?;
                if let Some(old) = members.get_mut(at) {
                    *old = new;
                }
            }
            (libc::EPOLL_CTL_DEL, Some(at)) => drop(members.remove(at)),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => {
                return Err(Misuse::new(
                    Errno(libc::ENOENT),
                    "repoll_ctl: it is not in the set",
                ));
            }
            _ => {
                return Err(Misuse::invalid(
                    "repoll_ctl: EPOLL_CTL_ADD, EPOLL_CTL_MOD or EPOLL_CTL_DEL",
                ));
            }
        }
        drop(members);
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes of our own; a counter that is full wakes as well.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
        Ok(())
    }

    /// Takes back that the set has changed.
    fn calm(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: eight bytes of our own.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// Waits until one of the members is ready; which are, at most `most`.
    fn wait(
        &self,
        call: &Call<'_>,
        most: usize,
        at_most: Option<Duration>,
    ) -> Sleepy<Vec<libc::epoll_event>> {
        let until = call.until(at_most);
        loop {
            // Who sleeps looks again by and by: another thread may take the word that the set has changed.
            let entries = poll::wait(call, at_most, || self.entries())?;
            let found = self.found(&entries, most);
            if !found.is_empty() || until.is_some_and(|t| Instant::now() >= t) {
                return Ok(found);
            }
        }
    }

    /// The set's own, and the members.
    fn entries(&self) -> Vec<Entry> {
        self.calm();
        let members = self.lock().clone();
        let of_set = libc::pollfd {
            fd: self.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut entries = vec![Entry::of(&of_set)];
        entries.extend(members.iter().map(|m| Entry::of(&wanted(m))));
        entries
    }

    /// What to tell of; the first entry is the set's own.
    fn found(&self, entries: &[Entry], most: usize) -> Vec<libc::epoll_event> {
        let mut members = self.lock();
        let mut out = Vec::new();
        let mut told = None;
        for entry in entries.iter().skip(1).filter(|e| e.found != 0) {
            if out.len() == most {
                break;
            }
            let Some(at) = members.iter().position(|m| m.fd == entry.fd) else {
                continue;
            };
            if entry.found & libc::POLLNVAL != 0 {
                members.remove(at);
                continue;
            }
            if let Some(member) = members.get_mut(at) {
                out.push(libc::epoll_event {
                    events: u32::from(entry.found.cast_unsigned()),
                    u64: member.data,
                });
                told = Some(member.fd);
                if member.events & ONESHOT != 0 {
                    member.events = 0;
                }
            }
        }
        // Whoever was told of last comes last in the next round: many that are always ready do not
        // hide the others behind a short list.
        let last = told.and_then(|fd| members.iter().position(|m| m.fd == fd));
        if let Some(last) = last.filter(|_| out.len() == most) {
            members.rotate_left(last + 1);
        }
        out
    }
}

/// How a member is polled; one that nothing is wanted of is left out, as `epoll` does after
/// EPOLLONESHOT.
fn wanted(member: &Member) -> libc::pollfd {
    libc::pollfd {
        fd: if member.events == 0 { -1 } else { member.fd },
        events: c_short::try_from(member.events & POLLED).unwrap_or(0),
        revents: 0,
    }
}

fn member(fd: RawFd, event: Arg<libc::epoll_event>) -> Outcome<Member> {
    let event = event.get()?;
    let errors = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
    Ok(Member {
        fd,
        events: event.events | errors,
        data: event.u64,
    })
}

/// EBADF for what is neither a socket nor a descriptor.
fn can_be_polled(fd: RawFd) -> Outcome<()> {
    if table::find(fd).is_some() {
        return Ok(());
    }
    // SAFETY: takes no pointers.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Misuse::new(last_errno(), "repoll_ctl: no such descriptor"));
    }
    Ok(())
}

/// `repoll_create`: the number of a new set, which `rclose` closes.
#[unsafe(no_mangle)]
extern "C" fn repoll_create(flags: c_int) -> c_int {
    enter::<MinusOne, c_int>(|| Ok(table::insert(Any::Set(Set::new(flags)?))))
}

/// `repoll_ctl`: EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, EPOLLERR, EPOLLHUP, EPOLLONESHOT count.
#[unsafe(no_mangle)]
extern "C" fn repoll_ctl(
    set_fd: c_int,
    op: c_int,
    fd: c_int,
    event: Arg<libc::epoll_event>,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        if set_fd == fd {
            return Err(Misuse::invalid("repoll_ctl: a set is no member of itself"));
        }
        set(set_fd)?.control(op, fd, event)?;
        Ok(0)
    })
}

/// `repoll_wait`: `timeout` in ms, negative for ever.
#[unsafe(no_mangle)]
extern "C-unwind" fn repoll_wait(
    set_fd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    enter_sleeping::<MinusOne, c_int>(|call| {
        let most = usize::try_from(most).ok().filter(|n| *n != 0);
        let most = most.ok_or(Misuse::invalid("repoll_wait: room for one event at least"))?;
        if events.is_null() {
            return Err(NULL.into());
        }
        let at_most = u64::try_from(timeout).ok().map(Duration::from_millis);
        let found = set(set_fd)?.wait(call, most, at_most)?;
        for (i, event) in found.iter().enumerate() {
            // SAFETY: the caller vouches for the room, and no more were found than it has.
            unsafe { events.wrapping_add(i).write_unaligned(*event) };
        }
        Ok(c_int::try_from(found.len()).unwrap_or(c_int::MAX))
    })
}
