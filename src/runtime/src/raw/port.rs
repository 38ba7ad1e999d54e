//! The packet sockets of an interface.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use rocebud_nic::packet::{Filter, Frame, FrameReceiver, FrameSender, Listen};
use rocebud_objects::Errno;

use crate::fork;

/// An interface that raw packet queue pairs use.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) mac: [u8; 6],
    pub(super) loopback: bool,
    sender: FrameSender,
    /// There while there are rules.
    receiver: Option<FrameReceiver>,
    listens: HashSet<Listen>,
    /// Queue pairs on it.
    pub(super) users: u32,
    staging: Vec<u8>,
    staged: Vec<Range<usize>>,
    /// Of receivers that are closed.
    lost: u64,
}

impl Port {
    pub(super) fn open(ifindex: u32, loopback: bool) -> io::Result<Self> {
        let sender = FrameSender::open(ifindex)?;
        fork::close_in_children(sender.as_raw_fd());
        Ok(Self {
            mac: sender.mac()?,
            loopback,
            sender,
            receiver: None,
            listens: HashSet::new(),
            users: 0,
            staging: Vec::new(),
            staged: Vec::new(),
            lost: 0,
        })
    }

    /// Receives what passes the filter; nothing without one. True when the descriptors changed.
    pub(super) fn steer(
        &mut self,
        ifindex: u32,
        filter: Option<&Filter>,
        listens: &HashSet<Listen>,
    ) -> io::Result<bool> {
        let Some(filter) = filter else {
            return Ok(self.close_receiver());
        };
        let changed = self.receiver.is_none();
        let receiver = match &mut self.receiver {
            Some(receiver) => {
                receiver.set_filter(filter)?;
                receiver
            }
            None => {
                let receiver = FrameReceiver::open(ifindex, filter)?;
                fork::close_in_children(receiver.as_raw_fd());
                self.receiver.insert(receiver)
            }
        };
        // An interface without filters of its own (veth, loopback) needs none of these.
        for gone in self.listens.difference(listens) {
            let _ = receiver.listen(*gone, false);
        }
        for new in listens.difference(&self.listens) {
            let _ = receiver.listen(*new, true);
        }
        self.listens.clone_from(listens);
        Ok(changed)
    }

    fn close_receiver(&mut self) -> bool {
        self.listens.clear();
        let Some(receiver) = self.receiver.take() else {
            return false;
        };
        self.lost += receiver.lost();
        fork::forget(receiver.as_raw_fd());
        true
    }

    /// Hands in the frames that wait, a bounded number. An error of the interface is told once by
    /// the kernel, and is nothing to the frames.
    pub(super) fn receive(&mut self, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let received = self.receiver.as_mut().map(|r| r.recv(sink));
        received.and_then(Result::ok).unwrap_or(0)
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost + self.receiver.as_ref().map_or(0, FrameReceiver::lost)
    }

    pub(super) fn receive_fd(&self) -> Option<i32> {
        self.receiver.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = i32> + use<> {
        [Some(self.sender.as_raw_fd()), self.receive_fd()]
            .into_iter()
            .flatten()
    }

    /// Sends frames in order; returns how many were taken, at least one.
    pub(super) fn send(&self, frames: &[&[u8]]) -> Result<usize, Errno> {
        let errno = |e: io::Error| Errno(e.raw_os_error().unwrap_or(Errno::EIO.0));
        self.sender.send(frames).map_err(errno)
    }

    // ---- frames on their way out

    pub(super) fn unstage(&mut self) {
        self.staging.clear();
        self.staged.clear();
    }

    /// Room for a frame.
    pub(super) fn stage(&mut self, len: usize) -> &mut [u8] {
        let start = self.staging.len();
        self.staging.resize(start + len, 0);
        self.staged.push(start..start + len);
        self.staging.get_mut(start..).unwrap_or_default()
    }

    pub(super) fn unstage_last(&mut self) {
        self.staged.pop();
    }

    pub(super) fn staged(&self) -> Vec<&[u8]> {
        let frames = self.staged.iter();
        frames.filter_map(|f| self.staging.get(f.clone())).collect()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.fds().for_each(fork::forget);
    }
}
