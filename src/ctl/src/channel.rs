//! Messages with descriptors over a `SOCK_SEQPACKET` socket, for both ends.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::limits::MESSAGE_FDS_MAX;

/// What came.
#[derive(Debug)]
pub struct Received {
    /// Bytes in the buffer. 0 with no descriptors means that the peer closed.
    pub bytes: usize,
    /// Descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// The message was longer than the buffer, or had too many descriptors.
    pub truncated: bool,
}

/// Sends one message without waiting. `EAGAIN` when the peer does not read.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Receives one message without waiting. `EAGAIN` when there is none.
pub fn recv(socket: impl AsFd, buf: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    loop {
        let iov = &mut [IoSliceMut::new(buf)];
        match rustix::net::recvmsg(&socket, iov, &mut control, flags) {
            Ok(got) => {
                let fds = control.drain().flat_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                    _ => Vec::new(),
                });
                return Ok(Received {
                    bytes: got.bytes,
                    fds: fds.collect(),
                    truncated: got
                        .flags
                        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC),
                });
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until `fd` can be read (or is closed) or `deadline` passes; true if it can.
pub fn wait_readable(fd: impl AsFd, deadline: Instant) -> bool {
    wait(fd, PollFlags::IN, deadline)
}

/// Waits until `fd` can be written (or is closed) or `deadline` passes; true if it can.
pub fn wait_writable(fd: impl AsFd, deadline: Instant) -> bool {
    wait(fd, PollFlags::OUT, deadline)
}

fn wait(fd: impl AsFd, what: PollFlags, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&fd, what)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return true,
            Err(_) => return false,
        }
    }
}

/// A duration for the kernel.
#[must_use]
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX));
