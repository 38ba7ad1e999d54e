//! Who is reached how: by UDP until the other end has told its QPN and an address handle to it is
//! made, by UD from then on.

use alloc::collections::BTreeMap;
use core::net::SocketAddr;

use super::{Op, UdpHeader};
use crate::limits::DESTINATIONS_MAX;

/// How a datagram to a destination goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By UDP, with a [`UdpHeader`] of [`Op::Data`].
    Udp,
    /// By UD, to this queue pair, with the destination's address handle.
    Ud {
        /// The other end's.
        qpn: u32,
    },
}

/// What a UDP datagram asks for. In this order: resolve, answer, deliver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heard<'a> {
    /// Make an address handle to its sender and call [`Destinations::resolved`] with this QPN.
    pub resolve: Option<u32>,
    /// Answer by UDP with a [`UdpHeader`] of [`Op::Control`] and no data.
    pub answer: bool,
    /// Give these to the program, as from the datagram's source.
    pub deliver: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The queue pair that an address handle was made for.
    qpn: u32,
    /// Counts uses, so that the one that rests longest can go.
    used: u64,
}

/// What one datagram socket knows of others: at most [`DESTINATIONS_MAX`] of them.
#[derive(Debug, Default)]
pub struct Destinations {
    known: BTreeMap<SocketAddr, Known>,
    uses: u64,
}

impl Destinations {
    /// How to reach `to` now.
    pub fn way(&mut self, to: SocketAddr) -> Way {
        self.uses += 1;
        let uses = self.uses;
        match self.known.get_mut(&to) {
            Some(known) => {
                known.used = uses;
                Way::Ud { qpn: known.qpn }
            }
            None => Way::Udp,
        }
    }

    /// A datagram came by UDP to a socket of a family. `None`: no rsocket sent it; it is ignored.
    #[must_use]
    pub fn heard<'a>(&self, from: SocketAddr, bytes: &'a [u8], v6: bool) -> Option<Heard<'a>> {
        let (header, payload) = UdpHeader::parse(bytes, v6)?;
        let known = self.known.get(&from).map(|k| k.qpn);
        let data = header.op == Op::Data;
        Some(Heard {
            // another number: the program behind that name was started again
            resolve: (known != Some(header.qpn)).then_some(header.qpn),
            answer: data,
            deliver: data.then_some(payload),
        })
    }

    /// There is an address handle to `of` now, whose queue pair is `qpn`. Returns who had to be
    /// forgotten for it: that one's handle can go.
    pub fn resolved(&mut self, of: SocketAddr, qpn: u32) -> Option<SocketAddr> {
        self.uses += 1;
        let known = Known {
            qpn,
            used: self.uses,
        };
        self.known.insert(of, known);
        if self.known.len() <= DESTINATIONS_MAX {
            return None;
        }
        let (&oldest, _) = self.known.iter().min_by_key(|(_, k)| k.used)?;
        self.known.remove(&oldest);
        Some(oldest)
    }

    /// The handle to `of` is gone, or leads nowhere.
    pub fn forget(&mut self, of: SocketAddr) {
        self.known.remove(&of);
    }

    /// Destinations with a handle.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// None.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}
