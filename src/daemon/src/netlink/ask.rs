//! Single questions to rtnetlink: the route to an address, the state of a neighbour. The kernel
//! answers while we ask, so nothing here waits.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SendFlags};

use super::codec::{attributes, ip, u16_at, u32_at};
use super::netlink_socket;

/// What the kernel says about the way to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// The address is one of this host's.
    pub(crate) local: bool,
    /// Interface by which packets leave; 0 if unknown.
    pub(crate) ifindex: u32,
    /// Who is asked to carry them: the gateway, or the destination itself.
    pub(crate) next_hop: IpAddr,
    /// Hop limit of the route, if it has one.
    pub(crate) hop_limit: Option<u8>,
}

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Neighbour {
    /// Its link address is known.
    Usable,
    /// Nothing is known, or it is being asked for.
    Unknown,
    /// It was asked for and did not answer.
    Failed,
}

/// Asks.
#[derive(Debug)]
pub(crate) struct Asker {
    socket: OwnedFd,
    buf: Vec<u8>,
}

impl Asker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            socket: netlink_socket(0)?,
            buf: vec![0; ANSWER_BYTES],
        })
    }

    /// The route to an address. `None`: the kernel does not say.
    pub(crate) fn route(&mut self, to: IpAddr, ifindex: u32) -> Option<Route> {
        let request = route_request(to, ifindex);
        let (kind, body) = self.ask(&request)?;
        (kind == NEWROUTE).then(|| parse_route(body, to)).flatten()
    }

    /// The state of a neighbour.
    pub(crate) fn neighbour(&mut self, ip: IpAddr, ifindex: u32) -> Neighbour {
        let request = neighbour_request(ip, ifindex);
        match self.ask(&request) {
            Some((NEWNEIGH, body)) => parse_neighbour(body),
            _ => Neighbour::Unknown,
        }
    }

    /// Sends a request; type and body of the first message of the answer.
    fn ask(&mut self, request: &[u8]) -> Option<(u16, &[u8])> {
        // What an earlier question left behind.
        while rustix::net::recv(&self.socket, &mut self.buf, RecvFlags::DONTWAIT).is_ok() {}
        rustix::net::send(&self.socket, request, SendFlags::empty()).ok()?;
        let got = rustix::net::recv(&self.socket, &mut self.buf, RecvFlags::DONTWAIT);
        let (n, _) = got.ok()?;
        let answer = self.buf.get(..n)?;
        let length = u32_at(answer, 0)? as usize;
        Some((u16_at(answer, 4)?, answer.get(HEADER..length)?))
    }
}

fn parse_route(body: &[u8], to: IpAddr) -> Option<Route> {
    const LOCAL: u8 = 2;
    const OIF: u16 = 4;
    const GATEWAY: u16 = 5;
    const METRICS: u16 = 8;
    const VIA: u16 = 18;
    const METRIC_HOPLIMIT: u16 = 10;
    let family = *body.first()?;
    let mut route = Route {
        local: *body.get(7)? == LOCAL,
        ifindex: 0,
        next_hop: to,
        hop_limit: None,
    };
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            OIF => route.ifindex = u32_at(value, 0)?,
            GATEWAY => route.next_hop = ip(family, value)?,
            VIA => {
                let family = u8::try_from(u16_at(value, 0)?).ok()?;
                route.next_hop = ip(family, value.get(2..)?)?;
            }
            METRICS => {
                let mut metrics = attributes(value);
                let hops = metrics.find(|(kind, _)| *kind == METRIC_HOPLIMIT);
                let hops = hops.and_then(|(_, value)| u32_at(value, 0));
                route.hop_limit = hops.and_then(|h| u8::try_from(h).ok()).filter(|h| *h > 0);
            }
            _ => {}
        }
    }
    Some(route)
}

fn parse_neighbour(body: &[u8]) -> Neighbour {
    const INCOMPLETE: u16 = 0x01;
    const FAILED: u16 = 0x20;
    match u16_at(body, 8) {
        None | Some(0 | INCOMPLETE) => Neighbour::Unknown,
        Some(FAILED) => Neighbour::Failed,
        Some(_) => Neighbour::Usable,
    }
}

fn route_request(to: IpAddr, ifindex: u32) -> Vec<u8> {
    const DST: u16 = 1;
    const OIF: u16 = 4;
    let (family, address) = bytes_of(to);
    let bits = u8::try_from(address.len() * 8).unwrap_or(0);
    let mut message = header(GETROUTE);
    message.extend([family, bits, 0, 0, 0, 0, 0, 0]);
    message.extend([0; 4]);
    attribute(&mut message, DST, &address);
    if ifindex != 0 {
        attribute(&mut message, OIF, &ifindex.to_ne_bytes());
    }
    finish(message)
}

fn neighbour_request(ip: IpAddr, ifindex: u32) -> Vec<u8> {
    const DST: u16 = 1;
    let (family, address) = bytes_of(ip);
    let mut message = header(GETNEIGH);
    message.extend([family, 0, 0, 0]);
    message.extend(ifindex.to_ne_bytes());
    message.extend([0; 4]);
    attribute(&mut message, DST, &address);
    finish(message)
}

fn bytes_of(ip: IpAddr) -> (u8, Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => (2, ip.octets().to_vec()),
        IpAddr::V6(ip) => (10, ip.octets().to_vec()),
    }
}

fn header(kind: u16) -> Vec<u8> {
    const REQUEST: u16 = 1;
    let mut message = vec![0; HEADER];
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    message[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    message
}

fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

fn finish(mut message: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(0);
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

const HEADER: usize = 16;
const NEWROUTE: u16 = 24;
const GETROUTE: u16 = 26;
const NEWNEIGH: u16 = 28;
const GETNEIGH: u16 = 30;
const ANSWER_BYTES: usize = 8192;

#[cfg(test)]
mod tests;
