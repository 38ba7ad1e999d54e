//! What a send socket says of every packet, so that messages need not.
//!
//! Hop limit and traffic class travel with a message (as control messages) or stand as options of
//! the socket. A message costs the kernel a part of its way that shows for them, an option a system
//! call once: so what a flow keeps asking for becomes an option. The segment size always travels with
//! the message: where a device cannot checksum, kernels refuse whatever leaves a socket that has one,
//! also what is too short to be cut.

use crate::TxBatch;
use crate::sys::{self, Envelope};
use std::os::fd::{AsFd, OwnedFd};

/// Calls in a row that ask for the same before it becomes an option.
const ADOPT_AFTER: u32 = 16;

/// A send socket, the port it is bound to and its options.
#[derive(Debug)]
pub(super) struct SendSocket {
    pub(super) port: u16,
    pub(super) fd: OwnedFd,
    v6: bool,
    /// The options as they are.
    now: Settings,
    /// What messages last asked for, and how many in a row.
    asked: Settings,
    in_a_row: u32,
    /// The kernel refused an option: messages go on to say everything.
    refused: bool,
}

/// What a packet may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Settings {
    /// 0 = the system's.
    hop_limit: u8,
    traffic_class: u8,
}

impl SendSocket {
    /// Takes fresh sockets over, with their ports.
    pub(super) fn all(sockets: Vec<(u16, OwnedFd)>, v6: bool) -> Vec<Self> {
        let each = |(port, fd)| Self::new(port, fd, v6);
        sockets.into_iter().map(each).collect()
    }

    fn new(port: u16, fd: OwnedFd, v6: bool) -> Self {
        Self {
            port,
            fd,
            v6,
            now: Settings::default(),
            asked: Settings::default(),
            in_a_row: 0,
            refused: false,
        }
    }

    /// Makes options of what has been asked for many times in a row. `batch` is the first of those that
    /// leave in one call: between [`SendSocket::settle`] and that call no option may change.
    pub(super) fn consider(&mut self, batch: &TxBatch<'_>) {
        // Groups have a hop limit of their own among the options.
        if batch.dst.is_multicast() {
            return;
        }
        let asks = Settings {
            hop_limit: batch.hop_limit,
            traffic_class: batch.traffic_class,
        };
        // No message can ask for the system's own hop limit.
        if asks.hop_limit == 0 && self.now.hop_limit != 0 {
            self.set(Settings::default());
        }
        if asks != self.asked {
            (self.asked, self.in_a_row) = (asks, 0);
            return;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row == ADOPT_AFTER && asks != self.now && !self.refused {
            self.set(asks);
        }
    }

    /// Adds to `envelope` what the socket does not say by itself. `segmented`: the message is to be
    /// cut into the batch's segments; else it leaves as it is.
    pub(super) fn settle(&self, envelope: &mut Envelope, batch: &TxBatch<'_>, segmented: bool) {
        let now = self.now;
        let (level, class_kind, hops_kind) = kinds(self.v6);
        if batch.traffic_class != now.traffic_class {
            let class = i32::from(batch.traffic_class);
            envelope.push(level, class_kind, &class.to_ne_bytes());
        }
        let other_hops = batch.hop_limit != now.hop_limit || batch.dst.is_multicast();
        if other_hops && batch.hop_limit != 0 {
            let hops = i32::from(batch.hop_limit);
            envelope.push(level, hops_kind, &hops.to_ne_bytes());
        }
        if segmented {
            let segment = batch.segment.to_ne_bytes();
            envelope.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment);
        }
    }

    /// Sets options. What the kernel refuses stays as it was, and is asked for by messages.
    fn set(&mut self, to: Settings) {
        let (level, class_kind, _) = kinds(self.v6);
        let hops_kind = if self.v6 {
            libc::IPV6_UNICAST_HOPS
        } else {
            libc::IP_TTL
        };
        let hops = match to.hop_limit {
            0 => -1,
            hops => i32::from(hops),
        };
        let fd = self.fd.as_fd();
        let set = |kind, value: i32| sys::set_option(fd, level, kind, &value.to_ne_bytes()).is_ok();
        let hops_done = set(hops_kind, hops);
        let class_done = set(class_kind, i32::from(to.traffic_class));
        if hops_done {
            self.now.hop_limit = to.hop_limit;
        }
        if class_done {
            self.now.traffic_class = to.traffic_class;
        }
        self.refused |= !(hops_done && class_done);
    }
}

/// Level of the address family, and its control messages for traffic class and hop limit.
const fn kinds(v6: bool) -> (i32, i32, i32) {
    if v6 {
        (libc::SOL_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
    } else {
        (libc::SOL_IP, libc::IP_TOS, libc::IP_TTL)
    }
}
