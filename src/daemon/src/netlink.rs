//! rtnetlink: what the kernel says about interfaces and addresses.
//!
//! [`codec`] turns bytes into values and knows no socket; [`Follower`] owns the sockets. Reading
//! needs no privilege.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

pub(crate) mod ask;
pub(crate) mod codec;

use codec::{Message, Messages};

/// What the follower has to tell.
#[derive(Debug)]
pub(crate) enum News {
    /// Changes, in order. Applying one that is known already must do no harm.
    Events(Vec<Message>),
    /// Everything anew: events were lost, or it is the first time.
    Everything(Vec<Message>),
}

/// Follows links and addresses of the network namespace.
#[derive(Debug)]
pub(crate) struct Follower {
    events: OwnedFd,
    buf: Vec<u8>,
}

impl Follower {
    /// Subscribes, then takes the first picture (in that order, so that nothing falls between).
    pub(crate) fn start() -> io::Result<(Self, Vec<Message>)> {
        let events = netlink_socket(GROUPS)?;
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&events, EVENT_BUFFER)
            .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&events, EVENT_BUFFER));
        let mut follower = Self {
            events,
            buf: vec![0; RECV_BYTES],
        };
        let everything = follower.dump()?;
        Ok((follower, everything))
    }

    /// Readable when there is news.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// What happened since the last call. Never waits.
    pub(crate) fn news(&mut self) -> io::Result<News> {
        let mut events = Vec::new();
        loop {
            match rustix::net::recv(&self.events, &mut self.buf, RecvFlags::TRUNC) {
                Ok((_, full)) if full > self.buf.len() => break,
                Ok((n, _)) => events.extend(Messages::new(&self.buf[..n])),
                Err(Errno::AGAIN) => return Ok(News::Events(events)),
                Err(Errno::INTR) => {}
                // The kernel could not queue all events: the picture is worth nothing now.
                Err(Errno::NOBUFS) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.drain();
        Ok(News::Everything(self.dump()?))
    }

    /// Asks for all links and all addresses.
    pub(crate) fn dump(&mut self) -> io::Result<Vec<Message>> {
        for _ in 0..DUMP_TRIES {
            let mut all = Vec::new();
            let links = self.dump_of(codec::GETLINK, &mut all)?;
            let addresses = self.dump_of(codec::GETADDR, &mut all)?;
            if links && addresses {
                return Ok(all);
            }
        }
        Err(io::Error::other(
            "interfaces change faster than they can be listed",
        ))
    }

    /// One dump on a socket of its own, so that its answers cannot mix with events. False if the
    /// table changed under it.
    fn dump_of(&mut self, kind: u16, all: &mut Vec<Message>) -> io::Result<bool> {
        let socket = netlink_socket(0)?;
        let request = codec::dump_request(kind);
        rustix::net::send(&socket, &request, SendFlags::empty())?;
        let mut whole = true;
        loop {
            // A dump is made in the kernel while we read it, so an empty socket is the end of it.
            let n = match rustix::net::recv(&socket, &mut self.buf, RecvFlags::TRUNC) {
                Ok((_, full)) if full > self.buf.len() => return Ok(false),
                Ok((n, _)) => n,
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            for message in Messages::new(&self.buf[..n]) {
                match message {
                    Message::Done => return Ok(whole),
                    Message::Failed(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    Message::Interrupted => whole = false,
                    other => all.push(other),
                }
            }
        }
    }

    fn drain(&mut self) {
        for _ in 0..DRAIN_MAX {
            match rustix::net::recv(&self.events, &mut self.buf, RecvFlags::empty()) {
                Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

pub(crate) fn netlink_socket(groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;
/// A host that brings up some hundred interfaces at once makes about a megabyte of events.
const EVENT_BUFFER: usize = 4 << 20;
/// The kernel fills at most 32 KiB per answer of a dump.
const RECV_BYTES: usize = 64 * 1024;
const DUMP_TRIES: usize = 10;
const DRAIN_MAX: usize = 100_000;
