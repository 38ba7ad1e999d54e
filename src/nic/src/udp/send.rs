//! Batches out.

use super::addr::write_name;
use crate::sys::{self, Envelope, MESSAGES_MAX};
use crate::{SendReport, TxBatch};
use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Turns batches into messages and hands them to the kernel.
pub(super) struct Sender {
    envelopes: Vec<Envelope>,
    /// Destinations whose path refused batches.
    no_gso: HashSet<IpAddr>,
    pub(super) peer_port: u16,
}

/// Send sockets by family, with their ports.
pub(super) struct SendSockets {
    pub(super) v4: Vec<(u16, OwnedFd)>,
    pub(super) v6: Vec<(u16, OwnedFd)>,
}

impl SendSockets {
    /// The socket that serves a wanted source port. The choice is a hash, so that flows spread
    /// whatever part of the port varies.
    pub(super) fn choose(&self, v6: bool, wanted: u16) -> Option<&(u16, OwnedFd)> {
        let sockets = if v6 { &self.v6 } else { &self.v4 };
        if sockets.len() < 2 {
            return sockets.first();
        }
        let hash = u32::from(wanted).wrapping_mul(0x9E37_79B1) >> 16;
        sockets.get(hash as usize % sockets.len())
    }
}

/// What to do after the kernel refused a message.
enum Refusal {
    /// Nothing left: the socket or the device is full.
    Full,
    /// An old error of the socket, or a signal: the message itself was not looked at.
    Again,
    /// This message cannot leave.
    Final,
}

impl Sender {
    pub(super) fn new(peer_port: u16) -> Self {
        Self {
            envelopes: vec![Envelope::empty(); MESSAGES_MAX],
            no_gso: HashSet::new(),
            peer_port,
        }
    }

    /// Whether batches of several segments may go to this destination.
    pub(super) fn gso(&self, dst: IpAddr) -> bool {
        self.no_gso.is_empty() || !self.no_gso.contains(&dst)
    }

    /// Allows or forbids batches of several segments to a destination.
    pub(super) fn set_gso(&mut self, dst: IpAddr, on: bool) {
        if on {
            self.no_gso.remove(&dst);
        } else {
            self.no_gso.insert(dst);
        }
    }

    /// Destinations whose path refused batches.
    pub(super) fn gso_refused(&self) -> Vec<IpAddr> {
        self.no_gso.iter().copied().collect()
    }

    pub(super) fn send(&mut self, sockets: &SendSockets, batches: &[TxBatch<'_>]) -> SendReport {
        let mut report = SendReport::default();
        while let Some(first) = batches.get(report.sent) {
            let rest = batches.get(report.sent..).unwrap_or(&[]);
            let Some((_, fd)) = sockets.choose(first.dst.is_ipv6(), first.sport) else {
                report.refuse(libc::EAFNOSUPPORT);
                continue;
            };
            let apart = first.segments() > 1 && (first.singly || !self.gso(first.dst));
            let went_on = if apart && must_seal(first) {
                report.seal_singly = true;
                false
            } else if apart {
                self.send_singles(fd.as_fd(), first, &mut report)
            } else {
                let run = self.run_length(sockets, fd, rest);
                self.send_run(fd.as_fd(), rest.get(..run).unwrap_or(rest), &mut report)
            };
            if !went_on {
                break;
            }
        }
        report
    }

    /// How many batches from the front leave by this socket, in one call.
    fn run_length(&self, sockets: &SendSockets, fd: &OwnedFd, batches: &[TxBatch<'_>]) -> usize {
        let fits = |batch: &&TxBatch<'_>| {
            (batch.segments() == 1 || !batch.singly && self.gso(batch.dst))
                && sockets
                    .choose(batch.dst.is_ipv6(), batch.sport)
                    .is_some_and(|(_, other)| std::ptr::eq(other, fd))
        };
        batches
            .iter()
            .skip(1)
            .take(MESSAGES_MAX - 1)
            .take_while(fits)
            .count()
            + 1
    }

    /// Sends batches of one socket. Returns false when the socket is full.
    fn send_run(
        &mut self,
        fd: BorrowedFd<'_>,
        run: &[TxBatch<'_>],
        report: &mut SendReport,
    ) -> bool {
        let mut payloads = [&[][..]; MESSAGES_MAX];
        for ((envelope, payload), batch) in self.envelopes.iter_mut().zip(&mut payloads).zip(run) {
            address(envelope, batch, self.peer_port, batch.segments() > 1);
            *payload = batch.data;
        }
        let (mut at, mut tries) = (0, 0);
        while let Some(batch) = run.get(at) {
            match sys::send_many(fd, &self.envelopes[at..run.len()], &payloads[at..run.len()]) {
                Ok(n) => {
                    at += n;
                    report.sent += n;
                    tries = 0;
                }
                Err(errno) if batch.segments() > 1 && is_gso_refusal(errno) => {
                    if must_seal(batch) {
                        report.seal_singly = true;
                        return false;
                    }
                    // The singles overwrite the envelopes: the caller comes again with the rest.
                    return self.send_singles(fd, batch, report);
                }
                Err(errno) => match judge(errno, tries) {
                    Refusal::Full => return false,
                    Refusal::Again => tries += 1,
                    Refusal::Final => {
                        report.refuse(errno);
                        at += 1;
                        tries = 0;
                    }
                },
            }
        }
        true
    }

    /// Sends the segments of one batch as packets of their own. Returns false when the socket was
    /// full before the first; when it fills later, the others are lost as on any wire.
    fn send_singles(
        &mut self,
        fd: BorrowedFd<'_>,
        batch: &TxBatch<'_>,
        report: &mut SendReport,
    ) -> bool {
        address(&mut self.envelopes[0], batch, self.peer_port, false);
        let envelope = self.envelopes[0].clone();
        self.envelopes.fill(envelope);
        let mut segments = batch.data.chunks(usize::from(batch.segment.max(1)));
        let mut payloads = [&[][..]; MESSAGES_MAX];
        let (mut any, mut tries) = (false, 0);
        let mut waiting = 0;
        loop {
            while waiting < MESSAGES_MAX
                && let Some(segment) = segments.next()
            {
                payloads[waiting] = segment;
                waiting += 1;
            }
            match sys::send_many(fd, &self.envelopes, &payloads[..waiting]) {
                Ok(0) => break,
                Ok(n) => {
                    any = true;
                    payloads.copy_within(n..waiting, 0);
                    waiting -= n;
                }
                Err(errno) => match judge(errno, tries) {
                    Refusal::Again => tries += 1,
                    Refusal::Full if !any => return false,
                    Refusal::Full => break,
                    Refusal::Final if !any => {
                        report.refuse(errno);
                        return true;
                    }
                    Refusal::Final => break,
                },
            }
        }
        // Only a path that takes the singles is one that refuses batches.
        if self.no_gso.insert(batch.dst) {
            report.gso_lost += 1;
        }
        report.sent += 1;
        true
    }
}

/// Its packets cannot leave one by one: they are sealed for their places in the batch.
fn must_seal(batch: &TxBatch<'_>) -> bool {
    batch.dst.is_ipv4() && !batch.singly
}

impl SendReport {
    fn refuse(&mut self, errno: i32) {
        self.sent += 1;
        self.failed += 1;
        self.errno = errno;
    }
}

/// Fills in the destination and the control messages of a batch.
fn address(envelope: &mut Envelope, batch: &TxBatch<'_>, port: u16, segmented: bool) {
    // Elsewhere the routing table knows better: the source's interface need not be the way out.
    let scope = if needs_interface(batch.dst) {
        batch.ifindex
    } else {
        0
    };
    envelope.name_len = write_name(batch.dst, port, scope, &mut envelope.name);
    envelope.control_len = 0;
    let tos = i32::from(batch.traffic_class);
    let ttl = i32::from(batch.hop_limit);
    let (level, tos_kind, ttl_kind) = match batch.dst {
        IpAddr::V4(_) => (libc::SOL_IP, libc::IP_TOS, libc::IP_TTL),
        IpAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    let src_given = !batch.src.is_unspecified() && batch.src.is_ipv6() == batch.dst.is_ipv6();
    if src_given || scope != 0 {
        match batch.src {
            IpAddr::V4(src) => {
                // struct in_pktinfo: interface, source, (unused).
                let mut info = [0u8; 12];
                info[..4].copy_from_slice(&scope.to_ne_bytes());
                info[4..8].copy_from_slice(&src.octets());
                envelope.push(level, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(src) => {
                let mut info = [0u8; 20];
                info[..16].copy_from_slice(&src.octets());
                info[16..].copy_from_slice(&scope.to_ne_bytes());
                envelope.push(level, libc::IPV6_PKTINFO, &info);
            }
        }
    }
    if tos != 0 {
        envelope.push(level, tos_kind, &tos.to_ne_bytes());
    }
    if ttl != 0 {
        envelope.push(level, ttl_kind, &ttl.to_ne_bytes());
    }
    if segmented {
        envelope.push(
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            &batch.segment.to_ne_bytes(),
        );
    }
}

/// Addresses that mean nothing without an interface.
fn needs_interface(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
    }
}

/// EIO: the device cannot checksum; EINVAL, EMSGSIZE: a limit of this path or kernel.
fn is_gso_refusal(errno: i32) -> bool {
    matches!(
        errno,
        libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP
    )
}

fn judge(errno: i32, tries: u32) -> Refusal {
    match errno {
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => Refusal::Full,
        libc::EINTR => Refusal::Again,
        // May be the pending error of an earlier packet, left by a (forgeable) ICMP message.
        libc::ECONNREFUSED
        | libc::EHOSTUNREACH
        | libc::ENETUNREACH
        | libc::EHOSTDOWN
        | libc::EPROTO
        | libc::ENOPROTOOPT
        | libc::EACCES
            if tries < 2 =>
        {
            Refusal::Again
        }
        _ => Refusal::Final,
    }
}
