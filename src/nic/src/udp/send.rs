//! Batches out.

use super::addr::write_name;
use super::settings::SendSocket;
use crate::sys::{self, Envelope, MESSAGES_MAX};
use crate::{SendReport, TxBatch};
use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::AsFd;

/// Turns batches into messages and hands them to the kernel.
pub(super) struct Sender {
    envelopes: Vec<Envelope>,
    /// Destinations whose path refused batches.
    no_gso: HashSet<IpAddr>,
    pub(super) peer_port: u16,
}

/// Send sockets by family.
pub(super) struct SendSockets {
    pub(super) v4: Vec<SendSocket>,
    pub(super) v6: Vec<SendSocket>,
}

impl SendSockets {
    /// The socket that serves a wanted source port. The choice is a hash, so that flows spread
    /// whatever part of the port varies.
    pub(super) fn choose(&self, v6: bool, wanted: u16) -> Option<&SendSocket> {
        let sockets = if v6 { &self.v6 } else { &self.v4 };
        sockets.get(place(sockets.len(), wanted))
    }

    fn choose_mut(&mut self, v6: bool, wanted: u16) -> Option<&mut SendSocket> {
        let sockets = if v6 { &mut self.v6 } else { &mut self.v4 };
        let at = place(sockets.len(), wanted);
        sockets.get_mut(at)
    }

    /// Both leave by one socket.
    fn same(&self, a: &TxBatch<'_>, b: &TxBatch<'_>) -> bool {
        let v6 = a.dst.is_ipv6();
        let len = if v6 { self.v6.len() } else { self.v4.len() };
        v6 == b.dst.is_ipv6() && (a.sport == b.sport || place(len, a.sport) == place(len, b.sport))
    }
}

/// Which of `len` sockets serves a wanted source port.
fn place(len: usize, wanted: u16) -> usize {
    if len < 2 {
        return 0;
    }
    let hash = u32::from(wanted).wrapping_mul(0x9E37_79B1) >> 16;
    hash as usize % len
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

    pub(super) fn send(
        &mut self,
        sockets: &mut SendSockets,
        batches: &[TxBatch<'_>],
    ) -> SendReport {
        let mut report = SendReport::default();
        while let Some(first) = batches.get(report.sent) {
            let rest = batches.get(report.sent..).unwrap_or(&[]);
            let run = self.run_length(sockets, rest);
            let Some(socket) = sockets.choose_mut(first.dst.is_ipv6(), first.sport) else {
                report.refuse(libc::EAFNOSUPPORT);
                continue;
            };
            let apart = first.segments() > 1 && (first.singly || !self.gso(first.dst));
            let went_on = if apart && must_seal(first) {
                report.seal_singly = true;
                false
            } else if apart {
                self.send_singles(socket, first, &mut report)
            } else {
                self.send_run(socket, rest.get(..run).unwrap_or(rest), &mut report)
            };
            if !went_on {
                break;
            }
        }
        report
    }

    /// How many batches from the front leave by the first one's socket, in one call.
    fn run_length(&self, sockets: &SendSockets, batches: &[TxBatch<'_>]) -> usize {
        let Some((first, rest)) = batches.split_first() else {
            return 0;
        };
        let fits = |batch: &&TxBatch<'_>| {
            (batch.segments() == 1 || !batch.singly && self.gso(batch.dst))
                && sockets.same(first, batch)
        };
        let others = rest.iter().take(MESSAGES_MAX - 1);
        others.take_while(fits).count() + 1
    }

    /// Sends batches of one socket. Returns false when the socket is full.
    fn send_run(
        &mut self,
        socket: &mut SendSocket,
        run: &[TxBatch<'_>],
        report: &mut SendReport,
    ) -> bool {
        let mut payloads = [&[][..]; MESSAGES_MAX];
        if let Some(first) = run.first() {
            socket.consider(first);
        }
        for ((envelope, payload), batch) in self.envelopes.iter_mut().zip(&mut payloads).zip(run) {
            address(envelope, batch, self.peer_port);
            socket.settle(envelope, batch, batch.segments() > 1);
            *payload = batch.data;
        }
        let (mut at, mut tries) = (0, 0);
        while let Some(batch) = run.get(at) {
            let (envelopes, payloads) = (&self.envelopes[at..run.len()], &payloads[at..run.len()]);
            match sys::send_many(socket.fd.as_fd(), envelopes, payloads) {
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
                    return self.send_singles(socket, batch, report);
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
        socket: &mut SendSocket,
        batch: &TxBatch<'_>,
        report: &mut SendReport,
    ) -> bool {
        address(&mut self.envelopes[0], batch, self.peer_port);
        socket.settle(&mut self.envelopes[0], batch, false);
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
            match sys::send_many(socket.fd.as_fd(), &self.envelopes, &payloads[..waiting]) {
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

/// Fills in where a batch goes to and comes from.
fn address(envelope: &mut Envelope, batch: &TxBatch<'_>, port: u16) {
    // Elsewhere the routing table knows better: the source's interface need not be the way out.
    let scope = if needs_interface(batch.dst) {
        batch.ifindex
    } else {
        0
    };
    envelope.name_len = write_name(batch.dst, port, scope, &mut envelope.name);
    envelope.control_len = 0;
    let src_given = !batch.src.is_unspecified() && batch.src.is_ipv6() == batch.dst.is_ipv6();
    if src_given || scope != 0 {
        match batch.src {
            IpAddr::V4(src) => {
                // struct in_pktinfo: interface, source, (unused).
                let mut info = [0u8; 12];
                info[..4].copy_from_slice(&scope.to_ne_bytes());
                info[4..8].copy_from_slice(&src.octets());
                envelope.push(libc::SOL_IP, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(src) => {
                let mut info = [0u8; 20];
                info[..16].copy_from_slice(&src.octets());
                info[16..].copy_from_slice(&scope.to_ne_bytes());
                envelope.push(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
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
