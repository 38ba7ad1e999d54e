//! Event channels. The descriptor that the program polls is a socket of the daemon's, readable
//! while events wait.

use core::ffi::c_int;
use std::collections::VecDeque;
use std::os::fd::IntoRawFd;
use std::sync::{Mutex, PoisonError};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::cm::{CmAnswer, CmEvent, CmRequest, Manager, refusal};

use super::super::boundary::{NULL, Outcome, Pointer, Silent, enter};
use super::super::sleep::Read;
use super::types::rdma_event_channel;

/// `struct rdma_event_channel`, and what is ours behind it.
#[repr(C)]
pub(super) struct Channel {
    head: rdma_event_channel,
    number: u32,
    manager: Manager,
}

/// The channels that were destroyed last. A thread of the program's may be on its way into a wait
/// there, when another destroys the channel and ends the program.
static LAST: Mutex<VecDeque<Box<Channel>>> = Mutex::new(VecDeque::new());
const LAST_MAX: usize = 64;

impl Channel {
    pub(super) fn open(manager: &Manager) -> Outcome<*mut rdma_event_channel> {
        let (number, socket) = manager.open_channel()?;
        let channel = Box::new(Self {
            head: rdma_event_channel {
                fd: socket.into_raw_fd(),
            },
            number,
            manager: manager.clone(),
        });
        Ok(Box::into_raw(channel).cast())
    }

    /// The channel behind a program's pointer.
    pub(super) fn of<'a>(channel: *mut rdma_event_channel) -> Outcome<&'a Self> {
        if channel.is_null() {
            return Err(NULL);
        }
        // SAFETY: rdma_cma.h: made by `open` and not destroyed yet.
        Ok(unsafe { &*channel.cast::<Self>() })
    }

    /// Ends a channel. In a child made by fork only the child's copy goes.
    pub(super) fn close(channel: *mut rdma_event_channel) {
        if channel.is_null() {
            return;
        }
        // SAFETY: rdma_cma.h: made by `open`, destroyed once.
        let mut channel = unsafe { Box::from_raw(channel.cast::<Self>()) };
        let fd = core::mem::replace(&mut channel.head.fd, -1);
        if !channel.manager.is_inherited() {
            let number = channel.number;
            // The daemon closes what is left with the process, should this not arrive.
            let _ = channel
                .manager
                .tell(CmRequest::CloseChannel { channel: number });
        }
        // Last, so that a thread that waits there finds the daemon's end closed first.
        // SAFETY: the channel's own descriptor.
        unsafe { libc::close(fd) };
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        last.push_back(channel);
        if last.len() > LAST_MAX {
            last.pop_front();
        }
    }

    pub(super) const fn as_ptr(&self) -> *mut rdma_event_channel {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// The daemon is gone, and what is here was made by this process.
    pub(super) fn is_orphaned(&self) -> bool {
        self.manager.is_dead() && !self.manager.is_inherited()
    }

    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    pub(super) const fn manager(&self) -> &Manager {
        &self.manager
    }

    /// The next event, after its descriptor was read ([`Turn::Read`](super::super::sleep::Turn)).
    pub(super) fn take(&self, read: Read) -> Outcome<Taken> {
        let (channel, manager) = (self.number, self.manager.clone());
        let errno = read.err().map(|e| e.raw_os_error().unwrap_or(libc::EIO));
        match errno {
            None => {}
            Some(libc::EBADF) if self.head.fd < 0 => return Ok(Taken::Destroyed),
            Some(errno) => return Err(Misuse::new(Errno(errno), "no event of a connection")),
        }
        match manager.ask(CmRequest::NextEvent { channel }) {
            Ok(CmAnswer::Event(Some(event))) => Ok(Taken::Event(event)),
            Ok(CmAnswer::Event(None)) => Ok(Taken::Nothing),
            Ok(answer) => Err(refusal(&answer)),
            Err(e) if e.errno == Errno::EINVAL => Ok(Taken::Destroyed),
            Err(e) => Err(e),
        }
    }

    /// What is read before an event may be there: waits as the descriptor's own flags want it, for
    /// the byte that says that an event waits, or for the end of the daemon, or of the channel.
    pub(super) const fn fd(&self) -> c_int {
        self.head.fd
    }
}

/// What was in a channel.
pub(super) enum Taken {
    /// An event.
    Event(Box<CmEvent>),
    /// Nothing any more: read again.
    Nothing,
    /// It was destroyed meanwhile, as programs do on their way to the end: whoever waits there
    /// waits for ever, as a call into the kernel would.
    Destroyed,
}

/// `rdma_create_event_channel`
#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    enter::<Pointer, *mut rdma_event_channel>(|| Channel::open(&Manager::get()?))
}

/// `rdma_destroy_event_channel`
#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    enter::<Silent, ()>(|| {
        Channel::close(channel);
        Ok(())
    });
}
