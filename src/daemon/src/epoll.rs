//! What the loop waits for, by its own words.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rocebud_ctl::channel;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

pub(crate) const EVENTS_PER_TURN: usize = 64;

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    Listener,
    Netlink,
    Signals,
    Slot0,
    Control(u64),
    Process(u64),
    Notices(u64),
    Forward(u64, usize),
    Namespace,
}

impl Token {
    /// Kind in the lowest four bits, slot index in the next four, then the client's key.
    fn word(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Netlink => 1,
            Self::Signals => 2,
            Self::Slot0 => 3,
            Self::Namespace => 8,
            Self::Control(key) => 4 | key << 8,
            Self::Process(key) => 5 | key << 8,
            Self::Notices(key) => 6 | key << 8,
            Self::Forward(key, index) => 7 | (index as u64 & 0xf) << 4 | key << 8,
        }
    }

    fn from_word(word: u64) -> Self {
        let key = word >> 8;
        match word & 0xf {
            0 => Self::Listener,
            1 => Self::Netlink,
            2 => Self::Signals,
            3 => Self::Slot0,
            4 => Self::Control(key),
            5 => Self::Process(key),
            6 => Self::Notices(key),
            8 => Self::Namespace,
            _ => Self::Forward(key, (word >> 4 & 0xf) as usize),
        }
    }
}

/// What to wait for. Errors and closing always wake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Events(EventFlags);

impl Events {
    pub(crate) const NONE: Self = Self(EventFlags::empty());
    pub(crate) const IN: Self = Self(EventFlags::IN);
    pub(crate) const OUT: Self = Self(EventFlags::OUT);
    pub(crate) const BOTH: Self = Self(EventFlags::IN.union(EventFlags::OUT));
}

/// The epoll descriptor, speaking tokens.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: Token, events: Events) -> io::Result<()> {
        Ok(epoll::add(
            &self.0,
            fd,
            EventData::new_u64(token.word()),
            events.0,
        )?)
    }

    pub(crate) fn modify(&self, fd: impl AsFd, token: Token, events: Events) -> io::Result<()> {
        Ok(epoll::modify(
            &self.0,
            fd,
            EventData::new_u64(token.word()),
            events.0,
        )?)
    }

    /// Nothing more is to be heard of `fd`.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    pub(crate) fn wait(&self, ready: &mut Vec<Token>, timeout: Option<Duration>) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        let timeout = timeout.map(channel::timespec);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.0, buffer, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let token = |event: &epoll::Event| Token::from_word(event.data.u64());
        ready.extend(events.iter().map(token));
        Ok(())
    }
}
