//! Namespaces and raw capture for the tests.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Whether namespaces can be made.
pub(crate) fn is_root() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::geteuid() == 0 }
}

/// Moves this thread (and what it starts) into a network namespace of its own, which goes away
/// with it.
pub(crate) fn own_network() -> io::Result<()> {
    // SAFETY: no pointers; only the network of this thread changes.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Path of this thread's network namespace.
pub(crate) fn network_path() -> String {
    // SAFETY: no pointers.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    format!("/proc/{}/task/{thread}/ns/net", std::process::id())
}

/// Waits for a descriptor to become readable.
pub(crate) fn is_readable(fd: i32, within: Duration) -> bool {
    let mut fd = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one live structure.
    unsafe { libc::poll(&raw mut fd, 1, within.as_millis() as i32) == 1 }
}

/// Keeps this thread on the processor that it is on: packets that it sends from two of them may overtake
/// one another.
pub(crate) fn stay_on_this_processor() {
    // SAFETY: no pointers.
    let processor = unsafe { libc::sched_getcpu() };
    // SAFETY: a set of bits, none of which is set.
    let mut here: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: bits beyond the set are refused by a panic.
    unsafe { libc::CPU_SET(processor as usize, &mut here) };
    // SAFETY: the kernel reads as many bytes as the set has.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const here) };
}

/// Another descriptor of the same socket.
pub(crate) fn duplicate(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Everything that arrives at an interface, as frames.
pub(crate) struct Capture(OwnedFd);

impl Capture {
    pub(crate) fn on(ifindex: u32) -> io::Result<Self> {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let name = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol,
            sll_ifindex: ifindex as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of_val(&name) as u32;
        // SAFETY: a live structure and its size.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(fd))
    }

    /// The next frame, or None when nothing comes for a while.
    pub(crate) fn next(&self, wait: Duration) -> Option<Vec<u8>> {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one live structure.
        if unsafe { libc::poll(&raw mut poll, 1, wait.as_millis() as i32) } <= 0 {
            return None;
        }
        let mut frame = vec![0; 70_000];
        // SAFETY: a live buffer and its length.
        let n = unsafe {
            libc::recv(
                self.0.as_raw_fd(),
                frame.as_mut_ptr().cast(),
                frame.len(),
                0,
            )
        };
        frame.truncate(usize::try_from(n).ok()?);
        Some(frame)
    }
}

/// Makes a send buffer as small as it gets.
pub(crate) fn shrink_send_buffer(fd: &impl AsRawFd) {
    let one = 1i32;
    // SAFETY: a live integer and its size.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw const one).cast(),
            4,
        )
    };
    assert_eq!(rc, 0);
}
