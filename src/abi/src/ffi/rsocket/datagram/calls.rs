//! What the calls do to a datagram socket. Where UDP has a meaning for one, it is that.

use core::ffi::c_int;
use std::net::SocketAddr;

use rocebud_objects::{Errno, Misuse};
use rocebud_rsocket::options::{Phase, names};

use super::super::super::boundary::{NULL, Outcome};
use super::super::super::sleep::{Call, Sleepy};
use super::super::io;
use super::end::named;
use super::{Datagram, Inner, Pieces, udp};

const FAMILY: Misuse = Misuse::new(
    Errno(libc::EAFNOSUPPORT),
    "the address is not of the socket's family",
);
const NO_PEER: Misuse = Misuse::new(
    Errno(libc::EDESTADDRREQ),
    "the socket is not connected: say where to send",
);
const ENDED: Misuse = Misuse::new(Errno(libc::EPIPE), "the socket was shut down for sending");
const GONE: Misuse = Misuse::new(Errno::EIO, "the RDMA device of the socket has gone");

/// A received datagram, as calls tell of it.
pub(in super::super) struct Received {
    /// Bytes that the program has now.
    pub(in super::super) copied: usize,
    /// There were more.
    pub(in super::super) cut: bool,
    /// Whose it is; none at the end of a socket that was shut down.
    pub(in super::super) from: Option<SocketAddr>,
}

/// The program's address, of as many bytes as it says.
fn address(at: *const u8, length: u32, v6: bool) -> Outcome<SocketAddr> {
    const SHORT: Misuse = Misuse::invalid("the address is shorter than its family's are");
    if at.is_null() {
        return Err(NULL);
    }
    let mut name = [0; 28];
    let known = (length as usize).min(name.len());
    // SAFETY: the caller vouches for `length` bytes.
    unsafe { at.copy_to_nonoverlapping(name.as_mut_ptr(), known) };
    if known < 2 {
        return Err(SHORT);
    }
    let address = udp::parse(&name).filter(|a| a.is_ipv6() == v6);
    let address = address.ok_or(FAMILY)?;
    if udp::emit(address).1 > length {
        return Err(SHORT);
    }
    Ok(address)
}

impl Datagram {
    /// `rbind`
    pub(in super::super) fn bind(&self, at: *const u8, length: u32) -> Outcome<()> {
        let mut inner = self.lock();
        let to = address(at, length, inner.v6)?;
        inner.udp.bind(to)?;
        inner.bound = to.port() != 0;
        Ok(())
    }

    /// `rconnect`: names the peer. Nothing is sent.
    pub(in super::super) fn connect(&self, at: *const u8, length: u32) -> Outcome<()> {
        let mut inner = self.lock();
        let to = address(at, length, inner.v6)?;
        inner.udp.connect(to)?;
        inner.peer = Some(named(to));
        // A peer that no device reaches is better told of now.
        inner.end_towards(to, None).map(drop)
    }

    /// `rshutdown`. The UDP socket goes on: peers are still answered.
    pub(in super::super) fn shut_down(&self, how: c_int) -> Outcome<()> {
        let mut inner = self.lock();
        inner.peer.ok_or(io::NOT_CONNECTED)?;
        inner.shut.0 |= how != libc::SHUT_WR;
        inner.shut.1 |= how != libc::SHUT_RD;
        self.stir();
        Ok(())
    }

    /// One datagram, into the program's buffers.
    pub(in super::super) fn receive(
        &self,
        call: &Call<'_>,
        pieces: &Pieces,
        flags: c_int,
    ) -> Sleepy<Received> {
        if pieces.iter().any(|(at, len)| at.is_null() && *len != 0) {
            return Err(NULL.into());
        }
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || self.lock().nonblocking;
        let mut inner = self.wait(call, nonblocking, Inner::may_read)?;
        match inner.read(pieces, flags & libc::MSG_PEEK != 0) {
            Some((len, copied, from)) => Ok(Received {
                copied,
                cut: copied < len,
                from: Some(from),
            }),
            None if inner.is_dead() => Err(GONE.into()),
            None => Ok(Received {
                copied: 0,
                cut: false,
                from: None,
            }),
        }
    }

    /// One datagram of the program's bytes. `to`: an address and its length, NULL for the peer.
    pub(in super::super) fn send(
        &self,
        call: &Call<'_>,
        pieces: &Pieces,
        flags: c_int,
        (to, length): (*const u8, u32),
    ) -> Sleepy<isize> {
        if pieces.iter().any(|(at, len)| at.is_null() && *len != 0) {
            return Err(NULL.into());
        }
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || self.lock().nonblocking;
        let mut inner = self.wait(call, nonblocking, Inner::may_send)?;
        let to = match to.is_null() {
            true => inner.peer.ok_or(NO_PEER)?,
            false => named(address(to, length, inner.v6)?),
        };
        if inner.shut.1 {
            return Err(ENDED.into());
        }
        let wait = if nonblocking { libc::MSG_DONTWAIT } else { 0 };
        let len = inner.send(to, pieces, wait)?;
        Ok(len.cast_signed())
    }

    /// `rsetsockopt`: sizes are ours; the rest is the UDP socket's, some of it both's.
    pub(in super::super) fn set_option(&self, at: (c_int, c_int), value: &[u8]) -> Outcome<()> {
        let mut inner = self.lock();
        let phase = match inner.ends.is_empty() {
            true => Phase::Idle,
            false => Phase::Begun,
        };
        if at.0 == names::SOL_RDMA {
            return inner.options.set(at, value, phase).map(drop);
        }
        inner.udp.set_option(at, value)?;
        // What only streams have is the kernel's business alone.
        let _ = inner.options.set(at, value, phase);
        Ok(())
    }

    /// `rgetsockopt`
    pub(in super::super) fn option(&self, at: (c_int, c_int)) -> Outcome<Vec<u8>> {
        let inner = self.lock();
        let is_ours = matches!(
            at,
            (names::SOL_RDMA, _) | (names::SOL_SOCKET, names::SO_SNDBUF | names::SO_RCVBUF)
        );
        if !is_ours {
            return inner.udp.option(at);
        }
        let (ints, count) = inner.options.get(at)?;
        Ok(ints
            .iter()
            .take(count)
            .flat_map(|i| i.to_ne_bytes())
            .collect())
    }

    /// Its own name, or `rconnect`'s.
    pub(in super::super) fn name(&self, peer: bool) -> Outcome<SocketAddr> {
        let inner = self.lock();
        match peer {
            true => inner.peer.ok_or(io::NOT_CONNECTED),
            false => inner.udp.name(),
        }
    }
}
